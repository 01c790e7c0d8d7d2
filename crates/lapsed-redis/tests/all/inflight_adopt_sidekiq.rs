//! From end to end, with a real Sidekiq: a Ruby process takes jobs off its queue, registers them in the
//! original's layout and is killed with `kill -9`; lapsed puts them back; a Sidekiq worker runs each
//! exactly once.

use std::collections::BTreeSet;
use std::time::Duration;

use lapsed_redis::AdoptedInflightLayout;
use lapsed_testbed::{Engine, RedisServer, until};

use crate::inflight_app::{App, AppFixture, THRESHOLD, sweep_through};
use crate::ruby::{Holder, LIMIT, QUEUE, enqueue, lines, ran, worker};

const JOBS: usize = 12;

lapsed_testbed::steady_async_tests! {
    a_killed_process_loses_nothing,
    the_newer_original_loses_nothing_either,
    a_frozen_process_comes_back_and_changes_nothing,
}

/// A threshold that a test can wait for, and beats that are often enough for it.
fn short(layout: AdoptedInflightLayout) -> AdoptedInflightLayout {
    let heartbeat_interval = Duration::from_millis(100);
    AdoptedInflightLayout { orphan_threshold: THRESHOLD, heartbeat_interval, ..layout }
}

fn beside(server: &RedisServer, layout: AdoptedInflightLayout) -> AppFixture {
    AppFixture::at(App::connect(server.port(), 0), &server.url(), short(layout))
}

fn on_the_queue(server: &RedisServer) -> Vec<String> {
    lines(&server.command(&["LRANGE", &format!("queue:{QUEUE}"), "0", "-1"]).unwrap())
}

/// Passes until so many were put back.
async fn recover(beside: &AppFixture, jobs: usize) {
    let sweeper = beside.sweeper("s");
    let mut reclaimed = 0;
    let began = std::time::Instant::now();
    while reclaimed < jobs as u64 {
        assert!(began.elapsed() < LIMIT, "{reclaimed} of {jobs}");
        reclaimed += sweep_through(&sweeper).await.reclaimed;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(reclaimed, jobs as u64);
}

/// Waits until a Sidekiq worker ran everything that is on the queue; what it ran.
fn run_all(server: &RedisServer, jobs: usize) -> Vec<String> {
    let worker = worker(server);
    until("all jobs", LIMIT, || Ok((ran(server).len() >= jobs).then_some(()))).unwrap();
    assert!(worker.finish(LIMIT).unwrap().success());
    ran(server)
}

fn expected(jids: &[String]) -> BTreeSet<String> {
    jids.iter().enumerate().map(|(nth, jid)| format!("{jid} {nth}")).collect()
}

async fn a_killed_process_loses_nothing() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let beside = beside(&server, AdoptedInflightLayout::async_http());
        let jids = enqueue(&server, JOBS);
        let queued = on_the_queue(&server);
        let holder = Holder::start(&server, JOBS, &[("INTERVAL", "0.1"), ("THRESHOLD", "1")]);
        assert_eq!(on_the_queue(&server), [""; 0]);
        // It lives for longer than the threshold, and keeps them all.
        beside.a_threshold_later().await;
        assert_eq!(beside.sweep().await.reclaimed, 0, "it beats");
        holder.program.kill().unwrap();
        recover(&beside, JOBS).await;
        let back: BTreeSet<String> = on_the_queue(&server).into_iter().collect();
        assert_eq!(back, queued.into_iter().collect(), "byte for byte as Sidekiq wrote them");

        let ran = run_all(&server, JOBS);
        assert_eq!(ran.iter().cloned().collect::<BTreeSet<_>>(), expected(&jids));
        assert_eq!(ran.len(), JOBS, "each once");
        println!(
            "{engine:?}: {JOBS} registered = {} run + 0 queued + 0 in flight + 0 dead",
            ran.len()
        );
        let mut left = beside.app.keys();
        left.retain(|key| key.starts_with("sidekiq:async_http:") || key.starts_with("queue:"));
        assert_eq!(left, BTreeSet::new(), "nothing is left to be done");
    }
}

async fn the_newer_original_loses_nothing_either() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let beside = beside(&server, AdoptedInflightLayout::patient_http());
    let jids = enqueue(&server, JOBS);
    let env = [
        ("PREFIX", "sidekiq:patient_http:"),
        ("MEMBERS", "process"),
        ("INTERVAL", "0.1"),
        ("THRESHOLD", "1"),
    ];
    let dead = Holder::start(&server, JOBS / 2, &env);
    let alive = Holder::start(&server, JOBS / 2, &env);
    dead.program.kill().unwrap();
    recover(&beside, JOBS / 2).await;
    // Its name is still in the list of processes (E3); the other one's jobs are untouched.
    assert_eq!(beside.app.number(&["SCARD", "sidekiq:patient_http:processes"]), 2);
    let index = "sidekiq:patient_http:inflight_index";
    assert_eq!(beside.app.number(&["ZCARD", index]), JOBS as i64 / 2);
    let ran = run_all(&server, JOBS / 2);
    assert_eq!(ran.into_iter().collect::<BTreeSet<_>>().len(), JOBS / 2);
    for held in &alive.held {
        let told = alive.tell(&format!("finish {}", held.id));
        assert_eq!(told, format!("finished {} 1", held.id), "it was never taken from it");
    }
    let ran: BTreeSet<String> = crate::ruby::ran(&server).into_iter().collect();
    let finished: BTreeSet<&String> = alive.held.iter().map(|held| &held.jid).collect();
    let of_the_dead: BTreeSet<String> = expected(&jids)
        .into_iter()
        .filter(|line| !finished.contains(&line.split(' ').next().unwrap().to_owned()))
        .collect();
    assert_eq!(ran, of_the_dead);
}

/// Taken for dead, recovered and run elsewhere, it wakes up: its beat makes an entry that nothing hangs
/// on (E2), its late unregistering finds nothing, and no job comes back a second time.
async fn a_frozen_process_comes_back_and_changes_nothing() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let beside = beside(&server, AdoptedInflightLayout::async_http());
    let jids = enqueue(&server, JOBS);
    let holder = Holder::start(&server, JOBS, &[("INTERVAL", "0.1"), ("THRESHOLD", "1")]);
    holder.program.freeze().unwrap();
    recover(&beside, JOBS).await;
    let ran = run_all(&server, JOBS);
    assert_eq!(ran.into_iter().collect::<BTreeSet<_>>(), expected(&jids));
    holder.program.thaw().unwrap();
    assert_eq!(holder.tell("beat"), "beaten");
    for held in &holder.held {
        let told = holder.tell(&format!("finish {}", held.id));
        assert_eq!(told, format!("finished {} 0", held.id), "too late, and nothing changes");
    }
    holder.program.kill().unwrap();
    beside.a_threshold_later().await;
    assert_eq!(beside.sweep().await.reclaimed, 0);
    assert!(!beside.app.has(crate::inflight_app::INDEX), "what it has made anew is gone");
    assert_eq!((on_the_queue(&server).len(), crate::ruby::ran(&server).len()), (0, JOBS));
}
