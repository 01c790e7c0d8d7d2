//! The kinds of system, as the daemon sees them. A new kind is a module here and a line in `ROOMS`.

pub mod availability;
pub mod inflight;
pub mod leases;
pub mod registry;
pub mod sessions;

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use lapsed::assembly::Assembly;
use lapsed_core::Kind;
use lapsed_core::inflight::{RecoveredJob, RecoveryAction};
use lapsed_core::leases::RemovedLease;
use lapsed_core::receipt::Receipt;
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::Store;
use lapsed_core::system::System;
use utoipa_axum::router::OpenApiRouter;

use crate::config::ConfigError;
use crate::config::common::{Section, SystemSettings};
use crate::config::token::Scope;
use crate::config::units::show_span;
use crate::http::Shared;
use crate::node::LiveSystem;
use crate::stores::OpenStore;
use crate::systems::availability::layout::Tables;

/// One kind of system: reads its section of the configuration and serves its routes.
pub trait SystemKind: Send + Sync {
    /// Which kind.
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
}

/// One system as configured, not yet opened.
pub trait SystemPlan: Debug + Send + Sync {
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

    /// The tables that it works on, where it works on tables of an application.
    fn tables(&self) -> Option<&Tables> {
        None
    }

    /// Whether the mirror is to tell who fell silent.
    fn is_instant(&self) -> bool {
        false
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
    /// Policy, brake, clock and observer, and what makes a system out of them.
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

/// Every kind there is.
pub static ROOMS: &[&dyn SystemKind] = &[
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
    let room = ROOMS.iter().find(|room| room.kind().as_str() == kind)?;
    Some((*room, operation))
}

/// The room of `kind`.
pub fn room(kind: Kind) -> &'static dyn SystemKind {
    *ROOMS.iter().find(|room| room.kind() == kind).expect("every kind has a room")
}

/// What became of a job, or of what was staged with a lease; of everything else it is clear.
pub fn did(receipt: &Receipt) -> Option<String> {
    match receipt.id.system.kind {
        Kind::Inflight => Some(recovered(receipt)?.to_owned()),
        Kind::Leases => settled(receipt),
        Kind::Registry | Kind::Sessions | Kind::Availability => None,
    }
}

fn recovered(receipt: &Receipt) -> Option<&'static str> {
    let done: RecoveredJob = serde_json::from_value(receipt.removed.clone()).ok()?;
    Some(match done.did {
        RecoveryAction::PutBack => "put back",
        RecoveryAction::DeadLetter => "dead letter",
        RecoveryAction::Dropped => "dropped",
    })
}

fn settled(receipt: &Receipt) -> Option<String> {
    match serde_json::from_value(receipt.removed.clone()).ok()? {
        RemovedLease::Lease(cleared) => {
            let (txn, decision) = cleared.staged?;
            Some(format!("{txn}: {decision}"))
        }
        RemovedLease::Decision(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_room() {
        Kind::ALL.iter().for_each(|kind| assert_eq!(room(*kind).kind(), *kind));
    }
}
