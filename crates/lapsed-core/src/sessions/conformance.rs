//! Conformance suite for `sessions`: what every store must do, run unchanged on each of them.
//!
//! A store crate writes one function that makes a [`SessionsFixture`] and calls
//! [`sessions_conformance!`](crate::sessions_conformance) with it: every case becomes one test.
//! Nothing here relies on exact milliseconds, nor on where receipt numbers begin: a store may run on
//! its real clock, with a TTL and a grace of about a second.

#![allow(clippy::unwrap_used)] // a suite of tests: a panic is a failing test

pub mod lifecycle;
pub mod owners;
pub mod reclaims;
pub mod records;
pub mod repeats;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use crate::conformance::{SystemFixture, TestOwners, TestStore, unique};
pub use crate::conformance::{batch_id, keys_of, name, names};
use crate::owner::Claim;
use crate::sessions::{
    ReferenceChange, Session, SessionProfile, Sessions, SessionsParts, SessionsStore,
};

/// Sessions on a fresh store.
pub struct SessionsFixture {
    pub sessions: Arc<dyn SessionsStore>,
    /// How long a session without references is kept; short if the fixture has to wait for it.
    pub grace: Duration,
    base: SystemFixture<TestOwners>,
}

impl Deref for SessionsFixture {
    type Target = SystemFixture<TestOwners>;
    fn deref(&self) -> &SystemFixture<TestOwners> {
        &self.base
    }
}

impl SessionsFixture {
    pub fn new(
        sessions: Arc<dyn SessionsStore>,
        (ttl, grace): (Duration, Duration),
        on: TestStore,
    ) -> Self {
        let base = SystemFixture::new(sessions.clone(), sessions.clone() as TestOwners, ttl, on);
        SessionsFixture { sessions, grace, base }
    }

    /// The fixture after its store has served for long enough that no store-away grace is running.
    pub async fn settled(self) -> Self {
        self.elapse().await;
        self
    }

    /// The grace in milliseconds.
    pub fn grace_ms(&self) -> u64 {
        self.grace.as_millis() as u64
    }

    /// Advances the clock until silent owners are overdue and sessions without references are orphans.
    pub async fn elapse(&self) {
        (self.advance)(self.ttl.max(self.grace)).await;
    }

    /// Creates sessions without references.
    pub async fn activate(&self, ids: &[&str]) {
        let (ids, profile) = (names(ids), SessionProfile::default());
        let made = join_all(ids.iter().map(|id| self.sessions.activate(id, &profile)));
        made.await.into_iter().for_each(|made| assert!(made.expect("activate").created));
    }

    pub async fn connect(&self, claim: &Claim, id: &str) -> ReferenceChange {
        let standing = self.sessions.connect(Some(claim), &name(id)).await;
        standing.expect("connect").expect("the session is there")
    }

    pub async fn disconnect(&self, claim: &Claim, id: &str) -> ReferenceChange {
        let standing = self.sessions.disconnect(Some(claim), &name(id)).await;
        standing.expect("disconnect").expect("the session is there")
    }

    /// Starts an incarnation and connects it to new sessions.
    pub async fn connected(&self, owner: &str, ids: &[&str]) -> Claim {
        self.activate(ids).await;
        let claim = self.start(owner).await;
        let connected = join_all(ids.iter().map(|id| self.connect(&claim, id)));
        connected.await.iter().for_each(|standing| assert_eq!(standing.references, 1));
        claim
    }

    /// Creates sessions whose last reference has ended.
    pub async fn disconnected(&self, ids: &[&str]) {
        let claim = self.connected("server", ids).await;
        let gone = join_all(ids.iter().map(|id| self.disconnect(&claim, id)));
        gone.await.iter().for_each(|standing| assert_eq!(standing.references, 0));
        self.sessions.end(&claim).await.expect("it leaves nothing behind");
    }

    /// Creates sessions whose grace period is over.
    pub async fn orphaned(&self, ids: &[&str]) {
        self.disconnected(ids).await;
        (self.advance)(self.grace).await;
    }

    pub async fn session(&self, id: &str) -> Option<Session> {
        self.sessions.get(&name(id)).await.expect("get")
    }

    /// How many references a session has.
    pub async fn references(&self, id: &str) -> u64 {
        self.session(id).await.expect("the session is there").references
    }

    /// The system that works on the store under test.
    pub fn system(&self) -> Sessions {
        Sessions::new(
            SessionsParts::new(self.sessions.clone(), self.store.clone(), self.ttl)
                .timeout(Duration::from_secs(5))
                .batch(3)
                .sweeper(unique("conformance")),
            self.grace,
        )
    }
}

/// A profile with that value, and a broadcaster.
pub fn profile(value: &str, broadcaster: &str) -> SessionProfile {
    SessionProfile {
        value: Some(value.to_owned()),
        broadcaster_user_id: Some(name(broadcaster)),
        config_json: None,
    }
}

/// Every case as a test of a store: see [`conformance_suite!`](crate::conformance_suite). The expression makes a
/// [`SessionsFixture`].
#[macro_export]
macro_rules! sessions_conformance {
    ($($store:tt)*) => {
        $crate::conformance_suite! {
            ($($store)*) $crate::sessions::conformance as SessionsFixture,
            repeats: [
                repeated_changes_of_references_count_once,
            ],
            lifecycle: [
                a_session_goes_through_its_full_lifecycle,
                a_session_nobody_connects_to_is_not_disconnected,
                resuming_restarts_the_grace_period,
                activating_again_keeps_absent_fields,
                a_disconnect_never_goes_below_zero,
                an_incarnation_may_have_several_references_to_a_session,
                a_deletion_is_refused_while_somebody_is_connected,
                trap_b6_a_missing_session_is_not_created,
                trap_b7_a_broadcasters_newer_session_is_kept,
                an_update_keeps_absent_fields,
                the_pointer_moves_with_a_session_to_its_new_broadcaster,
                references_of_an_incarnation_are_paged,
                explain_gives_reasons,
            ],
            owners: [
                trap_b5_references_end_with_their_incarnation,
                trap_b5_a_restarted_owner_neither_keeps_nor_hides_old_references,
                the_first_connect_of_a_new_name_starts_it,
                a_heartbeat_before_the_reclaim_wins,
                trap_x4_a_death_takes_effect_at_once_and_references_go_in_batches,
                a_dead_owner_is_refused_and_changes_nothing,
                retiring_releases_references_in_batches,
                what_a_crashed_retire_left_is_swept,
                a_session_stays_while_one_of_its_owners_is_alive,
                the_brake_spares_only_undeclared_owners,
                a_held_brake_spares_orphans_too,
                an_overdue_owner_without_references_is_declared_dead,
                the_threshold_is_the_longer_of_ttl_and_grace,
            ],
            reclaims: [
                orphans_are_deleted_and_active_sessions_are_not,
                a_session_that_was_never_connected_is_deleted_after_one_grace,
                trap_b2_a_reconnect_before_the_reclaim_wins,
                trap_b2_a_resume_before_the_reclaim_wins,
                trap_b3_an_active_session_is_never_among_the_orphans,
                trap_b4_a_refused_suspect_is_not_listed_again,
                trap_b7_the_sweep_keeps_a_newer_sessions_pointer,
                trap_b8_no_session_is_deleted_a_millisecond_early,
                trap_b9_limits_are_honoured,
                two_sweepers_count_each_reclaim_once,
                a_dry_run_lists_what_a_pass_does,
                a_pass_that_stops_early_resumes,
                the_same_suspect_twice_in_a_batch_counts_once,
                trap_x5_a_stalled_leader_is_refused_by_the_store,
            ],
            records: [
                receipts_contain_the_evidence,
                a_lost_answer_is_settled_by_batch,
                restore_works_once_and_only_if_the_key_is_free,
                restoring_a_session_keeps_a_newer_sessions_pointer,
                receipts_and_owners_beyond_retention_are_removed,
            ],
        }
    };
}
