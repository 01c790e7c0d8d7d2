//! Workers die, and their jobs go on.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{InflightFixture, batch_id, ids_of, job, job_with, name};
use crate::inflight::rules::{DeadLetterReason, OnDeath, QueueEnd, RecoveryPolicy};
use crate::inflight::{Finish, Finished, JobPlace, NewJob, RecoveryAction};
use crate::name::Name;
use crate::receipt::Reason;
use crate::sweep::policy::Policy;
use crate::sweep::{Outcome, PassMode, PassReport, Refusal, Stopped, Suspect};

/// The step that takes it from the dead puts it on its queue, raises its crash count and writes the
/// receipt: after it, all of that is there; before it, none.
pub async fn trap_e1_a_job_is_removed_and_put_back_in_one_step(f: InflightFixture) {
    let (claim, jobs) = f.working("w", &["a", "b"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    assert_eq!(suspects.len(), 2);
    assert!(suspects.iter().all(|s| Some(s.incarnation) == claim.incarnation));
    let counts = f.counts().await;
    assert_eq!((counts.queued, counts.in_flight), (0, 2));
    let answer = f.reclaim(suspects[..1].to_vec()).await;
    assert!(matches!(answer.outcomes[0], Outcome::Reclaimed(Some(_))), "{answer:?}");
    assert_eq!(answer.owners_ended, 1);
    let counts = f.counts().await;
    assert_eq!((counts.queued, counts.in_flight), (1, 1));
    let id = suspects[0].key.clone();
    assert_eq!(f.place(id.as_str()).await, JobPlace::Queued);
    let (_, recovered) = f.recovered(id.as_str()).await;
    assert_eq!((recovered.did, recovered.crashes), (RecoveryAction::PutBack, 1));
    assert_eq!((&recovered.queue, recovered.payload), (&name("q"), None));
    let claimed = jobs.iter().find(|job| job.id == id).unwrap();
    assert_eq!(recovered.token, claimed.token);
    assert_eq!(f.sweep().await.reclaimed, 1);
    let other = f.start("other").await;
    let again = f.take(&other, 10).await;
    assert_eq!(again.len(), 2);
    assert!(again.iter().all(|job| job.crashes == 1 && job.token > jobs[1].token), "{again:?}");
    let receipts = f.receipts().await;
    assert!(receipts.iter().all(|r| r.reason == Reason::OwnerDead && r.owner == claim.owner));
}

pub async fn live_workers_keep_their_jobs(f: InflightFixture) {
    let (live, jobs) = f.working("live", &["x", "y"]).await;
    f.working("dead", &["a"]).await;
    f.outlive(f.ttl, &[&live]).await;
    let report = f.sweep().await;
    assert_eq!((report.reclaimed, report.stopped), (1, Stopped::Done), "{report:?}");
    assert_eq!(f.inflight.in_flight(&live, None, 10).await.unwrap().len(), 2);
    assert_eq!(f.complete(&live, &jobs[0]).await, Finished::Done);
    let again = f.sweep().await;
    assert_eq!((again.reclaimed, again.suspects), (0, 0));
}

/// It was overdue when the page was read, and beat before the batch arrived (P1).
pub async fn a_heartbeat_before_the_reclaim_wins(f: InflightFixture) {
    let (claim, jobs) = f.working("w", &["a", "b"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    assert_eq!(suspects.len(), 2);
    f.inflight.beat(&claim).await.expect("overdue is not dead");
    let answer = f.reclaim(suspects).await;
    assert_eq!(answer.outcomes, vec![Outcome::Refused(Refusal::Alive); 2]);
    assert_eq!(f.complete(&claim, &jobs[0]).await, Finished::Done);
    assert!(f.suspects().await.is_empty(), "and it is no suspect any more");
}

/// A dead worker is found by its deadline, also if it holds nothing; no list of processes has to be
/// pruned.
pub async fn trap_e3_a_dead_worker_is_found_without_a_list_of_processes(f: InflightFixture) {
    f.working("w", &["a"]).await;
    let idle = f.start("idle").await;
    (f.advance)(f.ttl).await;
    let report = f.sweep().await;
    assert_eq!((report.reclaimed, report.owners_ended), (1, 2), "{report:?}");
    assert!(f.inflight.beat(&idle).await.is_err());
    let census = f.inflight.census().await.unwrap();
    assert_eq!((census.owners_live, census.owners_overdue, census.population), (0, 0, 0));
}

/// Three workers die with the job, and it becomes a dead letter; the application's retries have no part in
/// it.
pub async fn trap_e7_a_job_that_kills_its_workers_ends_as_a_dead_letter(f: InflightFixture) {
    f.enqueue(&["poison"]).await;
    for (crash, owner) in ["one", "two"].into_iter().enumerate() {
        assert_eq!(f.crash(owner).await.reclaimed, 1);
        assert_eq!(f.place("poison").await, JobPlace::Queued);
        assert_eq!(f.job("poison").await.unwrap().crashes, crash as u32 + 1);
    }
    let report = f.crash("three").await;
    assert_eq!(report.reclaimed, 1, "{report:?}");
    let JobPlace::Dead { why, .. } = f.place("poison").await else { panic!("it is still on") };
    assert_eq!(why, DeadLetterReason::Crashes);
    let (_, recovered) = f.recovered("poison").await;
    assert_eq!(
        (recovered.did, recovered.why),
        (RecoveryAction::DeadLetter, Some(DeadLetterReason::Crashes))
    );
    assert_eq!(recovered.crashes, 3);
    let next = f.start("four").await;
    assert!(f.take(&next, 10).await.is_empty());
    assert_eq!(f.counts().await.dead, 1);
}

pub async fn crashes_before_the_window_do_not_count(f: InflightFixture) {
    let crash_window_ms = f.ttl_ms() / 2;
    let f = f
        .with(RecoveryPolicy { crashes_max: 2, crash_window_ms, ..RecoveryPolicy::default() })
        .await;
    f.enqueue(&["a"]).await;
    for owner in ["one", "two", "three"] {
        assert_eq!(f.crash(owner).await.reclaimed, 1);
        assert_eq!(f.place("a").await, JobPlace::Queued, "each is the first within its window");
        (f.advance)(Duration::from_millis(crash_window_ms)).await;
        assert_eq!(f.job("a").await.unwrap().crashes, 0);
    }
}

pub async fn trap_e8_a_job_of_a_long_dead_worker_is_not_put_back(f: InflightFixture) {
    let age_max_ms = f.ttl_ms();
    let f = f.with(RecoveryPolicy { age_max_ms, ..RecoveryPolicy::default() }).await;
    f.working("w", &["a", "b"]).await;
    (f.advance)(f.ttl * 2 + Duration::from_millis(50)).await;
    assert_eq!(f.sweep().await.reclaimed, 2);
    let JobPlace::Dead { why, .. } = f.place("a").await else { panic!("it is back") };
    assert_eq!(why, DeadLetterReason::TooOld);
    let counts = f.counts().await;
    assert_eq!((counts.dead, counts.queued), (2, 0));
}

/// More than any list of arguments takes, in one pass, each once.
pub async fn trap_e10_nine_thousand_jobs_of_one_worker_are_recovered(f: InflightFixture) {
    const JOBS: usize = 9_000;
    let claim = f.start("w").await;
    for from in (0..JOBS).step_by(1_000) {
        let jobs: Vec<NewJob> = (from..from + 1_000)
            .map(|i| NewJob::new(name(&format!("j{i}")), name("q"), ""))
            .collect();
        f.inflight.register(&claim, &jobs).await.unwrap();
        f.inflight.beat(&claim).await.unwrap();
    }
    assert_eq!(f.counts().await.in_flight, JOBS as u64);
    (f.advance)(f.ttl).await;
    let policy = Policy { batch: JOBS, ..Policy::default() };
    let report = f.pass("s", PassMode::Reclaim, policy).await;
    assert_eq!((report.reclaimed, report.errors), (JOBS as u64, 0), "{report:?}");
    let counts = f.counts().await;
    assert_eq!((counts.queued, counts.in_flight), (JOBS as u64, 0));
    let distinct: BTreeSet<Name> = f.receipts().await.into_iter().map(|r| r.key).collect();
    assert_eq!(distinct.len(), JOBS);
}

/// The restarted worker neither keeps the jobs of the one before, nor loses its own to its death.
pub async fn trap_e12_a_reused_worker_name_hides_no_dead_incarnation(f: InflightFixture) {
    f.working("w", &["old"]).await;
    let (new, jobs) = f.working("w", &["new"]).await;
    f.outlive(f.ttl, &[&new]).await;
    assert_eq!(f.sweep().await.reclaimed, 1);
    assert_eq!(f.place("old").await, JobPlace::Queued);
    assert_eq!(f.complete(&new, &jobs[0]).await, Finished::Done);
}

/// Put back, fail, drop or dead letter: the job's own word counts more than the system's.
pub async fn a_jobs_own_on_death_overrides_the_policy(f: InflightFixture) {
    let mut jobs: Vec<NewJob> =
        OnDeath::ALL.iter().map(|way| job_with(way.as_str(), *way)).collect();
    jobs.push(NewJob { crashes_max: Some(1), ..job("fragile") });
    f.inflight.enqueue(&jobs).await.unwrap();
    let claim = f.start("w").await;
    assert_eq!(f.take(&claim, 10).await.len(), 6);
    (f.advance)(f.ttl).await;
    assert_eq!(f.sweep().await.reclaimed, 6);
    let place = |id: &'static str| {
        let inflight = f.inflight.clone();
        async move {
            match inflight.job(&name(id)).await.unwrap().map(|job| job.place) {
                Some(JobPlace::Queued) => "queued".to_owned(),
                Some(JobPlace::Dead { why, .. }) => why.to_string(),
                Some(other) => format!("{other:?}"),
                None => "gone".to_owned(),
            }
        }
    };
    assert_eq!((place("front").await, place("back").await), ("queued".into(), "queued".into()));
    assert_eq!(
        (place("fail").await, place("dead_letter").await),
        ("failed".into(), "asked".into())
    );
    assert_eq!((place("drop").await, place("fragile").await), ("gone".into(), "crashes".into()));
    let (_, dropped) = f.recovered("drop").await;
    let carried = Some("payload of drop".to_owned());
    assert_eq!((dropped.did, dropped.payload), (RecoveryAction::Dropped, carried));
    let counts = f.counts().await;
    assert_eq!((counts.queued, counts.dead, counts.dropped), (2, 3, 1));
}

/// As their rule says: before those that wait, or behind them.
pub async fn recovered_jobs_go_to_the_configured_end(f: InflightFixture) {
    let jobs = [job_with("last", OnDeath::Back), job_with("first", OnDeath::Front)];
    f.inflight.enqueue(&jobs).await.unwrap();
    let claim = f.start("w").await;
    f.take(&claim, 2).await;
    f.enqueue(&["waiting"]).await;
    (f.advance)(f.ttl).await;
    assert_eq!(f.sweep().await.reclaimed, 2);
    let other = f.start("other").await;
    assert_eq!(ids_of(&f.take(&other, 10).await), ["first", "waiting", "last"]);
}

/// Both see the same suspects; a job is on its queue once, and there is one receipt for it.
pub async fn two_sweepers_put_back_once(f: InflightFixture) {
    let ids: Vec<String> = (0..200).map(|i| format!("j{i:03}")).collect();
    f.working("w", &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    (f.advance)(f.ttl).await;
    let policy = Policy { batch: 7, ..Policy::default() };
    let (one, two) = futures::join!(
        f.pass("one", PassMode::Reclaim, policy.clone()),
        f.pass("two", PassMode::Reclaim, policy.clone()),
    );
    assert_eq!(one.reclaimed + two.reclaimed, 200, "{one:?} {two:?}");
    assert_eq!(one.owners_ended + two.owners_ended, 1);
    let counts = f.counts().await;
    assert_eq!((counts.queued, counts.in_flight), (200, 0));
    let other = f.start("other").await;
    let taken = f.take(&other, 1_000).await;
    let distinct: BTreeSet<&str> = ids_of(&taken).into_iter().collect();
    assert_eq!((taken.len(), distinct.len(), f.receipts().await.len()), (200, 200, 200));
}

pub async fn a_dry_run_changes_nothing(f: InflightFixture) {
    f.working("w", &["a", "b"]).await;
    (f.advance)(f.ttl).await;
    let keys = |report: &PassReport| -> BTreeSet<Name> {
        report.entries.iter().map(|e| e.key.clone()).collect()
    };
    let dry = f.pass("s", PassMode::DryRun, Policy::default()).await;
    assert_eq!(dry.reclaimed, 2, "{dry:?}");
    assert!(f.receipts().await.is_empty());
    let counts = f.counts().await;
    assert_eq!((counts.queued, counts.in_flight), (0, 2));
    assert_eq!(f.inflight.census().await.unwrap().owners_overdue, 1, "nobody was declared dead");
    let real = f.sweep().await;
    assert_eq!(keys(&dry), keys(&real));
}

/// Three at a time: each pass says why it stopped, and the next continues from there.
pub async fn a_pass_that_stops_early_resumes(f: InflightFixture) {
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h"];
    f.working("w", &ids).await;
    (f.advance)(f.ttl).await;
    let policy = Policy { batch: 2, max_ops: Some(3), ..Policy::default() };
    let sweeper = f.sweeper("s", policy);
    let (_stopper, stop) = crate::schedule::StopSignal::channel();
    for expected in [Stopped::Ops, Stopped::Ops, Stopped::Done] {
        let report = sweeper.pass(PassMode::Reclaim, 100, &stop).await;
        assert_eq!(report.stopped, expected, "{report:?}");
    }
    assert_eq!(f.counts().await.queued, 8);
}

/// Overdue, listed, and it was only slow: it completes one and gives one back before the batch.
pub async fn a_job_finished_before_the_reclaim_stays_finished(f: InflightFixture) {
    let (claim, jobs) = f.working("w", &["a", "b", "c"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    assert_eq!(suspects.len(), 3);
    assert_eq!(f.complete(&claim, &jobs[0]).await, Finished::Done, "overdue is not dead");
    let given = f.finish(&claim, &jobs[1], Finish::GiveBack(QueueEnd::Front)).await;
    assert_eq!(given, Finished::Done);
    let answer = f.reclaim(suspects.clone()).await;
    for (suspect, outcome) in suspects.iter().zip(&answer.outcomes) {
        match suspect.key.as_str() {
            "c" => assert!(matches!(outcome, Outcome::Reclaimed(Some(_))), "{outcome:?}"),
            _ => assert_eq!(*outcome, Outcome::Gone, "{suspect:?}"),
        }
    }
    let counts = f.counts().await;
    assert_eq!((counts.completed, counts.queued, counts.in_flight), (1, 2, 0));
}

/// A suspect is given back and taken by a live worker before the batch arrives.
pub async fn a_job_taken_by_another_owner_before_the_reclaim_stays_there(f: InflightFixture) {
    let (slow, jobs) = f.working("slow", &["a"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    f.finish(&slow, &jobs[0], Finish::GiveBack(QueueEnd::Front)).await;
    let quick = f.start("quick").await;
    let taken = f.take(&quick, 1).await;
    assert_eq!(ids_of(&taken), ["a"]);
    let answer = f.reclaim(suspects).await;
    assert_eq!(answer.outcomes, [Outcome::Refused(Refusal::Moved)]);
    assert_eq!(f.complete(&quick, &taken[0]).await, Finished::Done);
    assert!(f.receipts().await.is_empty());
}

pub async fn the_same_suspect_twice_is_put_back_once(f: InflightFixture) {
    f.working("w", &["a"]).await;
    (f.advance)(f.ttl).await;
    let suspect = f.suspects().await.remove(0);
    let answer = f.reclaim(vec![suspect.clone(), suspect]).await;
    assert!(matches!(answer.outcomes[0], Outcome::Reclaimed(Some(_))));
    assert_eq!(answer.outcomes[1], Outcome::Gone);
    assert_eq!((f.counts().await.queued, f.receipts().await.len()), (1, 1));
}

/// Two terms: the batch of the first, sent late, is refused in the store's own step.
pub async fn a_stalled_leader_is_refused_by_the_store(f: InflightFixture) {
    f.working("w", &["a"]).await;
    let system = f.inflight.system().clone();
    let first = f.store.campaign(&system, "one", f.ttl_ms() / 2).await.unwrap().unwrap();
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    let second = f.store.campaign(&system, "two", 60_000).await.unwrap().unwrap();
    let late = f.reclaim_as(&batch_id("s", 1), Some(first.number), suspects.clone()).await;
    assert_eq!(late.outcomes, [Outcome::Refused(Refusal::NotLeader)]);
    assert_eq!(f.counts().await.in_flight, 1);
    let current = f.reclaim_as(&batch_id("s", 2), Some(second.number), suspects).await;
    assert!(matches!(current.outcomes[0], Outcome::Reclaimed(Some(_))));
}

/// Retiring reclaims with receipts, but counts no crash.
pub async fn retiring_puts_back_without_a_crash(f: InflightFixture) {
    let ids = ["a", "b", "c", "d", "e", "f", "g"];
    let (claim, jobs) = f.working("w", &ids).await;
    let retired = f.system().retire(&claim).await.unwrap();
    assert_eq!((Some(retired.incarnation), retired.reclaimed), (claim.incarnation, 7));
    let counts = f.counts().await;
    assert_eq!((counts.queued, counts.in_flight), (7, 0));
    assert!(f.receipts().await.iter().all(|r| r.reason == Reason::OwnerRetired));
    assert_ne!(f.complete(&claim, &jobs[0]).await, Finished::Done);
    let other = f.start("other").await;
    let again = f.take(&other, 10).await;
    assert!(again.len() == 7 && again.iter().all(|job| job.crashes == 0), "{again:?}");
}

/// The answer was lost, the batch was not. What was settled as not carried out never will be.
pub async fn a_lost_answer_is_settled_by_batch(f: InflightFixture) {
    f.working("w", &["a", "b", "c"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    let carry = async |number, suspects: &[Suspect]| {
        f.reclaim_as(&batch_id("s", number), None, suspects.to_vec()).await.outcomes
    };
    carry(1, &suspects[..2]).await;
    let settled = async |number| f.settle(&batch_id("s", number)).await;
    assert_eq!((settled(1).await, settled(2).await), (2, 0));
    assert_eq!(carry(2, &suspects[2..]).await, [Outcome::Gone], "settled: it never will be");
    let twice = carry(1, &suspects[..2]).await;
    let reclaimed = twice.iter().filter(|o| matches!(o, Outcome::Reclaimed(_)));
    assert!(reclaimed.count() <= 2);
    let counts = f.counts().await;
    assert_eq!((counts.queued, counts.in_flight), (2, 1));
    assert_eq!(f.receipts().await.len(), 2);
    assert_eq!(f.sweep().await.reclaimed, 1);
}

/// Where the queues are out of reach: put back, given back, revived, all go to the outbox, which is delivered
/// them from; a job keeps the name of its queue.
pub async fn with_an_outbox_all_returned_jobs_go_to_it(f: InflightFixture) {
    let outbox = name("outbox");
    let f =
        f.with(RecoveryPolicy { outbox: Some(outbox.clone()), ..RecoveryPolicy::default() }).await;
    let claim = f.start("w").await;
    let tracked = f.inflight.register(&claim, &[job("a")]).await.unwrap();
    assert_eq!(tracked.jobs.len(), 1);
    (f.advance)(f.ttl).await;
    assert_eq!(f.sweep().await.reclaimed, 1);
    assert_eq!(f.inflight.queues(None, 10).await.unwrap(), [(outbox.clone(), 1)]);
    let deliverer = f.start("deliverer").await;
    let take =
        || async { f.inflight.take(&deliverer, &outbox, 1).await.unwrap().jobs.into_iter().next() };
    let job = take().await.expect("it is there");
    assert_eq!((job.id.as_str(), &job.queue), ("a", &name("q")));
    f.finish(&deliverer, &job, Finish::GiveBack(QueueEnd::Back)).await;
    let job = take().await.expect("given back to where it came from");
    f.finish(&deliverer, &job, Finish::Fail { error: "no".to_owned() }).await;
    assert!(f.inflight.put_back(&name("a"), QueueEnd::Back).await.unwrap());
    let job = take().await.expect("revived to where it is delivered from");
    assert_eq!(f.complete(&deliverer, &job).await, Finished::Done);
}

/// `on_death = { queue = "slow" }`: a job that killed a worker waits on another queue, where it delays no other job. A job that chose for itself, and the
/// jobs of a worker that retired, go back as usual.
pub async fn jobs_of_dead_workers_are_moved_to_another_queue(f: InflightFixture) {
    let slow = name("slow");
    let f =
        f.with(RecoveryPolicy { move_to: Some(slow.clone()), ..RecoveryPolicy::default() }).await;
    f.working("w", &["a", "b"]).await;
    let own = NewJob { on_death: Some(OnDeath::Front), ..job("c") };
    let claim = f.start("chooser").await;
    assert_eq!(f.inflight.register(&claim, &[own]).await.unwrap().jobs.len(), 1);
    (f.advance)(f.ttl).await;
    assert_eq!(f.sweep().await.reclaimed, 3);
    let mut queues = f.inflight.queues(None, 10).await.unwrap();
    queues.sort();
    assert_eq!(queues, [(name("q"), 1), (slow.clone(), 2)]);
    let receipts = f.receipts().await;
    let moved = receipts
        .iter()
        .filter(|one| one.removed["moved_to"] == "slow" && one.removed["queue"] == "q");
    assert_eq!(moved.count(), 2, "{receipts:?}");
    let other = f.start("other").await;
    let taken = f.inflight.take(&other, &slow, 10).await.unwrap().jobs;
    let ids: Vec<&str> = taken.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert!(taken.iter().all(|job| job.queue == slow && job.crashes == 1), "{taken:?}");
    f.finish(&other, &taken[0], Finish::GiveBack(QueueEnd::Back)).await;
    assert_eq!(f.inflight.queues(None, 10).await.unwrap(), [(name("q"), 1), (slow, 1)]);
}
