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

use std::sync::Arc;
use std::time::Duration;

pub use crate::conformance::name;
use crate::conformance::{Advance, unique};
use crate::leases::rules::StagedState;
use crate::leases::{
    AcquireRequest, Acquired, Decision, DecisionInfo, Fenced, Grant, LeaseInfo, LeaseKey,
    LeaseState, LeaseTicket, LeaseToken, Leases, LeasesParts, LeasesStore, Loss, WithCleared,
};
use crate::receipt::{Receipt, ReceiptQuery};
use crate::schedule::StopSignal;
use crate::store::Store;
use crate::sweep::brake::BrakeSetting;
use crate::sweep::policy::Policy;
use crate::sweep::{
    Batch, BatchAnswer, BatchId, Cursor, PageRequest, PassMode, PassReport, Suspect, Sweeper,
    SweeperParts,
};

/// How a fixture opens leases that forget idle keys after a given time.
pub type OpenForgetting = Box<dyn Fn(Duration) -> Arc<dyn LeasesStore> + Send + Sync>;

/// A fresh store under test, and a way to advance its clock.
pub struct LeasesFixture {
    /// The leases under test.
    pub leases: Arc<dyn LeasesStore>,
    /// The store that the system runs on.
    pub store: Arc<dyn Store>,
    /// How long a lease lasts: at least a second, and as long as the fixture can afford to wait for.
    pub ttl: Duration,
    /// How much later than its end, at the most, the sweep's index lists a lease: the width of a bucket.
    pub coarse: Duration,
    /// Lets the store's clock run on by that much, so that the store itself knows, and returns when it
    /// has.
    pub advance: Advance,
    /// Opens leases on the same store that forget a key after that time without use: the same
    /// system, or another one.
    pub open_forgetting: OpenForgetting,
    /// Values that must be dropped only with the fixture.
    pub keep: Box<dyn std::any::Any + Send + Sync>,
}

impl LeasesFixture {
    /// The fixture after its store has served for long enough that no store-away grace is running.
    pub async fn settled(self) -> Self {
        if self.leases.census().await.expect("census").back_ms > 0 {
            (self.advance)(self.ttl.max(self.leases.threshold())).await;
        }
        self
    }

    /// The TTL in milliseconds.
    pub fn ttl_ms(&self) -> u64 {
        self.ttl.as_millis() as u64
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

    pub async fn now_ms(&self) -> u64 {
        self.store.info().await.expect("info").now_ms
    }

    /// One page of suspects, without a brake.
    pub async fn suspects(&self) -> Vec<Suspect> {
        self.suspects_within(None).await
    }

    /// One page of suspects while at most `undeclared_max` owners may be declared dead.
    pub async fn suspects_within(&self, undeclared_max: Option<usize>) -> Vec<Suspect> {
        let mut all: Vec<Suspect> = Vec::new();
        loop {
            let after = all.last().map_or(Cursor::default(), |last| self.leases.after(last));
            let request = PageRequest { after, limit: 1_000, undeclared_max };
            let page = self.leases.suspects(request).await.expect("suspects");
            let ends = page.last || page.suspects.is_empty();
            all.extend(page.suspects);
            if ends {
                return all;
            }
        }
    }

    /// Reclaims one batch under a unique sweeper name.
    pub async fn reclaim(&self, suspects: Vec<Suspect>) -> BatchAnswer {
        let id = BatchId { sweeper: unique("by-hand").into(), number: 1 };
        let batch = Batch { id, suspects, act: PassMode::Reclaim, term: None };
        self.leases.reclaim(batch).await.expect("reclaim")
    }

    /// A sweeper with that policy and a unique name that begins with `who`.
    pub fn sweeper(&self, who: &str, policy: Policy) -> Sweeper {
        Sweeper::new(
            SweeperParts::new(unique(who), self.leases.clone(), self.store.clone()).policy(policy),
        )
    }

    /// Runs one pass with that policy; its report lists what it reclaimed.
    pub async fn pass(&self, who: &str, act: PassMode, policy: Policy) -> PassReport {
        let (_stopper, stop) = StopSignal::channel();
        self.sweeper(who, policy).pass(act, 1_000, &stop).await
    }

    pub async fn sweep(&self) -> PassReport {
        self.pass("s", PassMode::Reclaim, policy()).await
    }

    /// All receipts, oldest first.
    pub async fn receipts(&self) -> Vec<Receipt> {
        let query = ReceiptQuery { after: Some(0), limit: 10_000, ..ReceiptQuery::default() };
        self.store.receipts(self.leases.system(), query).await.expect("receipts")
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

/// Policy of the suite's passes: no limits, and a long timeout for slow machines.
pub fn policy() -> Policy {
    Policy { timeout: Duration::from_secs(60), ..Policy::default() }
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

/// Keys of the suspects, sorted.
pub fn subjects(suspects: &[Suspect]) -> Vec<String> {
    let mut subjects: Vec<String> = suspects.iter().map(|s| s.key.to_string()).collect();
    subjects.sort();
    subjects
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

/// Generates one test per case. `$make` is an `async fn() -> LeasesFixture`. A store on the real clock passes a
/// second argument, an `async fn(impl AsyncFnMut())` that runs a case: it can run a case again, with
/// a new fixture, if the machine stood still during it.
#[macro_export]
macro_rules! leases_conformance {
    ($make:ident) => {
        $crate::leases_conformance!($make, $crate::conformance::once);
    };
    ($make:ident, $run:path) => {
        $crate::conformance_cases!($make, $run, [$crate::leases::conformance], holding: [
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
        ]);
        $crate::conformance_cases!($make, $run, [$crate::leases::conformance], expiry: [
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
        ]);
        $crate::conformance_cases!($make, $run, [$crate::leases::conformance], decisions: [
            the_first_decision_stands,
            one_of_two_concurrent_decisions_wins,
            an_expired_decision_is_deleted_before_the_answer,
            an_expired_decision_may_be_made_again,
            the_sweep_deletes_expired_decisions_only,
        ]);
        $crate::conformance_cases!($make, $run, [$crate::leases::conformance], sweeps: [
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
        ]);
        $crate::conformance_cases!($make, $run, [$crate::leases::conformance], forgetting: [
            trap_d5_a_forgotten_key_starts_above_its_old_tokens,
            only_unused_keys_are_forgotten,
        ]);
        $crate::conformance_cases!($make, $run, [$crate::leases::conformance], records: [
            receipts_contain_the_evidence,
            an_operation_writes_receipts_for_what_it_cleared,
            each_token_has_at_most_one_receipt,
            a_lost_answer_is_settled_by_batch,
            restoring_a_lease_grants_a_new_token,
            restoring_a_lease_is_refused_after_a_newer_grant,
            restoring_a_decision_makes_it_again,
        ]);
    };
}
