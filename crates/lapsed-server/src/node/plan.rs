//! A system as configured, and what it needs to be opened. The kinds of system implement [`SystemPlan`].

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use lapsed::assembly::Assembly;
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::Store;
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

/// Everything that a configuration says, checked.
#[derive(Debug)]
pub struct Config {
    /// The file it came from.
    pub file: Option<String>,
    pub server: ServerConfig,
    pub stores: BTreeMap<String, StoreConfig>,
    /// In the order of the file.
    pub systems: Vec<Box<dyn SystemPlan>>,
    /// In the order of the file.
    pub webhooks: Vec<WebhookConfig>,
    /// Where traces go, if anywhere.
    pub telemetry: Option<TelemetryPlan>,
}

/// One system as configured, not yet opened.
pub trait SystemPlan: Any + Debug + Send + Sync {
    /// What every kind has.
    fn common(&self) -> &SystemSettings;

    /// The plan in plain words, one sentence each.
    fn describe(&self) -> Vec<String>;

    /// When its brake holds, in plain words.
    fn describe_brake(&self) -> String {
        let SystemSettings { brake, threshold, .. } = self.common();
        format!(
            "the brake holds when more than {:.0} % of at least {} owners would be dead at once, and \
             for {} after the store was away",
            brake.share * 100.0,
            brake.min_owners,
            show_span(*threshold)
        )
    }

    /// What its kind adds to the status and to the passes of an opened system.
    fn hooks(&self) -> &'static dyn LiveHooks {
        &NoHooks
    }

    /// Makes it, on an opened store.
    fn build(&self, ground: BuildContext<'_>) -> lapsed_core::Result<BuiltSystem>;

    /// What is done for it before it is used. Whatever is away must not keep anybody from starting.
    fn prepare(&self, _live: &LiveSystem, _for_what: OpenedFor) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// What the daemon runs for it besides its passes, until told to stop; most have nothing.
    fn errand(&self, _live: &LiveSystem, _stop: StopSignal) -> Option<BoxFuture<'static, ()>> {
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

    /// What comes before a pass that reclaims. Its failure is told by the pass itself.
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
    /// To be served, for as long as the daemon runs.
    Daemon,
    /// For one command.
    Command,
}

/// What a system is built on.
pub struct BuildContext<'a> {
    /// Its store.
    pub store: &'a OpenStore,
    /// The store of what is derived from it, where that is another one.
    pub mirror: Option<&'a OpenStore>,
    /// Policy, brake, clock and observer, and the code that assembles a system from them.
    pub assembly: &'a Assembly,
}

/// A system ready to use.
pub struct BuiltSystem {
    /// What every system offers.
    pub system: Arc<dyn System>,
    /// The kind's own operations, for its routes.
    pub operations: Arc<dyn Any + Send + Sync>,
    /// Receipts, terms and settings, where they are not simply those of its store.
    pub store: Option<Arc<dyn Store>>,
}
