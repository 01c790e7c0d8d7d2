//! Conformance suite for `registry`: what every store must do, run unchanged on each of them.
//!
//! A store crate writes one function that makes a [`RegistryFixture`] and calls
//! [`registry_conformance!`](crate::registry_conformance) with it: every case becomes one test.

#![allow(clippy::unwrap_used)] // a suite of tests: a panic is a failing test

pub mod owners;
pub mod reclaims;
pub mod records;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::conformance::Advance;
pub use crate::conformance::name;
use crate::name::Name;
use crate::owner::{Claim, Incarnation};
use crate::receipt::{Receipt, ReceiptQuery};
use crate::registry::{Registry, RegistryParts, RegistryStore, TakePolicy};
use crate::schedule::StopSignal;
use crate::store::Store;
use crate::sweep::policy::Policy;
use crate::sweep::{Cursor, PageRequest, PassMode, PassReport, Suspect, Sweeper, SweeperParts};

/// A fresh store under test, and a way to advance its clock.
pub struct RegistryFixture {
    /// The registry under test.
    pub registry: Arc<dyn RegistryStore>,
    /// The store that the system runs on.
    pub store: Arc<dyn Store>,
    /// How long a heartbeat lasts; short if the fixture has to wait for it on the real clock.
    pub ttl: Duration,
    /// Advances the store's clock by that much, and returns when it has.
    pub advance: Advance,
    /// Values that must be dropped only with the fixture.
    pub keep: Box<dyn std::any::Any + Send + Sync>,
}

impl RegistryFixture {
    /// The fixture after its store has served for long enough that no store-away grace is running.
    pub async fn settled(self) -> Self {
        (self.advance)(self.ttl).await;
        self
    }

    /// The TTL in milliseconds.
    pub fn ttl_ms(&self) -> u64 {
        self.ttl.as_millis() as u64
    }

    /// Starts an incarnation and returns its claim.
    pub async fn start(&self, owner: &str) -> Claim {
        let beat = self.registry.start(&name(owner), self.ttl_ms()).await.expect("start");
        Claim::exact(name(owner), beat.incarnation)
    }

    /// Starts an incarnation and registers `keys` for it.
    pub async fn holding(&self, owner: &str, keys: &[&str]) -> Claim {
        let claim = self.start(owner).await;
        self.register(&claim, keys).await;
        claim
    }

    /// Registers keys, also those that another owner holds.
    pub async fn register(&self, claim: &Claim, keys: &[&str]) {
        self.registry.register(claim, &names(keys), TakePolicy::Always).await.expect("register");
    }

    /// Advances the clock past a TTL while `others` send heartbeats.
    pub async fn outlive(&self, others: &[&Claim]) {
        for _ in 0..4 {
            (self.advance)(self.ttl / 4).await;
            for other in others {
                self.registry.beat(other).await.expect("the living beat");
            }
        }
    }

    /// All suspects, without a brake.
    pub async fn suspects(&self) -> Vec<Suspect> {
        self.suspects_of(None).await
    }

    /// All suspects, page after page, while at most `undeclared_max` owners may be declared dead.
    pub async fn suspects_of(&self, undeclared_max: Option<usize>) -> Vec<Suspect> {
        let (mut all, mut after) = (Vec::new(), Cursor::default());
        loop {
            let request = PageRequest { after, limit: 1_000, undeclared_max };
            let page = self.registry.suspects(request).await.expect("suspects");
            all.extend(page.suspects);
            match all.last().filter(|_| !page.last) {
                Some(last) => after = self.registry.after(last),
                None => return all,
            }
        }
    }

    /// The incarnation that holds `key`, if it has not ended.
    pub async fn holder(&self, key: &str) -> Option<Incarnation> {
        let found = self.registry.find(&[name(key)]).await.expect("find");
        let found = found.into_iter().next().flatten()?;
        found.ended.is_none().then_some(found.holder.incarnation)
    }

    /// A sweeper with that policy and a unique name that begins with `who`.
    pub fn sweeper(&self, who: &str, policy: Policy) -> Sweeper {
        static SWEEPERS: AtomicU64 = AtomicU64::new(0);
        let number = SWEEPERS.fetch_add(1, Ordering::Relaxed);
        Sweeper::new(
            SweeperParts::new(format!("{who}#{number}"), self.registry.clone(), self.store.clone())
                .policy(policy),
        )
    }

    /// Runs one pass that acts; its report lists what it reclaimed.
    pub async fn sweep(&self, who: &str) -> PassReport {
        let (_stopper, stop) = StopSignal::channel();
        self.sweeper(who, Policy::default()).pass(PassMode::Reclaim, 1_000, &stop).await
    }

    /// All receipts, oldest first.
    pub async fn receipts(&self) -> Vec<Receipt> {
        let query = ReceiptQuery { after: Some(0), limit: 10_000, ..ReceiptQuery::default() };
        self.store.receipts(self.registry.system(), query).await.expect("receipts")
    }

    /// The system that works on the store under test.
    pub fn system(&self) -> Registry {
        let clock: Arc<dyn Clock> = SystemClock::shared();
        Registry::new(
            RegistryParts::new(self.registry.clone(), self.store.clone(), self.ttl)
                .clock(clock)
                .timeout(Duration::from_secs(5))
                .batch(3)
                .sweeper("conformance".to_owned()),
        )
    }
}

pub fn names(texts: &[&str]) -> Vec<Name> {
    texts.iter().map(|text| name(text)).collect()
}

/// Generates one test per case. `$make` is an `async fn() -> RegistryFixture`. A store on the real clock passes a
/// second argument, an `async fn(impl AsyncFnMut())` that runs a case: it can run a case again, with
/// a new fixture, if the machine stood still during it.
#[macro_export]
macro_rules! registry_conformance {
    ($make:ident) => {
        $crate::registry_conformance!($make, $crate::conformance::once);
    };
    ($make:ident, $run:path) => {
        $crate::conformance_cases!($make, $run, [$crate::registry::conformance], owners: [
            heartbeats_keep_an_owner_alive,
            the_first_beat_of_a_new_name_starts_it,
            an_unknown_incarnation_is_lost,
            incarnations_only_grow,
            trap_a3_a_restarted_owner_neither_keeps_nor_hides_old_entries,
            trap_a3_a_new_incarnation_may_register_before_its_first_heartbeat,
            trap_a4_a_dead_owner_learns_what_it_lost_and_can_register_again,
            trap_a5_a_dead_incarnation_cannot_write,
            trap_a7_retiring_reclaims_with_receipts,
            trap_a7_what_a_crashed_retire_left_is_swept,
        ]);
        $crate::conformance_cases!($make, $run, [$crate::registry::conformance], reclaims: [
            entries_of_dead_owners_are_reclaimed_and_others_are_not,
            equal_to_now_counts_as_expired,
            a_heartbeat_before_the_reclaim_wins,
            trap_a1_a_key_registered_elsewhere_before_the_reclaim_is_not_taken,
            trap_a2_two_sweepers_count_each_reclaim_once,
            trap_a6_pages_are_bounded_and_skip_entries_of_live_owners,
            trap_x4_a_death_takes_effect_at_once_and_entries_go_in_batches,
            trap_x5_a_stalled_leader_is_refused_by_the_store,
            a_dry_run_lists_what_a_pass_reclaims,
            a_pass_that_stops_early_resumes,
            the_same_suspect_twice_in_a_batch_is_reclaimed_once,
            the_brake_spares_only_undeclared_owners,
            an_overdue_owner_without_entries_is_declared_dead,
        ]);
        $crate::conformance_cases!($make, $run, [$crate::registry::conformance], records: [
            a_moved_key_is_removed_from_its_first_owner,
            unregister_removes_only_the_callers_keys,
            registering_if_free_takes_no_held_key,
            registering_if_free_takes_keys_of_an_older_incarnation,
            registering_if_free_takes_keys_of_an_owner_that_has_ended,
            an_older_incarnation_cannot_take_keys_from_a_newer_one,
            entries_are_paged,
            receipts_contain_the_evidence_and_are_paged,
            a_lost_answer_is_settled_by_batch,
            restore_works_once_and_only_if_the_key_is_free,
            settings_and_terms_are_kept,
            receipts_and_owners_beyond_retention_are_removed,
            ended_owners_beyond_their_number_are_removed_oldest_first,
            housekeeping_catches_up_in_one_pass,
            receipts_of_large_batches_are_removed_in_one_pass,
            owners_are_listed_in_pages_alive_or_not,
        ]);
    };
}
