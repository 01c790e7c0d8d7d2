//! Requests whose answer is lost, and their repetition, through daemons on Redis and on the embedded
//! store.
//!
//! The race: the store carries out a request after the daemon gave up. A job is then in flight with an
//! owner that was never told, for as long as that owner sends heartbeats.

use std::time::{Duration, Instant};

use crate::support::{CALM, Daemon, Home, JSON, Reply, until};
use lapsed_testbed::{Engine, Proxy, RedisServer};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    a_take_that_redis_carries_out_after_the_daemon_gave_up_strands_no_job,
    a_take_whose_answer_is_lost_is_given_back_or_repeated,
    a_repeated_take_through_another_daemon_gets_the_same_jobs,
    a_repeated_take_after_the_daemon_was_killed_gets_the_same_jobs,
    the_embedded_store_answers_a_repeated_take_with_the_same_jobs,
    a_key_with_other_content_is_refused,
    a_large_take_whose_second_call_is_lost_is_given_back_whole,
}

const TTL: &str = "heartbeat_ttl = \"10m\"";

/// A daemon's home whose jobs are on the Redis at `url`.
fn home(url: &str) -> Home {
    let home = Home { dir: tempfile::tempdir().unwrap() };
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"{url}\"\n\n\
         [[system]]\nkind = \"inflight\"\nname = \"jobs\"\nsweep = {{ every = \"1d\" }}\n{TTL}\n"
    );
    std::fs::write(home.config(), text).unwrap();
    home
}

fn keyed(daemon: &Daemon, operation: &str, key: &str, body: &Value) -> Reply {
    let path = format!("/v1/inflight/jobs/{operation}");
    daemon.call("POST", &path, Some(body.to_string()), &[JSON, ("idempotency-key", key)])
}

/// Starts the owner and takes nothing, so that Redis knows the scripts: the first answer to each is that
/// it does not. The answer is the incarnation: a take that names it is one call.
fn start(daemon: &Daemon) -> Value {
    let started = daemon.jobs("start", json!({ "owner": "taker-7", "ttl_ms": 600_000 }));
    let life = started["incarnation"].clone();
    let nothing = json!({ "owner": "taker-7", "incarnation": life, "queue": "empty" });
    assert_eq!(daemon.jobs("take", nothing)["jobs"], json!([]));
    life
}

fn given_up(daemon: &Daemon) -> usize {
    daemon.log().matches("request was given up").count()
}

fn enqueue(daemon: &Daemon, ids: &[&str]) {
    for id in ids {
        daemon.jobs("enqueue", json!({ "queue": "q", "id": id, "payload": "p" }));
    }
}

fn is_queued(daemon: &Daemon, id: &str) -> Option<()> {
    let reply = daemon.get(&format!("/v1/inflight/jobs/jobs/{id}"));
    (reply.status == 200 && reply.body["state"] == "queued").then_some(())
}

/// The story of the audit: Redis stands still for 3 s, the daemon gives up after 2 s.
fn a_take_that_redis_carries_out_after_the_daemon_gave_up_strands_no_job() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let home = home(&server.url());
    let daemon = home.serve();
    let life = start(&daemon);
    for round in 0..8 {
        let id = format!("j{round}");
        enqueue(&daemon, &[&id]);
        server.freeze().unwrap();
        let frozen = Instant::now();
        let answer = std::thread::scope(|scope| {
            let taking = scope.spawn(|| {
                daemon.try_jobs(
                    "take",
                    json!({ "owner": "taker-7", "incarnation": life, "queue": "q" }),
                )
            });
            until("Redis to have stood still for 3 s", || {
                (frozen.elapsed() > Duration::from_secs(3)).then_some(())
            });
            server.thaw().unwrap();
            taking.join().unwrap()
        });
        answer.is_problem(503, "unavailable");
        until("the job to be on its queue while its owner sends heartbeats", || {
            daemon.try_jobs("beat", json!({ "owner": "taker-7" }));
            is_queued(&daemon, &id)
        });
        let taken =
            daemon.jobs("take", json!({ "owner": "taker-7", "incarnation": life, "queue": "q" }));
        assert_eq!(taken["jobs"][0]["id"], json!(id), "round {round}: {taken}");
        let ticket = json!({ "id": id, "token": taken["jobs"][0]["token"] });
        assert_eq!(daemon.jobs("complete", ticket)["outcome"], "done");
    }
    let counts = daemon.counts();
    assert_eq!((&counts["in_flight"], &counts["completed"]), (&json!(0), &json!(8)), "{counts}");
}

/// Without a key, and with one that is not repeated, the jobs go back in their order.
fn a_take_whose_answer_is_lost_is_given_back_or_repeated() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let home = home(&proxy.url());
    let daemon = home.serve();
    let life = start(&daemon);
    enqueue(&daemon, &["a", "b", "c"]);
    let body = json!({ "owner": "taker-7", "incarnation": life, "queue": "q", "limit": 10 });
    for key in [None, Some("never-repeated")] {
        proxy.drop_answers_matching("taker-7");
        let lost = match key {
            None => daemon.try_jobs("take", body.clone()),
            Some(key) => keyed(&daemon, "take", key, &body),
        };
        lost.is_problem(503, "unavailable");
        until("the jobs to be given back", || is_queued(&daemon, "c"));
        let again = daemon.jobs("take", body.clone());
        let ids: Vec<&Value> = again["jobs"].as_array().unwrap().iter().map(|j| &j["id"]).collect();
        assert_eq!(ids, ["a", "b", "c"], "{again}");
        for job in again["jobs"].as_array().unwrap().iter().rev() {
            let ticket = json!({ "id": job["id"], "token": job["token"], "end": "front" });
            daemon.jobs("give_back", ticket);
        }
    }
    // The answer arrived; it is asked for once more, and the jobs stay with their claims.
    let first = keyed(&daemon, "take", "told-twice", &body);
    let second = keyed(&daemon, "take", "told-twice", &body);
    assert_eq!((first.status, &first.body["jobs"]), (200, &second.body["jobs"]), "{second:?}");
    assert_eq!(first.body["jobs"].as_array().unwrap().len(), 3);
    // What is done is no longer part of the answer.
    let ticket = json!({ "id": "a", "token": first.body["jobs"][0]["token"] });
    daemon.jobs("complete", ticket);
    let third = keyed(&daemon, "take", "told-twice", &body);
    assert_eq!(
        third.body["jobs"].as_array().unwrap()[..],
        first.body["jobs"].as_array().unwrap()[1..]
    );
    // A lost repetition takes nothing from the attempt that was answered.
    let before = given_up(&daemon);
    proxy.drop_answers_matching("taker-7");
    keyed(&daemon, "take", "told-twice", &body).is_problem(503, "unavailable");
    until("the lost repetition to be given up", || (given_up(&daemon) > before).then_some(()));
    assert_eq!(daemon.job("b")["state"], "in_flight");
    assert_eq!(daemon.counts()["in_flight"], 2);
}

fn a_repeated_take_through_another_daemon_gets_the_same_jobs() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (one, two) = (home(&server.url()), home(&server.url()));
    let (one, two) = (one.serve(), two.serve());
    let life = start(&one);
    enqueue(&one, &["a", "b", "c"]);
    let body = json!({ "owner": "taker-7", "incarnation": life, "queue": "q", "limit": 2, "wait_ms": 5_000 });
    // Both at the same time, and then once more.
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| keyed(&one, "take", "k", &body));
        let second = scope.spawn(|| keyed(&two, "take", "k", &body));
        (first.join().unwrap(), second.join().unwrap())
    });
    let third = keyed(&two, "take", "k", &body);
    assert_eq!(first.body["jobs"].as_array().unwrap().len(), 2, "{first:?}");
    for other in [&second, &third] {
        assert_eq!((other.status, &other.body["jobs"]), (200, &first.body["jobs"]), "{other:?}");
    }
    let counts = two.counts();
    assert_eq!((&counts["in_flight"], &counts["queued"]), (&json!(2), &json!(1)), "{counts}");
}

/// `kill -9` between the take and the answer: Redis has carried it out, the client got nothing.
fn a_repeated_take_after_the_daemon_was_killed_gets_the_same_jobs() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let home = home(&proxy.url());
    let daemon = home.serve();
    let life = start(&daemon);
    enqueue(&daemon, &["a", "b"]);
    let body = json!({ "owner": "taker-7", "incarnation": life, "queue": "q", "limit": 2 });
    proxy.delay(Duration::from_secs(1));
    let address = daemon.url.strip_prefix("http://").unwrap().to_owned();
    let mut client = std::net::TcpStream::connect(&address).unwrap();
    let text = body.to_string();
    let request = format!(
        "POST /v1/inflight/jobs/take HTTP/1.1\r\nhost: {address}\r\nidempotency-key: k\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    );
    std::io::Write::write_all(&mut client, request.as_bytes()).unwrap();
    until("Redis to have carried it out", || {
        let jobs = server.command(&["HVALS", "lapsed:{lapsed:inflight}:inflight/jobs:jobs"]);
        jobs.unwrap().lines().all(|job| !job.starts_with("q:")).then_some(())
    });
    daemon.kill();
    proxy.delay(Duration::ZERO);
    let daemon = home.serve();
    assert_eq!(daemon.counts()["in_flight"], 2);
    let repeated = keyed(&daemon, "take", "k", &body);
    let jobs = repeated.body["jobs"].as_array().unwrap();
    assert_eq!(jobs.iter().map(|job| &job["id"]).collect::<Vec<_>>(), ["a", "b"], "{repeated:?}");
    for job in jobs {
        assert_eq!(daemon.job(job["id"].as_str().unwrap())["token"], job["token"]);
        daemon.jobs("complete", json!({ "id": job["id"], "token": job["token"] }));
    }
    assert_eq!(daemon.counts()["completed"], 2);
}

fn the_embedded_store_answers_a_repeated_take_with_the_same_jobs() {
    let home = Home::inflight("10m", CALM);
    let daemon = home.serve();
    let life = start(&daemon);
    enqueue(&daemon, &["a", "b", "c"]);
    let body = json!({ "owner": "taker-7", "incarnation": life, "queue": "q", "limit": 2 });
    let first = keyed(&daemon, "take", "k", &body).body;
    daemon.kill();
    let daemon = home.serve();
    let second = keyed(&daemon, "take", "k", &body).body;
    assert_eq!(first["jobs"].as_array().unwrap().len(), 2, "{first}");
    assert_eq!(second["jobs"], first["jobs"]);
    let other = keyed(&daemon, "take", "another", &body).body;
    assert_eq!(other["jobs"][0]["id"], "c", "{other}");
}

fn a_key_with_other_content_is_refused() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let redis = home(&server.url());
    for home in [redis, Home::inflight("10m", CALM)] {
        let daemon = home.serve();
        let life = start(&daemon);
        enqueue(&daemon, &["a", "b"]);
        let (one, two) = (
            json!({ "owner": "taker-7", "incarnation": life, "queue": "q" }),
            json!({ "owner": "taker-7", "incarnation": life, "queue": "q", "limit": 2 }),
        );
        assert_eq!(keyed(&daemon, "take", "k", &one).status, 200);
        let reused = keyed(&daemon, "take", "k", &two);
        reused.is_problem(422, "key_reused");
        assert_eq!(daemon.counts()["in_flight"], 1);
        keyed(&daemon, "take", "!k", &one).is_problem(422, "invalid");
        keyed(&daemon, "take", &"k".repeat(300), &one).is_problem(422, "invalid");
    }
}

/// A take of more jobs than one script carries is several calls; the answer of the second is lost.
fn a_large_take_whose_second_call_is_lost_is_given_back_whole() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let home = home(&proxy.url());
    let daemon = home.serve();
    let life = start(&daemon);
    let jobs: Vec<Value> = (0..300)
        .map(|n| json!({ "queue": "q", "id": format!("j{n:03}"), "payload": "p" }))
        .collect();
    daemon.jobs("enqueue_many", json!({ "jobs": jobs }));
    let body = json!({ "owner": "taker-7", "incarnation": life, "queue": "q", "limit": 300 });
    // The first call asks for 200, the second for the other 100.
    proxy.drop_answers_matching("\r\n100\r\n");
    keyed(&daemon, "take", "k", &body).is_problem(503, "unavailable");
    assert_eq!(proxy.dropped(), 1);
    until("all to be given back", || (daemon.counts()["queued"] == 300).then_some(()));
    let again = keyed(&daemon, "take", "k", &body).body;
    let ids: Vec<&str> =
        again["jobs"].as_array().unwrap().iter().map(|j| j["id"].as_str().unwrap()).collect();
    let all: Vec<String> = (0..300).map(|n| format!("j{n:03}")).collect();
    assert_eq!(ids, all);
    assert_eq!(keyed(&daemon, "take", "k", &body).body["jobs"], again["jobs"]);
}
