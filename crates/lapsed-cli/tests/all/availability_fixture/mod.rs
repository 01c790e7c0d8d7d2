//! Stories of availability: a folder, or a database of its own with a Valkey, and the real binary on them.

use crate::support::{Answer, Daemon, Home, JSON, Reply, until};
use lapsed_testbed::{Engine, PostgresServer, RedisServer};
use serde_json::{Value, json};

/// A provider's id, as the original has them.
pub fn id(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

impl Home {
    /// One system of providers `mitras` in a folder, with those lines.
    pub fn providers(lines: &str) -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        let data = home.data().display().to_string();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"embedded:{data}\"\n\n\
             [[system]]\nkind = \"availability\"\nname = \"mitras\"\n{lines}\n"
        );
        std::fs::write(home.config(), text).unwrap();
        home
    }
}

impl Daemon {
    /// Asks for something of `mitras`.
    pub fn mitras(&self, path: &str) -> Reply {
        self.get(&format!("/v1/availability/mitras/{path}"))
    }

    /// Calls an operation of `mitras`; the answer may be an error.
    pub fn try_mitras(&self, method: &str, path: &str, body: Value) -> Reply {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.call(method, &format!("/v1/availability/mitras/{path}"), Some(body), &[JSON])
    }

    /// Calls an operation of `mitras` and fails the test unless it succeeds.
    #[track_caller]
    pub fn do_mitras(&self, method: &str, path: &str, body: Value) -> Reply {
        let reply = self.try_mitras(method, path, body);
        assert_eq!(reply.status, 200, "{method} {path}: {reply:?}");
        reply
    }

    /// Makes a provider and sets it online.
    #[track_caller]
    pub fn online(&self, id: &str) {
        self.do_mitras("PUT", &format!("providers/{id}"), json!({ "display_name": id }));
        self.do_mitras("POST", &format!("providers/{id}/online"), Value::Null);
    }

    #[track_caller]
    pub fn accept(&self, session: &str, provider: &str) -> Reply {
        let path = format!("sessions/{session}/accept");
        self.do_mitras("POST", &path, json!({ "provider": provider }))
    }

    /// Changes settings and fails the test unless that succeeds.
    #[track_caller]
    pub fn tune(&self, settings: Value) {
        self.do_mitras("PATCH", "config", settings);
    }

    /// Who is available, by id; all pages of it.
    #[track_caller]
    pub fn available(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut path = "available".to_owned();
        loop {
            let page = self.mitras(&path);
            assert_eq!(page.status, 200, "{page:?}");
            let ids = page.body["available"].as_array().unwrap().iter();
            all.extend(ids.map(|one| one["id"].as_str().unwrap().to_owned()));
            match page.body["next"].as_str() {
                Some(next) => path = format!("available?after={}", next.replace(':', "%3A")),
                None => break,
            }
        }
        all.sort();
        all.dedup();
        all
    }

    /// Runs passes until one of them sets `count` providers offline; returns its report.
    pub fn until_offline(&self, count: u64) -> Value {
        until("providers to be set offline", || {
            let report = self.post("/v1/sweeps/availability/mitras", json!({ "list": 100 })).body;
            (report["reclaimed"].as_u64() == Some(count)).then_some(report)
        })
    }

    pub fn explained(&self, id: &str) -> Value {
        self.get(&format!("/v1/explain/availability/mitras/{id}")).body
    }
}

/// A database and a mirror.
pub struct World {
    pub home: Home,
    pub postgres: &'static PostgresServer,
    pub database: String,
    pub valkey: RedisServer,
}

/// Sweeps, compares and writes beats down only when asked.
pub const CALM: &str = "sweep = { every = \"1d\" }\nreconcile = { every = \"off\" }\n\
                        heartbeat_mirror_every = \"1d\"\n";

impl World {
    /// With the tables of the original, made by `schema apply`.
    pub fn new(lines: &str) -> World {
        let world = World::bare(lines);
        let applied = world.run(&["schema", "apply"]);
        assert_eq!(applied.code, 0, "{applied:?}");
        world
    }

    pub fn bare(lines: &str) -> World {
        let postgres = PostgresServer::shared().unwrap();
        let database = postgres.database().unwrap();
        let valkey = RedisServer::start(Engine::Valkey).unwrap();
        let home = Home { dir: tempfile::tempdir().unwrap() };
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.db]\nurl = \"{}\"\n\n\
             [store.cache]\nurl = \"{}\"\n\n\
             [[system]]\nkind = \"availability\"\nname = \"mitras\"\nstore = \"db\"\n\
             mirror = \"cache\"\n{lines}\n",
            postgres.url(&database),
            valkey.url()
        );
        std::fs::write(home.config(), text).unwrap();
        World { home, postgres, database, valkey }
    }

    pub fn run(&self, args: &[&str]) -> Answer {
        self.home.run(args)
    }

    #[track_caller]
    pub fn sql(&self, sql: &str) -> String {
        self.postgres.sql(&self.database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    #[track_caller]
    pub fn redis(&self, args: &[&str]) -> String {
        self.valkey.command(args).unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    pub fn members(&self, key: &str) -> Vec<String> {
        let mut all: Vec<String> =
            self.redis(&["SMEMBERS", key]).lines().map(str::to_owned).collect();
        all.retain(|one| !one.is_empty());
        all.sort();
        all
    }

    /// How many sessions the mirror says that a provider has.
    #[track_caller]
    pub fn capacity(&self, id: &str) -> u64 {
        let key = format!("mitra:capacity:{id}");
        match self.redis(&["EXISTS", &key]).as_str() {
            "0" => 0,
            _ => self.redis(&["GET", &key]).parse().unwrap(),
        }
    }

    /// Inserts a provider into the tables as an application does.
    pub fn insert(&self, number: u32, online: bool, active: bool) -> String {
        let id = id(number);
        self.sql(&format!(
            "INSERT INTO mitras (id, display_name, is_active) VALUES ('{id}', 'm-{number}', {active}); \
             INSERT INTO mitra_online_status (mitra_id, is_online, last_online_at, last_heartbeat_at) \
             VALUES ('{id}', {online}, now(), now())"
        ));
        id
    }

    /// Sessions in the tables, as an application writes them.
    pub fn insert_sessions(&self, from: u32, count: u32, provider: &str, status: &str) {
        for number in from..from + count {
            let session = id(900_000 + number);
            self.sql(&format!(
                "INSERT INTO chat_sessions (id, mitra_id, status) \
                 VALUES ('{session}', '{provider}', '{status}')"
            ));
        }
    }

    /// How many log rows a provider has, of one status.
    pub fn logged(&self, id: &str, status: &str) -> u64 {
        let sql = format!(
            "SELECT count(*) FROM mitra_online_logs WHERE mitra_id = '{id}' AND status = '{status}'"
        );
        self.sql(&sql).parse().unwrap()
    }
}
