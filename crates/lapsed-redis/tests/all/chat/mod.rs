//! The chat service of seed 001: its keys, written by a client that knows nothing of lapsed, and
//! lapsed beside it.
//!
//! Every test has a database of its own on a server that it shares, so that the keys are exactly the
//! original's. Waiting is by the server's clock, with a deadline.

#![allow(dead_code, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use lapsed_core::clock::SystemClock;
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::reconcile::{self, ReconcilePlan, ReconcileReport};
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Cursor, PageRequest, PassMode, PassReport, Suspect, Sweep,
    Sweeper, SweeperParts,
};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_redis::{Redis, RedisAddress, RedisSessions, SessionsLayout, Template};
use lapsed_testbed::resp::{Reply, RespConnection};
use lapsed_testbed::{Engine, RedisServer, ServerOptions};

pub use crate::passes::{PATIENCE, named, pass, skipped, sum, sweep_through};

/// How long a session is kept here.
pub const GRACE: Duration = Duration::from_millis(1_000);
/// A long time ago, in seconds.
pub const LONG_AGO: u64 = 3_600;

fn shared(engine: Engine) -> RedisServer {
    ServerOptions::new(engine).extra("databases", "2000").start().unwrap()
}

pub static REDIS: LazyLock<RedisServer> = LazyLock::new(|| shared(Engine::Redis));
pub static VALKEY: LazyLock<RedisServer> = LazyLock::new(|| shared(Engine::Valkey));

/// Each case becomes a test on Redis and one on Valkey.
macro_rules! on_both_chats {
    ($($case:ident,)*) => {
        mod on_redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let chat = || crate::chat::Chat::on(&crate::chat::REDIS);
                lapsed_testbed::steadily_async(async || super::$case(chat()).await).await;
            })*
        }
        mod on_valkey {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let chat = || crate::chat::Chat::on(&crate::chat::VALKEY);
                lapsed_testbed::steadily_async(async || super::$case(chat()).await).await;
            })*
        }
    };
}
pub(crate) use on_both_chats;

pub fn uuid(n: usize) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn unique(who: &str) -> String {
    static NAMES: AtomicUsize = AtomicUsize::new(0);
    format!("{who}-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// The application: a connection that is not lapsed's.
pub struct App(Mutex<RespConnection>);

impl App {
    pub fn connect(port: u16, db: usize) -> App {
        let mut connection = RespConnection::open(port, Duration::from_secs(20)).unwrap();
        connection.call(&["SELECT", &db.to_string()]).unwrap();
        App(Mutex::new(connection))
    }

    pub fn try_call<A: AsRef<[u8]>>(&self, args: &[A]) -> lapsed_testbed::TestbedResult<Reply> {
        self.0.lock().unwrap().call(args)
    }

    pub fn call<A: AsRef<[u8]>>(&self, args: &[A]) -> String {
        match self.try_call(args) {
            Ok(reply) => reply.to_string(),
            Err(error) => {
                let words = args.iter().map(|a| String::from_utf8_lossy(a.as_ref()).into_owned());
                panic!("{}: {error}", words.take(6).collect::<Vec<_>>().join(" "))
            }
        }
    }

    pub fn now_ms(&self) -> u64 {
        let time = self.call(&["TIME"]);
        let (seconds, micros) = time.split_once('\n').unwrap();
        seconds.parse::<u64>().unwrap() * 1_000 + micros.parse::<u64>().unwrap() / 1_000
    }

    pub fn now_s(&self) -> u64 {
        self.now_ms() / 1_000
    }

    /// A session as the application writes it, with its pointer; not in the index.
    pub fn session(&self, id: &str, last_disconnect: &str) {
        self.call(&[
            "HSET",
            &format!("session:{id}"),
            "value",
            "0.5",
            "broadcaster_user_id",
            &format!("b-{id}"),
            "config_json",
            "{\"decay\":1}",
            "last_disconnect",
            last_disconnect,
            "last_update",
            "1700000000000",
        ]);
        self.call(&["SET", &format!("broadcaster:b-{id}"), id]);
    }

    /// `MarkDisconnected`, at that time.
    pub fn disconnected(&self, id: &str, at: &str) {
        self.session(id, at);
        self.index(id, at);
    }

    pub fn index(&self, id: &str, at: &str) {
        self.call(&["ZADD", "disconnected_sessions", at, id]);
    }

    /// One whose grace was over long ago.
    pub fn orphan(&self, id: &str) {
        let at = (self.now_s() - LONG_AGO).to_string();
        self.disconnected(id, &at);
    }

    pub fn active(&self, id: &str) {
        self.session(id, "0");
        self.call(&["SET", &format!("ref_count:{id}"), "1"]);
    }

    /// So many orphans in one go, with ids from `from` on.
    pub fn orphans(&self, from: usize, count: usize) {
        let script = "for i = ARGV[1], ARGV[1] + ARGV[2] - 1 do \
            local id = string.format('00000000-0000-4000-8000-%012d', i) \
            redis.call('HSET', 'session:' .. id, 'value', '0', 'broadcaster_user_id', 'b-' .. id, \
                'config_json', '{}', 'last_disconnect', ARGV[3], 'last_update', '1') \
            redis.call('SET', 'broadcaster:b-' .. id, id) \
            redis.call('ZADD', 'disconnected_sessions', ARGV[3], id) end";
        let at = (self.now_s() - LONG_AGO).to_string();
        for start in (from..from + count).step_by(2_000) {
            let part = (from + count - start).min(2_000);
            self.call(&["EVAL", script, "0", &start.to_string(), &part.to_string(), &at]);
        }
    }

    /// `ResumeSession` with the count that goes before it.
    pub fn reconnect(&self, id: &str) {
        self.call(&["INCR", &format!("ref_count:{id}")]);
        self.call(&["HSET", &format!("session:{id}"), "last_disconnect", "0"]);
        self.call(&["ZREM", "disconnected_sessions", id]);
    }

    /// The count falls, and at 0 `MarkDisconnected`, now.
    pub fn let_go(&self, id: &str) {
        if self.call(&["DECR", &format!("ref_count:{id}")]) == "0" {
            let now = self.now_s().to_string();
            self.call(&["HSET", &format!("session:{id}"), "last_disconnect", &now]);
            self.index(id, &now);
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.call(&["EXISTS", key]) == "1"
    }

    pub fn has_session(&self, id: &str) -> bool {
        self.has(&format!("session:{id}"))
    }

    pub fn is_indexed(&self, id: &str) -> bool {
        self.call(&["ZSCORE", "disconnected_sessions", id]) != "(nil)"
    }

    pub fn field(&self, id: &str, field: &str) -> String {
        self.call(&["HGET", &format!("session:{id}"), field])
    }

    /// The application's keys; lapsed's own are beside them.
    pub fn keys(&self) -> BTreeSet<String> {
        let all = self.call(&["KEYS", "*"]);
        all.lines().filter(|key| !key.starts_with("lapsed:")).map(str::to_owned).collect()
    }

    /// Everything that the application can see, with what it holds.
    pub fn picture(&self) -> BTreeMap<String, String> {
        let look = |key: &String| match self.call(&["TYPE", key]).as_str() {
            "hash" => {
                let flat = self.call(&["HGETALL", key]);
                let flat: Vec<&str> = flat.lines().collect();
                let mut pairs: Vec<String> = flat.chunks(2).map(|pair| pair.join("=")).collect();
                pairs.sort();
                pairs.join(" ")
            }
            "zset" => self.call(&["ZRANGE", key, "0", "-1", "WITHSCORES"]).replace('\n', " "),
            _ => self.call(&["GET", key]),
        };
        self.keys().into_iter().map(|key| (key.clone(), look(&key))).collect()
    }
}

pub fn layout(grace: Duration) -> SessionsLayout {
    let template = |text: &str, place: &str| Template::new(text, place).unwrap();
    SessionsLayout {
        session_key: template("session:{session}", "session"),
        ref_count_key: template("ref_count:{session}", "session"),
        broadcaster_key: template("broadcaster:{broadcaster}", "broadcaster"),
        disconnected_key: "disconnected_sessions".to_owned(),
        grace,
        heartbeat_ttl: grace,
        shards: 1,
    }
}

/// lapsed on the keys of the application.
#[derive(Clone)]
pub struct Chat {
    pub app: Arc<App>,
    pub redis: Redis,
    pub sessions: RedisSessions,
    pub url: String,
    pub grace: Duration,
}

impl Chat {
    /// In a database of its own.
    pub fn on(server: &RedisServer) -> Chat {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let db = NEXT.fetch_add(1, Ordering::Relaxed);
        let url = format!("redis://127.0.0.1:{}/{db}", server.port());
        Self::at(App::connect(server.port(), db), &url, GRACE)
    }

    pub fn at(app: App, url: &str, grace: Duration) -> Chat {
        let mut address = RedisAddress::new(url);
        address.connect_timeout = Duration::from_millis(1_000);
        address.response_timeout = Duration::from_millis(1_000);
        let redis = Redis::new(&address).unwrap();
        let id = SystemId::new(Kind::Sessions, "chat").unwrap();
        let sessions = redis.adopted_sessions(id, layout(grace)).unwrap();
        Chat { app: Arc::new(app), redis, sessions, url: url.to_owned(), grace }
    }

    /// The same keys, kept otherwise.
    pub fn with_grace(&self, grace: Duration) -> Chat {
        let redis = Redis::new(&RedisAddress::new(&self.url)).unwrap();
        let sessions = redis.adopted_sessions(self.id(), layout(grace)).unwrap();
        Chat { redis, sessions, grace, ..self.clone() }
    }

    /// The same application, with other names in lapsed's configuration. Nobody has confirmed them.
    pub fn with_layout(&self, layout: SessionsLayout) -> Chat {
        let redis = Redis::new(&RedisAddress::new(&self.url)).unwrap();
        let sessions = redis.adopted_sessions(self.id(), layout).unwrap();
        Chat { redis, sessions, ..self.clone() }
    }

    /// The same keys, written through lapsed from now on.
    pub fn native(&self) -> Chat {
        let redis = Redis::new(&RedisAddress::new(&self.url)).unwrap();
        let sessions = redis.sessions(self.id(), layout(self.grace)).unwrap();
        Chat { redis, sessions, ..self.clone() }
    }

    pub fn id(&self) -> SystemId {
        SystemId::new(Kind::Sessions, "chat").unwrap()
    }

    pub async fn suspects(&self) -> Vec<Suspect> {
        let request = PageRequest { after: Cursor::default(), limit: 1_000, undeclared_max: None };
        self.sessions.suspects(request).await.unwrap().suspects
    }

    pub async fn reclaim(&self, suspects: Vec<Suspect>) -> BatchAnswer {
        let id = BatchId { sweeper: unique("by-hand").into(), number: 1 };
        let batch = Batch { id, suspects, act: PassMode::Reclaim, term: None };
        self.sessions.reclaim(batch).await.unwrap()
    }

    /// Waits until the server has been there for a whole grace by its own account.
    pub async fn settle(&self) {
        let began = Instant::now();
        loop {
            let census = self.sessions.census().await.unwrap();
            if census.back_ms == 0 && census.orphans_spared == 0 {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{census:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Until the server's clock says so.
    pub async fn until_ms(&self, at_ms: u64) {
        loop {
            let now_ms = self.app.now_ms();
            if now_ms >= at_ms {
                return;
            }
            tokio::time::sleep(Duration::from_millis((at_ms - now_ms).min(50))).await;
        }
    }

    pub fn sweeper(&self, who: &str) -> Sweeper {
        self.sweeper_with(who, Policy::default())
    }

    pub fn sweeper_with(&self, who: &str, policy: Policy) -> Sweeper {
        Sweeper::new(
            SweeperParts::new(
                unique(who),
                Arc::new(self.sessions.clone()),
                Arc::new(self.redis.clone()),
            )
            .policy(policy),
        )
    }

    /// What a pass does when the server has been there for long enough.
    pub async fn sweep(&self) -> PassReport {
        self.settle().await;
        sweep_through(&self.sweeper("s")).await
    }

    pub async fn dry_run(&self) -> PassReport {
        self.settle().await;
        pass(&self.sweeper("dry"), PassMode::DryRun).await
    }

    pub async fn receipts(&self) -> Vec<Receipt> {
        let query = ReceiptQuery { after: Some(0), limit: 100_000, ..ReceiptQuery::default() };
        self.redis.receipts(&self.id(), query).await.unwrap()
    }

    pub async fn reconcile(&self, act: PassMode) -> ReconcileReport {
        let (_stopper, stop) = StopSignal::channel();
        self.reconcile_from(Cursor::default(), act, &stop).await
    }

    pub async fn reconcile_from(
        &self,
        after: Cursor,
        act: PassMode,
        stop: &StopSignal,
    ) -> ReconcileReport {
        let plan = ReconcilePlan { after, page: 100, pause: Duration::ZERO, act };
        let clock = SystemClock::new();
        reconcile::run(&self.id(), &self.sessions, &clock, plan, stop, &mut |_| {}).await.unwrap()
    }
}
