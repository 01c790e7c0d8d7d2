//! The kinds of system, as the daemon, the commands and the dashboard see them. A new kind is a
//! folder here and a line in [`KINDS`]; all other code goes through [`SystemKind`] and names no
//! kind.

pub mod availability;
pub mod inflight;
pub mod leases;
pub mod registry;
pub mod sessions;
pub mod words;

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use axum::http::Method;
use futures::future::BoxFuture;
use lapsed_core::clock::Clock;
use lapsed_core::receipt::Receipt;
use lapsed_core::{Kind, Name};
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;

use crate::config::ConfigError;
use crate::config::common::Section;
use crate::config::store::StoreConfig;
use crate::http::Shared;
use crate::http::problem::Problem;
use crate::http::route_rules::{operation_name, operations};
use crate::metrics::{KindMetrics, Metrics};
use crate::node::shapes::SystemStatus;
use crate::node::{OpenSystems, SystemPlan};
use crate::stores::OpenStore;
use words::{KindWords, fill};

/// One kind of system: its section of the configuration, its routes, its metrics and the words that
/// people read about it.
pub trait SystemKind: Send + Sync {
    fn kind(&self) -> Kind;

    /// Reads and checks one `[[system]]` section. An absent section gives the defaults.
    fn plan(&self, section: &Section<'_>) -> Result<Box<dyn SystemPlan>, ConfigError>;

    /// The operations of the kind over HTTP, under `/v1/KIND/{name}/`. A route that does not need `read` for GET
    /// and `write` otherwise, or that may take long, declares that: see [`crate::http::route_rules`].
    fn routes(&self) -> OpenApiRouter<Shared>;

    /// The tickets that a request shows, each with the holder of its entry: for routes that declare
    /// [`OwnerRule::Holder`]. Called only for bearers that are limited to owners.
    ///
    /// [`OwnerRule::Holder`]: crate::http::route_rules::OwnerRule::Holder
    fn shown_tickets<'a>(
        &'a self,
        _app: &'a Shared,
        _request: &'a TicketRequest,
    ) -> BoxFuture<'a, Result<Vec<ShownTicket>, Problem>> {
        Box::pin(async { Err(Problem::internal("this kind has no tickets")) })
    }

    /// Labels and sentences about this kind that people read.
    fn words(&self) -> &'static KindWords;

    /// Names that presets of this kind had before, each with what to use instead.
    fn former_presets(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// The configurations of this kind that `lapsed init` can write.
    fn presets(&self) -> &'static [Preset] {
        &[]
    }

    /// The metric series that only this kind has, if any.
    fn metrics(&self, _clock: &Arc<dyn Clock>) -> Option<Box<dyn KindMetrics>> {
        None
    }

    /// Reads the gauges of this kind from the stores, for a scrape. Gauges of a store that does not
    /// answer keep their values.
    fn scrape<'a>(&'a self, _metrics: &'a Metrics, _systems: &'a OpenSystems) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    /// What was done with an entry, if the receipt's reason does not say it.
    fn effect(&self, _receipt: &Receipt) -> Option<String> {
        None
    }

    /// The sentence that `lapsed restore` prints after an entry was put back.
    fn restored(&self, key: &str, owner: &str, incarnation: u64) -> String {
        let places = [("key", key), ("owner", owner), ("incarnation", &incarnation.to_string())];
        fill(self.words().restored, &places)
    }

    /// Lines of the status that only this kind has, as pairs of name and value.
    fn facts(&self, _status: &SystemStatus) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Advice that `lapsed check` prints about a store that systems of this kind use, if the
    /// server's configuration could suit them better. `{again}` in it is replaced by the options with which a further
    /// command reaches the same stores.
    fn store_notes<'a>(
        &'a self,
        _plans: &'a [Box<dyn SystemPlan>],
        _store: &'a StoreConfig,
        _opened: &'a OpenStore,
    ) -> BoxFuture<'a, lapsed_core::Result<Vec<String>>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// A request that shows the token of one or several entries.
pub struct TicketRequest {
    pub method: Method,
    /// The name of the system.
    pub system: String,
    /// The decoded parameters of the path.
    pub params: Vec<(String, String)>,
    /// The query string, not decoded.
    pub query: String,
    /// The body; `null` if it is empty.
    pub body: Value,
}

/// The most tickets of a request whose holders are looked up.
pub const TICKETS_MAX: usize = 1_000;

/// A token that a request shows, and the holder of the entry that it is for.
pub struct ShownTicket {
    /// The token that the request shows.
    pub token: u64,
    /// The owner that holds the entry and the token of its claim; `None` if nobody holds it.
    pub holder: Option<(Name, u64)>,
}

/// A ready-made configuration that `lapsed init` can write.
#[derive(Debug)]
pub struct Preset {
    /// The name that the user types after `--preset`.
    pub name: &'static str,
    /// The position in the list of all presets.
    pub order: u8,
    /// The description in the output of `--help`.
    pub help: &'static str,
    /// What the preset is for, in one line.
    pub about: &'static str,
    /// The text of the configuration for each store driver that the preset supports, by the
    /// driver's name, the default driver first. `@STORE@` and `@MIRROR@` are replaced by the
    /// addresses of the stores.
    pub templates: &'static [(&'static str, &'static str)],
    /// The driver with which the preset has a mirror, if any.
    pub mirrored_on: Option<&'static str>,
}

/// All kinds of system.
pub static KINDS: &[&dyn SystemKind] = &[
    &registry::RegistryKind,
    &sessions::SessionsKind,
    &inflight::InflightKind,
    &leases::LeasesKind,
    &availability::AvailabilityKind,
];

/// The names of the operations of all kinds, each once, in alphabetical order.
pub fn operation_names() -> &'static [String] {
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
        let mut names = BTreeSet::new();
        for kind in KINDS {
            for (path, mut item) in kind.routes().to_openapi().paths.paths {
                let all = operations(&mut item).into_iter().flatten();
                names.extend(all.map(|operation| operation_name(&path, operation)));
            }
        }
        names.into_iter().collect()
    });
    &NAMES
}

/// The implementation of `kind`.
pub fn of(kind: Kind) -> &'static dyn SystemKind {
    *KINDS.iter().find(|system| system.kind() == kind).expect("every kind is in the table")
}

/// The kind called `name`; `None` if this version does not know it, because a newer daemon sent the
/// name.
pub fn named(name: &str) -> Option<&'static dyn SystemKind> {
    KINDS.iter().find(|system| system.kind().as_str() == name).copied()
}

/// The words of the kind called `name`; general ones if this version does not know it.
pub fn words_of(name: &str) -> &'static KindWords {
    named(name).map_or(&words::GENERAL, |system| system.words())
}

/// The metric series of all kinds that have any.
pub fn metrics(clock: &Arc<dyn Clock>) -> Vec<(Kind, Box<dyn KindMetrics>)> {
    let of = |system: &&dyn SystemKind| Some((system.kind(), system.metrics(clock)?));
    KINDS.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests;
