//! Conformance suite for `inflight`: what every store must do, run unchanged on each of them.
//!
//! A store crate writes one function that makes a [`InflightFixture`] and calls
//! [`inflight_conformance!`](crate::inflight_conformance) with it: every case becomes one test.
//! Nothing here relies on exact milliseconds, nor on where numbers begin: a store may run on its real
//! clock, with a TTL of about a second.

#![allow(clippy::unwrap_used)] // a suite of tests: a panic is a failing test

pub mod jobs;
pub mod letters;
pub mod recovery;
pub mod repeats;
pub mod zombies;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::conformance::{SystemFixture, TestOwners, TestStore};
pub use crate::conformance::{batch_id, name};
use crate::inflight::rules::{OnDeath, RecoveryPolicy};
use crate::inflight::{
    Claimed, Finish, Finished, Inflight, InflightParts, InflightStore, Job, JobCounts, JobPlace,
    JobTicket, NewJob, RecoveredJob,
};
use crate::owner::Claim;
use crate::sweep::PassReport;

/// Opens a system of jobs with its own recovery policy on the fixture's store.
pub type OpenedInflight =
    Box<dyn Fn(RecoveryPolicy) -> BoxFuture<'static, Arc<dyn InflightStore>> + Send + Sync>;

/// Jobs on a fresh store.
pub struct InflightFixture {
    /// The jobs under test, with the default recovery policy.
    pub inflight: Arc<dyn InflightStore>,
    /// Opens another system of jobs on the same store.
    pub open: OpenedInflight,
    base: SystemFixture<TestOwners>,
}

impl Deref for InflightFixture {
    type Target = SystemFixture<TestOwners>;
    fn deref(&self) -> &SystemFixture<TestOwners> {
        &self.base
    }
}

impl InflightFixture {
    pub fn new(
        inflight: Arc<dyn InflightStore>,
        open: OpenedInflight,
        ttl: Duration,
        on: TestStore,
    ) -> Self {
        let base = SystemFixture::new(inflight.clone(), inflight.clone() as TestOwners, ttl, on);
        InflightFixture { inflight, open, base }
    }

    /// The fixture after its store has served for long enough that no store-away grace is running.
    pub async fn settled(self) -> Self {
        (self.advance)(self.ttl).await;
        self
    }

    /// The fixture with another recovery policy.
    pub async fn with(self, recovery: RecoveryPolicy) -> Self {
        let inflight = (self.open)(recovery).await;
        let (ttl, on) = self.base.into_store();
        InflightFixture::new(inflight, self.open, ttl, on)
    }

    /// Puts jobs on queue `q`; each carries its own id.
    pub async fn enqueue(&self, ids: &[&str]) {
        let jobs: Vec<NewJob> = ids.iter().map(|id| job(id)).collect();
        self.inflight.enqueue(&jobs).await.expect("enqueue");
    }

    /// Takes up to `limit` from queue `q`.
    pub async fn take(&self, claim: &Claim, limit: usize) -> Vec<Claimed> {
        self.inflight.take(claim, &name("q"), limit).await.expect("take").jobs
    }

    /// Enqueues `ids` and starts an incarnation that takes them.
    pub async fn working(&self, owner: &str, ids: &[&str]) -> (Claim, Vec<Claimed>) {
        let claim = self.start(owner).await;
        self.enqueue(ids).await;
        let jobs = self.take(&claim, ids.len()).await;
        assert_eq!(ids_of(&jobs), ids);
        (claim, jobs)
    }

    pub async fn finish(&self, claim: &Claim, job: &Claimed, how: Finish) -> Finished {
        let ticket = job.ticket(claim.incarnation.expect("an exact claim"));
        self.inflight.finish(&[ticket], &how).await.expect("finish").remove(0)
    }

    pub async fn complete(&self, claim: &Claim, job: &Claimed) -> Finished {
        self.finish(claim, job, Finish::Complete).await
    }

    /// Starts an incarnation that takes the next job and dies, and runs a pass.
    pub async fn crash(&self, owner: &str) -> PassReport {
        let claim = self.start(owner).await;
        assert_eq!(self.take(&claim, 1).await.len(), 1, "there is a job to die of");
        (self.advance)(self.ttl).await;
        self.sweep().await
    }

    pub async fn job(&self, id: &str) -> Option<Job> {
        self.inflight.job(&name(id)).await.expect("job")
    }

    pub async fn place(&self, id: &str) -> JobPlace {
        self.job(id).await.expect("the job is there").place
    }

    /// The totals; panics if they do not balance.
    pub async fn counts(&self) -> JobCounts {
        let counts = self.inflight.counts().await.expect("counts");
        assert!(counts.balances(), "{counts:?}");
        counts
    }

    /// What the newest receipt of `id` says was done.
    pub async fn recovered(&self, id: &str) -> (u64, RecoveredJob) {
        let receipts = self.receipts().await;
        let receipt = receipts.into_iter().rfind(|r| r.key.as_str() == id);
        let receipt = receipt.expect("a receipt for it");
        let removed = serde_json::from_value(receipt.removed.clone()).expect("as agreed");
        (receipt.id.seq, removed)
    }

    /// The system that works on the store under test.
    pub fn system(&self) -> Inflight {
        Inflight::new(
            InflightParts::new(self.inflight.clone(), self.store.clone(), self.ttl)
                .timeout(Duration::from_secs(5))
                .batch(3)
                .sweeper("conformance".to_owned()),
        )
    }
}

/// A job on queue `q` that carries its own id.
pub fn job(id: &str) -> NewJob {
    NewJob::new(name(id), name("q"), &format!("payload of {id}"))
}

/// A job with its own `on_death`.
pub fn job_with(id: &str, on_death: OnDeath) -> NewJob {
    NewJob { on_death: Some(on_death), ..job(id) }
}

/// Ids of the jobs, in order.
pub fn ids_of(jobs: &[Claimed]) -> Vec<&str> {
    jobs.iter().map(|job| job.id.as_str()).collect()
}

/// A ticket for `job` without an incarnation.
pub fn bare(job: &Claimed) -> JobTicket {
    JobTicket { id: job.id.clone(), token: job.token, incarnation: None }
}

/// Every case as a test of a store: see [`conformance_suite!`](crate::conformance_suite). The expression makes a
/// [`InflightFixture`].
#[macro_export]
macro_rules! inflight_conformance {
    ($($store:tt)*) => {
        $crate::conformance_suite! {
            ($($store)*) $crate::inflight::conformance as InflightFixture,
            jobs: [
                a_job_is_taken_once_and_completed,
                jobs_are_taken_in_queue_order,
                queues_do_not_share_jobs,
                the_same_id_is_queued_once,
                the_first_take_of_a_new_name_starts_it,
                a_waiting_take_gets_a_job_that_arrives,
                tokens_only_grow,
                trap_e13_taking_registers_in_the_same_step,
                jobs_popped_by_the_application_are_tracked,
                an_existing_job_is_not_registered_again,
                giving_back_counts_no_crash,
                a_job_is_given_back_to_the_chosen_end,
                a_claim_can_be_ended_without_naming_its_incarnation,
                payloads_are_returned_unchanged,
                entries_of_an_owner_are_paged,
                the_totals_balance,
                several_claims_end_at_once,
            ],
            recovery: [
                trap_e1_a_job_is_removed_and_put_back_in_one_step,
                live_workers_keep_their_jobs,
                a_heartbeat_before_the_reclaim_wins,
                trap_e3_a_dead_worker_is_found_without_a_list_of_processes,
                trap_e7_a_job_that_kills_its_workers_ends_as_a_dead_letter,
                crashes_before_the_window_do_not_count,
                trap_e8_a_job_of_a_long_dead_worker_is_not_put_back,
                trap_e10_nine_thousand_jobs_of_one_worker_are_recovered,
                trap_e12_a_reused_worker_name_hides_no_dead_incarnation,
                a_jobs_own_on_death_overrides_the_policy,
                recovered_jobs_go_to_the_configured_end,
                two_sweepers_put_back_once,
                a_dry_run_changes_nothing,
                a_pass_that_stops_early_resumes,
                a_job_finished_before_the_reclaim_stays_finished,
                a_job_taken_by_another_owner_before_the_reclaim_stays_there,
                the_same_suspect_twice_is_put_back_once,
                a_stalled_leader_is_refused_by_the_store,
                retiring_puts_back_without_a_crash,
                a_lost_answer_is_settled_by_batch,
                with_an_outbox_all_returned_jobs_go_to_it,
                jobs_of_dead_workers_are_moved_to_another_queue,
            ],
            repeats: [
                a_repeated_take_gets_the_same_jobs,
                a_take_of_nothing_is_not_kept,
                an_undelivered_take_is_given_back_in_order,
                a_take_that_was_repeated_is_not_given_back,
                an_attempt_that_was_given_up_takes_nothing_afterwards,
                a_key_with_another_fingerprint_is_refused,
                another_incarnation_gets_nothing_of_a_take,
                a_take_that_another_incarnation_repeated_is_given_back,
                a_repeated_enqueue_adds_nothing,
                a_repeated_start_starts_nothing,
                a_dropped_take_is_given_back_without_a_crash,
                a_repeated_end_of_a_claim_is_known_as_its_own,
                a_repeated_end_of_a_recovered_claim_is_refused,
            ],
            zombies: [
                trap_e2_a_late_heartbeat_revives_nothing,
                trap_e9_a_late_completion_is_refused,
                trap_e9_an_earlier_claim_is_refused,
                a_dead_incarnation_takes_and_registers_nothing,
                a_fenced_worker_is_refused_before_its_jobs_have_moved,
                a_worker_cancels_jobs_of_a_lost_owner,
                a_worker_runs_until_it_is_stopped,
            ],
            letters: [
                a_failed_job_is_a_dead_letter,
                dead_letters_are_paged_put_back_and_deleted,
                a_dead_letter_put_back_has_no_crashes,
                restore_brings_back_what_was_dropped,
                restore_brings_back_a_dead_letter,
                restore_refuses_a_job_that_exists,
                explain_says_where_a_job_is,
            ],
        }
    };
}
