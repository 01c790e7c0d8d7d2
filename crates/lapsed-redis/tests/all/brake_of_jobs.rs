//! Jobs that the application registers itself name no owners that could be counted. A mass death is
//! recognised by the share of all jobs that became due within one threshold, and its hold is kept in
//! Redis: every pass here is one of its own, as from a crontab.

use std::time::Duration;

use crate::inflight_app::{AppFixture, INDEX, JOBS, id, layout, pass, payload};
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, PassReport, Stopped, Sweep};
use lapsed_redis::AdoptedInflightLayout;

crate::inflight_app::on_both! {
    all_jobs_of_twenty_processes_due_at_once_are_held_and_go_in_steps,
    jobs_that_become_due_one_after_another_are_a_mass_death,
    two_passes_at_the_same_moment_take_one_step,
    a_normal_trickle_of_orphans_is_not_held,
    a_dry_run_lists_what_the_brake_spares,
}

const THRESHOLD_MS: u64 = 3_000;
const JOBS_IN_ALL: usize = 500;
const SPREAD_MS: u64 = 2_000;

/// The same keys with a longer threshold, on a server that has been there for longer than that.
async fn slow(beside: &AppFixture) -> AppFixture {
    let orphan_threshold = Duration::from_millis(THRESHOLD_MS);
    let beside = beside.with(AdoptedInflightLayout { orphan_threshold, ..layout() });
    let back_ms = beside.redis.info().await.unwrap().back_ms;
    beside.until_ms(back_ms + THRESHOLD_MS + 1_000).await;
    beside.inflight.confirm_adoption().await.unwrap();
    beside
}

fn policy() -> Policy {
    Policy { every: Duration::from_millis(200), ..Policy::default() }
}

/// One pass of a process that has seen nothing before.
async fn single_pass(beside: &AppFixture, act: PassMode) -> PassReport {
    pass(&beside.sweeper_with("cron", policy()), act).await
}

fn job_id(n: usize) -> String {
    format!("host-{}:{}/{n}", n % 20, 100 + n % 20)
}

/// Jobs of 20 processes that all sent their last heartbeat now, registered in one go.
fn register(beside: &AppFixture, jobs: std::ops::Range<usize>) -> u64 {
    let at_ms = beside.app.now_ms();
    let (mut index, mut hash) =
        (vec!["ZADD".to_owned(), INDEX.into()], vec!["HSET".into(), JOBS.into()]);
    for n in jobs {
        index.extend([at_ms.to_string(), job_id(n)]);
        hash.extend([job_id(n), payload(n, "default")]);
    }
    beside.app.call(&index);
    beside.app.call(&hash);
    at_ms
}

async fn all_due(beside: &AppFixture) {
    let at_ms = register(beside, 0..JOBS_IN_ALL);
    beside.until_ms(at_ms + THRESHOLD_MS + 1).await;
}

async fn until_the_first_step(beside: &AppFixture) {
    let hold = beside.redis.brake(&id()).await.unwrap().hold.expect("the brake holds");
    beside.until_ms(hold.until_ms).await;
}

async fn all_jobs_of_twenty_processes_due_at_once_are_held_and_go_in_steps(beside: AppFixture) {
    let beside = slow(&beside).await;
    all_due(&beside).await;
    let held = single_pass(&beside, PassMode::Reclaim).await;
    assert_eq!((held.stopped, held.reclaimed), (Stopped::Brake, 0), "{held:?}");
    assert!(held.detail.as_ref().unwrap().contains("too many owners"), "{held:?}");
    assert_eq!(beside.app.queued("default"), 0, "no job is on its queue");
    until_the_first_step(&beside).await;
    let mut steps = Vec::new();
    while steps.iter().sum::<u64>() < JOBS_IN_ALL as u64 {
        let report = single_pass(&beside, PassMode::Reclaim).await;
        assert_eq!(report.errors, 0, "{report:?}");
        if report.reclaimed > 0 {
            steps.push(report.reclaimed);
        }
    }
    assert_eq!(steps[..2], [50, 90], "a tenth of all, then a fifth of the rest: {steps:?}");
    assert_eq!(beside.app.queued("default"), JOBS_IN_ALL);
}

/// Twenty processes were cut off at once. Each had sent its last heartbeat at another moment, so that every pass finds few
/// jobs due of those that are left.
async fn jobs_that_become_due_one_after_another_are_a_mass_death(beside: AppFixture) {
    let beside = slow(&beside).await;
    let at_ms = beside.app.now_ms();
    for n in 0..JOBS_IN_ALL {
        let beat_ms = at_ms - SPREAD_MS + (n as u64 * SPREAD_MS) / JOBS_IN_ALL as u64;
        beside.app.register_at(&job_id(n), payload(n, "default"), &beat_ms.to_string());
    }
    let mut gone = 0;
    for pass in 1.. {
        beside.until_ms(at_ms + THRESHOLD_MS - SPREAD_MS + pass * 100).await;
        let report = single_pass(&beside, PassMode::Reclaim).await;
        gone += report.reclaimed;
        // 275, and what becomes due between the count and the first page.
        assert!(gone <= 300, "{gone} of 500 before the first hold: {report:?}");
        if report.stopped == Stopped::Brake {
            break;
        }
    }
    assert!(gone > 0, "they were not all due at once");
    assert_eq!(beside.app.queued("default") as u64, gone);
}

/// Both read the same record; the store gives the step to one, and the other one holds.
async fn two_passes_at_the_same_moment_take_one_step(beside: AppFixture) {
    let beside = slow(&beside).await;
    all_due(&beside).await;
    single_pass(&beside, PassMode::Reclaim).await;
    until_the_first_step(&beside).await;
    // The next step is due half an interval after this one.
    let policy = Policy { every: Duration::from_millis(THRESHOLD_MS), ..Policy::default() };
    let (first, second) =
        (beside.sweeper_with("first", policy.clone()), beside.sweeper_with("second", policy));
    let (one, other) =
        tokio::join!(pass(&first, PassMode::Reclaim), pass(&second, PassMode::Reclaim));
    assert_eq!(one.reclaimed + other.reclaimed, 50, "{one:?} {other:?}");
    assert_eq!(beside.redis.brake(&id()).await.unwrap().hold.unwrap().steps, 1);
}

async fn a_normal_trickle_of_orphans_is_not_held(beside: AppFixture) {
    let beside = slow(&beside).await;
    let at_ms = register(&beside, 0..25);
    beside.until_ms(at_ms + THRESHOLD_MS + 1).await;
    register(&beside, 25..JOBS_IN_ALL);
    let census = beside.inflight.census().await.unwrap();
    let counted = (census.entries_tracked, census.entries_due_recently);
    assert_eq!(counted, (JOBS_IN_ALL as u64, 25), "{census:?}");
    let report = single_pass(&beside, PassMode::Reclaim).await;
    assert_eq!((report.stopped, report.reclaimed), (Stopped::Done, 25), "{report:?}");
}

async fn a_dry_run_lists_what_the_brake_spares(beside: AppFixture) {
    let beside = slow(&beside).await;
    all_due(&beside).await;
    let dry = single_pass(&beside, PassMode::DryRun).await;
    assert_eq!((dry.stopped, dry.reclaimed), (Stopped::Brake, 0), "{dry:?}");
    assert_eq!(dry.skipped.get("brake"), Some(&(JOBS_IN_ALL as u64)), "{:?}", dry.skipped);
    assert!(!dry.entries.is_empty());
    assert_eq!(beside.redis.brake(&id()).await.unwrap().hold, None, "a dry run leaves no trace");
}
