//! The real binary on a free port and a folder of its own, ended by its own pid.

#![allow(dead_code)]

pub mod receiver;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for a slow machine; reached only when something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `done` answers something.
pub fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = done() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The binary, without anything of the environment that it would listen to.
pub fn lapsed() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lapsed"));
    for name in [
        "LAPSED_URL",
        "LAPSED_TOKEN",
        "LAPSED_LISTEN",
        "LAPSED_DATA",
        "LAPSED_CA",
        "LAPSED_LOG",
        "RUST_LOG",
    ] {
        command.env_remove(name);
    }
    for name in ["JANITOR_INTERVAL_MS", "CLEANUP_INTERVAL", "ORPHAN_MAX_AGE"] {
        command.env_remove(name);
    }
    for name in [
        "MITRA_AUTO_OFFLINE_SWEEP_SECONDS",
        "HEARTBEAT_MIRROR_INTERVAL_SECONDS",
        "VALKEY_ONLINE_MIRROR_SWEEP_SECONDS",
    ] {
        command.env_remove(name);
    }
    command
}

/// The exit code and the output of a command.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub fn lines(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Runs a command to its end.
pub fn run(args: &[&str]) -> Answer {
    run_with(args, &[])
}

pub fn run_with(args: &[&str], env: &[(&str, &str)]) -> Answer {
    let output = lapsed().args(args).envs(env.iter().copied()).output().unwrap();
    Answer {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A folder with a configuration and room for data.
pub struct Home {
    pub dir: TempDir,
}

/// A registry that sweeps only when asked.
pub const CALM: &str = r#"sweep = { every = "1d" }"#;

impl Home {
    /// One registry `devices` with that TTL and those other lines; any free port.
    pub fn new(ttl: &str, lines: &str) -> Home {
        Home::with(ttl, lines, "")
    }

    /// The same with lines for `[server]`.
    pub fn with(ttl: &str, lines: &str, server: &str) -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        let data = home.data().display().to_string();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n{server}\n\n[store.main]\nurl = \"embedded:{data}\"\n\n\
             [[system]]\nkind = \"registry\"\nname = \"devices\"\nheartbeat_ttl = \"{ttl}\"\n{lines}\n"
        );
        std::fs::write(home.config(), text).unwrap();
        home
    }

    /// One system of sessions `chat` with that grace and those other lines.
    pub fn sessions(grace: &str, lines: &str) -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        let data = home.data().display().to_string();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"embedded:{data}\"\n\n\
             [[system]]\nkind = \"sessions\"\nname = \"chat\"\ngrace = \"{grace}\"\n{lines}\n"
        );
        std::fs::write(home.config(), text).unwrap();
        home
    }

    /// One system of jobs `jobs` with that TTL and those other lines.
    pub fn inflight(ttl: &str, lines: &str) -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        let data = home.data().display().to_string();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"embedded:{data}\"\n\n\
             [[system]]\nkind = \"inflight\"\nname = \"jobs\"\nheartbeat_ttl = \"{ttl}\"\n{lines}\n"
        );
        std::fs::write(home.config(), text).unwrap();
        home
    }

    /// One system of leases `locks` with those lines.
    pub fn leases(lines: &str) -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        let data = home.data().display().to_string();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"embedded:{data}\"\n\n\
             [[system]]\nkind = \"leases\"\nname = \"locks\"\n{lines}\n"
        );
        std::fs::write(home.config(), text).unwrap();
        home
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("lapsed.toml")
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn serve(&self) -> Daemon {
        self.serve_with(&[])
    }

    pub fn serve_with(&self, env: &[(&str, &str)]) -> Daemon {
        let mut command = lapsed();
        command.arg("serve").arg("-c").arg(self.config()).envs(env.iter().copied());
        Daemon::spawn(command, self.dir.path()).unwrap_or_else(|told| panic!("{told}"))
    }

    /// With more arguments; else what it said.
    pub fn serve_at(&self, args: &[String]) -> Result<Daemon, String> {
        let mut command = lapsed();
        command.arg("serve").arg("-c").arg(self.config()).args(args);
        Daemon::spawn(command, self.dir.path())
    }

    /// A command straight on the store.
    pub fn run(&self, args: &[&str]) -> Answer {
        let config = self.config().display().to_string();
        run(&[args, &["-c", &config]].concat())
    }
}

pub struct Daemon {
    child: Child,
    log: PathBuf,
    pub url: String,
}

impl Daemon {
    /// Starts it and waits until it listens; else what it said and its exit code.
    pub fn spawn(mut command: Command, dir: &Path) -> Result<Daemon, String> {
        let log = dir.join("log");
        let err = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let child = command.stdout(Stdio::piped()).stderr(err).stdin(Stdio::null()).spawn();
        let mut child = child.unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        match line.trim().strip_prefix("listening on ") {
            Some(url) => Ok(Daemon { child, log, url: url.to_owned() }),
            None => {
                let code = child.wait().unwrap().code();
                Err(format!("exit {code:?}: {}", std::fs::read_to_string(&log).unwrap()))
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and its exit code.
    pub fn stop(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        until("the daemon to leave", || self.child.try_wait().unwrap()).code()
    }

    pub fn run(&self, args: &[&str]) -> Answer {
        run(&[args, &["--url", &self.url]].concat())
    }

    pub fn get(&self, path: &str) -> Reply {
        self.call("GET", path, None, &[])
    }

    pub fn post(&self, path: &str, body: Value) -> Reply {
        self.call("POST", path, Some(body.to_string()), &[JSON])
    }

    pub fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<String>,
        headers: &[(&str, &str)],
    ) -> Reply {
        let mut request =
            ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.unwrap_or_default()).unwrap();
        Reply::of(agent().run(request).unwrap())
    }

    pub fn registry(&self, operation: &str, body: Value) -> Reply {
        self.post(&format!("/v1/registry/devices/{operation}"), body)
    }

    pub fn chat(&self, operation: &str, body: Value) -> Reply {
        self.post(&format!("/v1/sessions/chat/{operation}"), body)
    }

    /// The jobs `jobs`; must work.
    #[track_caller]
    pub fn jobs(&self, operation: &str, body: Value) -> Value {
        let reply = self.try_jobs(operation, body);
        assert!((200..300).contains(&reply.status), "{operation}: {reply:?}");
        reply.body
    }

    /// Calls an operation of the same system; the answer may be an error.
    pub fn try_jobs(&self, operation: &str, body: Value) -> Reply {
        self.post(&format!("/v1/inflight/jobs/{operation}"), body)
    }

    /// The leases `locks`; must work.
    #[track_caller]
    pub fn leases(&self, operation: &str, body: Value) -> Value {
        let reply = self.try_leases(operation, body);
        assert!((200..300).contains(&reply.status), "{operation}: {reply:?}");
        reply.body
    }

    /// Calls an operation of the same system; the answer may be an error.
    pub fn try_leases(&self, operation: &str, body: Value) -> Reply {
        self.post(&format!("/v1/leases/locks/{operation}"), body)
    }

    /// How many wait for a lease of `locks`.
    pub fn waiting(&self) -> u64 {
        let text = self.get("/metrics").text;
        let series = "lapsed_leases_waiting{system=\"locks\",kind=\"leases\"} ";
        let value = text.lines().find_map(|line| line.strip_prefix(series));
        value.unwrap_or_else(|| panic!("{series} is missing: {text}")).parse().unwrap()
    }

    /// One job, wherever it is.
    #[track_caller]
    pub fn job(&self, id: &str) -> Value {
        let reply = self.get(&format!("/v1/inflight/jobs/jobs/{id}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.body
    }

    /// The counts of jobs; fails the test unless they balance.
    #[track_caller]
    pub fn counts(&self) -> Value {
        let counts = self.get("/v1/inflight/jobs/counts").body;
        let of = |what: &str| counts[what].as_u64().unwrap();
        let parts = ["completed", "queued", "in_flight", "dead", "dropped"];
        assert_eq!(of("entered"), parts.into_iter().map(of).sum::<u64>(), "{counts}");
        counts
    }

    /// Starts an owner whose TTL passes without a beat.
    pub fn start_without_beats(&self, owner: &str) {
        self.jobs("start", json!({ "owner": owner, "ttl_ms": 300 }));
    }

    /// Starts an owner whose TTL is longer than the test.
    pub fn start_long_lived(&self, owner: &str) {
        self.jobs("start", json!({ "owner": owner, "ttl_ms": 600_000 }));
    }

    /// Passes over the jobs until one has recovered something.
    pub fn until_recovered(&self) -> Value {
        until("jobs to be recovered", || {
            let report = self.post("/v1/sweeps/inflight/jobs", json!({ "list": 100 })).body;
            (report["reclaimed"].as_u64() > Some(0)).then_some(report)
        })
    }

    /// Waits until `count` sessions of `chat` are orphans.
    pub fn until_orphans(&self, count: usize) {
        until("sessions to be orphans", || {
            let orphans = self.get("/v1/sessions/chat/orphans").body;
            (orphans["orphans"].as_array().unwrap().len() == count).then_some(())
        });
    }

    /// Registers keys and fails the test unless that succeeds.
    pub fn hold(&self, owner: &str, keys: &[&str]) -> Value {
        let reply = self.registry("register", json!({ "owner": owner, "keys": keys }));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.body
    }

    pub fn status(&self) -> Value {
        self.get("/v1/sweeps/registry/devices").body
    }

    /// Waits until `owners` owners are overdue and the store-away grace is over.
    pub fn until_overdue(&self, owners: u64) {
        until("owners to be overdue", || {
            let status = self.status();
            let overdue = status["census"]["owners_overdue"].as_u64() == Some(owners);
            (overdue && status["brake"]["held_by"] != "store_away").then_some(())
        });
    }

    /// All receipts of the registry, oldest first, read page by page.
    pub fn receipts(&self) -> Vec<Value> {
        let mut all = Vec::new();
        let mut after = "0".to_owned();
        loop {
            let page = self.get(&format!("/v1/receipts?system=devices&limit=500&after={after}"));
            assert_eq!(page.status, 200, "{page:?}");
            all.extend(page.body["receipts"].as_array().unwrap().iter().cloned());
            match page.body["next"].as_str() {
                Some(next) => after = next.to_owned(),
                None => return all,
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub const JSON: (&str, &str) = ("content-type", "application/json");

pub fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .allow_non_standard_methods(true)
        .proxy(None)
        .timeout_connect(Some(PATIENCE))
        .timeout_per_read(Some(PATIENCE));
    config.build().new_agent()
}

/// The status, headers and body of an HTTP answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub text: String,
    pub body: Value,
}

impl Reply {
    fn of(response: ureq::http::Response<ureq::Body>) -> Reply {
        let status = response.status().as_u16();
        let text_of = |value: &ureq::http::HeaderValue| value.to_str().unwrap_or("").to_owned();
        let headers = response.headers().iter().map(|(k, v)| (k.to_string(), text_of(v))).collect();
        let mut text = String::new();
        response.into_body().into_reader().read_to_string(&mut text).unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Reply { status, headers, text, body }
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(k, _)| k == name).map_or("", |(_, v)| v)
    }

    /// It is a problem of that status and type.
    #[track_caller]
    pub fn is_problem(&self, status: u16, kind: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        assert_eq!(self.body["type"], kind, "{self:?}");
        assert_eq!(self.body["status"], status, "{self:?}");
        for member in ["title", "detail"] {
            assert!(self.body[member].as_str().is_some_and(|t| !t.is_empty()), "{self:?}");
        }
    }
}
