//! Passes of a sweeper, and what their reports say, for the tests that run beside an application.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::{PassMode, PassReport, Stopped, Sweeper};

/// The latest that anything may happen on a machine under load.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub async fn pass(sweeper: &Sweeper, act: PassMode) -> PassReport {
    let (_stopper, stop) = StopSignal::channel();
    sweeper.pass(act, 100_000, &stop).await
}

/// Passes until one comes to its end without the brake: what they did in all. What was spared because
/// the server was away is not counted, since it comes again.
pub async fn sweep_through(sweeper: &Sweeper) -> PassReport {
    let began = Instant::now();
    let mut total: Option<PassReport> = None;
    loop {
        let mut one = pass(sweeper, PassMode::Reclaim).await;
        let away = one.skipped.remove("store_away").is_some();
        one.skipped.remove("brake");
        let done = one.stopped == Stopped::Done && !away && one.errors == 0;
        total = Some(match total {
            None => one,
            Some(before) => sum(before, one),
        });
        if done {
            return total.unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "{total:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn sum(mut a: PassReport, b: PassReport) -> PassReport {
    a.examined += b.examined;
    a.suspects += b.suspects;
    a.reclaimed += b.reclaimed;
    a.released += b.released;
    a.errors += b.errors;
    a.settled += b.settled;
    a.owners_ended += b.owners_ended;
    a.stopped = b.stopped;
    a.detail = b.detail;
    a.entries.extend(b.entries);
    for (why, count) in b.skipped {
        *a.skipped.entry(why).or_default() += count;
    }
    a
}

/// What a report names.
pub fn named(report: &PassReport) -> BTreeSet<String> {
    report.entries.iter().map(|entry| entry.key.to_string()).collect()
}

pub fn skipped(report: &PassReport, why: &str) -> u64 {
    report.skipped.get(why).copied().unwrap_or(0)
}
