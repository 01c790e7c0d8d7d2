//! Conformance suite for `leases`: what every store must do, run unchanged on each of them.
//!
//! A store crate writes one function that makes a [`LeasesFixture`] and calls
//! [`leases_conformance!`](crate::leases_conformance) with it: every case becomes one test.
//! Nothing here relies on exact milliseconds, nor on where receipt numbers begin, nor on what else is
//! in the store: a store may run on its real clock and tell its time in whole seconds.

#![allow(clippy::unwrap_used)] // a suite of tests: a panic is a failing test

pub mod contend;
pub mod decisions;
pub mod expiry;
pub mod forgetting;
pub mod history;
pub mod holding;
pub mod records;
pub mod sweeps;

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::conformance::leading::LedSystem;
use crate::conformance::{SystemFixture, TestStore};
pub use crate::conformance::{batch_id, keys_of, name, policy, unique};
use crate::leases::rules::StagedState;
use crate::leases::{
    AcquireRequest, Acquired, Decision, DecisionInfo, Fenced, Grant, LeaseInfo, LeaseKey,
    LeaseState, LeaseTicket, LeaseToken, Leases, LeasesParts, LeasesStore, Loss, WithCleared,
};
use crate::sweep::brake::BrakeSetting;

/// How a fixture opens leases that forget idle keys after a given time.
pub type OpenForgetting = Box<dyn Fn(Duration) -> Arc<dyn LeasesStore> + Send + Sync>;

/// Leases on a fresh store. Their TTL is at least a second.
pub struct LeasesFixture {
    pub leases: Arc<dyn LeasesStore>,
    /// How much later than its end, at the most, the sweep's index lists a lease: the width of a bucket.
    pub coarse: Duration,
    /// Opens leases on the same store that forget a key after that time without use: the same
    /// system, or another one.
    pub open_forgetting: OpenForgetting,
    base: SystemFixture,
}

impl Deref for LeasesFixture {
    type Target = SystemFixture;
    fn deref(&self) -> &SystemFixture {
        &self.base
    }
}

impl LeasesFixture {
    pub fn new(
        leases: Arc<dyn LeasesStore>,
        open_forgetting: OpenForgetting,
        (ttl, coarse): (Duration, Duration),
        on: TestStore,
    ) -> Self {
        let base = SystemFixture::new(leases.clone(), (), ttl, on);
        LeasesFixture { leases, coarse, open_forgetting, base }
    }

    /// The same leases, for the stories about their leader.
    pub fn led(self, term: Duration) -> (LedSystem, Box<dyn Any + Send + Sync>) {
        self.base.led(term)
    }

    /// The fixture after its store has served for long enough that no store-away grace is running.
    pub async fn settled(self) -> Self {
        if self.leases.census().await.expect("census").back_ms > 0 {
            (self.advance)(self.ttl.max(self.leases.threshold())).await;
        }
        self
    }

    /// Advances the clock until leases granted before have expired.
    pub async fn expire(&self) {
        (self.advance)(self.ttl).await;
    }

    /// Advances the clock until the sweep's index lists expired leases.
    pub async fn expire_in_index(&self) {
        (self.advance)(self.ttl + self.coarse).await;
    }

    /// What to acquire, for `owner`.
    pub fn wish(&self, key: &LeaseKey, owner: &str) -> AcquireRequest {
        AcquireRequest {
            key: key.clone(),
            owner: name(owner),
            ttl_ms: self.ttl_ms(),
            request: None,
        }
    }

    pub async fn attempt(&self, key: &LeaseKey, owner: &str) -> WithCleared<Acquired> {
        self.leases.acquire(&self.wish(key, owner)).await.expect("acquire")
    }

    /// Acquires the lease; panics if it is held.
    pub async fn acquire(&self, key: &LeaseKey, owner: &str) -> Grant {
        match self.attempt(key, owner).await.answer {
            Acquired::Granted(grant) => grant,
            Acquired::Held(grant) => panic!("held: {grant:?}"),
        }
    }

    /// Acquires the lease for so long that it does not expire during a case.
    pub async fn acquire_long(&self, key: &LeaseKey, owner: &str) -> Grant {
        let wish = AcquireRequest { ttl_ms: 3_600_000, ..self.wish(key, owner) };
        match self.leases.acquire(&wish).await.expect("acquire").answer {
            Acquired::Granted(grant) => grant,
            Acquired::Held(grant) => panic!("held: {grant:?}"),
        }
    }

    pub async fn acquire_all(&self, keys: &[LeaseKey], owner: &str) {
        let grants = keys.iter().map(|key| self.acquire(key, owner));
        futures::future::join_all(grants).await;
    }

    /// State of one key, without clearing anything.
    pub async fn peek(&self, key: &LeaseKey) -> LeaseInfo {
        self.leases.peek(key).await.expect("peek").expect("the key was leased")
    }

    /// The token of a key.
    pub async fn token(&self, key: &LeaseKey) -> LeaseToken {
        self.peek(key).await.token
    }

    /// Sets the state of a key as its holder.
    pub async fn set_state(&self, ticket: &LeaseTicket, text: &str) -> Fenced<()> {
        let state = json(text);
        self.leases.set_state(ticket, Some(&state)).await.expect("set_state").answer
    }

    /// Stages a state as the key's holder.
    pub async fn stage(&self, ticket: &LeaseTicket, id: &str, text: &str) -> Fenced<()> {
        let staged = StagedState { txn: name(id), state: json(text) };
        self.leases.stage(ticket, Some(&staged)).await.expect("stage").answer
    }

    /// Decides a transaction; the decision is kept for an hour.
    pub async fn decide(&self, id: &str, decision: Decision) -> DecisionInfo {
        self.leases.decide(&name(id), decision, 3_600_000).await.expect("decide").answer
    }

    /// Applies an operator's brake setting.
    pub async fn set_brake(&self, setting: BrakeSetting) {
        self.store.set_brake(self.leases.system(), setting).await.expect("set_brake");
    }

    /// The system that works on the store under test.
    pub fn system(&self) -> Arc<Leases> {
        Arc::new(Leases::new(
            LeasesParts::new(self.leases.clone(), self.store.clone(), self.ttl)
                .timeout(Duration::from_secs(20)),
            Duration::from_secs(3_600),
        ))
    }
}

/// A key in the namespace `n`.
pub fn key(text: &str) -> LeaseKey {
    LeaseKey::new("n", text).expect("a good key")
}

pub fn keys(texts: &[&str]) -> Vec<LeaseKey> {
    texts.iter().map(|text| key(text)).collect()
}

pub fn json(text: &str) -> LeaseState {
    LeaseState::Json(text.into())
}

/// The loss that was answered.
pub fn lost<T: std::fmt::Debug>(answer: Fenced<T>) -> Loss {
    match answer {
        Fenced::Lost(loss) => loss,
        Fenced::Done(done) => panic!("a token that holds nothing was believed: {done:?}"),
    }
}

pub fn done<T>(answer: Fenced<T>) -> T {
    match answer {
        Fenced::Done(done) => done,
        Fenced::Lost(loss) => panic!("the holder was refused: {loss:?}"),
    }
}

/// Every case as a test of a store: see [`conformance_suite!`](crate::conformance_suite). The expression makes a
/// [`LeasesFixture`].
#[macro_export]
macro_rules! leases_conformance {
    ($($store:tt)*) => {
        $crate::conformance_suite! {
            ($($store)*) $crate::leases::conformance as LeasesFixture,
            holding: [
                a_held_lease_is_refused_with_its_holder,
                one_of_many_concurrent_acquires_wins,
                a_release_frees_the_key_and_keeps_the_token,
                a_repeated_request_gets_the_same_answer,
                a_renewal_moves_the_deadline,
                an_invalid_token_changes_nothing,
                only_the_holder_changes_the_state,
                a_state_may_be_bytes,
                any_valid_key_can_be_leased,
                keys_are_listed_in_pages,
                namespaces_do_not_share_keys,
                a_waiter_gets_the_lease_when_it_is_released,
                a_waiter_that_times_out_learns_the_holder,
                a_hold_renews_in_the_background,
                a_hold_reports_that_it_was_lost,
                explain_gives_reasons,
            ],
            expiry: [
                the_next_acquire_clears_an_expired_lease_first,
                a_renewal_after_expiry_is_refused,
                a_release_after_expiry_is_refused,
                a_state_set_after_expiry_is_refused,
                describing_clears_and_peeking_does_not,
                trap_d5_tokens_only_grow,
                trap_d8_all_operations_agree_on_expiry,
                trap_d9_a_committed_stage_is_published,
                trap_d9_an_undecided_stage_is_rolled_back_for_good,
                trap_d9_an_expired_decision_that_exists_still_counts,
                a_release_applies_the_decision_to_staged_state,
            ],
            decisions: [
                the_first_decision_stands,
                one_of_two_concurrent_decisions_wins,
                an_expired_decision_is_deleted_before_the_answer,
                an_expired_decision_may_be_made_again,
                the_sweep_deletes_expired_decisions_only,
            ],
            sweeps: [
                expired_leases_are_cleared_and_others_are_not,
                trap_d1_a_renewed_lease_is_swept_at_its_new_deadline,
                a_renewal_before_the_reclaim_wins,
                a_new_holder_before_the_reclaim_wins,
                released_leases_leave_no_suspects,
                trap_d6_a_namespace_that_stays_full_does_not_starve_the_others,
                trap_d7_one_refusal_does_not_stop_the_others,
                trap_d9_the_sweep_applies_the_decision,
                trap_d11_a_pass_that_stops_within_a_page_leaves_the_cursor_before_it,
                two_sweepers_count_each_reclaim_once,
                a_dry_run_lists_what_a_pass_does_and_changes_nothing,
                the_same_suspect_twice_in_a_batch_counts_once,
                a_held_brake_spares_everything,
                a_step_or_an_override_of_the_brake_is_given_to_one,
                trap_x5_a_stalled_leader_is_refused_by_the_store,
                trap_x5_leaders_that_stall_within_a_pass_reclaim_nothing_more,
            ],
            forgetting: [
                trap_d5_a_forgotten_key_starts_above_its_old_tokens,
                only_unused_keys_are_forgotten,
            ],
            records: [
                receipts_contain_the_evidence,
                an_operation_writes_receipts_for_what_it_cleared,
                each_token_has_at_most_one_receipt,
                a_lost_answer_is_settled_by_batch,
                restoring_a_lease_grants_a_new_token,
                restoring_a_lease_is_refused_after_a_newer_grant,
                restoring_a_decision_makes_it_again,
            ],
        }
    };
}
