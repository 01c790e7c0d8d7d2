//! What a system is assembled from: a store, a policy, a brake, a clock and an observer. `KIND/assembly.rs` assembles a
//! system of one kind. The builders of this crate and the daemon go through it. Not part of the public interface.
#![allow(missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::SystemId;
use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::leader::{Campaign, TermOptions};
use lapsed_core::receipt::{NoObserver, Observer, Retention};
use lapsed_core::reconcile::Reconcile;
use lapsed_core::setters;
use lapsed_core::store::Store;
use lapsed_core::store_caller::Activity;
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::policy::{Policy, SweepMode};
use lapsed_core::sweep::{Sweep, Sweeper, SweeperParts};
use lapsed_core::system::SystemParts;
use lapsed_core::upkeep::{ActivitySigns, IdleRule};

use crate::stores::StoreUse;

/// The share of the time that a pass may keep a store busy which others also use.
pub const SHARED_STORE_SHARE: f64 = 0.75;

/// The index of a system that can be reconciled, if the store has one.
pub(crate) type Index = Option<Arc<dyn Reconcile>>;

/// The parts of a system, besides its store and the settings of its kind.
pub struct Assembly {
    pub policy: Policy,
    pub brake: Arc<Brake>,
    pub activity: Arc<Activity>,
    pub clock: Arc<dyn Clock>,
    pub observer: Arc<dyn Observer>,
    /// The name of this process, unique among all processes.
    pub process: String,
    pub retention: Retention,
}

impl Assembly {
    /// An owner is dead after `threshold` without a heartbeat.
    pub fn new(policy: Policy, brake: BrakePolicy, threshold: Duration) -> Assembly {
        let clock = SystemClock::shared();
        Assembly {
            policy,
            brake: Arc::new(Brake::new(brake, threshold)),
            activity: Arc::default(),
            process: format!("process-{:016x}", clock.random()),
            clock,
            observer: Arc::new(NoObserver),
            retention: Retention::default(),
        }
    }

    setters! {
        clock: Arc<dyn Clock>;
        observer: Arc<dyn Observer>;
        process: String;
        retention: Retention;
    }

    /// Gives a system what all systems of this process share.
    pub(crate) fn equip<S: Sweep + ?Sized>(&self, parts: SystemParts<S>) -> SystemParts<S> {
        parts
            .brake(self.brake.clone())
            .clock(self.clock.clone())
            .activity(self.activity.clone())
            .observer(self.observer.clone())
            .timeout(self.policy.timeout)
            .batch(self.policy.batch)
            .sweeper(self.process.clone())
    }

    /// What tells other processes that the system is in use; the caller must run it.
    pub fn activity_signs(&self, system: &SystemId, store: Arc<dyn Store>) -> ActivitySigns {
        ActivitySigns {
            store,
            system: system.clone(),
            activity: self.activity.clone(),
            clock: self.clock.clone(),
            timeout: self.policy.timeout,
        }
    }

    /// When the system counts as idle; `None` if its upkeep does not wait for that.
    pub fn idle_rule(&self, system: &SystemId, store: Arc<dyn Store>) -> Option<IdleRule> {
        Some(IdleRule {
            store,
            system: system.clone(),
            activity: self.activity.clone(),
            clock: self.clock.clone(),
            timeout: self.policy.timeout,
            grace: self.policy.idle_grace?,
        })
    }

    /// The sweeper of one system; in leader mode also its candidate, which the caller must run.
    pub fn sweeper(
        &self,
        sweep: Arc<dyn Sweep>,
        store: Arc<dyn Store>,
    ) -> (Sweeper, Option<Campaign>) {
        let (campaign, leadership) = match self.policy.mode {
            SweepMode::Leader => {
                let (campaign, leadership) = Campaign::new(
                    store.clone(),
                    self.clock.clone(),
                    sweep.system().clone(),
                    &self.process,
                    TermOptions { ttl: self.policy.term_ttl, ..TermOptions::default() },
                );
                (Some(campaign), Some(leadership))
            }
            // Every process sweeps: the guard makes that harmless.
            _ => (None, None),
        };
        let parts = SweeperParts::new(self.process.clone(), sweep, store)
            .policy(self.policy.clone())
            .brake(self.brake.clone())
            .clock(self.clock.clone())
            .activity(self.activity.clone())
            .leadership(leadership)
            .observer(self.observer.clone())
            .retention(self.retention);
        (Sweeper::new(parts), campaign)
    }
}

/// The default policy of a kind that has none of its own. On a store that others also use, a pass pauses after each
/// batch for a third of the time that the batch took.
pub fn default_policy(used_by: StoreUse) -> Policy {
    let share = if used_by == StoreUse::Exclusive { 1.0 } else { SHARED_STORE_SHARE };
    Policy { share, ..Policy::default() }
}

/// Gives `$parts` what every kind takes from an assembly.
macro_rules! common_parts {
    ($assembly:expr, $parts:expr) => {
        $parts
            .brake($assembly.brake.clone())
            .clock($assembly.clock.clone())
            .activity($assembly.activity.clone())
            .observer($assembly.observer.clone())
            .timeout($assembly.policy.timeout)
    };
}

pub(crate) use common_parts;
