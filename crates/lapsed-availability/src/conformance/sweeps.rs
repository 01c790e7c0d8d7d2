//! Cases about setting silent providers offline.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use super::{AvailabilityFixture, has_beat, name};
use crate::rules::SettingsPatch;
use crate::{Availability, Flip, ProviderBeat, Source};
use lapsed_core::conformance::leading::leaders_that_stall_within_a_pass_reclaim_nothing_more;
use lapsed_core::name::Name;
use lapsed_core::receipt::Reason;
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::brake::BrakeSetting;
use lapsed_core::sweep::{Batch, Outcome, PassMode, Refusal, Stopped, Sweep};
use lapsed_core::system::{Restored, System};

/// The mirror decides, and the sweeper dies before the truth knows.
async fn decide_offline(b: &AvailabilityFixture, id: &Name) -> Batch {
    let suspects: Vec<_> = b.suspects().await.into_iter().filter(|one| one.key == *id).collect();
    assert_eq!(suspects.len(), 1, "{id} is not suspected");
    let batch = b.batch(suspects);
    let stale_ms = b.ttl.as_millis() as u64;
    let decided = b.mirror.decide(&batch, stale_ms).await.unwrap();
    assert!(decided[0].is_ok(), "{decided:?}");
    batch
}

pub async fn silent_providers_are_set_offline_once(b: AvailabilityFixture) {
    let [silent, alive] = [b.online("silent").await, b.online("alive").await];
    b.silence().await;
    b.beat(&alive).await;
    let report = b.sweep().await;
    assert_eq!((report.reclaimed, report.stopped), (1, Stopped::Done), "{report:?}");
    let state = b.state(&silent).await;
    let seen = b.seen(&silent).await;
    assert!(
        !state.online && !seen.online && !has_beat(&seen) && seen.pending_offline.is_none(),
        "{seen:?}"
    );
    assert!(b.state(&alive).await.online);
    let receipts = b.receipts().await;
    assert_eq!(receipts.len(), 1);
    assert_eq!((&receipts[0].key, receipts[0].reason), (&silent, Reason::HeartbeatStale));
    let log = b.truth.log(&silent, 10).await.unwrap();
    assert_eq!(log.iter().map(|flap| flap.online).collect::<Vec<_>>(), [false, true]);
    assert_eq!(b.beat(&silent).await, ProviderBeat::Offline, "it is told");
    let again = b.sweep().await;
    assert_eq!((again.suspects, again.reclaimed), (0, 0), "{again:?}");
    b.agree().await;
}

/// C5: silent when the page was read, and a beat arrived first.
pub async fn trap_c5_a_heartbeat_before_the_decision_wins(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.silence().await;
    let suspects = b.suspects().await;
    assert_eq!(suspects.len(), 1);
    assert_eq!(b.beat(&id).await, ProviderBeat::Noted);
    let answer = b.it.reclaim(b.batch(suspects)).await.unwrap();
    assert_eq!(answer.outcomes, [Outcome::Refused(Refusal::Alive)]);
    assert!(b.state(&id).await.online && has_beat(&b.seen(&id).await));
    assert!(b.receipts().await.is_empty());
}

/// From the decision on nobody finds it by the mirror; a beat is the truth's to judge, which has not set it
/// offline.
pub async fn a_heartbeat_while_pending_offline_is_judged_by_the_truth(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.silence().await;
    decide_offline(&b, &id).await;
    let answer = b.it.heartbeat(&[name("nobody"), id.clone()]).await.unwrap();
    assert_eq!(
        (answer.answer, answer.source),
        (vec![ProviderBeat::Offline, ProviderBeat::Noted], Source::Truth)
    );
    let seen = b.seen(&id).await;
    assert!(
        seen.online && has_beat(&seen) && seen.pending_offline.is_none(),
        "back at once: {seen:?}"
    );
    assert_eq!(b.available().await.0, ["p"]);
    let report = b.sweep().await;
    assert_eq!(report.reclaimed, 0, "whom it told that it is online stays so: {report:?}");
    assert!(b.state(&id).await.online && b.seen(&id).await.online);
    assert_eq!(b.truth.log(&id, 9).await.unwrap().len(), 1);
    b.agree().await;
}

/// The truth has set the provider offline, but the mirror was not updated: the truth answers the
/// heartbeat.
pub async fn a_heartbeat_after_the_truth_set_it_offline_is_answered_offline(
    b: AvailabilityFixture,
) {
    let id = b.online("p").await;
    b.silence().await;
    let batch = decide_offline(&b, &id).await;
    let epoch = b.state(&id).await.epoch;
    let flip = Flip { id: id.clone(), epoch, silent_ms: None, decided_ago_ms: 0 };
    b.truth.flip(&batch, &[flip], b.ttl.as_millis() as u64).await.unwrap();
    assert!(b.seen(&id).await.pending_offline.is_some(), "nobody has told the mirror");
    assert_eq!(b.beat(&id).await, ProviderBeat::Offline);
    assert_eq!(b.sweep().await.reclaimed, 0, "once is enough");
    let answer = b.it.heartbeat(std::slice::from_ref(&id)).await.unwrap();
    assert_eq!((answer.answer, answer.source), (vec![ProviderBeat::Offline], Source::Mirror));
    b.agree().await;
}

/// Only the truth or a toggle ends pending offline.
pub async fn only_a_toggle_voids_pending_offline(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.silence().await;
    decide_offline(&b, &id).await;
    b.it.put_provider(&crate::ProviderProfile { id: id.clone(), display_name: None })
        .await
        .unwrap();
    assert!(!b.seen(&id).await.online);
    b.agree().await;
}

pub async fn a_toggle_after_the_decision_wins(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.silence().await;
    let batch = decide_offline(&b, &id).await;
    let on = b.it.set_online(&id).await.unwrap().unwrap();
    assert!(!on.answer.changed, "it had never been offline");
    let answer = b.it.reclaim(Batch { id: b.batch(Vec::new()).id, ..batch }).await.unwrap();
    assert!(matches!(answer.outcomes[0], Outcome::Refused(Refusal::Moved | Refusal::Alive)));
    assert!(b.state(&id).await.online && b.seen(&id).await.online);
    assert_eq!(b.sweep().await.reclaimed, 0);
    assert_eq!(b.truth.log(&id, 10).await.unwrap().len(), 1);
    b.agree().await;
}

/// Its daemon could not reach the mirror, so that the beat went to the truth: it is not declared silent at
/// all, so that nobody tells it that it is offline.
pub async fn a_heartbeat_that_reached_the_truth_wins(b: AvailabilityFixture) {
    let id = b.online("p").await;
    let epoch = b.state(&id).await.epoch;
    b.silence().await;
    assert_eq!(b.truth.beat(std::slice::from_ref(&id)).await.unwrap(), [ProviderBeat::Noted]);
    let report = b.sweep().await;
    assert_eq!(report.reclaimed, 0, "{report:?}");
    let state = b.state(&id).await;
    assert!(state.online);
    assert_eq!(state.epoch, epoch, "the epoch of a decision that was taken back is over");
    let seen = b.seen(&id).await;
    assert!(seen.online && has_beat(&seen) && seen.pending_offline.is_none(), "{seen:?}");
    assert_eq!(b.available().await.0, ["p"]);
    b.agree().await;
}

/// The same after the mirror has decided: the truth does not carry it out, and brings it back.
pub async fn a_heartbeat_that_reached_the_truth_after_the_decision_wins(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.silence().await;
    decide_offline(&b, &id).await;
    assert_eq!(b.truth.beat(std::slice::from_ref(&id)).await.unwrap(), [ProviderBeat::Noted]);
    let report = b.sweep().await;
    assert_eq!(report.reclaimed, 0, "{report:?}");
    assert!(b.state(&id).await.online);
    let seen = b.seen(&id).await;
    assert!(seen.online && has_beat(&seen) && seen.pending_offline.is_none(), "revived: {seen:?}");
    assert_eq!(b.beat(&id).await, ProviderBeat::Noted);
    b.agree().await;
}

pub async fn the_next_pass_continues_for_a_sweeper_that_died(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.silence().await;
    decide_offline(&b, &id).await;
    let report = b.sweep().await;
    assert_eq!(report.reclaimed, 1, "{report:?}");
    assert!(!b.state(&id).await.online && b.seen(&id).await.pending_offline.is_none());
    assert_eq!((b.receipts().await.len(), b.truth.log(&id, 9).await.unwrap().len()), (1, 2));
    assert_eq!(b.sweep().await.suspects, 0);
    b.agree().await;
}

pub async fn trap_c6_many_sweepers_flip_once(b: AvailabilityFixture) {
    let mut ids = Vec::new();
    for n in 0..9 {
        ids.push(b.online(&format!("p{n}")).await);
    }
    b.silence().await;
    // So many are alive that nine deaths are no mass death.
    for n in 0..9 {
        b.online(&format!("alive-{n}")).await;
    }
    let daemons: Vec<Arc<Availability>> = (0..4).map(|_| b.daemon()).collect();
    let sweepers: Vec<_> = daemons.iter().map(|daemon| b.sweeper(daemon)).collect();
    let (_stopper, stop) = StopSignal::channel();
    let passes = sweepers.iter().map(|sweeper| sweeper.pass(PassMode::Reclaim, 0, &stop));
    let reports = join_all(passes).await;
    let reclaimed: u64 = reports.iter().map(|report| report.reclaimed).sum();
    assert_eq!(reclaimed, 9, "{reports:?}");
    assert_eq!(b.receipts().await.len(), 9);
    for id in &ids {
        assert_eq!(b.truth.log(id, 10).await.unwrap().len(), 2, "{id}");
    }
    b.agree().await;
}

/// A batch whose answer was lost is settled, and does not come after that.
pub async fn a_batch_settled_as_not_done_is_never_carried_out(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.silence().await;
    let batch = decide_offline(&b, &id).await;
    assert!(b.it.settle(&batch.id).await.unwrap().is_empty());
    let flip = Flip {
        id: id.clone(),
        epoch: b.state(&id).await.epoch,
        silent_ms: Some(1),
        decided_ago_ms: 0,
    };
    let stale_ms = b.ttl.as_millis() as u64;
    let late = b.truth.flip(&batch, &[flip], stale_ms).await;
    assert!(late.is_err(), "{late:?}");
    assert!(b.state(&id).await.online);
    assert_eq!(b.sweep().await.reclaimed, 1, "by another batch");
    let carried = b.receipts().await;
    let of = lapsed_core::sweep::BatchId {
        sweeper: carried[0].sweeper.clone(),
        number: carried[0].batch,
    };
    assert_eq!(b.it.settle(&of).await.unwrap(), carried);
}

pub async fn a_dry_run_changes_nothing(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.silence().await;
    let (_stopper, stop) = StopSignal::channel();
    let report = b.sweeper(&b.it).pass(PassMode::DryRun, 10, &stop).await;
    assert_eq!((report.reclaimed, report.entries.len()), (1, 1), "{report:?}");
    let seen = b.seen(&id).await;
    assert!(seen.online && has_beat(&seen) && seen.pending_offline.is_none());
    assert!(b.state(&id).await.online && b.receipts().await.is_empty());
}

/// Most of many at once: likelier the network than the people.
pub async fn the_brake_holds_when_most_fall_silent_at_once(b: AvailabilityFixture) {
    for n in 0..12 {
        b.online(&format!("p{n:02}")).await;
    }
    b.silence().await;
    let (_stopper, stop) = StopSignal::channel();
    let sweeper = b.sweeper(&b.it);
    let report = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
    assert_eq!(report.stopped, Stopped::Brake, "{report:?}");
    assert!(report.reclaimed < 12, "{report:?}");
}

/// As from a crontab, or by daemons that take turns: who was set offline before is known to a process that has seen
/// nothing of it.
pub async fn providers_that_fall_silent_one_after_another_are_a_mass_death_to_every_daemon(
    b: AvailabilityFixture,
) {
    let mut ids = Vec::new();
    for n in 0..12 {
        ids.push(b.online(&format!("p{n:02}")).await);
    }
    let single_pass = async || {
        let (_stopper, stop) = StopSignal::channel();
        b.sweeper(&b.daemon()).pass(PassMode::Reclaim, 0, &stop).await
    };
    let beat = async |ids: &[Name]| {
        for id in ids {
            b.beat(id).await;
        }
    };
    (b.advance)(b.ttl * 11 / 20).await;
    beat(&ids[4..]).await;
    (b.advance)(b.ttl / 2).await;
    let first = single_pass().await;
    assert_eq!((first.reclaimed, first.stopped), (4, Stopped::Done), "{first:?}");
    beat(&ids[8..]).await;
    (b.advance)(b.ttl * 11 / 20).await;
    let second = single_pass().await;
    assert_eq!((second.reclaimed, second.stopped), (0, Stopped::Brake), "8 of 12: {second:?}");
}

/// The operator says something to one daemon; the others hear of it, or ask again.
pub async fn the_operators_brake_setting_is_followed(b: AvailabilityFixture) {
    let (system, other) = (b.it.id(), b.daemon());
    let (here, there) = (b.it.services(), other.services());
    for services in [&here, &there] {
        assert_eq!(services.brake_setting(system).await.unwrap(), BrakeSetting::Auto);
    }
    here.set_brake(system, BrakeSetting::Hold).await.unwrap();
    assert_eq!(here.brake_setting(system).await.unwrap(), BrakeSetting::Hold);
    // What a daemon does when it receives the announcement.
    other.settings_changed().await;
    assert_eq!(there.brake_setting(system).await.unwrap(), BrakeSetting::Hold);
    b.online("p").await;
    b.silence().await;
    assert_eq!(b.sweep().await.reclaimed, 0, "it holds");
    there.set_brake(system, BrakeSetting::Auto).await.unwrap();
    b.it.settings_changed().await;
    assert_eq!(b.sweep().await.reclaimed, 1);
}

/// C11, P2: the lateness is measured by one clock.
pub async fn trap_c11_evidence_uses_one_clock(b: AvailabilityFixture) {
    b.online("p").await;
    b.silence().await;
    assert_eq!(b.sweep().await.reclaimed, 1);
    let receipt = b.receipts().await.remove(0);
    let evidence = &receipt.evidence;
    assert_eq!(evidence.late_ms, evidence.judged_ms - evidence.deadline_ms);
    assert!(evidence.late_ms >= 50, "it was silent for a threshold and 100 ms: {evidence:?}");
    assert!(evidence.late_ms < 60_000, "{evidence:?}");
}

pub async fn restoring_sets_online_unless_toggled_since(b: AvailabilityFixture) {
    let [p, q] = [b.online("p").await, b.online("q").await];
    b.silence().await;
    assert_eq!(b.sweep().await.reclaimed, 2);
    let receipts = b.receipts().await;
    let of = |id: &Name| receipts.iter().find(|one| one.key == *id).unwrap().id.seq;
    let restored = b.it.restore(of(&p)).await.unwrap();
    assert!(matches!(restored, Restored::Restored { .. }), "{restored:?}");
    assert!(b.state(&p).await.online && b.seen(&p).await.online);
    assert_eq!(b.available().await.0, ["p"]);
    let again = b.it.restore(of(&p)).await.unwrap();
    assert!(matches!(again, Restored::Refused { .. }), "{again:?}");
    b.it.set_online(&q).await.unwrap();
    b.it.set_offline(&q).await.unwrap();
    let late = b.it.restore(of(&q)).await.unwrap();
    assert!(matches!(late, Restored::Refused { .. }), "{late:?}");
    assert!(!b.state(&q).await.online);
    b.agree().await;
}

/// Suspected by the settings of before, and not set offline by those of now.
pub async fn a_pass_uses_current_settings(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.silence().await;
    let suspects = b.suspects().await;
    assert_eq!(suspects.len(), 1);
    let patch = SettingsPatch { require_ping: Some(false), ..Default::default() };
    b.truth.set_settings(&patch).await.unwrap();
    let answer = b.it.reclaim(b.batch(suspects)).await.unwrap();
    assert_eq!(answer.outcomes, [Outcome::Refused(Refusal::Alive)]);
    assert!(b.state(&id).await.online && b.seen(&id).await.pending_offline.is_none());
}

/// X7: the truth lost the toggle that a decision was about.
pub async fn trap_x7_pending_offline_of_a_lost_epoch_is_dropped(b: AvailabilityFixture) {
    let id = b.online("p").await;
    b.corrupt_mirror(&id, |state| state.epoch += 1_000_000_000).await;
    b.silence().await;
    decide_offline(&b, &id).await;
    assert!(b.seen(&id).await.pending_offline.is_some());
    for _ in 0..3 {
        b.sweep().await;
    }
    let (state, seen) = (b.state(&id).await, b.seen(&id).await);
    assert!(!state.online && !seen.online && seen.pending_offline.is_none(), "{state:?} {seen:?}");
    b.agree().await;
}

/// Stopped between any two of its calls, until its term is over.
pub async fn trap_x5_leaders_that_stall_within_a_pass_flip_nobody_more(f: AvailabilityFixture) {
    for id in ["a", "b", "c", "d", "e", "f", "g"] {
        f.online(id).await;
    }
    f.silence().await;
    let (led, _keep) = f.led(Duration::from_millis(600));
    leaders_that_stall_within_a_pass_reclaim_nothing_more(led, 7).await;
}
