//! What every pair of stores must do for `availability`, run unchanged on each of them.
//!
//! A crate writes one function that makes a [`AvailabilityFixture`] and calls
//! [`availability_conformance!`](crate::availability_conformance) with it: every case becomes a test of its
//! own. Nothing here relies on exact milliseconds: a pair of stores may run on its real clock.

#![allow(clippy::unwrap_used)] // a suite of tests: a panic is a failing test

pub use lapsed_core::conformance::name;
pub use lapsed_core::conformance_suite;

pub mod beacon;
pub mod healing;
pub mod providers;
pub mod reading;
pub mod sessions;
pub mod sweeps;

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::memory::MemoryMirror;
use crate::rules::SettingsPatch;
use crate::{
    Availability, AvailabilityParts, Mirror, MirrorEntry, MirrorUpdate, ProviderBeat,
    ProviderChange, ProviderProfile, ProviderState, SeenBeat, SessionChange, SessionOutcome,
    SessionRefusal, Source, Truth, Written,
};
use lapsed_core::clock::Clock;
use lapsed_core::conformance::leading::LedSystem;
use lapsed_core::conformance::{SystemFixture, TestStore, unique};
use lapsed_core::name::{Name, SystemId};
use lapsed_core::reconcile::IndexChange;
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{
    Batch, BatchId, Cursor, PassMode, PassReport, Suspect, Sweep, Sweeper, SweeperParts,
};
use lapsed_core::system::System;

/// Two fresh stores, and a daemon that works on them.
pub struct AvailabilityFixture {
    /// The system under test, which the cases call.
    pub it: Arc<Availability>,
    pub truth: Arc<dyn Truth>,
    pub mirror: Arc<dyn Mirror>,
    /// Makes the mirror lose everything, and returns when it has.
    pub lose: LoseMirror,
    make: Box<dyn Fn() -> Arc<Availability> + Send + Sync>,
    base: SystemFixture,
}

/// Makes a mirror lose everything, and resolves when it has.
pub type LoseMirror = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

impl Deref for AvailabilityFixture {
    type Target = SystemFixture;
    fn deref(&self) -> &SystemFixture {
        &self.base
    }
}

impl AvailabilityFixture {
    /// `stale` is how long a provider may be silent: whole seconds, as short as the fixture can afford to wait
    /// for. The process under test waits by `clock`; `on` advances the clocks of both stores.
    pub fn new(
        id: SystemId,
        truth: Arc<dyn Truth>,
        (mirror, lose): (Arc<dyn Mirror>, LoseMirror),
        stale: Duration,
        clock: Arc<dyn Clock>,
        on: TestStore,
    ) -> Self {
        let both = (truth.clone(), mirror.clone());
        let make = move || {
            Availability::new(
                AvailabilityParts::new(id.clone(), both.0.clone(), both.1.clone())
                    .brake(Arc::new(Brake::new(BrakePolicy::default(), stale)))
                    .clock(clock.clone())
                    .timeout(Duration::from_secs(30))
                    .mirror_timeout(Duration::from_secs(30))
                    .snapshot_ttl(Duration::from_secs(600)),
            )
        };
        let it = make();
        let on = TestStore { store: it.services(), ..on };
        let base = SystemFixture::new(it.sweep(), (), stale, on);
        AvailabilityFixture { it, truth, mirror, lose, make: Box::new(make), base }
    }

    /// The same system, for the stories about its leader.
    pub fn led(self, term: Duration) -> (LedSystem, Box<dyn Any + Send + Sync>) {
        self.base.led(term)
    }

    /// Seeded, for so long that no grace is running, with `stale_after_seconds` as the fixture says.
    pub async fn settled(self) -> Self {
        let patch = SettingsPatch {
            stale_after_seconds: Some(self.ttl.as_secs()),
            heartbeat_cadence_seconds: Some(1),
            max_customers_per_mitra: Some(2),
            ..SettingsPatch::default()
        };
        self.truth.set_settings(&patch).await.expect("settings");
        self.it.seed().await.expect("seed");
        self.outlast_grace().await;
        self
    }

    /// One more daemon on the same stores.
    pub fn daemon(&self) -> Arc<Availability> {
        (self.make)()
    }

    /// Advances the clock until the grace after the mirror's return is over.
    pub async fn outlast_grace(&self) {
        let stale_ms = self.ttl.as_millis() as u64;
        for _ in 0..20 {
            let presence = self.mirror.presence(stale_ms).await.expect("presence");
            if presence.back_ms == 0 {
                return;
            }
            (self.advance)(self.ttl / 2).await;
        }
        panic!("the grace never ends");
    }

    /// Lets everybody fall silent who does not beat from now on.
    pub async fn silence(&self) {
        (self.advance)(self.ttl + Duration::from_millis(100)).await;
    }

    /// A provider that is online.
    pub async fn online(&self, id: &str) -> Name {
        let id = self.provider(id).await;
        let set = self.it.set_online(&id).await.expect("online").expect("it is known");
        assert!(set.mirrored && set.answer.changed && set.answer.state.online, "{set:?}");
        id
    }

    /// A provider, as it is when it is new.
    pub async fn provider(&self, id: &str) -> Name {
        let id = name(id);
        let profile =
            ProviderProfile { id: id.clone(), display_name: Some(format!("Name of {id}")) };
        self.it.put_provider(&profile).await.expect("put");
        id
    }

    pub async fn beat(&self, id: &Name) -> ProviderBeat {
        let beats = self.it.heartbeat(std::slice::from_ref(id)).await.expect("heartbeat");
        beats.answer[0]
    }

    /// The mirror's entry of one provider.
    pub async fn seen(&self, id: &Name) -> MirrorEntry {
        let looked = self.mirror.look(std::slice::from_ref(id)).await.expect("look");
        looked.seen.into_iter().next().expect("one for each")
    }

    /// The truth's state of one provider.
    pub async fn state(&self, id: &Name) -> ProviderState {
        let states = self.truth.read(std::slice::from_ref(id)).await.expect("read");
        states.into_iter().next().expect("it is known")
    }

    /// The available providers, and which store the answer came from.
    pub async fn available(&self) -> (Vec<String>, Source) {
        let found = self.it.available(&Cursor::default(), 1_000).await.expect("available");
        let ids = found.answer.available.iter().map(|one| one.id.to_string()).collect();
        (ids, found.source)
    }

    /// Changes a session, which must be allowed.
    pub async fn session(&self, change: SessionChange) -> Written<SessionOutcome> {
        let done = self.it.change_session(&change).await.expect("session");
        assert!(matches!(done.answer, SessionOutcome::Done { .. }), "{change:?}: {done:?}");
        done
    }

    /// Changes a session, which must not be.
    pub async fn refused(&self, change: SessionChange) -> SessionRefusal {
        match self.it.change_session(&change).await.expect("session").answer {
            SessionOutcome::Refused(refusal) => refusal,
            done => panic!("{change:?}: {done:?}"),
        }
    }

    /// A sweeper of a daemon, with a brake of its own.
    pub fn sweeper(&self, on: &Arc<Availability>) -> Sweeper {
        Sweeper::new(
            SweeperParts::new(unique("conformance"), on.sweep(), on.services())
                .brake(Arc::new(Brake::new(BrakePolicy::default(), self.ttl)))
                .policy(Policy { timeout: Duration::from_secs(30), ..Policy::default() }),
        )
    }

    pub async fn sweep(&self) -> PassReport {
        let (_stopper, stop) = StopSignal::channel();
        self.sweeper(&self.it).pass(PassMode::Reclaim, 100, &stop).await
    }

    /// The suspects of a pass.
    pub async fn suspects(&self) -> Vec<Suspect> {
        self.it.survey(PassMode::Reclaim).await.expect("survey");
        self.base.suspects().await
    }

    /// A batch of these suspects.
    pub fn batch(&self, suspects: Vec<Suspect>) -> Batch {
        let id = BatchId { sweeper: unique("conformance").into(), number: 1 };
        Batch { id, suspects, act: PassMode::Reclaim, term: None }
    }

    /// All changes of a whole reconciliation.
    pub async fn reconcile(&self, act: PassMode) -> Vec<IndexChange> {
        use lapsed_core::reconcile::Reconcile;
        let (mut changes, mut after) = (Vec::new(), Some(Cursor::default()));
        while let Some(from) = after {
            let page = self.it.reconcile(from, 3, act).await.expect("reconcile");
            changes.extend(page.changes);
            after = page.next;
        }
        changes
    }

    /// Tells the mirror something that is not true, as the newest there is.
    pub async fn corrupt_mirror(&self, id: &Name, lie: impl FnOnce(&mut ProviderState)) {
        let mut state = self.state(id).await;
        let version = self.seen(id).await.version.unwrap_or(0).max(state.version) + 1;
        lie(&mut state);
        let now_ms = self.mirror.now_ms().await.expect("time");
        let state = ProviderState { version, ..state };
        let told = [MirrorUpdate { state, beat_ms: Some(now_ms) }];
        assert_eq!(self.mirror.apply(&told, None).await.expect("apply"), Some(1));
    }

    /// Mirror and truth say the same of everybody.
    pub async fn agree(&self) {
        let changes = self.reconcile(PassMode::DryRun).await;
        assert!(changes.is_empty(), "{changes:?}");
    }
}

/// A mirror in memory, and how it loses everything.
pub fn memory_mirror(clock: Arc<dyn Clock>) -> (Arc<dyn Mirror>, LoseMirror) {
    let mirror = Arc::new(MemoryMirror::new(clock, None));
    let lost = mirror.clone();
    let lose = move || -> BoxFuture<'static, ()> {
        lost.lose();
        Box::pin(async {})
    };
    (mirror, Box::new(lose))
}

/// The state after a write.
pub fn state_of(written: &Option<Written<ProviderChange>>) -> ProviderState {
    written.as_ref().expect("it is known").answer.state.clone()
}

/// Whether the mirror has a heartbeat of a provider.
pub fn has_beat(seen: &MirrorEntry) -> bool {
    matches!(seen.beat, SeenBeat::At(_))
}

/// Every case as a test of two stores: see [`lapsed_core::conformance_suite!`]. The expression makes an
/// [`AvailabilityFixture`].
#[macro_export]
macro_rules! availability_conformance {
    ($($store:tt)*) => {
        $crate::conformance::conformance_suite! {
            ($($store)*) $crate::conformance as AvailabilityFixture,
            providers: [
                online_is_mirrored_with_a_heartbeat_and_offline_without,
                a_second_online_starts_an_epoch_without_a_flip,
                an_unknown_provider_is_refused_everywhere,
                trap_c10_a_heartbeat_of_an_offline_provider_is_not_recorded,
                trap_c7_deactivated_providers_are_counted_nowhere,
                deactivated_providers_are_refused_until_activated,
                trap_c2_an_older_state_is_not_applied,
                trap_c6_the_log_has_one_row_per_flip,
                after_concurrent_toggles_both_stores_agree,
                names_are_stored_unchanged,
            ],
            sessions: [
                a_session_is_accepted_extended_resumed_and_ended,
                extending_keeps_the_provider_occupied,
                rerouting_moves_one_session_between_providers,
                an_ended_session_stays_ended,
                full_and_deactivated_providers_get_no_session,
                a_session_is_accepted_by_one_provider,
                trap_c8_concurrent_changes_end_with_the_truths_count,
            ],
            reading: [
                available_is_online_active_fresh_and_below_capacity,
                silent_providers_are_unavailable_before_any_pass,
                pages_contain_each_provider_once,
                settings_are_live_and_checked,
                without_required_heartbeats_nobody_is_silent,
                an_unseeded_mirror_is_not_read,
                a_list_contains_names_and_session_counts,
                explain_gives_reasons,
            ],
            beacon: [
                all_daemons_share_one_snapshot,
                a_change_of_settings_drops_the_snapshot,
                a_flip_drops_the_snapshot,
                a_snapshot_of_a_dropped_turn_is_refused,
            ],
            sweeps: [
                silent_providers_are_set_offline_once,
                trap_c5_a_heartbeat_before_the_decision_wins,
                a_heartbeat_while_pending_offline_is_judged_by_the_truth,
                a_heartbeat_after_the_truth_set_it_offline_is_answered_offline,
                only_a_toggle_voids_pending_offline,
                a_toggle_after_the_decision_wins,
                a_heartbeat_that_reached_the_truth_wins,
                a_heartbeat_that_reached_the_truth_after_the_decision_wins,
                the_next_pass_continues_for_a_sweeper_that_died,
                trap_c6_many_sweepers_flip_once,
                a_batch_settled_as_not_done_is_never_carried_out,
                a_dry_run_changes_nothing,
                the_brake_holds_when_most_fall_silent_at_once,
                providers_that_fall_silent_one_after_another_are_a_mass_death_to_every_daemon,
                the_operators_brake_setting_is_followed,
                trap_c11_evidence_uses_one_clock,
                restoring_sets_online_unless_toggled_since,
                a_pass_uses_current_settings,
                trap_x7_pending_offline_of_a_lost_epoch_is_dropped,
                trap_x5_leaders_that_stall_within_a_pass_flip_nobody_more,
            ],
            healing: [
                trap_c1_seeding_does_not_revive_silent_providers,
                nobody_is_set_offline_right_after_the_mirror_came_back,
                trap_c3_a_stale_counter_is_corrected,
                trap_x7_a_mirror_ahead_of_its_truth_is_corrected,
                reconciling_removes_unknown_ids_and_adds_missing_ones,
                a_dry_run_names_what_differs_and_changes_nothing,
                a_seeding_attempt_is_void_after_data_loss,
                trap_c9_heartbeats_in_the_truth_only_go_forward,
                heartbeats_keep_their_age_on_the_way_to_the_truth,
                seeding_during_toggles_ends_in_the_truths_state,
            ],
        }
    };
}
