//! What a system is built from, the same for every kind that runs on one store.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::name::SystemId;
use crate::receipt::{NoObserver, Observer};
use crate::reconcile::Reconcile;
use crate::setters;
use crate::store::Store;
use crate::store_caller::{Activity, StoreCaller};
use crate::sweep::Sweep;
use crate::sweep::brake::{Brake, BrakePolicy};
use crate::sweep::policy::Policy;
use crate::system::explain::Explainer;

/// What a system needs. `S` is the trait that its kind demands of the store of the entries.
pub struct SystemParts<S: ?Sized> {
    pub(crate) id: SystemId,
    /// The store of the entries.
    pub(crate) entries: Arc<S>,
    /// The index of the system, if the store has one besides its data.
    pub(crate) index: Option<Arc<dyn Reconcile>>,
    /// The store of the receipts.
    pub(crate) store: Arc<dyn Store>,
    /// How long a heartbeat, or a lease, lasts unless the request says otherwise.
    pub(crate) ttl: Duration,
    /// How often an owner of this library sends heartbeats; `None`: every third of the TTL.
    pub(crate) beat_every: Option<Duration>,
    pub(crate) brake: Arc<Brake>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) timeout: Duration,
    pub(crate) batch: usize,
    pub(crate) sweeper: String,
}

impl<S: Sweep + ?Sized> SystemParts<S> {
    /// Everything that a system must be given; the rest has the defaults of the configuration file.
    pub fn new(entries: Arc<S>, store: Arc<dyn Store>, ttl: Duration) -> Self {
        let (threshold, policy, clock) =
            (entries.threshold(), Policy::default(), SystemClock::shared());
        SystemParts {
            id: entries.system().clone(),
            entries,
            index: None,
            store,
            ttl,
            beat_every: None,
            brake: Arc::new(Brake::new(BrakePolicy::default(), threshold)),
            activity: Arc::default(),
            observer: Arc::new(NoObserver),
            timeout: policy.timeout,
            batch: policy.batch,
            sweeper: format!("process-{:016x}", clock.random()),
            clock,
        }
    }

    setters! {
        /// The index, where the store keeps one besides its truth.
        index: Option<Arc<dyn Reconcile>>;
        /// How often an owner of this library sends heartbeats; by default every third of the TTL.
        beat_every: Option<Duration>;
        /// The brake, to be shared with the sweeper of the same system.
        brake: Arc<Brake>;
        /// The clock of this process; by default the system's.
        clock: Arc<dyn Clock>;
        /// Counts the operations, to be shared with the sweeper of the same system.
        activity: Arc<Activity>;
        /// Is shown what happens, for metrics and logs.
        observer: Arc<dyn Observer>;
        /// The most time that one store call may take; by default 5 s.
        timeout: Duration;
        /// The most entries that one step releases when an owner retires; by default 500.
        batch: usize;
        /// Signs the batches of owners that retire; must be unique among all processes.
        sweeper: String;
    }

    pub(crate) fn calls(&self) -> StoreCaller {
        StoreCaller {
            id: self.id.clone(),
            clock: self.clock.clone(),
            activity: self.activity.clone(),
            observer: self.observer.clone(),
            timeout: self.timeout,
        }
    }

    /// Builds explanations. `holds` is what an owner of this system holds, in the singular and in the plural.
    pub(crate) fn explainer<'a>(
        &'a self,
        calls: &'a StoreCaller,
        sweep: &'a dyn Sweep,
        holds: (&'static str, &'static str),
    ) -> Explainer<'a> {
        Explainer { calls, sweep, store: &*self.store, brake: &self.brake, holds }
    }
}
