//! The application of seed 004 does not change, and lapsed recovers its jobs: its exact keys, written by
//! a client that knows nothing of lapsed, on a real Redis and a real Valkey. The traps by number.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::inflight_app::{
    AppFixture, GC_LOCK, INDEX, JOBS, LONG_AGO_MS, THRESHOLD, jid, layout, name, named, pass,
    payload, skipped, sweep_through, uuid,
};
use lapsed_core::inflight::rules::{DeadLetterReason, QueueEnd, RecoveryPolicy};
use lapsed_core::inflight::{InflightStore, JobPlace, RecoveredJob, RecoveryAction};
use lapsed_core::owner::Claim;
use lapsed_core::receipt::{Reason, Receipt};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Cursor, Outcome, PageRequest, PassMode, Refusal, Sweep};
use lapsed_redis::AdoptedInflightLayout;

crate::inflight_app::on_both! {
    trap_e1_a_queue_that_does_not_take_a_job_leaves_it_registered,
    trap_e1_payloads_that_are_no_jobs_stay_and_the_others_go_on,
    trap_e2_a_late_heartbeat_brings_no_job_back,
    trap_e3_a_list_of_processes_keeps_nobody_alive,
    trap_e4_the_keys_live_on_with_every_pass,
    trap_e5_an_entry_without_a_payload_is_removed,
    trap_e6_the_lock_has_an_end_and_only_its_holder_lets_go,
    trap_e7_a_job_that_kills_its_workers_is_a_dead_letter,
    trap_e7_a_job_without_a_jid_is_known_by_what_it_carries,
    trap_e8_an_orphan_of_long_ago_is_not_put_back,
    trap_e11_ten_thousand_with_one_score_go_in_bounded_pages,
    trap_e11_a_pass_without_orphans_costs_the_same_with_many_jobs,
    a_heartbeat_between_listing_and_reclaim_wins,
    a_job_unregistered_between_listing_and_reclaim_is_gone,
    the_applications_own_collector_is_not_disturbed,
    two_sweepers_recover_each_job_once,
    payloads_go_back_byte_for_byte,
    no_unit_of_time_is_a_moment_early,
    heartbeats_of_the_future_count_for_one_threshold,
    ids_that_are_no_names_are_left_alone,
    a_dry_run_is_the_real_run_without_the_change,
    the_oldest_is_the_next_to_be_run,
    the_keys_of_the_newer_original_go_along,
    another_key_under_the_index_is_said_clearly,
}

fn recovered(receipt: &Receipt) -> RecoveredJob {
    serde_json::from_value(receipt.removed.clone()).unwrap()
}

fn is_put_back(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Reclaimed(Some(receipt)) if recovered(receipt).did == RecoveryAction::PutBack)
}

fn with(recovery: RecoveryPolicy) -> AdoptedInflightLayout {
    AdoptedInflightLayout { recovery, ..layout() }
}

/// One push that fails is one job that waits; once its queue takes it, it goes.
async fn trap_e1_a_queue_that_does_not_take_a_job_leaves_it_registered(beside: AppFixture) {
    let app = &beside.app;
    app.orphan(&uuid(1), payload(1, "good"));
    app.orphan(&uuid(2), payload(2, "bad"));
    app.orphan(&uuid(3), payload(3, "good"));
    app.call(&["SET", "queue:bad", "another program's"]);
    let report = beside.sweep().await;
    assert_eq!((report.reclaimed, skipped(&report, "not_taken")), (2, 1), "{report:?}");
    assert!(app.is_registered(&uuid(2)));
    assert_eq!(app.queue("good").len(), 2);
    assert_eq!(app.call(&["GET", "queue:bad"]), "another program's");
    assert_eq!(beside.receipts().await.len(), 2);
    app.call(&["DEL", "queue:bad"]);
    assert_eq!(beside.sweep().await.reclaimed, 1);
    assert_eq!(app.queue("bad"), [payload(2, "bad")]);
    assert!(!app.is_registered(&uuid(2)));
}

async fn trap_e1_payloads_that_are_no_jobs_stay_and_the_others_go_on(beside: AppFixture) {
    let app = &beside.app;
    let none = [
        "",
        "not json",
        "[]",
        "\"text\"",
        "{\"args\":[1]}",
        "{\"class\":7,\"args\":[]}",
        "{\"class\":\"A\"}",
        "{\"class\":\"A\",\"args\":{}}",
        "{\"class\":\"A\",\"args\":{\"a\":1}}",
        "{\"class\":\"A\",\"args\":[],\"queue\":7}",
        "{\"class\":\"A\",\"args\":[],\"queue\":\"\"}",
        "{\"class\":\"A\",\"args\":[],\"queue\":\"a\\nb\"}",
    ];
    for (n, payload) in none.iter().enumerate() {
        app.orphan(&uuid(n), payload);
    }
    app.orphan(&uuid(100), payload(100, "default"));
    app.orphan(&uuid(101), "{\"class\":\"A\",\"args\":[]}");
    app.orphan(&uuid(102), "{\"class\":\"A\",\"args\":[null],\"queue\":null}");
    let report = beside.sweep().await;
    assert_eq!(report.reclaimed, 3, "{report:?}");
    assert_eq!(skipped(&report, "unreadable"), none.len() as u64, "{report:?}");
    for (n, payload) in none.iter().enumerate() {
        assert!(app.is_registered(&uuid(n)), "{payload}");
    }
    assert_eq!(app.queued("default"), 3, "a job without a queue is of the default one");
}

/// The process is slow, not dead: it beats once more, without XX, and only then unregisters.
async fn trap_e2_a_late_heartbeat_brings_no_job_back(beside: AppFixture) {
    let app = &beside.app;
    app.orphan(&uuid(1), payload(1, "default"));
    assert_eq!(beside.sweep().await.reclaimed, 1);
    app.beat(&uuid(1));
    assert!(app.is_indexed(&uuid(1)));
    let report = beside.sweep().await;
    assert_eq!((report.suspects, report.reclaimed), (0, 0), "it beats");
    beside.a_threshold_later().await;
    assert_eq!(beside.sweep().await.reclaimed, 0);
    assert!(!app.is_indexed(&uuid(1)), "nothing hangs on it: it is removed");
    assert_eq!(app.queue("default"), [payload(1, "default")], "once, not twice");
    assert_eq!(beside.receipts().await.len(), 1);
    assert!(!app.unregister(&uuid(1)), "and the late unregistering finds nothing");
    assert_eq!(app.queued("default"), 1);
}

/// A process that is only still in the list is not alive; one whose key is renewed is.
async fn trap_e3_a_list_of_processes_keeps_nobody_alive(beside: AppFixture) {
    let app = &beside.app;
    let (dead, slow) = ("web-1:41:00112233aabbccdd", "web-2:7:8899aabbccddeeff");
    let of = |process: &str, n| format!("{process}/{}", uuid(n));
    app.call(&["SADD", "sidekiq:async_http:processes", dead, slow]);
    let alive = format!("sidekiq:async_http:processes:{slow}:max_connections");
    app.call(&["SET", &alive, "256", "EX", "600"]);
    app.orphan(&of(dead, 1), payload(1, "default"));
    app.orphan(&of(slow, 2), payload(2, "default"));
    app.orphan(&of(slow, 3), payload(3, "default"));
    let report = beside.sweep().await;
    assert_eq!((report.reclaimed, skipped(&report, "alive")), (1, 2), "{report:?}");
    assert!(app.is_registered(&of(slow, 2)) && app.is_registered(&of(slow, 3)));
    let receipts = beside.receipts().await;
    assert_eq!((receipts[0].owner.as_str(), receipts[0].reason), (dead, Reason::OwnerDead));
    let claim = Claim::newest(name(slow));
    let held = beside.inflight.in_flight(&claim, None, 10).await.unwrap();
    assert_eq!(held, [name(&of(slow, 2)), name(&of(slow, 3))]);
    let rest = beside.inflight.in_flight(&claim, held.first(), 10).await.unwrap();
    assert_eq!(rest, held[1..]);
    app.call(&["DEL", &alive]);
    assert_eq!(beside.sweep().await.reclaimed, 2);
    assert_eq!(app.queued("default"), 3);
}

/// An hour without a new job, and the keys of a running one would be gone.
async fn trap_e4_the_keys_live_on_with_every_pass(beside: AppFixture) {
    let app = &beside.app;
    app.register(&uuid(1), payload(1, "default"));
    let ttl = |key| app.number(&["TTL", key]);
    for (key, before) in [(INDEX, "1700"), (JOBS, "5")] {
        app.call(&["EXPIRE", key, before]);
    }
    app.beat(&uuid(1));
    beside.sweep().await;
    assert!((3_500..=3_600).contains(&ttl(INDEX)), "{}", ttl(INDEX));
    assert!((3_500..=3_600).contains(&ttl(JOBS)), "{}", ttl(JOBS));
    // Never shorter, and never an end where there was none.
    app.call(&["EXPIRE", INDEX, "90000"]);
    app.call(&["PERSIST", JOBS]);
    app.beat(&uuid(1));
    beside.sweep().await;
    assert!(ttl(INDEX) > 89_000);
    assert_eq!(ttl(JOBS), -1);
    // What is not there is not made.
    app.call(&["DEL", INDEX, JOBS]);
    beside.sweep().await;
    assert_eq!(app.keys(), BTreeSet::new());
}

async fn trap_e5_an_entry_without_a_payload_is_removed(beside: AppFixture) {
    let app = &beside.app;
    let long_ago = (app.now_ms() - LONG_AGO_MS).to_string();
    (0..50).for_each(|n| {
        app.call(&["ZADD", INDEX, &long_ago, &uuid(n)]);
    });
    // A fresh server grants a whole threshold: one that beat before it is over would be overdue by then.
    beside.settle().await;
    app.beat(&uuid(99));
    let dry = beside.dry_run().await;
    assert_eq!((dry.suspects, dry.reclaimed), (50, 0));
    assert_eq!(app.number(&["ZCARD", INDEX]), 51);
    let report = beside.sweep().await;
    assert_eq!((report.reclaimed, skipped(&report, "gone")), (0, 50), "{report:?}");
    assert_eq!(app.number(&["ZCARD", INDEX]), 1, "the one that beats stays");
    assert_eq!(beside.receipts().await, []);
    assert!(app.is_indexed(&uuid(99)));
}

async fn trap_e6_the_lock_has_an_end_and_only_its_holder_lets_go(beside: AppFixture) {
    let app = &beside.app;
    app.orphan(&uuid(1), payload(1, "default"));
    beside.settle().await;
    let answer = beside.reclaim(beside.suspects().await).await;
    assert!(is_put_back(&answer.outcomes[0]), "{answer:?}");
    let ttl = app.number(&["TTL", GC_LOCK]);
    assert!((60..=120).contains(&ttl), "the original's: {ttl}");
    assert!(app.call(&["GET", GC_LOCK]).starts_with("lapsed:by-hand-"));
    // Another one of lapsed goes on at once: one that was killed is not waited for.
    app.orphan(&uuid(2), payload(2, "default"));
    assert_eq!(beside.with(layout()).sweep().await.reclaimed, 1);
    assert!(!app.has(GC_LOCK), "let go at the end of the pass");
    // It expired meanwhile, and now it is the application's: it stays.
    app.orphan(&uuid(3), payload(3, "default"));
    let sweeper = beside.sweeper_with("s", Policy { max_ops: Some(1), ..Policy::default() });
    assert_eq!(pass(&sweeper, PassMode::Reclaim).await.reclaimed, 1);
    app.call(&["SET", GC_LOCK, "web-1:41:00112233aabbccdd", "EX", "120"]);
    sweep_through(&sweeper).await;
    assert_eq!(app.call(&["GET", GC_LOCK]), "web-1:41:00112233aabbccdd");
}

/// Each time it is taken and registered again, and its process dies.
async fn trap_e7_a_job_that_kills_its_workers_is_a_dead_letter(beside: AppFixture) {
    let app = &beside.app;
    let deadly = payload(1, "default");
    for attempt in 1..=2 {
        app.orphan(&uuid(attempt), &deadly);
        assert_eq!(beside.sweep().await.reclaimed, 1);
        assert_eq!(app.call(&["RPOP", "queue:default"]), deadly, "attempt {attempt}");
        beside.a_threshold_later().await;
    }
    app.orphan(&uuid(3), &deadly);
    app.orphan(&uuid(4), payload(4, "default"));
    assert_eq!(beside.sweep().await.reclaimed, 2);
    assert_eq!(app.queue("default"), [payload(4, "default")], "another one is not concerned");
    let receipts = beside.receipts().await;
    let crashes: Vec<u32> = receipts[..3].iter().map(|one| recovered(one).crashes).collect();
    assert_eq!(crashes, [1, 2, 3]);
    let last = recovered(&receipts[2]);
    assert_eq!(
        (last.did, last.why, last.payload),
        (RecoveryAction::DeadLetter, Some(DeadLetterReason::Crashes), None)
    );
    let dead = beside.inflight.dead(None, 10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].id.as_str(), &dead[0].payload, dead[0].crashes), (&*uuid(3), &deadly, 3));
    assert!(
        matches!(dead[0].place, JobPlace::Dead { why: DeadLetterReason::Crashes, .. }),
        "{dead:?}"
    );
    assert_eq!(beside.inflight.job(&name(&uuid(3))).await.unwrap().unwrap().id, dead[0].id);
    let counts = beside.inflight.counts().await.unwrap();
    assert_eq!((counts.queued, counts.in_flight, counts.dead), (1, 0, 1));
    assert!(counts.balances());
    // Put back, its crashes are forgotten.
    assert!(beside.inflight.put_back(&name(&uuid(3)), QueueEnd::Back).await.unwrap());
    assert!(!beside.inflight.put_back(&name(&uuid(3)), QueueEnd::Back).await.unwrap());
    assert_eq!(app.queue("default"), [payload(4, "default"), deadly.clone()]);
    app.orphan(&uuid(5), &deadly);
    assert_eq!(beside.sweep().await.reclaimed, 1);
    assert_eq!(app.queue("default")[0], deadly);
    assert_eq!(beside.inflight.dead(None, 10).await.unwrap(), []);
}

async fn trap_e7_a_job_without_a_jid_is_known_by_what_it_carries(beside: AppFixture) {
    let app = &beside.app;
    let beside = beside.with(with(RecoveryPolicy { crashes_max: 2, ..RecoveryPolicy::default() }));
    let deadly = "{\"class\":\"A\",\"args\":[1]}";
    let other = "{\"class\":\"A\",\"args\":[2]}";
    // Many that look the same die with one process: that is one death each.
    (10..20).for_each(|n| app.orphan(&uuid(n), deadly));
    app.orphan(&uuid(2), other);
    assert_eq!(beside.sweep().await.reclaimed, 11);
    assert_eq!(app.queued("default"), 11);
    beside.a_threshold_later().await;
    app.orphan(&uuid(3), deadly);
    beside.sweep().await;
    let dead = beside.inflight.dead(None, 10).await.unwrap();
    assert_eq!(dead.iter().map(|job| &*job.payload).collect::<Vec<_>>(), [deadly]);
    assert!(beside.inflight.delete(&dead[0].id).await.unwrap());
    assert!(!beside.inflight.delete(&dead[0].id).await.unwrap());
    assert_eq!(beside.inflight.counts().await.unwrap().dropped, 1);
}

async fn trap_e8_an_orphan_of_long_ago_is_not_put_back(beside: AppFixture) {
    let app = &beside.app;
    let months_ms = 300 * 24 * 3_600_000;
    let at = |ago_ms: u64| (app.now_ms() - ago_ms).to_string();
    (0..20).for_each(|n| app.register_at(&uuid(n), payload(n, "default"), &at(months_ms)));
    app.register_at(&uuid(20), payload(20, "default"), &at(LONG_AGO_MS));
    assert_eq!(beside.sweep().await.reclaimed, 21);
    assert_eq!(app.queue("default"), [payload(20, "default")]);
    let first = beside.inflight.dead(None, 12).await.unwrap();
    let rest = beside.inflight.dead(first.last().map(|job| &job.id), 12).await.unwrap();
    assert_eq!((first.len(), rest.len()), (12, 8));
    assert!(first.iter().chain(&rest).all(|job| {
        matches!(job.place, JobPlace::Dead { why: DeadLetterReason::TooOld, .. })
            && job.crashes == 1
    }));
}

/// All jobs of one process have one score: it beats for all of them at once.
async fn trap_e11_ten_thousand_with_one_score_go_in_bounded_pages(beside: AppFixture) {
    const MANY: usize = 10_000;
    let app = &beside.app;
    app.orphans(0, MANY, "default");
    beside.settle().await;
    let (mut after, mut seen) = (Cursor::default(), BTreeSet::new());
    loop {
        let request = PageRequest { after, limit: 500, undeclared_max: None };
        let page = beside.inflight.suspects(request).await.unwrap();
        assert!(page.suspects.len() <= 500 && page.examined <= 500);
        seen.extend(page.suspects.iter().map(|suspect| suspect.key.clone()));
        if page.last {
            break;
        }
        after = beside.inflight.after(page.suspects.last().unwrap());
    }
    assert_eq!(seen.len(), MANY);
    let report = beside.sweep().await;
    assert_eq!(report.reclaimed, MANY as u64, "{:?}", report.skipped);
    assert_eq!(app.queued("default"), MANY);
    assert_eq!(app.number(&["EXISTS", INDEX, JOBS]), 0);
    assert_eq!(beside.receipts().await.len(), MANY);
    // Large payloads make short pages.
    let large = format!("{{\"class\":\"A\",\"args\":[\"{}\"]}}", "x".repeat(300 << 10));
    (0..5).for_each(|n| app.orphan(&uuid(n), &large));
    assert_eq!(beside.suspects().await.len(), 1, "two would be more than a page may weigh");
    assert_eq!(beside.sweep().await.reclaimed, 5);
}

async fn trap_e11_a_pass_without_orphans_costs_the_same_with_many_jobs(beside: AppFixture) {
    let app = &beside.app;
    let requests = || async {
        let sweeper = beside.sweeper("s");
        sweep_through(&sweeper).await;
        let before = beside.redis.requests();
        let one = pass(&sweeper, PassMode::Reclaim).await;
        assert_eq!((one.suspects, one.errors), (0, 0));
        beside.redis.requests() - before
    };
    app.register(&uuid(1), payload(1, "default"));
    let future = (app.now_ms() + LONG_AGO_MS).to_string();
    app.call(&["ZADD", INDEX, &future, &uuid(1)]);
    beside.settle().await;
    let few = requests().await;
    app.orphans(10, 20_000, "default");
    let script = "for i = 0, 19999 do redis.call('ZADD', KEYS[1], ARGV[1], \
        string.format('00000000-0000-4000-8000-%012d', i + 10)) end";
    app.call(&["EVAL", script, "1", INDEX, &future]);
    let many = requests().await;
    // The watch over the server's presence is counted as well, and comes when it comes.
    assert!(many <= few + 3, "{few} requests with one job, {many} with 20,001");
}

async fn a_heartbeat_between_listing_and_reclaim_wins(beside: AppFixture) {
    let app = &beside.app;
    app.orphan(&uuid(1), payload(1, "default"));
    app.orphan(&uuid(2), payload(2, "default"));
    beside.settle().await;
    let suspects = beside.suspects().await;
    assert_eq!(suspects.len(), 2);
    app.beat(&uuid(1));
    let answer = beside.reclaim(suspects).await;
    assert_eq!(answer.outcomes[0], Outcome::Refused(Refusal::Alive));
    assert!(is_put_back(&answer.outcomes[1]), "{answer:?}");
    assert!(app.is_registered(&uuid(1)) && !app.is_registered(&uuid(2)));
    assert_eq!(app.queue("default"), [payload(2, "default")]);
}

async fn a_job_unregistered_between_listing_and_reclaim_is_gone(beside: AppFixture) {
    let app = &beside.app;
    app.orphan(&uuid(1), payload(1, "default"));
    beside.settle().await;
    let mut suspects = beside.suspects().await;
    suspects.push(suspects[0].clone());
    app.unregister(&uuid(1));
    let answer = beside.reclaim(suspects.clone()).await;
    assert_eq!(answer.outcomes, [Outcome::Gone, Outcome::Gone]);
    assert_eq!(app.queued("default"), 0);
    // Twice in one batch it is still one job.
    app.orphan(&uuid(1), payload(1, "default"));
    let answer = beside.reclaim(suspects).await;
    assert!(is_put_back(&answer.outcomes[0]));
    assert_eq!((&answer.outcomes[1], app.queued("default")), (&Outcome::Gone, 1));
}

async fn the_applications_own_collector_is_not_disturbed(beside: AppFixture) {
    let app = &beside.app;
    app.orphan(&uuid(1), payload(1, "default"));
    app.call(&["ZADD", INDEX, "1", &uuid(2)]);
    app.call(&["SET", GC_LOCK, "web-1:41:00112233aabbccdd", "NX", "EX", "120"]);
    let report = beside.sweep().await;
    assert_eq!((report.reclaimed, skipped(&report, "busy")), (0, 2), "{report:?}");
    assert!(app.is_registered(&uuid(1)) && app.is_indexed(&uuid(2)));
    assert_eq!(app.call(&["GET", GC_LOCK]), "web-1:41:00112233aabbccdd");
    let dry = beside.dry_run().await;
    assert_eq!(skipped(&dry, "busy"), 2);
    app.call(&["DEL", GC_LOCK]);
    assert_eq!(beside.sweep().await.reclaimed, 1);
}

async fn two_sweepers_recover_each_job_once(beside: AppFixture) {
    const MANY: usize = 3_000;
    let app = &beside.app;
    app.orphans(0, MANY, "default");
    beside.settle().await;
    let small = || Policy { batch: 50, ..Policy::default() };
    let other = beside.with(layout());
    let (one, two) = (beside.sweeper_with("one", small()), other.sweeper_with("two", small()));
    let (first, second) = tokio::join!(sweep_through(&one), sweep_through(&two));
    assert_eq!(first.reclaimed + second.reclaimed, MANY as u64, "{first:?} {second:?}");
    let queued: BTreeSet<String> = app.queue("default").into_iter().collect();
    assert_eq!((app.queued("default"), queued.len()), (MANY, MANY));
    let receipts = beside.receipts().await;
    let keys: BTreeSet<&str> = receipts.iter().map(|receipt| receipt.key.as_str()).collect();
    assert_eq!((receipts.len(), keys.len()), (MANY, MANY));
}

async fn payloads_go_back_byte_for_byte(beside: AppFixture) {
    let app = &beside.app;
    let odd: [&[u8]; 8] = [
        b"{\"class\":\"A\",\"args\":[12345678901234567890,1.0,1e400,-0,0.1]}",
        b"{\"class\":\"A\",\"args\":[[],{},[[]],null,true]}",
        "{\"class\":\"Ä\",\"args\":[\"grüße 😀 \\u00e9 \\/\"]}".as_bytes(),
        b"{ \"class\" : \"A\" ,\t\"args\" : [ ] , \"queue\" : \"default\" }\r\n",
        b"{\"class\":\"A\",\"args\":[\"\\u0000\"],\"class\":\"B\"}",
        b"{\"class\":\"A\",\"args\":[\"\xff\xfe not text\"]}",
        b"{\"class\":\"A\",\"args\":[{\"a\":{\"1\":[1,2,{}]}}],\"jid\":\"\",\"tags\":[]}",
        b"{\"args\":[\"\\\\n%s%d%%\\n\"],\"class\":\"A::B\",\"retry\":0,\"bt\":1}",
    ];
    for (n, payload) in odd.iter().enumerate() {
        app.orphan(&uuid(n), payload);
    }
    assert_eq!(beside.sweep().await.reclaimed, odd.len() as u64);
    for payload in odd {
        let lrem: [&[u8]; 4] = [b"LREM", b"queue:default", b"0", payload];
        assert_eq!(app.call(&lrem), "1", "{}", String::from_utf8_lossy(payload));
    }
    assert_eq!(app.queued("default"), 0);
    assert_eq!(app.call(&["SMEMBERS", "queues"]), "default");
}

/// Milliseconds are the original's; seconds, whole or not, are understood, and never early.
async fn no_unit_of_time_is_a_moment_early(beside: AppFixture) {
    let app = &beside.app;
    beside.settle().await;
    let start_ms = app.now_ms();
    let whole_s = start_ms / 1_000;
    let scores = [
        (start_ms.to_string(), start_ms),
        (format!("{whole_s}"), (whole_s + 1) * 1_000),
        (format!("{}.{:03}", start_ms / 1_000, start_ms % 1_000), start_ms),
    ];
    for (n, (score, _)) in scores.iter().enumerate() {
        app.register_at(&uuid(n), payload(n, "default"), score);
    }
    let sweeper = beside.sweeper("s");
    let began = std::time::Instant::now();
    while beside.receipts().await.len() < scores.len() {
        assert!(began.elapsed() < crate::inflight_app::PATIENCE);
        pass(&sweeper, PassMode::Reclaim).await;
    }
    for receipt in beside.receipts().await {
        let n: usize = receipt.key.as_str()[24..].parse().unwrap();
        let due_ms = scores[n].1 + THRESHOLD.as_millis() as u64;
        assert!(receipt.at_ms >= due_ms, "{receipt:?} is early: {due_ms}");
        assert!((due_ms..=due_ms + 1).contains(&receipt.evidence.deadline_ms), "{receipt:?}");
    }
}

/// In any unit: their jobs were never put back, because their deadline was years away.
async fn heartbeats_of_the_future_count_for_one_threshold(beside: AppFixture) {
    let app = &beside.app;
    beside.settle().await;
    let days_ahead_s = (app.now_ms() + 3 * 86_400_000) / 1_000;
    let scores = [
        "99999999999999".to_owned(),
        (days_ahead_s * 1_000).to_string(),
        days_ahead_s.to_string(),
        format!("{days_ahead_s}.5"),
    ];
    for (n, score) in scores.iter().enumerate() {
        app.register_at(&uuid(n), payload(n, "default"), score);
    }
    assert_eq!(beside.dry_run().await.suspects, 0);
    let (began_ms, sweeper, clock) = (app.now_ms(), beside.sweeper("s"), std::time::Instant::now());
    while beside.receipts().await.len() < scores.len() {
        assert!(clock.elapsed() < crate::inflight_app::PATIENCE, "{:?}", app.keys());
        pass(&sweeper, PassMode::Reclaim).await;
    }
    for receipt in beside.receipts().await {
        assert!(receipt.at_ms >= began_ms + THRESHOLD.as_millis() as u64, "{receipt:?} is early");
    }
}

async fn ids_that_are_no_names_are_left_alone(beside: AppFixture) {
    let app = &beside.app;
    for n in 0..1_500u32 {
        let id = format!("\u{1}{n}");
        app.call(&["ZADD", INDEX, "1", &id]);
    }
    let bytes: [&[u8]; 4] = [b"ZADD", INDEX.as_bytes(), b"2", b"\xff\xfe"];
    app.call(&bytes);
    app.orphan(&uuid(1), payload(1, "default"));
    let report = beside.sweep().await;
    assert_eq!((report.reclaimed, report.suspects), (1, 1), "{report:?}");
    assert_eq!(app.number(&["ZCARD", INDEX]), 1_501);
}

async fn a_dry_run_is_the_real_run_without_the_change(beside: AppFixture) {
    let app = &beside.app;
    app.orphans(0, 700, "default");
    app.orphan(&uuid(1_000), "no json");
    app.call(&["ZADD", INDEX, "5", &uuid(1_001)]);
    app.register(&uuid(1_002), payload(1_002, "default"));
    app.call(&["ZADD", INDEX, &(app.now_ms() + LONG_AGO_MS).to_string(), &uuid(1_002)]);
    let keys = || app.call(&["KEYS", "*"]).lines().map(str::to_owned).collect::<BTreeSet<_>>();
    beside.settle().await;
    let before = (keys(), app.number(&["ZCARD", INDEX]), app.number(&["HLEN", JOBS]));
    let dry = beside.dry_run().await;
    assert_eq!(before, (keys(), app.number(&["ZCARD", INDEX]), app.number(&["HLEN", JOBS])));
    let real = beside.sweep().await;
    assert_eq!((dry.reclaimed, &dry.skipped), (real.reclaimed, &real.skipped));
    assert_eq!(named(&dry), named(&real));
    assert_eq!(app.queued("default"), 700);
}

async fn the_oldest_is_the_next_to_be_run(beside: AppFixture) {
    let app = &beside.app;
    app.call(&["LPUSH", "queue:default", "waiting"]);
    let at = |ago_ms: u64| (app.now_ms() - ago_ms).to_string();
    for n in [2, 1, 3] {
        app.register_at(&uuid(n), payload(n, "default"), &at(LONG_AGO_MS - 10_000 * n as u64));
    }
    assert_eq!(beside.sweep().await.reclaimed, 3);
    let jobs = |numbers: [usize; 3]| numbers.map(|n| payload(n, "default")).to_vec();
    assert_eq!(app.queue("default"), [jobs([1, 2, 3]), vec!["waiting".to_owned()]].concat());
    app.call(&["DEL", "queue:default"]);
    app.call(&["LPUSH", "queue:default", "waiting"]);
    let back = RecoveryPolicy {
        on_death: lapsed_core::inflight::rules::OnDeath::Back,
        ..RecoveryPolicy::default()
    };
    let beside = beside.with(with(back));
    for n in [5, 4, 6] {
        app.register_at(&uuid(n), payload(n, "default"), &at(LONG_AGO_MS - 10_000 * n as u64));
    }
    assert_eq!(beside.sweep().await.reclaimed, 3);
    assert_eq!(app.queue("default"), [vec!["waiting".to_owned()], jobs([4, 5, 6])].concat());
}

async fn the_keys_of_the_newer_original_go_along(beside: AppFixture) {
    let newer = AdoptedInflightLayout {
        orphan_threshold: THRESHOLD,
        heartbeat_interval: Duration::from_millis(200),
        ..AdoptedInflightLayout::patient_http()
    };
    let app = &beside.app;
    let beside = beside.with(newer);
    let key = |what: &str| format!("sidekiq:patient_http:{what}");
    let id = format!("web-1:41:00112233aabbccdd/{}", uuid(1));
    let (at, registered) = (app.now_ms() - LONG_AGO_MS, app.now_ms() - 2 * LONG_AGO_MS);
    app.call(&["ZADD", &key("inflight_index"), &at.to_string(), &id]);
    app.call(&["HSET", &key("inflight_jobs"), &id, &payload(1, "default")]);
    app.call(&["HSET", &key("inflight_details"), &id, "{\"method\":\"get\"}"]);
    app.call(&["HSET", &key("inflight_details"), "other", "{}"]);
    app.call(&["EXPIRE", &key("inflight_details"), "60"]);
    app.call(&["ZADD", &key("inflight_details_index"), &registered.to_string(), &id]);
    beside.settle().await;
    let job = beside.inflight.job(&name(&id)).await.unwrap().unwrap();
    assert_eq!((job.queue.as_str(), job.entered_ms), ("default", registered));
    let JobPlace::InFlight { owner, due_ms, since_ms, .. } = job.place else { panic!("{job:?}") };
    assert_eq!(owner.as_str(), "web-1:41:00112233aabbccdd");
    assert_eq!(since_ms, registered);
    assert!((at + 1_000..=job.now_ms).contains(&due_ms), "a grace after the server's start counts");
    assert_eq!(beside.sweep().await.reclaimed, 1);
    let left: BTreeSet<String> =
        [key("inflight_details"), "queue:default".into(), "queues".into()].into();
    assert_eq!(app.keys(), left);
    assert_eq!(app.call(&["HKEYS", &key("inflight_details")]), "other");
    assert!(app.number(&["TTL", &key("inflight_details")]) > 3_000, "and it lives on (E4)");
    assert!(app.queue("default")[0].contains(&jid(1)));
    assert_eq!(beside.inflight.job(&name(&id)).await.unwrap(), None);
}

async fn another_key_under_the_index_is_said_clearly(beside: AppFixture) {
    let app = &beside.app;
    app.call(&["SET", INDEX, "something else"]);
    let report = pass(&beside.sweeper("s"), PassMode::Reclaim).await;
    assert_eq!((report.reclaimed, report.errors), (0, 1));
    let detail = report.detail.unwrap();
    assert!(detail.contains("are the key names of the configuration right?"), "{detail}");
    assert_eq!(app.call(&["GET", INDEX]), "something else");
}
