//! Jobs that killed processes of Sidekiq ran, put back from copies of their heartbeats: the real program, and keys as it writes them.
//!
//! Sidekiq's sign of life lasts for 60 s after the last heartbeat. Most tests do not wait for that: once the process is killed, they
//! delete its key, as the expiry would. One test waits.

use std::time::Instant;

use lapsed_core::inflight::RecoveredJob;
use lapsed_core::receipt::Receipt;

use super::*;
use crate::story::{dry, slowly};

lapsed_testbed::steady_async_tests! {
    a_job_of_a_killed_sidekiq_process_runs_on_another_one,
    a_job_is_back_within_65_s_of_a_kill_by_sidekiqs_own_sign_of_life,
    an_orderly_end_puts_nothing_back_a_second_time,
    trap_f1_a_frozen_process_keeps_its_job_until_its_sign_of_life_is_gone,
    trap_f6_a_job_that_ended_after_the_last_beat_is_repeated_unless_two_beats_are_asked_for,
    a_job_that_is_somewhere_else_is_not_put_back,
    a_jid_among_the_arguments_of_another_job_does_not_hide_a_job,
    a_job_that_two_dead_processes_show_is_put_back_once,
    two_sweepers_put_each_job_of_a_process_back_once,
    trap_f7_a_sidekiq_payload_is_put_back_byte_for_byte,
    trap_f12_a_job_that_kills_its_processes_is_among_sidekiqs_dead_jobs,
    a_sidekiq_key_of_another_type_is_left_alone,
    a_process_that_ended_while_nobody_looked_is_judged_by_the_list_of_processes,
    an_older_copy_never_replaces_a_newer_one,
    layouts_that_are_not_known_are_refused,
    a_namespace_is_followed_and_nothing_else_is_touched,
    a_dry_run_and_detect_write_nothing,
    a_job_on_the_working_list_of_a_dead_process_is_put_back_exactly_once,
    a_process_with_lapsed_fetch_loses_and_repeats_nothing,
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/rescue").join(name)
}

fn ruby(server: &RedisServer, program: &str, args: &[&str], env: &[(&str, &str)]) -> Program {
    Program::start(&paths::ruby().unwrap(), |command| {
        command.arg(file(program)).args(args).env("REDIS_URL", server.url());
        command.envs(env.iter().copied());
    })
    .unwrap()
}

fn add(server: &RedisServer, ids: &[&str]) {
    let client = ruby(server, "sidekiq_worker.rb", &[&["add"], ids].concat(), &[]);
    assert_eq!(client.line(LIMIT).unwrap(), "added");
}

/// A worker, up to where it has said that.
pub(super) fn worker(server: &RedisServer, until: &str, env: &[(&str, &str)]) -> Program {
    let worker = ruby(server, "sidekiq_worker.rb", &["work"], env);
    hears(&worker, until);
    worker
}

pub(super) fn hears(worker: &Program, line: &str) {
    while worker.line(LIMIT).unwrap() != line {}
}

/// A short beat: the job is shown a fifth of a second after it was started.
const STUCK: [(&str, &str); 2] = [("SLOW", "600"), ("BEAT", "0.2")];

/// Its identity, once a heartbeat has shown so many jobs.
async fn shown(app: &App, jobs: i64) -> String {
    eventually("a heartbeat that shows the job", async || {
        let ids = app.text(&["SMEMBERS", "processes"]);
        let id = ids.lines().find(|id| app.number(&["HLEN", &format!("{id}:workers")]) == jobs);
        id.map(str::to_owned)
    })
    .await
}

/// A process as its heartbeat writes it: the picture, and then its sign of life.
struct Process<'a> {
    app: &'a App,
    id: &'a str,
    picture: &'a str,
}

impl<'a> Process<'a> {
    fn new(app: &'a App, id: &'a str) -> Process<'a> {
        Process { app, id, picture: "workers" }
    }

    fn picture_key(&self) -> String {
        format!("{}:{}", self.id, self.picture)
    }

    fn beat(&self, beat: &str, jobs: &[(&str, &str)]) {
        let key = self.picture_key();
        self.app.call(&["DEL", &key]);
        for (thread, payload) in jobs {
            self.app.call(&["HSET", &key, thread, &entry(payload)]);
        }
        self.app.call(&["EXPIRE", &key, "60"]);
        self.app.call(&["SADD", "processes", self.id]);
        let info = format!("{{\"identity\":\"{}\"}}", self.id);
        self.app.call(&["HSET", self.id, "info", &info, "busy", "1", "beat", beat]);
        self.app.call(&["EXPIRE", self.id, "60"]);
    }

    /// 60 s after its last heartbeat.
    fn expires(&self) {
        self.app.call(&["DEL", self.id, &self.picture_key()]);
    }

    fn ends_in_order(&self) {
        self.app.call(&["SREM", "processes", self.id]);
        self.app.call(&["DEL", &self.picture_key()]);
    }
}

fn entry(payload: &str) -> String {
    serde_json::json!({"queue": "mails", "payload": payload, "run_at": 1_794_926_642}).to_string()
}

fn payload(jid: &str) -> String {
    format!(
        "{{\"retry\":true,\"queue\":\"mails\",\"args\":[1.0,12345678901234567890],\"class\":\"Job\",\"jid\":\"{jid}\"}}"
    )
}

fn waiting(app: &App) -> Vec<String> {
    app.text(&["LRANGE", "queue:mails", "0", "-1"]).lines().map(str::to_owned).collect()
}

fn lapsed_keys(app: &App, what: &str) -> Vec<String> {
    let keys = app.text(&["KEYS", &format!("lapsed:*{what}*")]);
    keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

fn how_sure(receipt: &Receipt) -> String {
    let done: RecoveredJob = serde_json::from_value(receipt.removed.clone()).unwrap();
    done.how_sure.unwrap_or_else(|| "exact".to_owned())
}

/// A pass that was not held up, and how many it put back.
async fn look(inflight: &Arc<RescuedInflight>, redis: &Redis) -> u64 {
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, redis, Policy::default());
    let report = eventually("a pass", async || {
        Some(pass(&sweeper).await).filter(|report| report.stopped == Stopped::Done)
    })
    .await;
    report.reclaimed
}

/// A process that works on the job, which a heartbeat has shown, and its identity.
async fn stuck(server: &RedisServer, app: &App, jid: &str) -> (Program, String) {
    let worker = worker(server, &format!("started {jid}"), &STUCK);
    (worker, shown(app, 1).await)
}

/// The same with a new job.
pub(super) async fn stuck_with_job(
    server: &RedisServer,
    app: &App,
    jid: &str,
) -> (Program, String) {
    add(server, &[jid]);
    stuck(server, app, jid).await
}

/// A process that began with a job was killed, and its sign of life has expired. Returns the job as it was on its queue.
pub(super) async fn killed_with_job(
    server: &RedisServer,
    app: &App,
    inflight: &Arc<RescuedInflight>,
    redis: &Redis,
    jid: &str,
) -> String {
    add(server, &[jid]);
    let payload = app.text(&["LRANGE", "queue:mails", "0", "-1"]);
    let (worker, id) = stuck(server, app, jid).await;
    eventually("a copy of a heartbeat", async || {
        look(inflight, redis).await;
        (!lapsed_keys(app, "copy:").is_empty()).then_some(())
    })
    .await;
    worker.kill().unwrap();
    app.call(&["DEL", &id, &format!("{id}:workers")]);
    payload
}

fn sidekiq(redis: &Redis) -> Arc<RescuedInflight> {
    rescued(redis, "sidekiq", SOON)
}

async fn a_job_of_a_killed_sidekiq_process_runs_on_another_one() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    add(&server, &["a1"]);
    let worker_1 = worker(&server, "started a1", &STUCK);
    let id = shown(&app, 1).await;
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    eventually("copies of two heartbeats", async || {
        assert_eq!(look(&inflight, &redis).await, 0, "its process lives");
        (lapsed_keys(&app, "copy_before:").len() == 1).then_some(())
    })
    .await;
    worker_1.kill().unwrap();
    assert_eq!(look(&inflight, &redis).await, 0, "its sign of life is still there");
    app.call(&["DEL", &id, &format!("{id}:workers")]);
    put_back(&inflight, &redis, 1).await;
    let found = receipts(&redis, &super::id()).await;
    assert_eq!((found[0].key.as_str(), found[0].owner.as_str()), ("a1", &*id));
    assert_eq!(how_sure(&found[0]), "shown by two or more heartbeats");
    assert_eq!(app.number(&["SISMEMBER", "processes", &id]), 0);
    assert_eq!(lapsed_keys(&app, "cop"), [""; 0], "nothing of it is left");
    worker(&server, "ran a1", &[]);
}

/// Sidekiq's own times: a heartbeat every 5 s, a sign of life of 60 s.
async fn a_job_is_back_within_65_s_of_a_kill_by_sidekiqs_own_sign_of_life() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    add(&server, &["a1"]);
    let worker = worker(&server, "started a1", &[("SLOW", "600")]);
    shown(&app, 1).await;
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    assert_eq!(look(&inflight, &redis).await, 0, "its process lives");
    worker.kill().unwrap();
    let killed = Instant::now();
    while look(&inflight, &redis).await == 0 {
        assert!(killed.elapsed() < Duration::from_secs(120), "it is not put back");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let after = killed.elapsed();
    println!("measured: back on its queue {:.1} s after the kill", after.as_secs_f64());
    assert!((50..=65).contains(&after.as_secs()), "{after:?}");
    assert_eq!(waiting(&app).len(), 1);
}

async fn an_orderly_end_puts_nothing_back_a_second_time() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let app = App::on(&server);
    add(&server, &["a1"]);
    let worker = worker(&server, "started a1", &STUCK);
    let id = shown(&app, 1).await;
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    look(&inflight, &redis).await;
    assert_eq!(lapsed_keys(&app, "copy:").len(), 1);
    worker.stop().unwrap();
    assert_eq!(waiting(&app).len(), 1, "Sidekiq has pushed it back itself");
    assert_eq!(app.number(&["EXISTS", &id]), 1, "its sign of life is left to expire");
    // Another process runs the job, and it ends. Then the sign of life expires.
    app.call(&["DEL", "queue:mails"]);
    assert_eq!(look(&inflight, &redis).await, 0);
    app.call(&["DEL", &id]);
    assert_eq!(look(&inflight, &redis).await, 0);
    assert_eq!((waiting(&app).len(), lapsed_keys(&app, "cop")), (0, Vec::new()));
}

async fn trap_f1_a_frozen_process_keeps_its_job_until_its_sign_of_life_is_gone() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    add(&server, &["a1"]);
    let worker = worker(&server, "started a1", &STUCK);
    let id = shown(&app, 1).await;
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    look(&inflight, &redis).await;
    worker.freeze().unwrap();
    for _ in 0..3 {
        assert_eq!(look(&inflight, &redis).await, 0, "nobody can tell yet");
    }
    worker.thaw().unwrap();
    let beat = app.text(&["HGET", &id, "beat"]);
    eventually("a beat of the thawed process", async || {
        (app.text(&["HGET", &id, "beat"]) != beat).then_some(())
    })
    .await;
    assert_eq!(look(&inflight, &redis).await, 0, "it lives");
    // Frozen for longer than its sign of life: it is put back, and the process that goes on is copied again.
    worker.freeze().unwrap();
    // Its idle thread waits for a job for 2 s, and would be given the one that is put back.
    eventually("the end of its wait for a job", async || {
        app.text(&["INFO", "clients"]).contains("blocked_clients:0").then_some(())
    })
    .await;
    app.call(&["DEL", &id, &format!("{id}:workers")]);
    put_back(&inflight, &redis, 1).await;
    app.call(&["RPOP", "queue:mails"]);
    worker.thaw().unwrap();
    shown(&app, 1).await;
    assert_eq!(look(&inflight, &redis).await, 0);
    assert_eq!((waiting(&app).len(), lapsed_keys(&app, "copy:").len()), (0, 1));
}

async fn trap_f6_a_job_that_ended_after_the_last_beat_is_repeated_unless_two_beats_are_asked_for() {
    for seen in [1, 2] {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let app = App::on(&server);
        let redis = connect(&server.url());
        let layout = RescueLayout { seen: Some(seen), ..layout("sidekiq", SOON) };
        let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
        let process = Process::new(&app, "vm:1:ab");
        let (long, short) = (payload("long"), payload("short"));
        process.beat("1.5", &[("t1", &long)]);
        look(&inflight, &redis).await;
        look(&inflight, &redis).await;
        process.beat("6.5", &[("t1", &long), ("t2", &short)]);
        look(&inflight, &redis).await;
        look(&inflight, &redis).await;
        // `short` ends here, and nobody is told. Then the process is killed.
        process.expires();
        put_back(&inflight, &redis, u64::from(3 - seen)).await;
        assert_eq!(look(&inflight, &redis).await, 0);
        let found = receipts(&redis, &id()).await;
        let mut said: Vec<_> =
            found.iter().map(|one| format!("{}: {}", one.key, how_sure(one))).collect();
        said.sort();
        let all = ["long: shown by two or more heartbeats", "short: shown by one heartbeat"];
        assert_eq!(said, all[..usize::from(3 - seen)]);
        assert_eq!(lapsed_keys(&app, "cop"), [""; 0]);
    }
}

async fn a_job_that_is_somewhere_else_is_not_put_back() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    let process = Process::new(&app, "vm:1:ab");
    let jids = ["queued", "retried", "scheduled", "dead", "running", "orphan"];
    let payloads: Vec<String> = jids.iter().map(|jid| payload(jid)).collect();
    let jobs: Vec<(&str, &str)> =
        jids.iter().copied().zip(payloads.iter().map(String::as_str)).collect();
    process.beat("1.5", &jobs);
    Process::new(&app, "vm:2:cd").beat("1.5", &[]);
    look(&inflight, &redis).await;
    for n in 0..1_200 {
        app.call(&["RPUSH", "queue:mails", &payload(&format!("other{n}"))]);
    }
    app.call(&["RPUSH", "queue:mails", &payload("queued")]);
    app.call(&["ZADD", "retry", "9", &payload("retried")]);
    app.call(&["ZADD", "schedule", "9", &payload("scheduled")]);
    app.call(&["ZADD", "dead", "9", &payload("dead")]);
    Process::new(&app, "vm:2:cd").beat("6.5", &[("t", &payload("running"))]);
    process.expires();
    put_back(&inflight, &redis, 1).await;
    assert_eq!(receipts(&redis, &id()).await[0].key.as_str(), "orphan");
    assert_eq!(app.number(&["LLEN", "queue:mails"]), 1_202);
    assert_eq!(look(&inflight, &redis).await, 0);
}

async fn a_jid_among_the_arguments_of_another_job_does_not_hide_a_job() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    let process = Process::new(&app, "vm:1:ab");
    process.beat("1.5", &[("t1", &payload("a1"))]);
    look(&inflight, &redis).await;
    let other = r#"{"class":"Notify","args":[{"jid":"a1"}],"jid":"b2","queue":"mails"}"#;
    app.call(&["LPUSH", "queue:mails", other]);
    process.expires();
    put_back(&inflight, &redis, 1).await;
    assert_eq!(waiting(&app), [other.to_owned(), payload("a1")], "it is the next to be popped");
}

async fn a_job_that_two_dead_processes_show_is_put_back_once() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    let processes = ["vm:1:ab", "vm:2:cd"].map(|id| Process::new(&app, id));
    processes.iter().for_each(|one| one.beat("1.5", &[("t1", &payload("a1"))]));
    look(&inflight, &redis).await;
    processes.iter().for_each(Process::expires);
    put_back(&inflight, &redis, 1).await;
    assert_eq!(look(&inflight, &redis).await, 0);
    assert_eq!(waiting(&app), [payload("a1")]);
    assert_eq!(lapsed_keys(&app, "cop"), [""; 0]);
}

async fn two_sweepers_put_each_job_of_a_process_back_once() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let jobs: Vec<(String, String)> =
        (0..300).map(|n| (format!("t{n}"), payload(&format!("j{n}")))).collect();
    let jobs: Vec<(&str, &str)> = jobs.iter().map(|(t, p)| (t.as_str(), p.as_str())).collect();
    let process = Process::new(&app, "vm:1:ab");
    process.beat("1.5", &jobs);
    let stores = [connect(&server.url()), connect(&server.url())];
    let sweeps: Vec<Arc<dyn Sweep>> =
        stores.iter().map(|redis| -> Arc<dyn Sweep> { sidekiq(redis) }).collect();
    let sweepers: Vec<_> =
        sweeps.iter().zip(&stores).map(|(sweep, redis)| sweeper(sweep, redis, slowly())).collect();
    let together = async || {
        let (one, other) = tokio::join!(pass(&sweepers[0]), pass(&sweepers[1]));
        assert!(one.stopped != Stopped::Error && other.stopped != Stopped::Error);
    };
    eventually("a copy", async || {
        together().await;
        (lapsed_keys(&app, "copy:").len() == 1).then_some(())
    })
    .await;
    process.expires();
    eventually("all to be put back", async || {
        together().await;
        lapsed_keys(&app, "cop").is_empty().then_some(())
    })
    .await;
    together().await;
    assert_eq!(app.number(&["LLEN", "queue:mails"]), 300);
    assert_eq!(receipts(&stores[0], &id()).await.len(), 300);
}

async fn trap_f7_a_sidekiq_payload_is_put_back_byte_for_byte() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    let odd = "{\"jid\":\"odd\",  \"args\":[1.0,1e3,-0,12345678901234567890,\"\\u0000\\ud83d\\ude00/\\/é\u{7f}\"],\"a\":{},\"a\":[],\"class\":\"J\"}";
    let large = format!("{{\"jid\":\"large\",\"args\":[\"{}\"]}}", "x\\n".repeat(350_000));
    let not_json = "\u{1}\u{0}not JSON \" \\ at all";
    let process = Process::new(&app, "vm:1:ab");
    process.beat("1.5", &[("t1", odd), ("t2", &large), ("t3", not_json)]);
    look(&inflight, &redis).await;
    process.expires();
    put_back(&inflight, &redis, 3).await;
    for job in [odd, &large, not_json] {
        assert_eq!(app.number(&["LREM", "queue:mails", "0", job]), 1, "{}", &job[..20]);
    }
}

async fn trap_f12_a_job_that_kills_its_processes_is_among_sidekiqs_dead_jobs() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let recovery = RecoveryPolicy { crashes_max: 2, ..RecoveryPolicy::default() };
    let layout = RescueLayout { recovery, ..layout("sidekiq", SOON) };
    let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
    add(&server, &["poison"]);
    for _ in 0..2 {
        let worker = worker(&server, "started poison", &STUCK);
        let id = shown(&app, 1).await;
        look(&inflight, &redis).await;
        worker.kill().unwrap();
        app.call(&["DEL", &id, &format!("{id}:workers")]);
        put_back(&inflight, &redis, 1).await;
    }
    assert_eq!(waiting(&app).len(), 0);
    let dead = ruby(&server, "sidekiq_dead.rb", &[], &[]);
    assert_eq!(dead.line(LIMIT).unwrap(), "dead poison Lapsed::WorkerDied");
    assert_eq!(dead.line(LIMIT).unwrap(), "listed");
    let receipt = &receipts(&redis, &id()).await[1];
    let done: RecoveredJob = serde_json::from_value(receipt.removed.clone()).unwrap();
    assert_eq!((done.crashes, done.kept_in.as_deref()), (2, Some("Sidekiq's dead set")));
}

async fn a_sidekiq_key_of_another_type_is_left_alone() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    let (good, bad) = (Process::new(&app, "vm:1:ab"), Process::new(&app, "vm:2:cd"));
    good.beat("1.5", &[("t1", &payload("a1"))]);
    bad.beat("1.5", &[]);
    app.call(&["SET", "vm:2:cd:workers", "not a hash"]);
    look(&inflight, &redis).await;
    assert_eq!(lapsed_keys(&app, "copy:").len(), 1, "the others are copied");
    app.call(&["SET", "queue:mails", "not a list"]);
    good.expires();
    assert_eq!(look(&inflight, &redis).await, 0);
    assert_eq!(app.text(&["GET", "queue:mails"]), "not a list");
    app.call(&["DEL", "queue:mails"]);
    put_back(&inflight, &redis, 1).await;
    // A field that is no entry says nothing, and the others are put back all the same.
    good.beat("2.5", &[("t1", &payload("a2"))]);
    app.call(&["HSET", "vm:1:ab:workers", "t2", "half-writt"]);
    look(&inflight, &redis).await;
    good.expires();
    put_back(&inflight, &redis, 1).await;
    assert_eq!(app.number(&["LLEN", "queue:mails"]), 2);
}

async fn a_process_that_ended_while_nobody_looked_is_judged_by_the_list_of_processes() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    let ids = ["vm:1:a1", "vm:2:b2", "vm:3:c3"];
    let [in_order, killed, pruned] = ids.map(|id| Process::new(&app, id));
    in_order.beat("1.5", &[("t1", &payload("in_order"))]);
    killed.beat("1.5", &[("t1", &payload("killed"))]);
    pruned.beat("1.5", &[("t1", &payload("pruned"))]);
    look(&inflight, &redis).await;
    // Dead while lapsed looks, and removed by another process's cleanup before the next look: it is put back.
    pruned.expires();
    app.call(&["SREM", "processes", pruned.id]);
    put_back(&inflight, &redis, 1).await;
    // Now nobody looks for longer than an orderly end leaves a trace.
    let watched = lapsed_keys(&app, "watched");
    app.call(&["SET", &watched[0], "1000"]);
    in_order.ends_in_order();
    in_order.expires();
    killed.expires();
    put_back(&inflight, &redis, 1).await;
    assert_eq!(look(&inflight, &redis).await, 0);
    let found = receipts(&redis, &id()).await;
    let said: Vec<_> = found.iter().map(|one| (one.key.as_str(), how_sure(one))).collect();
    assert_eq!(said[0].0, "pruned");
    assert_eq!(said[1].0, "killed");
    assert_eq!(said[1].1, "shown by a heartbeat that may not have been the last");
    assert_eq!(lapsed_keys(&app, "cop"), [""; 0]);
}

async fn an_older_copy_never_replaces_a_newer_one() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    let process = Process { picture: "work", ..Process::new(&app, "vm:1:ab") };
    process.beat("1.5", &[("t1", &payload("old"))]);
    look(&inflight, &redis).await;
    // A heartbeat writes its picture first. Killed right after that, `beat` is still the old one.
    app.call(&["EXPIRE", process.id, "50"]);
    app.call(&["DEL", &process.picture_key()]);
    app.call(&["HSET", &process.picture_key(), "t1", &entry(&payload("new"))]);
    app.call(&["EXPIRE", &process.picture_key(), "60"]);
    look(&inflight, &redis).await;
    // The picture expires before the sign of life does.
    app.call(&["DEL", &process.picture_key()]);
    look(&inflight, &redis).await;
    process.expires();
    put_back(&inflight, &redis, 1).await;
    let found = receipts(&redis, &id()).await;
    assert_eq!((found[0].key.as_str(), &*how_sure(&found[0])), ("new", "shown by one heartbeat"));
    // A process that runs nothing any more has no copy.
    process.beat("2.5", &[("t1", &payload("later"))]);
    look(&inflight, &redis).await;
    process.beat("3.5", &[]);
    look(&inflight, &redis).await;
    assert_eq!(lapsed_keys(&app, "cop"), [""; 0]);
}

async fn layouts_that_are_not_known_are_refused() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    // Sidekiq 6.0 keeps the payload decoded.
    let process = Process::new(&app, "vm:1:ab");
    process.beat("1.5", &[]);
    let old = format!("{{\"queue\":\"mails\",\"payload\":{},\"run_at\":1}}", payload("a1"));
    app.call(&["HSET", "vm:1:ab:workers", "t1", &old]);
    app.call(&["EXPIRE", "vm:1:ab:workers", "59"]);
    look(&inflight, &redis).await;
    process.expires();
    assert_eq!(look(&inflight, &redis).await, 0);
    assert_eq!((waiting(&app).len(), lapsed_keys(&app, "copy:").len()), (0, 1));
    // Sidekiq Pro recovers by itself.
    app.call(&["LPUSH", "queue:sq|vm:1:ab|mails", &payload("b2")]);
    let found = connect(&server.url()).detect(DetectOptions::default(), &mut |_, _| {}).await;
    let found = found.unwrap().found;
    assert!(found[0].notes[0].contains("super_fetch"), "{found:?}");
}

async fn a_namespace_is_followed_and_nothing_else_is_touched() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    app.call(&["SADD", "app:processes", "vm:1:ab"]);
    app.call(&["SADD", "app:queues", "mails"]);
    app.call(&["HSET", "app:vm:1:ab", "beat", "1.5", "info", "{\"version\":\"7.3.0\"}"]);
    app.call(&["HSET", "app:vm:1:ab:work", "t1", &entry(&payload("a1"))]);
    let redis = connect(&server.url());
    let layout = RescueLayout { prefix: Some("app".to_owned()), ..layout("sidekiq", SOON) };
    let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
    look(&inflight, &redis).await;
    let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    let sidekiq = found.iter().find(|one| one.preset == "sidekiq").unwrap();
    assert_eq!(
        (sidekiq.version.as_str(), sidekiq.workers_alive, sidekiq.in_flight),
        ("7.3.0", 1, 1)
    );
    app.call(&["DEL", "app:vm:1:ab", "app:vm:1:ab:work"]);
    put_back(&inflight, &redis, 1).await;
    assert_eq!(app.text(&["LRANGE", "app:queue:mails", "0", "-1"]), payload("a1"));
    assert_eq!(app.number(&["EXISTS", "queues", "queue:mails", "processes"]), 0);
}

async fn a_dry_run_and_detect_write_nothing() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let process = Process::new(&app, "vm:1:ab");
    process.beat("1.5", &[("t1", &payload("a1"))]);
    Process::new(&app, "vm:2:cd").beat("1.5", &[]);
    Process::new(&app, "vm:2:cd").expires();
    let redis = connect(&server.url());
    let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    assert_eq!((found[0].preset.as_str(), found[0].workers_alive), ("sidekiq", 1));
    let notes = found[0].notes.join("; ");
    assert!(notes.contains("1 processes died") && notes.contains("must be running"), "{notes}");
    let sweep: Arc<dyn Sweep> = sidekiq(&redis);
    dry(&sweeper(&sweep, &redis, Policy::default())).await;
    assert_eq!(lapsed_keys(&app, "cop"), [""; 0]);
    // With a copy that another process of lapsed has made, a dry run knows the orphan.
    look(&sidekiq(&redis), &redis).await;
    process.expires();
    let report = eventually("a dry run that finds it", async || {
        let report = dry(&sweeper(&sweep, &redis, Policy::default())).await;
        (report.suspects > 0).then_some(report)
    })
    .await;
    assert_eq!((report.suspects, waiting(&app).len()), (1, 0), "{report:?}");
    assert_eq!(lapsed_keys(&app, "copy:").len(), 1);
}

async fn a_job_on_the_working_list_of_a_dead_process_is_put_back_exactly_once() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    // As `reliable-fetch` has it: an identity of its own, with the same host and process id.
    let process = Process::new(&app, "vm-1:7:ab");
    let (list, beat) = ("working:queue:mails:vm-1:7:cd", "reliable-fetcher-heartbeat-vm-1-7-cd");
    app.call(&["SET", beat, "1", "EX", "60"]);
    let again = r#"{"jid":"again","interrupted_count":1,"args":[1.0]}"#;
    app.call(&["LPUSH", list, &payload("first"), again]);
    process.beat("1.5", &[("t1", &payload("first")), ("t2", &payload("ended"))]);
    assert_eq!(look(&inflight, &redis).await, 0, "it lives");
    assert_eq!(lapsed_keys(&app, "cop"), [""; 0], "no picture of it is needed");
    process.expires();
    assert_eq!(look(&inflight, &redis).await, 0, "its fetcher beats");
    app.call(&["DEL", beat]);
    put_back(&inflight, &redis, 2).await;
    assert_eq!(look(&inflight, &redis).await, 0);
    let mut found = waiting(&app);
    found.sort();
    let first = payload("first").replace('}', ",\"interrupted_count\":1}");
    let mut expected = vec![first, again.replace("count\":1", "count\":2")];
    expected.sort();
    assert_eq!(found, expected, "only the count of interruptions has changed");
    assert_eq!(how_sure(&receipts(&redis, &id()).await[0]), "exact");
    assert_eq!(app.number(&["EXISTS", list]), 0);
}

async fn a_process_with_lapsed_fetch_loses_and_repeats_nothing() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let inflight = sidekiq(&redis);
    let fetch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/ruby/lapsed_fetch.rb");
    let fetch = fetch.to_str().unwrap();
    add(&server, &["a1"]);
    // A heartbeat a minute: Sidekiq itself shows nothing of what happens here.
    let quick = worker(&server, "ran a1", &[("FETCH", fetch), ("BEAT", "60")]);
    eventually("the end of a1", async || {
        lapsed_keys(&app, "").is_empty().then_some(())?;
        app.text(&["KEYS", "working:*"]).is_empty().then_some(())
    })
    .await;
    look(&inflight, &redis).await;
    quick.stop().unwrap();
    add(&server, &["b2"]);
    let killed =
        worker(&server, "started b2", &[("FETCH", fetch), ("BEAT", "60"), ("SLOW", "600")]);
    assert_eq!(look(&inflight, &redis).await, 0, "it lives");
    killed.kill().unwrap();
    assert_eq!(waiting(&app).len(), 0);
    for key in app.text(&["KEYS", "reliable-fetcher-heartbeat-*"]).lines() {
        app.call(&["DEL", key]);
    }
    for id in app.text(&["SMEMBERS", "processes"]).lines() {
        app.call(&["DEL", id]);
    }
    put_back(&inflight, &redis, 1).await;
    assert_eq!(receipts(&redis, &id()).await[0].key.as_str(), "b2");
    let last = worker(&server, "ran b2", &[("FETCH", fetch)]);
    last.stop().unwrap();
    assert_eq!(waiting(&app).len(), 0);
    assert_eq!(app.text(&["KEYS", "working:*"]), "", "an orderly end leaves no job");
}
