//! The kinds of system, as the daemon, the commands and the dashboard see them. A new kind is a folder here
//! and a line in [`KINDS`]; everything else asks the kind and names none.

pub mod availability;
pub mod inflight;
pub mod leases;
pub mod registry;
pub mod sessions;
pub mod words;

use std::sync::Arc;

use futures::future::BoxFuture;
use lapsed_core::Kind;
use lapsed_core::clock::Clock;
use lapsed_core::receipt::Receipt;
use utoipa_axum::router::OpenApiRouter;

use crate::config::ConfigError;
use crate::config::common::Section;
use crate::config::store::StoreConfig;
use crate::config::token::Scope;
use crate::http::Shared;
use crate::metrics::{KindMetrics, Metrics};
use crate::node::shapes::SystemStatus;
use crate::node::{OpenSystems, SystemPlan};
use crate::stores::OpenStore;
use words::{KindWords, fill};

/// One kind of system: its section of the configuration, its routes, its metrics and its words.
pub trait SystemKind: Send + Sync {
    fn kind(&self) -> Kind;

    /// Reads and checks one `[[system]]`; a section that is absent gives the defaults.
    fn plan(&self, section: &Section<'_>) -> Result<Box<dyn SystemPlan>, ConfigError>;

    /// Its operations over HTTP, under `/v1/KIND/{name}/`.
    fn routes(&self) -> OpenApiRouter<Shared>;

    /// Which scope those of them need that change something, where it is not `write`; and those that
    /// only look, although they are sent a body.
    fn scopes(&self) -> &'static [(&'static str, Scope)] {
        &[]
    }

    /// Those of them that take as long as they take: no request timeout.
    fn slow_operations(&self) -> &'static [&'static str] {
        &[]
    }

    /// What people read about it.
    fn words(&self) -> &'static KindWords;

    /// The configurations that `lapsed init` can write for it.
    fn presets(&self) -> &'static [Preset] {
        &[]
    }

    /// Its series besides the uniform ones.
    fn metrics(&self, _clock: &Arc<dyn Clock>) -> Option<Box<dyn KindMetrics>> {
        None
    }

    /// Reads its own gauges anew for a scrape. Where a store does not answer they stay as they were.
    fn scrape<'a>(&'a self, _metrics: &'a Metrics, _systems: &'a OpenSystems) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    /// What was done about an entry, where the receipt's reason does not say it.
    fn effect(&self, _receipt: &Receipt) -> Option<String> {
        None
    }

    /// What `lapsed restore` says when an entry is back.
    fn restored(&self, key: &str, owner: &str, incarnation: u64) -> String {
        let places = [("key", key), ("owner", owner), ("incarnation", &incarnation.to_string())];
        fill(self.words().restored, &places)
    }

    /// What its status says besides what every kind has: name and value.
    fn facts(&self, _status: &SystemStatus) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What `lapsed check` says of a store that systems of this kind use, where the server could be set up
    /// better for them.
    fn store_notes<'a>(
        &'a self,
        _plans: &'a [Box<dyn SystemPlan>],
        _store: &'a StoreConfig,
        _opened: &'a OpenStore,
    ) -> BoxFuture<'a, lapsed_core::Result<Vec<String>>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// A configuration that `lapsed init` can write.
#[derive(Debug)]
pub struct Preset {
    /// As it is typed.
    pub name: &'static str,
    /// Its place in the list of all presets.
    pub order: u8,
    /// What `--help` says of it.
    pub help: &'static str,
    /// What it is for, in one line.
    pub about: &'static str,
    /// Its text for each driver of stores (by the driver's name) that it is written for, the usual one first.
    /// `@STORE@` and `@MIRROR@` are places.
    pub templates: &'static [(&'static str, &'static str)],
    /// The driver on which it has a mirror, if any.
    pub mirrored_on: Option<&'static str>,
}

/// Every kind there is.
pub static KINDS: &[&dyn SystemKind] = &[
    &registry::RegistryKind,
    &sessions::SessionsKind,
    &inflight::InflightKind,
    &leases::LeasesKind,
    &availability::AvailabilityKind,
];

/// The kind and the operation that `path` asks for: what follows `/v1/KIND/NAME/`.
pub fn operation(path: &str) -> Option<(&'static dyn SystemKind, &str)> {
    let mut parts = path.strip_prefix("/v1/")?.splitn(3, '/');
    let (kind, _name, operation) = (parts.next()?, parts.next()?, parts.next()?);
    Some((named(kind)?, operation))
}

/// What implements `kind`.
pub fn of(kind: Kind) -> &'static dyn SystemKind {
    *KINDS.iter().find(|system| system.kind() == kind).expect("every kind is in the table")
}

/// The kind of that name; none where a newer daemon speaks of one that this version does not know.
pub fn named(name: &str) -> Option<&'static dyn SystemKind> {
    KINDS.iter().find(|system| system.kind().as_str() == name).copied()
}

/// The words of the kind of that name.
pub fn words_of(name: &str) -> &'static KindWords {
    named(name).map_or(&words::GENERAL, |system| system.words())
}

/// The series of all kinds.
pub fn metrics(clock: &Arc<dyn Clock>) -> Vec<(Kind, Box<dyn KindMetrics>)> {
    let of = |system: &&dyn SystemKind| Some((system.kind(), system.metrics(clock)?));
    KINDS.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_in_the_table() {
        Kind::ALL.iter().for_each(|kind| assert_eq!(of(*kind).kind(), *kind));
    }
}
