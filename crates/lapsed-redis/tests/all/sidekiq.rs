//! The Ruby programs that stand for an application with Sidekiq do what the application does: the keys
//! that a killed process leaves behind, and what makes a Sidekiq worker run a job.

use std::collections::{BTreeMap, BTreeSet};

use lapsed_testbed::{Engine, RedisServer, until};

use crate::ruby::{Held, Holder, LIMIT, QUEUE, enqueue, lines, ran, worker};

const JOBS: usize = 5;

fn number(server: &RedisServer, words: &[&str]) -> u64 {
    server.command(words).unwrap().parse().unwrap()
}

fn now_ms(server: &RedisServer) -> u64 {
    let time = lines(&server.command(&["TIME"]).unwrap());
    time[0].parse::<u64>().unwrap() * 1_000 + time[1].parse::<u64>().unwrap() / 1_000
}

fn on_the_queue(server: &RedisServer) -> Vec<String> {
    lines(&server.command(&["LRANGE", &format!("queue:{QUEUE}"), "0", "-1"]).unwrap())
}

/// Pairs as a map.
fn map(answer: &str) -> BTreeMap<String, String> {
    let lines = lines(answer);
    lines.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

fn index(server: &RedisServer, prefix: &str) -> BTreeMap<String, u64> {
    let key = format!("{prefix}inflight_index");
    let pairs = map(&server.command(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]).unwrap());
    pairs.into_iter().map(|(id, score)| (id, score.parse().unwrap())).collect()
}

fn jobs(server: &RedisServer, prefix: &str) -> BTreeMap<String, String> {
    map(&server.command(&["HGETALL", &format!("{prefix}inflight_jobs")]).unwrap())
}

/// The jobs are in flight, byte for byte as they were on the queue, and nowhere else.
fn assert_in_flight(server: &RedisServer, prefix: &str, held: &[Held], queued: &[String]) {
    assert_eq!(on_the_queue(server), [""; 0]);
    let ids: BTreeSet<&String> = held.iter().map(|held| &held.id).collect();
    assert_eq!(index(server, prefix).keys().collect::<BTreeSet<_>>(), ids);
    let jobs = jobs(server, prefix);
    assert_eq!(jobs.keys().collect::<BTreeSet<_>>(), ids);
    assert_eq!(jobs.values().collect::<BTreeSet<_>>(), queued.iter().collect::<BTreeSet<_>>());
    for held in held {
        assert!(jobs[&held.id].contains(&format!("\"jid\":\"{}\"", held.jid)), "{jobs:?}");
    }
}

#[test]
fn a_killed_holder_leaves_its_jobs_and_a_worker_runs_what_is_pushed_back() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let prefix = "sidekiq:async_http:";
        let jids = enqueue(&server, JOBS);
        let queued = on_the_queue(&server);
        let before_ms = now_ms(&server);
        let holder = Holder::start(&server, JOBS, &[]);
        let taken: Vec<&String> = holder.held.iter().map(|held| &held.jid).collect();
        assert_eq!(taken, jids.iter().collect::<Vec<_>>());
        holder.program.kill().unwrap();

        assert_in_flight(&server, prefix, &holder.held, &queued);
        let after_ms = now_ms(&server);
        for (id, at_ms) in index(&server, prefix) {
            assert!((before_ms..=after_ms).contains(&at_ms), "{id}: {at_ms} is no time in ms");
            assert_eq!(id.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        }
        for key in ["inflight_index", "inflight_jobs"] {
            let ttl_s = number(&server, &["TTL", &format!("{prefix}{key}")]);
            assert!((3_000..=3_600).contains(&ttl_s), "{key}: {ttl_s}");
        }

        server.command(&["SADD", "queues", QUEUE]).unwrap();
        for payload in &queued {
            server.command(&["LPUSH", &format!("queue:{QUEUE}"), payload]).unwrap();
        }
        let worker = worker(&server);
        let all = until("all jobs", LIMIT, || {
            let ran = ran(&server);
            Ok((ran.len() >= JOBS).then_some(ran))
        });
        let expected = jids.iter().enumerate().map(|(nth, jid)| format!("{jid} {nth}"));
        assert!(worker.finish(LIMIT).unwrap().success());
        assert_eq!(all.unwrap().into_iter().collect::<BTreeSet<_>>(), expected.collect());
        assert_eq!(ran(&server).len(), JOBS, "each once");
    }
}

#[test]
fn a_process_is_named_in_its_members_and_in_the_list() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let prefix = "sidekiq:patient_http:";
    enqueue(&server, JOBS);
    let queued = on_the_queue(&server);
    let holder = Holder::start(&server, JOBS, &[("PREFIX", prefix), ("MEMBERS", "process")]);
    assert_eq!(holder.tell("beat"), "beaten");
    assert_in_flight(&server, prefix, &holder.held, &queued);

    let processes = lines(&server.command(&["SMEMBERS", &format!("{prefix}processes")]).unwrap());
    let [process] = &processes[..] else { panic!("{processes:?}") };
    let parts: Vec<&str> = process.split(':').collect();
    assert_eq!(parts[1], holder.program.pid().unwrap().to_string());
    assert_eq!((parts.len(), parts[2].len()), (3, 16), "{process}");
    for held in &holder.held {
        assert_eq!(held.id.split_once('/').unwrap().0, process);
    }
    let alive = format!("{prefix}processes:{process}:max_connections");
    assert!((1..=120).contains(&number(&server, &["TTL", &alive])));
}

#[test]
fn the_holder_beats_until_it_is_killed() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let prefix = "sidekiq:async_http:";
    enqueue(&server, JOBS);
    let holder = Holder::start(&server, JOBS, &[("INTERVAL", "0.02"), ("THRESHOLD", "1")]);
    let first = index(&server, prefix);
    until("a beat of every job", LIMIT, || {
        let now = index(&server, prefix);
        Ok(first.iter().all(|(id, at_ms)| now[id] > *at_ms).then_some(()))
    })
    .unwrap();
    holder.program.kill().unwrap();
    // What it had already sent may still arrive; ten intervals without a beat are the end.
    until("its last beat", LIMIT, || {
        let (last, seen_ms) = (index(&server, prefix), now_ms(&server));
        until("time to pass", LIMIT, || Ok((now_ms(&server) > seen_ms + 200).then_some(())))?;
        Ok((index(&server, prefix) == last).then_some(()))
    })
    .unwrap();
}

/// What a process does that was thought dead: it beats, and finishes, as if nothing had been.
#[test]
fn a_real_worker_finishes_beats_and_locks_as_it_is_told() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let prefix = "sidekiq:async_http:";
    enqueue(&server, 2);
    let holder = Holder::start(&server, 2, &[]);
    let [one, two] = &holder.held[..] else { panic!("{:?}", holder.held) };
    assert_eq!(holder.tell(&format!("finish {}", one.id)), format!("finished {} 1", one.id));
    assert_eq!(index(&server, prefix).keys().collect::<Vec<_>>(), [&two.id]);
    assert_eq!(jobs(&server, prefix).keys().collect::<Vec<_>>(), [&two.id]);

    let key = format!("{prefix}inflight_index");
    server.command(&["ZREM", &key, &two.id]).unwrap();
    assert_eq!(holder.tell("beat"), "beaten");
    let again = index(&server, prefix);
    assert_eq!(again.keys().collect::<Vec<_>>(), [&two.id], "a beat without XX brings it back");

    assert_eq!(holder.tell("lock"), "lock true");
    assert_eq!(holder.tell("lock"), "lock false");
    let ttl_s = number(&server, &["TTL", &format!("{prefix}gc_lock")]);
    assert!((1..=120).contains(&ttl_s), "{ttl_s}");
}
