//! Adopted jobs in flight while something fails: the server killed, frozen, full, forbidding; answers
//! lost; recoverers killed in the middle. Each time every job ends on its queue exactly once, or stays
//! registered, and the account is printed: orphans = queued + in flight + dead.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::inflight_app::{
    App, AppFixture, INDEX, JOBS, PATIENCE, layout, pass, payload, skipped, sum, sweep_through,
    uuid,
};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, PassReport, Stopped, Sweeper};
use lapsed_redis::AdoptedInflightLayout;
use lapsed_testbed::{Engine, Persistence, Proxy, RedisServer, ServerOptions};

lapsed_testbed::steady_async_tests! {
    the_server_killed_in_the_middle_of_a_sweep,
    the_server_frozen_for_longer_than_the_threshold,
    the_answer_to_a_reclaim_is_lost,
    answers_lost_again_and_again_are_settled,
    recoverers_killed_in_the_middle,
    a_server_out_of_memory_leaves_nothing_half_done,
    a_user_who_may_not,
}

/// A threshold within which a test can beat also on a machine under load.
const PATIENT: Duration = Duration::from_secs(2);

/// The same for one that must first set everything up.
const LONG: Duration = Duration::from_secs(4);

fn patient() -> AdoptedInflightLayout {
    AdoptedInflightLayout { orphan_threshold: PATIENT, ..layout() }
}

fn beside(server: &RedisServer, layout: AdoptedInflightLayout) -> AppFixture {
    AppFixture::at(App::connect(server.port(), 0), &server.url(), layout)
}

fn slowly() -> Policy {
    Policy { batch: 25, op_delay: Duration::from_millis(2), ..Policy::default() }
}

/// Runs passes in the background until the handle stops them; returns their sum.
struct Sweeping {
    over: tokio::sync::watch::Sender<bool>,
    task: tokio::task::JoinHandle<PassReport>,
}

fn keep_sweeping(sweeper: Arc<Sweeper>) -> Sweeping {
    let (over, mut told) = tokio::sync::watch::channel(false);
    let task = tokio::spawn(async move {
        let mut total = pass(&sweeper, PassMode::Reclaim).await;
        while !*told.borrow_and_update() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            total = sum(total, pass(&sweeper, PassMode::Reclaim).await);
        }
        total
    });
    Sweeping { over, task }
}

impl Sweeping {
    async fn stop(self) -> PassReport {
        self.over.send_replace(true);
        self.task.await.unwrap()
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Each job is on its queue exactly once, and nowhere else.
async fn assert_account(beside: &AppFixture, story: &str, jobs: usize) {
    let app = &beside.app;
    let (queued, in_flight) = (app.queued("default"), app.number(&["ZCARD", INDEX]));
    let (payloads, receipts) = (app.number(&["HLEN", JOBS]), beside.receipts().await);
    let distinct: BTreeSet<String> = app.queue("default").into_iter().collect();
    println!(
        "{story}: {jobs} orphans = {queued} queued ({} distinct) + {in_flight} in flight + 0 dead; \
         {} receipts",
        distinct.len(),
        receipts.len()
    );
    assert_eq!((queued, distinct.len(), in_flight, payloads), (jobs, jobs, 0, 0));
    let keys: BTreeSet<&str> = receipts.iter().map(|receipt| receipt.key.as_str()).collect();
    assert_eq!((receipts.len(), keys.len()), (jobs, jobs), "one receipt each");
}

/// In the middle of 2,000 orphans, with everything on disk; after the restart first a whole threshold
/// for everybody.
async fn the_server_killed_in_the_middle_of_a_sweep() {
    for engine in Engine::ALL {
        let server = ServerOptions::new(engine)
            .persistence(Persistence::Aof)
            .extra("appendfsync", "always")
            .start()
            .unwrap();
        let before = beside(&server, patient());
        before.app.orphans(0, 2_000, "default");
        before.settle().await;
        let sweeper = Arc::new(before.sweeper_with("s", slowly()));
        let sweeping = keep_sweeping(sweeper.clone());
        until("some are back", || before.app.queued("default") > 200).await;
        // These beat just before the end, and just after it.
        (5_000..5_020).for_each(|n| before.app.register(&uuid(n), payload(n, "default")));
        server.kill().unwrap();
        server.restart().unwrap();
        let after = AppFixture { app: Arc::new(App::connect(server.port(), 0)), ..before.clone() };
        let back_ms = after.app.now_ms();
        let future = (back_ms + 600_000).to_string();
        (5_000..5_020).for_each(|n| drop(after.app.call(&["ZADD", INDEX, &future, &uuid(n)])));
        until("all are back", || after.app.queued("default") == 2_000).await;
        let total = sum(sweeping.stop().await, sweep_through(&sweeper).await);
        assert_eq!(total.reclaimed, 2_000, "{:?} {:?}", total.skipped, total.detail);
        // The server counts its life in whole seconds.
        let early = after.receipts().await.into_iter().filter(|receipt| {
            receipt.at_ms > back_ms && receipt.at_ms + 1_100 < back_ms + PATIENT.as_millis() as u64
        });
        assert_eq!(early.count(), 0, "nobody is taken for dead before a whole threshold");
        for n in 5_000..5_020 {
            assert!(after.app.is_registered(&uuid(n)), "{n} is alive");
            after.app.unregister(&uuid(n));
        }
        assert_account(&after, "the server was killed", 2_000).await;
    }
}

/// For longer than every time limit and the threshold: requests lie in its socket when it wakes up, and
/// none of them may take a job of a process that could not beat.
async fn the_server_frozen_for_longer_than_the_threshold() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let beside = beside(&server, AdoptedInflightLayout { orphan_threshold: LONG, ..layout() });
    let app = &beside.app;
    let sweeping = keep_sweeping(Arc::new(beside.sweeper("s")));
    (0..60).for_each(|n| app.register(&uuid(n), payload(n, "default")));
    server.freeze().unwrap();
    // The fault itself, not a waiting for something.
    tokio::time::sleep(LONG + Duration::from_millis(1_500)).await;
    server.thaw().unwrap();
    let future = (app.now_ms() + 600_000).to_string();
    (0..30).for_each(|n| drop(app.call(&["ZADD", INDEX, &future, &uuid(n)])));
    until("the others are back", || app.queued("default") == 30).await;
    let total = sweeping.stop().await;
    assert_eq!((total.reclaimed, beside.receipts().await.len()), (30, 30), "{total:?}");
    for n in 0..30 {
        assert!(app.is_registered(&uuid(n)), "{n} beat in time");
        app.unregister(&uuid(n));
    }
    assert_account(&beside, "the server was frozen", 30).await;
}

/// The call was carried out, but its answer was lost: it is in doubt, settled by its receipts, and counted once.
async fn the_answer_to_a_reclaim_is_lost() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let beside = AppFixture::at(App::connect(server.port(), 0), &proxy.url(), layout());
        beside.app.orphans(0, 20, "default");
        beside.dry_run().await;
        let sweeper = beside.sweeper("lossy");
        proxy.drop_answers_matching("lossy");
        let first = pass(&sweeper, PassMode::Reclaim).await;
        assert_eq!(first.stopped, Stopped::Error, "{first:?}");
        assert_eq!((first.reclaimed, skipped(&first, "in_doubt")), (0, 20), "{first:?}");
        assert!(sweeper.is_in_doubt());
        let second = sweep_through(&sweeper).await;
        // The first time the queues may not have been known: then that answer was the lost one.
        assert_eq!(second.reclaimed, 20, "{second:?}");
        let third = sweep_through(&sweeper).await;
        assert_eq!((third.reclaimed, third.settled), (0, 0));
        assert_account(&beside, "an answer was lost", 20).await;
    }
}

/// Of many answers, one here and one there is lost; what each sweeper counts is the truth.
async fn answers_lost_again_and_again_are_settled() {
    const JOBS_AT_ONCE: usize = 60;
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let beside = AppFixture::at(App::connect(server.port(), 0), &proxy.url(), layout());
    let sweeper = beside.sweeper_with("lossy", Policy { batch: 10, ..Policy::default() });
    let (mut reclaimed, mut settled) = (0, 0);
    for round in 0..8 {
        beside.app.orphans(round * JOBS_AT_ONCE, JOBS_AT_ONCE, "default");
        beside.settle().await;
        proxy.drop_answers_matching("lossy");
        let total = sweep_to_the_end(&sweeper).await;
        (reclaimed, settled) = (reclaimed + total.reclaimed, settled + total.settled);
    }
    assert!(settled > 0, "some answer was that of a batch that was carried out");
    assert_eq!(reclaimed as usize, 8 * JOBS_AT_ONCE);
    assert_account(&beside, "answers were lost again and again", 8 * JOBS_AT_ONCE).await;
}

/// Errors and all, until a pass comes to its end.
async fn sweep_to_the_end(sweeper: &Sweeper) -> PassReport {
    let mut total = pass(sweeper, PassMode::Reclaim).await;
    let began = Instant::now();
    while total.stopped != Stopped::Done || sweeper.is_in_doubt() {
        assert!(began.elapsed() < PATIENCE, "{total:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        total = sum(total, pass(sweeper, PassMode::Reclaim).await);
    }
    // What was spared meanwhile because the server did not answer.
    sum(total, sweep_through(sweeper).await)
}

/// A hundred recoverers, each dropped at a random point for good; the next one continues
/// at once, whatever the one before has left.
async fn recoverers_killed_in_the_middle() {
    const JOBS_AT_ONCE: usize = 100;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let beside = beside(&server, layout());
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut killed = 0;
    for round in 0..100 {
        beside.app.orphans(round * JOBS_AT_ONCE, JOBS_AT_ONCE, "default");
        beside.settle().await;
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let policy = Policy { batch: 20, ..Policy::default() };
        let aborted = beside.with(layout()).sweeper_with("aborted", policy);
        let task = tokio::spawn(async move { pass(&aborted, PassMode::Reclaim).await.reclaimed });
        tokio::time::sleep(Duration::from_micros(seed % 12_000)).await;
        task.abort();
        killed += usize::from(task.await.is_err());
    }
    println!("{killed} of 100 were killed before their end");
    sweep_through(&beside.sweeper("last")).await;
    assert!(killed > 0);
    assert_account(&beside, "recoverers were killed", 100 * JOBS_AT_ONCE).await;
}

/// While the server refuses writes nothing is half done, and afterwards passes continue.
async fn a_server_out_of_memory_leaves_nothing_half_done() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let beside = beside(&server, layout());
        beside.app.orphans(0, 50, "default");
        beside.settle().await;
        let sweeper = beside.sweeper("s");
        beside.app.call(&["CONFIG", "SET", "maxmemory", "1"]);
        let report = pass(&sweeper, PassMode::Reclaim).await;
        assert_eq!((report.reclaimed, report.errors), (0, 1), "{report:?}");
        assert!(report.detail.as_ref().unwrap().contains("memory"), "{report:?}");
        assert_eq!((beside.app.number(&["HLEN", JOBS]), beside.app.queued("default")), (50, 0));
        beside.app.call(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(sweep_through(&sweeper).await.reclaimed, 50);
        assert_account(&beside, "no memory was left", 50).await;
    }
}

/// Without any one of its permissions: nothing half done, said clearly, and on it goes when granted.
async fn a_user_who_may_not() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let app = App::connect(server.port(), 0);
        let may_not = |commands: &[&str]| {
            let mut rule = vec!["ACL", "SETUSER", "janitor", "on", ">pw", "~*", "&*", "+@all"];
            rule.extend(commands);
            app.call(&rule);
        };
        may_not(&[]);
        let url = format!("redis://janitor:pw@127.0.0.1:{}/0", server.port());
        let beside = AppFixture::at(App::connect(server.port(), 0), &url, layout());
        beside.app.orphans(0, 10, "default");
        beside.settle().await;
        let sweeper = beside.sweeper("s");
        let commands =
            ["xadd", "zrem", "zadd", "hset", "hincrby", "set", "hdel", "expire", "rpush", "sadd"];
        for command in commands {
            may_not(&[&format!("-{command}")]);
            let report = pass(&sweeper, PassMode::Reclaim).await;
            assert_eq!(report.reclaimed, 0, "-{command}: {report:?}");
            let held = report.stopped == Stopped::Brake || skipped(&report, "not_taken") == 10;
            let said = report.detail.as_deref().unwrap_or_default();
            assert!(held || said.contains("permission"), "-{command}: {report:?}");
            assert_eq!((app.number(&["ZCARD", INDEX]), app.number(&["HLEN", JOBS])), (10, 10));
            assert_eq!(app.queued("default"), 0, "-{command}");
        }
        may_not(&[]);
        assert_eq!(sweep_through(&sweeper).await.reclaimed, 10);
        assert_account(&beside, "permissions were missing", 10).await;
    }
}
