//! Tests of the status history on a clock that the test moves.

use std::collections::BTreeMap;
use std::time::Duration;

use lapsed_core::Kind;
use lapsed_core::clock::ManualClock;

use super::*;

fn system() -> SystemId {
    SystemId::new(Kind::Registry, "devices").unwrap()
}

fn recorder() -> (StatusHistory, ManualClock) {
    let clock = ManualClock::default();
    (StatusHistory::new(Arc::new(clock.clone())), clock)
}

fn report(reclaimed: u64, stopped: Stopped) -> PassReport {
    PassReport {
        system: "devices".to_owned(),
        kind: Kind::Registry,
        dry_run: false,
        examined: reclaimed,
        suspects: reclaimed,
        reclaimed,
        released: 0,
        skipped: BTreeMap::new(),
        errors: 0,
        stopped,
        took_ms: 1,
        started_ms: 0,
        owners_ended: 0,
        settled: 0,
        detail: None,
        held_by: None,
        entries: Vec::new(),
        entries_cut: false,
    }
}

#[test]
fn steps_lie_side_by_side_and_are_an_eighth_wide() {
    for ms in (0..5_000).chain([u64::MAX / 3, u64::MAX]) {
        let last = last_of(step_of(ms));
        assert!(last >= ms && last - ms <= ms / 8, "{ms}: {last}");
        assert_eq!(step_of(last), step_of(ms), "{ms}");
    }
    assert_eq!(step_of(u64::MAX) + 1, STEPS);
}

#[test]
fn a_slice_tells_how_many_and_how_late() {
    let (recorder, clock) = recorder();
    for late_ms in 1..=100 {
        recorder.reclaimed(&system(), Reason::OwnerDead, late_ms);
    }
    clock.advance(Duration::from_millis(SLICE_MS));
    recorder.reclaimed(&system(), Reason::OwnerRetired, 7);
    let history = recorder.history(&system());
    let [first, second] = &history.samples[..] else { panic!("{history:?}") };
    assert_eq!((first.reclaimed, first.lag_max_ms), (100, Some(100)));
    assert!((50..=56).contains(&first.lag_p50_ms.unwrap()), "{first:?}");
    assert!((99..=100).contains(&first.lag_p99_ms.unwrap()), "{first:?}");
    assert_eq!((second.reclaimed, second.lag_p99_ms), (1, None), "nobody was late");
    assert_eq!(second.at_ms - first.at_ms, SLICE_MS);
}

#[test]
fn no_more_than_an_hour_is_kept() {
    let (recorder, clock) = recorder();
    for _ in 0..1_000 {
        recorder.reclaimed(&system(), Reason::OwnerDead, 5);
        clock.advance(Duration::from_millis(SLICE_MS));
    }
    let history = recorder.history(&system());
    assert_eq!(history.samples.len() as u64, SLICES - 1, "the open slice is empty");
    assert!(recorder.lock()[&system()].closed.len() as u64 <= SLICES);
    assert_eq!(history.now_ms - history.since_ms, (SLICES - 1) * SLICE_MS);
    clock.advance(Duration::from_secs(7_200));
    assert_eq!(recorder.history(&system()).samples, [], "nor anything older");
}

#[test]
fn passes_with_nothing_to_do_are_one_line() {
    let (recorder, _clock) = recorder();
    for _ in 0..3 {
        recorder.passed(report(0, Stopped::Done));
    }
    recorder.passed(report(2, Stopped::Ops));
    recorder.passed(report(0, Stopped::Brake));
    recorder.passed(report(0, Stopped::Done));
    let passes = recorder.history(&system()).passes;
    let told: Vec<_> = passes.iter().map(|p| (p.report.stopped, p.repeated)).collect();
    let done = |repeated| (Stopped::Done, repeated);
    assert_eq!(told, [done(0), (Stopped::Brake, 0), (Stopped::Ops, 0), done(2)]);
    for _ in 0..200 {
        recorder.passed(report(1, Stopped::Done));
    }
    assert_eq!(recorder.history(&system()).passes.len(), PASSES);
    assert_eq!(recorder.last_pass(&system()).unwrap().reclaimed, 1);
}
