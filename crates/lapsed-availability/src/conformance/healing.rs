//! Seeding, reconciling, and beats on their way to the truth.

use std::time::Duration;

use futures::future::join;

use super::{AvailabilityFixture, has_beat, name};
use crate::{MirrorUpdate, ProviderBeat, SessionChange};
use lapsed_core::sweep::PassMode;

/// C1: the mirror is lost and seeded repeatedly, and silent providers stay silent.
pub async fn trap_c1_seeding_does_not_revive_silent_providers(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.silence().await;
    for _ in 0..3 {
        (b.lose)().await;
        b.daemon().seed().await.unwrap();
        assert!(b.available().await.0.is_empty(), "silent before, and silent now");
        assert!(b.state(&id).await.online);
    }
    b.outlast_grace().await;
    assert_eq!(b.sweep().await.reclaimed, 1, "after the grace it is set offline");
    b.agree().await;
}

/// P7: live providers have a whole threshold to send a heartbeat again.
pub async fn nobody_is_set_offline_right_after_the_mirror_came_back(b: AvailabilityFixture) {
    let [p, q] = [b.online("p").await, b.online("q").await];
    b.silence().await;
    (b.lose)().await;
    b.it.seed().await.unwrap();
    let report = b.sweep().await;
    assert_eq!(report.reclaimed, 0, "{report:?}");
    assert_eq!(b.beat(&p).await, ProviderBeat::Noted);
    assert_eq!(b.available().await.0, ["p"], "fresh at once");
    for _ in 0..4 {
        (b.advance)(b.ttl / 3).await;
        b.beat(&p).await;
    }
    b.outlast_grace().await;
    b.beat(&p).await;
    assert_eq!(b.sweep().await.reclaimed, 1);
    assert!(b.state(&p).await.online && !b.state(&q).await.online);
}

/// C3: nothing in the truth to count, and something in the mirror.
pub async fn trap_c3_a_stale_counter_is_corrected(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.corrupt_mirror(&id, |state| state.sessions = 7).await;
    assert!(b.available().await.0.is_empty());
    let changes = b.reconcile(PassMode::Reclaim).await;
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(b.seen(&id).await.sessions, Some(0));
    assert_eq!(b.available().await.0, ["p"]);
    b.agree().await;
}

/// X7: the truth lost its last commits; what the mirror has is newer by number, and not true.
pub async fn trap_x7_a_mirror_ahead_of_its_truth_is_corrected(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.corrupt_mirror(&id, |state| {
        state.online = false;
        state.active = false;
        state.version += 1_000_000_000;
    })
    .await;
    assert!(!b.reconcile(PassMode::Reclaim).await.is_empty());
    let seen = b.seen(&id).await;
    assert!(seen.online && !seen.deactivated, "{seen:?}");
    assert!(b.state(&id).await.version >= seen.version.unwrap());
    b.agree().await;
    b.it.set_offline(&id).await.unwrap();
    assert!(!b.seen(&id).await.online, "and it goes on from there");
    b.agree().await;
}

pub async fn reconciling_removes_unknown_ids_and_adds_missing_ones(b: AvailabilityFixture) {
    let id = b.online("p").await;
    let provider = id.clone();
    b.session(SessionChange::Accept { session: name("s"), provider }).await;
    let stranger = name("stranger");
    let mut state = b.state(&id).await;
    state.id = stranger.clone();
    let now_ms = b.mirror.now_ms().await.unwrap();
    let told = [MirrorUpdate { state, beat_ms: Some(now_ms) }];
    b.mirror.apply(&told, None).await.unwrap();
    let version = b.seen(&id).await.version;
    assert_eq!(b.mirror.forget(&[(id.clone(), version)]).await.unwrap(), 1);
    assert_eq!(b.available().await.0, ["stranger"]);
    assert!(b.reconcile(PassMode::Reclaim).await.len() >= 2);
    assert_eq!(b.available().await.0, ["p"]);
    let seen = b.seen(&stranger).await;
    assert!(!seen.online && !has_beat(&seen) && seen.version.is_none(), "{seen:?}");
    assert_eq!(b.seen(&id).await.sessions, Some(1));
    b.agree().await;
}

pub async fn a_dry_run_names_what_differs_and_changes_nothing(b: AvailabilityFixture) {
    let [p, q] = [b.online("p").await, b.online("q").await];
    b.corrupt_mirror(&p, |state| state.online = false).await;
    b.corrupt_mirror(&q, |state| state.sessions = 3).await;
    for _ in 0..2 {
        let mut changes = b.reconcile(PassMode::DryRun).await;
        changes.sort_by(|a, b| a.key.cmp(&b.key));
        let named: Vec<&str> = changes.iter().map(|change| change.key.as_str()).collect();
        assert_eq!(named, ["p", "q"], "{changes:?}");
        assert!(changes[0].why.contains("online"), "{changes:?}");
        assert!(changes[1].why.contains('3'), "{changes:?}");
    }
    assert!(!b.seen(&p).await.online);
}

/// The first pages are gone when the last arrive: it must not answer then.
pub async fn a_seeding_attempt_is_void_after_data_loss(b: AvailabilityFixture) {
    b.online("p").await;
    let attempt = b.mirror.begin_seed().await.unwrap();
    (b.lose)().await;
    assert_eq!(b.mirror.apply(&[], Some(&attempt)).await.unwrap(), None);
    assert!(!b.mirror.end_seed(&attempt).await.unwrap());
    assert_eq!(b.mirror.count_online().await.unwrap(), None);
    b.it.seed().await.unwrap();
    assert_eq!(b.mirror.count_online().await.unwrap(), Some(1));
}

pub async fn trap_c9_heartbeats_in_the_truth_only_go_forward(b: AvailabilityFixture) {
    let id = b.online("p").await;
    let beat = async || b.it.describe(&id).await.unwrap().unwrap().last_heartbeat_ms.unwrap();
    let first = beat().await;
    assert_eq!(b.truth.note_beats(&[(id.clone(), 60_000)], u64::MAX).await.unwrap(), 0);
    assert_eq!(beat().await, first, "an older one changes nothing");
    (b.advance)(b.ttl.max(Duration::from_secs(2))).await;
    assert_eq!(
        b.truth.note_beats(&[(id.clone(), 0), (name("nobody"), 0)], u64::MAX).await.unwrap(),
        1
    );
    assert!(beat().await > first);
    b.it.set_offline(&id).await.unwrap();
    assert_eq!(
        b.truth.note_beats(&[(id.clone(), 0)], u64::MAX).await.unwrap(),
        0,
        "not of the offline"
    );
}

pub async fn heartbeats_keep_their_age_on_the_way_to_the_truth(b: AvailabilityFixture) {
    let [id, silent] = [b.online("p").await, b.online("silent").await];
    let listed = async |id| b.it.describe(id).await.unwrap().unwrap().last_heartbeat_ms.unwrap();
    let before = [listed(&id).await, listed(&silent).await];
    (b.advance)(b.ttl.max(Duration::from_secs(2))).await;
    assert_eq!(b.beat(&id).await, ProviderBeat::Noted);
    assert_eq!(b.it.mirror_beats().await.unwrap(), 1);
    assert!(listed(&id).await > before[0]);
    assert_eq!(listed(&silent).await, before[1], "who is silent is not refreshed");
    assert_eq!(b.it.mirror_beats().await.unwrap(), 0, "and there is nothing more to write");
}

pub async fn seeding_during_toggles_ends_in_the_truths_state(b: AvailabilityFixture) {
    let mut ids = Vec::new();
    for n in 0..12 {
        ids.push(b.online(&format!("p{n:02}")).await);
    }
    (b.lose)().await;
    let [one, two] = [b.daemon(), b.daemon()];
    let toggling = async {
        for id in &ids {
            one.set_offline(id).await.unwrap();
            one.set_online(id).await.unwrap();
            one.set_offline(id).await.unwrap();
        }
    };
    let seeding = async {
        two.seed().await.unwrap();
        two.seed().await.unwrap();
    };
    join(toggling, seeding).await;
    b.agree().await;
    assert!(b.available().await.0.is_empty());
}
