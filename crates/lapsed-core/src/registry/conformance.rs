//! Conformance suite for `registry`: what every store must do, run unchanged on each of them.
//!
//! A store crate writes one function that makes a [`RegistryFixture`] and calls
//! [`registry_conformance!`](crate::registry_conformance) with it: every case becomes one test.

#![allow(clippy::unwrap_used)] // a suite of tests: a panic is a failing test

pub mod owners;
pub mod reclaims;
pub mod records;

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::conformance::leading::LedSystem;
use crate::conformance::{SystemFixture, TestOwners, TestStore};
pub use crate::conformance::{batch_id, keys_of, name, names, policy};
use crate::owner::{Claim, Incarnation};
use crate::registry::{Registry, RegistryParts, RegistryStore, TakePolicy};

/// A registry on a fresh store.
pub struct RegistryFixture {
    pub registry: Arc<dyn RegistryStore>,
    base: SystemFixture<TestOwners>,
}

impl Deref for RegistryFixture {
    type Target = SystemFixture<TestOwners>;
    fn deref(&self) -> &SystemFixture<TestOwners> {
        &self.base
    }
}

impl RegistryFixture {
    pub fn new(registry: Arc<dyn RegistryStore>, ttl: Duration, on: TestStore) -> Self {
        let base = SystemFixture::new(registry.clone(), registry.clone() as TestOwners, ttl, on);
        RegistryFixture { registry, base }
    }

    /// The same registry, for the stories about its leader.
    pub fn led(self, term: Duration) -> (LedSystem, Box<dyn Any + Send + Sync>) {
        self.base.led(term)
    }

    /// The fixture after its store has served for long enough that no store-away grace is running.
    pub async fn settled(self) -> Self {
        (self.advance)(self.ttl).await;
        self
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

    /// The incarnation that holds `key`, if it has not ended.
    pub async fn holder(&self, key: &str) -> Option<Incarnation> {
        let found = self.registry.find(&[name(key)]).await.expect("find");
        let found = found.into_iter().next().flatten()?;
        found.ended.is_none().then_some(found.holder.incarnation)
    }

    /// The system that works on the store under test.
    pub fn system(&self) -> Registry {
        Registry::new(
            RegistryParts::new(self.registry.clone(), self.store.clone(), self.ttl)
                .timeout(Duration::from_secs(5))
                .batch(3)
                .sweeper("conformance".to_owned()),
        )
    }
}

/// Every case as a test of a store: see [`conformance_suite!`](crate::conformance_suite). The expression makes a
/// [`RegistryFixture`].
#[macro_export]
macro_rules! registry_conformance {
    ($($store:tt)*) => {
        $crate::conformance_suite! {
            ($($store)*) $crate::registry::conformance as RegistryFixture,
            owners: [
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
            ],
            reclaims: [
                entries_of_dead_owners_are_reclaimed_and_others_are_not,
                equal_to_now_counts_as_expired,
                a_heartbeat_before_the_reclaim_wins,
                trap_a1_a_key_registered_elsewhere_before_the_reclaim_is_not_taken,
                trap_a1_keys_that_have_all_moved_before_the_reclaim_are_not_taken,
                trap_a2_two_sweepers_count_each_reclaim_once,
                trap_a6_pages_are_bounded_and_skip_entries_of_live_owners,
                trap_x4_a_death_takes_effect_at_once_and_entries_go_in_batches,
                trap_x5_a_stalled_leader_is_refused_by_the_store,
                trap_x5_leaders_that_stall_within_a_pass_reclaim_nothing_more,
                trap_d11_a_pass_that_stops_within_a_page_leaves_the_cursor_before_it,
                a_dry_run_lists_what_a_pass_reclaims,
                a_pass_that_stops_early_resumes,
                the_same_suspect_twice_in_a_batch_is_reclaimed_once,
                the_brake_spares_only_undeclared_owners,
                an_overdue_owner_without_entries_is_declared_dead,
            ],
            records: [
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
            ],
        }
    };
}
