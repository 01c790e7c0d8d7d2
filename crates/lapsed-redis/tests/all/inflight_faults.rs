//! What can happen to jobs in flight, on a real server each: the recoverer is killed in the middle, a
//! worker is frozen and comes back, the server is killed, answers are lost. Each story ends the same
//! way: every job was completed once, by a worker that still held it, or is a dead letter; and the
//! account balances.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use lapsed_core::inflight::{Finish, Finished, InflightStore, JobPlace};
use lapsed_core::owner::OwnerStore;
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Outcome, Refusal, Sweep};
use lapsed_testbed::{Engine, Persistence, Proxy, RedisServer, ServerOptions};

use crate::inflight_child::{self, SWEEPER, WORKER};
use crate::jobs::{Ledger, World, keep_working, patient};
use crate::story::{LIMIT, batch, eventually, name, on_both_engines, pass, reclaim, suspects};

on_both_engines! {
    the_recoverer_is_killed_a_hundred_times,
    a_frozen_worker_comes_back,
    killed_and_restarted_with_its_data_on_disk,
    answers_are_lost_after_the_script_ran,
    the_answer_to_a_recovery_is_lost,
    trap_e10_ten_thousand_jobs_of_one_worker,
    one_job_of_each_of_ten_thousand_workers,
    trap_x7_tokens_grow_whatever_the_server_remembers,
    trap_e5_what_has_no_record_is_taken_off_the_list,
    something_else_under_a_key,
    a_server_out_of_memory_loses_no_job_and_accepts_completions,
}

lapsed_testbed::steady_async_tests! {
    an_idle_pass_costs_the_same_however_many_jobs_there_are,
}

/// kill -9 of a process that recovers batch after batch, at a random moment, while another one does the
/// same here. What it had decided is decided, what it had not is not, and there is no third.
async fn the_recoverer_is_killed_a_hundred_times(engine: Engine) {
    const JOBS: usize = 6_000;
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", JOBS).await;
    let (_, taken) = world.dying_worker("w", JOBS).await;
    assert_eq!(taken.len(), JOBS);
    world.suspect(1).await;
    let beside = world.sweeper(Policy { batch: 3, max_ops: Some(20), ..Policy::default() });
    let (mut kills, mut seed) = (0, u64::from(world.server.port()));
    let mut begun = BTreeSet::new();
    // On a busy machine many are killed before they have begun: then it takes some more.
    while kills < 100 || begun.len() < 20 {
        assert!(kills < 1_000, "{} of {kills} had begun", begun.len());
        let recoverer = inflight_child::start(SWEEPER, &world.server.url());
        recoverer.line(LIMIT).unwrap();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let nap = Duration::from_micros(seed >> 50);
        tokio::join!(tokio::time::sleep(nap), async { drop(pass(&beside).await) });
        recoverer.kill().unwrap();
        kills += 1;
        if kills % 100 == 0 {
            let receipts = world.receipts().await;
            let theirs = receipts.iter().filter(|one| one.sweeper.starts_with("recoverer-"));
            begun.extend(theirs.map(|receipt| receipt.sweeper.to_string()));
        }
        let counts = world.jobs.counts().await.unwrap();
        assert!(counts.balances(), "after {kills} kills: {counts:?}");
        if counts.in_flight == 0 {
            world.dying_worker(&format!("w{kills}"), JOBS).await;
            world.suspect(1).await;
        }
    }
    println!("{} of {kills} that were killed had put something back", begun.len());
    world.sweep_all(Policy::default()).await;
    assert_eq!(world.complete_all().await, JOBS as u64);
    let counts = world.audit("recoverer killed 100 times").await;
    assert_eq!((counts.completed, counts.entered), (JOBS as u64, JOBS as u64));
}

/// A real process, stopped for longer than a beat lasts. Its jobs are recovered and run elsewhere; when
/// it continues, what it says about them is refused.
async fn a_frozen_worker_comes_back(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", 40).await;
    let worker = inflight_child::start(WORKER, &world.server.url());
    assert_eq!(worker.line(LIMIT).unwrap(), "holds 40");
    worker.freeze().unwrap();
    world.sweep_all(Policy::default()).await;
    assert_eq!(world.jobs.counts().await.unwrap().queued, 40);
    let claim = world.start("other").await;
    let taken = world.jobs.take(&claim, &name("q"), 20).await.unwrap().jobs;
    let tickets: Vec<_> = taken.iter().map(|job| job.ticket(claim.incarnation.unwrap())).collect();
    let done = world.jobs.finish(&tickets[..10], &Finish::Complete).await.unwrap();
    assert!(done.iter().all(|one| *one == Finished::Done));
    worker.thaw().unwrap();
    worker.say("go").unwrap();
    let said: Vec<String> = (0..41).map(|_| worker.line(LIMIT).unwrap()).collect();
    let (words, last) = said.split_at(40);
    assert!(words.iter().all(|word| word.starts_with("refused")), "{words:?}");
    assert_eq!(last, ["cancelled"], "the handle had dropped the work");
    worker.finish(LIMIT).unwrap();
    // Its late words changed nothing: those in other hands are still there, unless they ended too.
    world.sweep_all(Policy::default()).await;
    assert_eq!(world.complete_all().await, 30);
    let counts = world.audit("frozen worker").await;
    assert_eq!((counts.completed, counts.entered, counts.dead), (40, 40, 0));
}

/// Every write is on disk before it is answered. Workers and a recoverer go on through three kills.
async fn killed_and_restarted_with_its_data_on_disk(engine: Engine) {
    const JOBS: usize = 300;
    let world = World::new(ServerOptions::new(engine).persistence(Persistence::Aof), patient());
    world.enqueue("j", JOBS).await;
    world.dying_worker("dead", 100).await;
    let server = &world.server;
    through(&world, JOBS, async |ledger: &Ledger| {
        for kill in 1..=3u64 {
            let until = 40 * kill;
            eventually("some progress", async || (ledger.len() >= until).then_some(())).await;
            server.kill().unwrap();
            server.restart().unwrap();
        }
    })
    .await;
    let counts = world.audit("server killed 3 times, AOF").await;
    assert_eq!((counts.completed, counts.entered), (JOBS as u64, JOBS as u64));
}

/// Every now and then an answer does not arrive, and the connection with it: to a take, an end, a
/// beat, a recovery.
async fn answers_are_lost_after_the_script_ran(engine: Engine) {
    const JOBS: usize = 300;
    let server = RedisServer::start(engine).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let world = World::by(server, &proxy.url(), patient());
    world.enqueue("j", JOBS).await;
    world.dying_worker("dead", 100).await;
    through(&world, JOBS, async |ledger: &Ledger| {
        for loss in 1..=10u64 {
            let until = 20 * loss;
            eventually("some progress", async || (ledger.len() >= until).then_some(())).await;
            proxy.drop_answers(1);
        }
    })
    .await;
    assert!(proxy.dropped() > 0);
    let counts = world.audit("answers lost").await;
    assert_eq!((counts.completed, counts.entered), (JOBS as u64, JOBS as u64));
}

/// Three workers and a recoverer, until every job is done, while `trouble` happens.
async fn through(world: &World, jobs: usize, trouble: impl AsyncFnOnce(&Ledger)) {
    let ledger = Arc::new(Ledger::default());
    let over = Arc::new(AtomicBool::new(false));
    let working = (0..3).map(|n| {
        let over = over.clone();
        let done = move || over.load(Ordering::SeqCst);
        tokio::spawn(keep_working(world.system(), format!("w{n}"), ledger.clone(), done))
    });
    let working: Vec<_> = working.collect();
    let sweeper = world.sweeper(Policy { batch: 7, ..Policy::default() });
    let sweeping = async {
        eventually("the end of all jobs", async || {
            pass(&sweeper).await;
            let counts = world.jobs.counts().await.ok()?;
            (counts.completed + counts.dead == jobs as u64).then_some(())
        })
        .await;
        over.store(true, Ordering::SeqCst);
    };
    tokio::join!(trouble(&ledger), sweeping);
    for worker in working {
        worker.await.unwrap();
    }
    ledger.audit();
}

/// The batch is settled by its receipts: counted once, put back once.
async fn the_answer_to_a_recovery_is_lost(engine: Engine) {
    let server = RedisServer::start(engine).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let world = World::by(server, &proxy.url(), patient());
    world.enqueue("j", 50).await;
    world.dying_worker("w", 50).await;
    world.suspect(50).await;
    let found = suspects(&world.jobs).await;
    let sent = batch("in-doubt", 1, found);
    // The queue is learned before, so that one script decides.
    let told = reclaim(&world.jobs, 7, sent.suspects[49..].to_vec()).await;
    assert!(matches!(told.outcomes[0], Outcome::Reclaimed(Some(_))), "{told:?}");
    proxy.drop_answers_matching("\r\nin-doubt\r\n");
    assert!(world.jobs.reclaim(sent.clone()).await.is_err());
    let settled = eventually("an answer", async || world.jobs.settle(&sent.id).await.ok()).await;
    assert_eq!(settled.len(), 49, "it was carried out, and says so");
    let counts = world.jobs.counts().await.unwrap();
    assert_eq!((counts.queued, counts.in_flight), (50, 0));
    // Sent again by a connection that does not know better: it was done before.
    let again = world.jobs.reclaim(sent.clone()).await.unwrap();
    let told = again.outcomes.iter().filter(|o| matches!(o, Outcome::Reclaimed(Some(_))));
    assert_eq!(told.count(), 49);
    // Cut off before it arrived, it never will be carried out.
    let (claim, _) = world.dying_worker("x", 50).await;
    world.suspect(50).await;
    let late = batch("too-late", 1, suspects(&world.jobs).await);
    proxy.cut();
    assert!(world.jobs.reclaim(late.clone()).await.is_err());
    proxy.mend().unwrap();
    let settled = eventually("an answer", async || world.jobs.settle(&late.id).await.ok()).await;
    assert_eq!(settled.len(), 0);
    let refused = world.jobs.reclaim(late).await.unwrap();
    assert!(refused.outcomes.iter().all(|one| *one == Outcome::Gone));
    assert_eq!(world.jobs.owner(&claim).await.unwrap().unwrap().held, 50);
    world.sweep_all(Policy::default()).await;
    assert_eq!(world.complete_all().await, 50);
    assert_eq!(world.audit("answer to a recovery lost").await.completed, 50);
}

/// More than any list of arguments takes; and each step is a bounded one.
async fn trap_e10_ten_thousand_jobs_of_one_worker(engine: Engine) {
    const JOBS: usize = 10_000;
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", JOBS).await;
    world.dying_worker("w", JOBS).await;
    world.sweep_all(Policy::default()).await;
    assert_eq!(world.jobs.counts().await.unwrap().queued, JOBS as u64);
    // The owner's name is used again, and hides nothing (E12).
    world.start("w").await;
    assert_eq!(world.complete_all().await, JOBS as u64);
    assert_eq!(world.audit("10,000 jobs of one worker").await.completed, JOBS as u64);
}

/// Each died with one.
async fn one_job_of_each_of_ten_thousand_workers(engine: Engine) {
    const WORKERS: usize = 10_000;
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", WORKERS).await;
    let many = futures::stream::iter(0..WORKERS).map(|n| {
        let world = &world;
        async move {
            let claim = world.start(&format!("w{n}")).await;
            world.jobs.take(&claim, &name("q"), 1).await.unwrap().jobs.len()
        }
    });
    let taken: Vec<usize> = many.buffer_unordered(50).collect().await;
    assert_eq!(taken.iter().sum::<usize>(), WORKERS);
    // All at once is what a brake is for: the operator lets go of it.
    let overridden =
        lapsed_core::sweep::brake::BrakeSetting::Override { reason: "they were killed".into() };
    world.redis.set_brake(&crate::jobs::id(), overridden).await.unwrap();
    world.sweep_all(Policy::default()).await;
    assert_eq!(world.complete_all().await, WORKERS as u64);
    assert_eq!(world.audit("1 job of each of 10,000 workers").await.completed, WORKERS as u64);
}

/// A failover may lose the last writes, the counter among them.
async fn trap_x7_tokens_grow_whatever_the_server_remembers(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", 2).await;
    let claim = world.start("w").await;
    let take = async || world.jobs.take(&claim, &name("q"), 1).await.unwrap().jobs.remove(0);
    let first = take().await;
    let app = world.app();
    let meta = format!("lapsed:{{lapsed:inflight}}:{}:meta", crate::jobs::id());
    assert_eq!(app.number(&["HSET", &meta, "token", "1000"]), 0, "there was one");
    let second = take().await;
    assert!(second.token > first.token, "{second:?} after {first:?}");
    app.call(&["HDEL", &meta, "token"]);
    world.enqueue("k", 1).await;
    assert!(take().await.token > second.token);
}

/// An id on a list, or in what a life holds, whose record is gone: it is passed over once, and is not
/// there any more.
async fn trap_e5_what_has_no_record_is_taken_off_the_list(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", 3).await;
    let app = world.app();
    let key = |what: &str| format!("lapsed:{{lapsed:inflight}}:{}:{what}", crate::jobs::id());
    app.call(&["HDEL", &key("jobs"), "j00000"]);
    let (claim, taken) = world.dying_worker("w", 2).await;
    assert_eq!(taken.len(), 2);
    assert_eq!(app.number(&["LLEN", &key("queue:q")]), 0);
    app.call(&["HDEL", &key("jobs"), "j00001"]);
    world.suspect(2).await;
    let found = suspects(&world.jobs).await;
    let answer = reclaim(&world.jobs, 1, found).await;
    assert_eq!(answer.outcomes[0], Outcome::Gone);
    assert!(matches!(answer.outcomes[1], Outcome::Reclaimed(Some(_))));
    assert!(suspects(&world.jobs).await.is_empty());
    let held = key(&format!("held:{}", claim.incarnation.unwrap()));
    assert_eq!(app.number(&["EXISTS", &held]), 0);
}

/// A queue that is none: its jobs stay registered, those of other queues go back. And the other keys:
/// nothing is half done.
async fn something_else_under_a_key(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), patient());
    let app = world.app();
    let key = |what: &str| format!("lapsed:{{lapsed:inflight}}:{}:{what}", crate::jobs::id());
    let on = |id: &str, queue: &str| lapsed_core::inflight::NewJob::new(name(id), name(queue), id);
    let claim = world.start("w").await;
    let jobs = [on("a", "bad"), on("b", "good"), on("c", "bad")];
    world.jobs.register(&claim, &jobs).await.unwrap();
    app.call(&["SET", &key("queue:bad"), "surprise"]);
    world.suspect(3).await;
    let answer = reclaim(&world.jobs, 1, suspects(&world.jobs).await).await;
    let refused = Outcome::Refused(Refusal::NotTaken);
    assert_eq!((&answer.outcomes[0], &answer.outcomes[2]), (&refused, &refused));
    assert!(matches!(answer.outcomes[1], Outcome::Reclaimed(Some(_))));
    let counts = world.audit("a queue that does not take").await;
    assert_eq!((counts.queued, counts.in_flight), (1, 2));
    assert!(world.jobs.enqueue(&[on("d", "bad")]).await.is_err());
    assert_eq!(world.jobs.job(&name("d")).await.unwrap(), None);
    app.call(&["DEL", &key("queue:bad")]);
    world.sweep_all(Policy::default()).await;
    assert_eq!(world.jobs.counts().await.unwrap().queued, 3);

    // And what is lapsed's own.
    for what in ["counts", "queues", "jobs"] {
        let (own, aside) = (key(what), key("aside"));
        app.call(&["RENAME", &own, &aside]);
        app.call(&["SET", &own, "surprise"]);
        let claim = world.start("x").await;
        assert!(world.jobs.take(&claim, &name("good"), 5).await.is_err(), "{what}");
        app.call(&["RENAME", &aside, &own]);
        assert_eq!(app.number(&["LLEN", &key("queue:good")]), 1, "{what}");
        world.audit(what).await;
    }
}

/// Nothing can be taken or put back, nothing is lost; ends are still taken, they free something.
async fn a_server_out_of_memory_loses_no_job_and_accepts_completions(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", 20).await;
    let (claim, taken) = world.dying_worker("w", 10).await;
    let app = world.app();
    app.call(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(world.jobs.take(&claim, &name("q"), 5).await.is_err());
    let ticket = taken[0].ticket(claim.incarnation.unwrap());
    let done = world.jobs.finish(&[ticket], &Finish::Complete).await.unwrap();
    assert_eq!(done, [Finished::Done]);
    let sweeper = world.sweeper(Policy::default());
    eventually("an orphan", async || (suspects(&world.jobs).await.len() == 9).then_some(())).await;
    assert_eq!(pass(&sweeper).await.reclaimed, 0);
    app.call(&["CONFIG", "SET", "maxmemory", "0"]);
    let counts = world.audit("out of memory").await;
    assert_eq!((counts.queued, counts.in_flight, counts.completed), (10, 9, 1));
    world.sweep_all(Policy::default()).await;
    assert_eq!(world.complete_all().await, 19);
}

/// Without dead workers the number of commands of a pass does not depend on the jobs in flight.
async fn an_idle_pass_costs_the_same_however_many_jobs_there_are() {
    let world = World::new(ServerOptions::new(Engine::Redis), patient());
    let claim = world.start("w").await;
    let app = world.app();
    let sweeper = world.sweeper(Policy::default());
    let mut costs = Vec::new();
    for jobs in [100, 9_900] {
        world.enqueue(&format!("n{jobs}-"), jobs).await;
        let mut left = jobs;
        while left > 0 {
            world.jobs.beat(&claim).await.unwrap();
            left -= world.jobs.take(&claim, &name("q"), 500).await.unwrap().jobs.len();
        }
        pass(&sweeper).await;
        let cost = eventually("a pass that nothing came in between", async || {
            world.jobs.beat(&claim).await.unwrap();
            app.call(&["CONFIG", "RESETSTAT"]);
            assert_eq!(pass(&sweeper).await.suspects, 0);
            let stats = app.call(&["INFO", "commandstats"]).to_string();
            // The watch over the server looks in at its own pace.
            let own = |line: &&str| line.contains("evalsha") || line.contains("|fcall");
            let calls = stats.lines().find(own)?.split("calls=").nth(1)?;
            let calls: u64 = calls.split(',').next()?.parse().ok()?;
            Some(calls)
        })
        .await;
        costs.push(cost);
    }
    assert!(costs[1] <= costs[0] + 2, "{costs:?}");
    let place = world.jobs.job(&name("n100-00000")).await.unwrap().unwrap().place;
    assert!(matches!(place, JobPlace::InFlight { .. }));
}
