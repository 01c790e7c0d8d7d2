//! A new user's path: a worker of a real job system was killed. `lapsed detect` finds what it left, `lapsed init --from` writes
//! the configuration, `lapsed sweep --dry-run` says what would happen, `lapsed serve` does it, and the job runs on another
//! worker. No line of the application changes.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lapsed_testbed::resp::RespConnection;
use lapsed_testbed::{Engine, Program, RedisServer, paths};

use crate::support::{Daemon, lapsed, run, until};

lapsed_testbed::steady_tests! {
    the_path_of_a_new_user_with_rq,
    the_path_of_a_new_user_with_bullmq,
    the_path_of_a_new_user_with_celery,
    the_configuration_of_a_gem_that_was_found_is_written_and_valid,
    a_job_behind_a_prefix_that_was_found_is_put_back,
    the_configuration_of_streams_that_were_found_runs,
}

/// A busy machine may take long to start an interpreter.
const LIMIT: Duration = Duration::from_secs(120);

/// From the start of `lapsed serve` until the job has run, with the default settings of both sides.
const MINUTE: Duration = Duration::from_secs(60);

/// The application: a program beside the tests of the profiles, and where it runs.
struct Application {
    dir: tempfile::TempDir,
    interpreter: PathBuf,
    file: &'static str,
    url: String,
    /// Whether a worker has children that must be killed with it.
    has_horse: bool,
}

impl Application {
    fn new(file: &'static str, server: &RedisServer) -> Application {
        let dir = tempfile::tempdir().unwrap();
        symlink(paths::rescue_node_modules().unwrap(), dir.path().join("node_modules")).unwrap();
        let programs =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../lapsed-redis/tests/all/rescue");
        std::fs::copy(programs.join(file), dir.path().join(file)).unwrap();
        let interpreter = match file.ends_with(".mjs") {
            true => paths::node().unwrap(),
            false => paths::rescue_python().unwrap(),
        };
        Application { dir, interpreter, file, url: server.url(), has_horse: file.starts_with("rq") }
    }

    fn start(&self, args: &[&str], slow: Option<&str>) -> Program {
        Program::start(&self.interpreter, |command| {
            command.arg(self.dir.path().join(self.file)).args(args).env("REDIS_URL", &self.url);
            command.env("LATE", "1").envs(slow.map(|slow| ("SLOW", slow)));
        })
        .unwrap()
    }

    /// Enqueues a job, and kills the worker that has begun with it.
    fn leave_an_orphan(&self) {
        let client = self.start(&["add", "a"], None);
        assert_eq!(client.line(LIMIT).unwrap(), "added");
        let worker = self.start(&["work", "w1"], Some("600000"));
        let line = until_line(&worker, "started a");
        worker.kill().unwrap();
        if self.has_horse {
            let horse = line.split_whitespace().last().unwrap();
            let killed = std::process::Command::new("kill").args(["-9", horse]).status();
            assert!(killed.unwrap().success());
        }
    }
}

/// Waits until the server has been up for so long: after a restart of Redis, workers have this time to show themselves
/// again, and a server that a reader has was not started a moment ago.
fn until_up_for(server: &RedisServer, seconds: u64) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut connection = RespConnection::open(server.port(), LIMIT).unwrap();
        let info = connection.call(&["INFO", "server"]).unwrap().to_string();
        let up = info.split("uptime_in_seconds:").nth(1).and_then(|rest| rest.lines().next());
        if up.is_some_and(|up| up.trim().parse::<u64>().unwrap() > seconds) {
            return;
        }
        assert!(Instant::now() < deadline, "{info}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Reads what a program prints until a line begins like this.
fn until_line(program: &Program, start: &str) -> String {
    loop {
        let line = program.line(LIMIT).unwrap();
        if line.starts_with(start) {
            return line;
        }
    }
}

/// Types the commands that each one names as the next, and waits for the job on another worker.
fn walk(preset: &str, file: &'static str, grace_s: u64) {
    let server = RedisServer::start(Engine::Redis).unwrap();
    until_up_for(&server, grace_s);
    let application = Application::new(file, &server);
    application.leave_an_orphan();
    let url = server.url();

    let found = until("detect to find the orphan", || {
        let found = run(&["detect", &url, "--json"]);
        assert_eq!(found.code, 0, "{found:?}");
        let found = found.json()["found"][0].clone();
        (found["orphans"] == 1).then_some(found)
    });
    assert_eq!((&found["preset"], &found["in_flight"]), (&preset.into(), &1.into()), "{found}");
    let told = run(&["detect", &url]);
    assert!(told.out.contains(preset) && told.out.contains("ORPHANS"), "{told:?}");
    assert!(told.out.contains(&format!("lapsed init --from {url}")), "{told:?}");

    let config = application.dir.path().join("lapsed.toml").display().to_string();
    let written = run(&["init", "--from", &url, "-o", &config]);
    assert_eq!(written.code, 0, "{written:?}");
    let dry_run = format!("lapsed sweep {preset} --dry-run -c {config}");
    assert!(written.out.contains(&dry_run), "{written:?}");
    let checked = run(&["check", "-c", &config]);
    assert_eq!(checked.code, 0, "{checked:?}");

    let dry = run(&["sweep", preset, "--dry-run", "-c", &config, "--json"]);
    assert_eq!(
        (&dry.json()["dry_run"], &dry.json()["suspects"]),
        (&true.into(), &1.into()),
        "{dry:?}"
    );

    let other = application.start(&["work", "w2"], None);
    let began = Instant::now();
    let mut serve = lapsed();
    serve.args(["serve", "-c", &config]).env("LAPSED_LISTEN", "127.0.0.1:0");
    let daemon = Daemon::spawn(serve, application.dir.path()).unwrap();
    until_line(&other, "ran a");
    assert!(began.elapsed() < MINUTE, "it took {:?}\n{}", began.elapsed(), daemon.log());
    let receipts = daemon.get(&format!("/v1/receipts?system={preset}")).body;
    assert_eq!(receipts["receipts"].as_array().unwrap().len(), 1, "{receipts}");
    let after = run(&["detect", &url, "--json"]).json();
    assert_eq!(after["found"][0]["orphans"], 0, "{after}");
}

fn the_path_of_a_new_user_with_rq() {
    walk("rq", "rq_worker.py", 0);
}

fn the_path_of_a_new_user_with_bullmq() {
    walk("bullmq", "bullmq_worker.mjs", 0);
}

fn the_path_of_a_new_user_with_celery() {
    walk("celery", "celery_worker.py", 90);
}

/// The gem registers its requests itself: its keys as it writes them.
fn the_configuration_of_a_gem_that_was_found_is_written_and_valid() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let mut connection = RespConnection::open(server.port(), LIMIT).unwrap();
    let job = r#"{"class":"Job","args":[],"queue":"mails","jid":"a"}"#;
    for command in [
        ["ZADD", "sidekiq:async_http:inflight_index", "1794926640000", "vm:1:ab/r-1"],
        ["HSET", "sidekiq:async_http:inflight_jobs", "vm:1:ab/r-1", job],
    ] {
        connection.call(&command).unwrap();
    }
    let found = run(&["detect", &server.url(), "--json"]).json()["found"].clone();
    let one = &found[0];
    assert_eq!(
        (found.as_array().unwrap().len(), &one["preset"]),
        (1, &"sidekiq-async-http".into())
    );
    assert_eq!((&one["orphans"], &one["queues"][0]), (&1.into(), &"mails".into()), "{one}");
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("lapsed.toml").display().to_string();
    let written = run(&["init", "--from", &server.url(), "-o", &config]);
    assert_eq!(written.code, 0, "{written:?}");
    let checked = run(&["check", "-c", &config]);
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.out.contains("sidekiq:async_http:inflight_index"), "{checked:?}");
}

/// Writes what `detect` found, and checks it. The path of the file.
fn configured(url: &str, dir: &Path) -> String {
    let config = dir.join("lapsed.toml").display().to_string();
    let written = run(&["init", "--from", url, "-o", &config]);
    assert_eq!(written.code, 0, "{written:?}");
    let checked = run(&["check", "-c", &config]);
    assert_eq!(checked.code, 0, "{checked:?}");
    config
}

/// Two applications with namespaces of their own, and one with Dramatiq's usual one: keys as Dramatiq writes them.
fn a_job_behind_a_prefix_that_was_found_is_put_back() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let mut connection = RespConnection::open(server.port(), LIMIT).unwrap();
    let worker = "306d24c2-4422-4f1e-a42b-6b7630a5d3ab";
    for namespace in ["dramatiq", "shop", "mail app"] {
        let acks = format!("{namespace}:__acks__.{worker}.mails");
        let heartbeats = format!("{namespace}:__heartbeats__");
        connection.call(&["ZADD", &heartbeats, "1794926570055", worker]).unwrap();
        connection.call(&["SADD", &acks, namespace]).unwrap();
        connection.call(&["HSET", &format!("{namespace}:mails.msgs"), namespace, "{}"]).unwrap();
    }
    connection.call(&["SADD", "app:processes", "vm:1:ab"]).unwrap();
    connection.call(&["SADD", "app:queues", "mails"]).unwrap();
    connection
        .call(&["HSET", "app:vm:1:ab", "beat", "1.5", "info", "{\"version\":\"7.3.0\"}"])
        .unwrap();
    until_up_for(&server, 61);
    let found = run(&["detect", &server.url(), "--json"]).json()["found"].clone();
    let prefixes: Vec<_> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["preset"].as_str().unwrap(), one["prefix"].as_str()))
        .collect();
    let expected = [
        ("dramatiq", None),
        ("dramatiq", Some("mail app")),
        ("dramatiq", Some("shop")),
        ("sidekiq", Some("app")),
    ];
    assert_eq!(prefixes, expected);
    let told = run(&["detect", &server.url()]);
    assert!(told.out.contains("dramatiq (shop)"), "{told:?}");
    let dir = tempfile::tempdir().unwrap();
    let config = configured(&server.url(), dir.path());
    for (system, job) in
        [("dramatiq", "dramatiq"), ("dramatiq-mail-app", "mail app"), ("dramatiq-shop", "shop")]
    {
        until("the job to be put back", || {
            let swept = run(&["sweep", system, "-c", &config, "--json"]);
            (swept.json()["reclaimed"] == 1).then_some(())
        });
        let queue = connection.call(&["LRANGE", &format!("{job}:mails"), "0", "-1"]).unwrap();
        assert!(queue.to_string().contains(job), "{queue}");
    }
}

fn the_configuration_of_streams_that_were_found_runs() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let mut connection = RespConnection::open(server.port(), LIMIT).unwrap();
    connection.call(&["XADD", "mails", "*", "id", "a"]).unwrap();
    connection.call(&["XGROUP", "CREATE", "mails", "workers", "0"]).unwrap();
    connection.call(&["XREADGROUP", "GROUP", "workers", "w1", "STREAMS", "mails", ">"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = configured(&server.url(), dir.path());
    let swept = run(&["sweep", "streams", "--dry-run", "-c", &config, "--json"]);
    assert_eq!(swept.code, 0, "{swept:?}");
    assert_eq!(swept.json()["errors"], 0, "{swept:?}");
}
