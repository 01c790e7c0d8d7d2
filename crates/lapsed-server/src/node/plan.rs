//! A system as it is configured, and what is needed to open it. Each kind of system implements
//! [`SystemPlan`].

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use lapsed::assembly::Assembly;
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::Store;
use lapsed_core::sweep::brake::BrakePolicy;
use lapsed_core::system::System;

use super::LiveSystem;
use super::shapes::SystemStatus;
use crate::config::common::SystemSettings;
use crate::config::server::ServerConfig;
use crate::config::store::StoreConfig;
use crate::config::telemetry::TelemetryPlan;
use crate::config::units::show_span;
use crate::config::webhook::WebhookConfig;
use crate::stores::OpenStore;

/// A whole configuration that has been read and checked.
#[derive(Debug)]
pub struct Config {
    /// The name of the file that the configuration was read from.
    pub file: Option<String>,
    pub server: ServerConfig,
    pub stores: BTreeMap<String, StoreConfig>,
    /// The systems, in the order of the file.
    pub systems: Vec<Box<dyn SystemPlan>>,
    /// The webhooks, in the order of the file.
    pub webhooks: Vec<WebhookConfig>,
    /// Where traces are exported to; `None` if they are not.
    pub telemetry: Option<TelemetryPlan>,
}

/// When the brake holds for a system that counts owners.
pub fn describe_brake_of_owners(common: &SystemSettings) -> String {
    let SystemSettings { brake, threshold, .. } = common;
    format!(
        "the brake holds when more than {:.0} % of at least {} owners would be dead at once (of a \
         smaller fleet, from three owners on: all but one), and for {} after the store was away; {}",
        brake.share * 100.0,
        brake.min_owners,
        show_span(*threshold),
        describe_end(brake)
    )
}

/// When the brake holds for a system whose keys are written by the application and show entries
/// (`what`), but no owners.
pub fn describe_brake_of_entries(common: &SystemSettings, what: &str) -> String {
    let SystemSettings { brake, threshold, .. } = common;
    let threshold = show_span(*threshold);
    format!(
        "the brake holds when more than {:.0} % of at least {} {what} became due within the {threshold} \
         before a pass, and for {threshold} after the store was away; {}",
        brake.share * 100.0,
        brake.min_owners,
        describe_end(brake)
    )
}

/// How the hold of a mass death ends.
pub fn describe_end(brake: &BrakePolicy) -> &'static str {
    match brake.stay {
        true => "a mass death is held until a person decides (brake.stay)",
        false => "a mass death opens by itself in steps",
    }
}

/// The name of a key or table that only one system of a kind may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedName {
    /// The name of the store in the configuration.
    pub store: String,
    /// The configuration key that sets the name.
    pub key: &'static str,
    /// The name; in braces what stands for a part of it, such as `{owner}`.
    pub name: String,
}

impl ClaimedName {
    /// Names of the store `store`, each with its configuration key.
    pub fn list(store: &str, names: &[(&'static str, String)]) -> Vec<ClaimedName> {
        let claim = |(key, name): &(&'static str, String)| ClaimedName {
            store: store.to_owned(),
            key,
            name: name.clone(),
        };
        names.iter().map(claim).collect()
    }
}

/// One system as configured, not yet opened.
pub trait SystemPlan: Any + Debug + Send + Sync {
    /// The settings that every kind of system has.
    fn common(&self) -> &SystemSettings;

    /// The plan in plain words, one sentence per element; `lapsed check` prints them.
    fn describe(&self) -> Vec<String>;

    /// The keys and tables of shared stores that no other system of the same kind may use. Names that contain the
    /// name of the system are left out, and so are names that several systems may share, such as queues.
    fn claimed_names(&self) -> Vec<ClaimedName> {
        Vec::new()
    }

    /// When the system's brake holds, in plain words.
    fn describe_brake(&self) -> String {
        describe_brake_of_owners(self.common())
    }

    /// What its kind adds to the status and to the passes of an opened system.
    fn hooks(&self) -> &'static dyn LiveHooks {
        &NoHooks
    }

    /// Builds the system on opened stores.
    fn build(&self, context: BuildContext<'_>) -> lapsed_core::Result<BuiltSystem>;

    /// Work that must be done before the system is used. It must end even if a store does not
    /// answer, so that the process can start without it.
    fn prepare(&self, _live: &LiveSystem, _for_what: OpenedFor) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// A background task that the daemon runs for the system besides its passes, until `stop` is
    /// signalled; `None` for most kinds.
    fn background_task(
        &self,
        _live: &LiveSystem,
        _stop: StopSignal,
    ) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

/// What a kind does with an opened system besides its operations; by default nothing.
pub trait LiveHooks: Send + Sync {
    /// Adds to a status what can be said whether or not the store answers.
    fn fill_status<'a>(
        &'a self,
        _live: &'a LiveSystem,
        _status: &'a mut SystemStatus,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    /// Adds to a status what only a store that answers can say; called after it has answered.
    fn fill_counts<'a>(
        &'a self,
        _live: &'a LiveSystem,
        _status: &'a mut SystemStatus,
    ) -> BoxFuture<'a, lapsed_core::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// Called before a pass that reclaims. A failure here is not reported: the pass that follows
    /// reports its own.
    fn before_pass<'a>(&'a self, _live: &'a LiveSystem) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// The hooks of a kind that needs none.
pub struct NoHooks;

impl LiveHooks for NoHooks {}

/// What a system was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenedFor {
    /// The daemon serves the system for as long as it runs.
    Daemon,
    /// A single command uses the system.
    Command,
}

/// The stores and the assembly that a system is built with.
pub struct BuildContext<'a> {
    /// The opened store of the system.
    pub store: &'a OpenStore,
    /// The store of the mirror, which is derived from `store`; `None` if the system has no mirror
    /// in another store.
    pub mirror: Option<&'a OpenStore>,
    /// Policy, brake, clock and observer, and the code that assembles a system from them.
    pub assembly: &'a Assembly,
}

/// A system that is ready to use.
pub struct BuiltSystem {
    /// The operations that every kind of system has.
    pub system: Arc<dyn System>,
    /// The operations that only this kind has, for its routes.
    pub operations: Arc<dyn Any + Send + Sync>,
    /// Where receipts, terms and settings are kept, if not simply in the system's store.
    pub store: Option<Arc<dyn Store>>,
}
