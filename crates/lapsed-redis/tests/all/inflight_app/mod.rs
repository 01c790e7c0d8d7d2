//! The application of seed 004: its keys, written by a client that knows nothing of lapsed, and lapsed
//! beside it.
//!
//! Every test has a database of its own on a server that it shares, so that the keys are exactly the
//! original's. Waiting is by the server's clock, with a deadline.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Cursor, PageRequest, PassMode, PassReport, Suspect, Sweep,
    Sweeper, SweeperParts,
};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_redis::{AdoptedInflight, AdoptedInflightLayout, Redis, RedisAddress};
use lapsed_testbed::resp::{Reply, RespConnection};
use lapsed_testbed::{Engine, RedisServer, ServerOptions};

pub use crate::passes::{PATIENCE, named, pass, skipped, sum, sweep_through};

/// After how long a silence a job is an orphan here.
pub const THRESHOLD: Duration = Duration::from_millis(1_000);
/// A long time ago, in milliseconds.
pub const LONG_AGO_MS: u64 = 3_600_000;

pub const INDEX: &str = "sidekiq:async_http:inflight_index";
pub const JOBS: &str = "sidekiq:async_http:inflight_jobs";
pub const GC_LOCK: &str = "sidekiq:async_http:gc_lock";

fn shared(engine: Engine) -> RedisServer {
    ServerOptions::new(engine).extra("databases", "2000").start().unwrap()
}

pub static REDIS: LazyLock<RedisServer> = LazyLock::new(|| shared(Engine::Redis));
pub static VALKEY: LazyLock<RedisServer> = LazyLock::new(|| shared(Engine::Valkey));

/// Each case becomes a test on Redis and one on Valkey.
macro_rules! on_both {
    ($($case:ident,)*) => {
        mod on_redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                lapsed_testbed::steadily_async(async || {
                    let server = &crate::inflight_app::REDIS;
                    super::$case(crate::inflight_app::AppFixture::settled(server).await).await;
                })
                .await;
            })*
        }
        mod on_valkey {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                lapsed_testbed::steadily_async(async || {
                    let server = &crate::inflight_app::VALKEY;
                    super::$case(crate::inflight_app::AppFixture::settled(server).await).await;
                })
                .await;
            })*
        }
    };
}
pub(crate) use on_both;

pub fn uuid(n: usize) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

/// The id of the job that `payload` makes.
pub fn jid(n: usize) -> String {
    format!("{n:024x}")
}

/// A job as Sidekiq writes it.
pub fn payload(n: usize, queue: &str) -> String {
    format!(
        "{{\"retry\":true,\"queue\":\"{queue}\",\"class\":\"FetchWorker\",\"args\":[{n}],\"jid\":\"{}\",\
         \"created_at\":1700000000.1234567,\"enqueued_at\":1700000000.5}}",
        jid(n)
    )
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

    pub fn number<A: AsRef<[u8]>>(&self, args: &[A]) -> i64 {
        self.call(args).parse().unwrap()
    }

    pub fn now_ms(&self) -> u64 {
        let time = self.call(&["TIME"]);
        let (seconds, micros) = time.split_once('\n').unwrap();
        seconds.parse::<u64>().unwrap() * 1_000 + micros.parse::<u64>().unwrap() / 1_000
    }

    /// As `register` of the original writes it, with that time.
    pub fn register_at(&self, id: &str, payload: impl AsRef<[u8]>, score: &str) {
        self.call(&["MULTI"]);
        self.call(&["ZADD", INDEX, score, id]);
        let hset: [&[u8]; 4] = [b"HSET", JOBS.as_bytes(), id.as_bytes(), payload.as_ref()];
        self.call(&hset);
        self.call(&["EXPIRE", INDEX, "3600"]);
        self.call(&["EXPIRE", JOBS, "3600"]);
        self.call(&["EXEC"]);
    }

    pub fn register(&self, id: &str, payload: impl AsRef<[u8]>) {
        self.register_at(id, payload, &self.now_ms().to_string());
    }

    /// One whose process has been silent for long.
    pub fn orphan(&self, id: &str, payload: impl AsRef<[u8]>) {
        self.register_at(id, payload, &(self.now_ms() - LONG_AGO_MS).to_string());
    }

    /// So many orphans of one beat in one go, ids and jobs from `from` on.
    pub fn orphans(&self, from: usize, count: usize, queue: &str) {
        let script = "for i = ARGV[1], ARGV[1] + ARGV[2] - 1 do \
            local id = string.format('00000000-0000-4000-8000-%012d', i) \
            redis.call('ZADD', KEYS[1], ARGV[3], id) \
            redis.call('HSET', KEYS[2], id, string.format('{\"retry\":true,\"queue\":\"' .. ARGV[4] .. \
            '\",\"class\":\"FetchWorker\",\"args\":[%d],\"jid\":\"%024x\",\
             \"created_at\":1700000000.1234567,\"enqueued_at\":1700000000.5}', i, i)) end";
        let at = (self.now_ms() - LONG_AGO_MS).to_string();
        for start in (from..from + count).step_by(2_000) {
            let part = (from + count - start).min(2_000).to_string();
            let start = start.to_string();
            self.call(&["EVAL", script, "2", INDEX, JOBS, &start, &part, &at, queue]);
        }
    }

    /// A heartbeat of the first generation: without XX.
    pub fn beat(&self, id: &str) {
        self.call(&["ZADD", INDEX, &self.now_ms().to_string(), id]);
    }

    pub fn unregister(&self, id: &str) -> bool {
        self.call(&["HDEL", JOBS, id]);
        self.call(&["ZREM", INDEX, id]) == "1"
    }

    pub fn is_indexed(&self, id: &str) -> bool {
        self.call(&["ZSCORE", INDEX, id]) != "(nil)"
    }

    pub fn is_registered(&self, id: &str) -> bool {
        self.is_indexed(id) && self.call(&["HEXISTS", JOBS, id]) == "1"
    }

    pub fn has(&self, key: &str) -> bool {
        self.call(&["EXISTS", key]) == "1"
    }

    /// What is on a queue, the next to be popped first.
    pub fn queue(&self, queue: &str) -> Vec<String> {
        let key = format!("queue:{queue}");
        let count = self.number(&["LLEN", &key]);
        (1..=count).map(|n| self.call(&["LINDEX", &key, &format!("-{n}")])).collect()
    }

    pub fn queued(&self, queue: &str) -> usize {
        self.number(&["LLEN", &format!("queue:{queue}")]) as usize
    }

    /// The application's keys; lapsed's own are beside them.
    pub fn keys(&self) -> BTreeSet<String> {
        let all = self.call(&["KEYS", "*"]);
        all.lines().filter(|key| !key.starts_with("lapsed:")).map(str::to_owned).collect()
    }
}

/// Seed 004's keys, with a threshold that a test can wait for.
pub fn layout() -> AdoptedInflightLayout {
    AdoptedInflightLayout {
        orphan_threshold: THRESHOLD,
        heartbeat_interval: Duration::from_millis(200),
        ..AdoptedInflightLayout::async_http()
    }
}

/// lapsed beside the application.
#[derive(Clone)]
pub struct AppFixture {
    pub app: Arc<App>,
    pub redis: Redis,
    pub inflight: Arc<AdoptedInflight>,
    pub url: String,
}

impl AppFixture {
    /// In a database of its own.
    pub fn on(server: &RedisServer) -> AppFixture {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let db = NEXT.fetch_add(1, Ordering::Relaxed);
        let url = format!("redis://127.0.0.1:{}/{db}", server.port());
        Self::at(App::connect(server.port(), db), &url, layout())
    }

    /// The same on a server that has run for long enough: an owner with heartbeats is not overdue by the time
    /// that the grace of a fresh one is over.
    pub async fn settled(server: &RedisServer) -> AppFixture {
        let beside = Self::on(server);
        beside.settle().await;
        beside
    }

    pub fn at(app: App, url: &str, layout: AdoptedInflightLayout) -> AppFixture {
        let mut address = RedisAddress::new(url);
        address.connect_timeout = Duration::from_millis(1_000);
        address.response_timeout = Duration::from_millis(1_000);
        let redis = Redis::new(&address).unwrap();
        let inflight = Arc::new(redis.adopted_inflight(id(), layout).unwrap());
        AppFixture { app: Arc::new(app), redis, inflight, url: url.to_owned() }
    }

    /// Another process of lapsed on the same keys, with another layout.
    pub fn with(&self, layout: AdoptedInflightLayout) -> AppFixture {
        let redis = Redis::new(&RedisAddress::new(&self.url)).unwrap();
        let inflight = Arc::new(redis.adopted_inflight(id(), layout).unwrap());
        AppFixture { redis, inflight, ..self.clone() }
    }

    pub async fn suspects(&self) -> Vec<Suspect> {
        let request = PageRequest { after: Cursor::default(), limit: 1_000, undeclared_max: None };
        self.inflight.suspects(request).await.unwrap().suspects
    }

    pub async fn reclaim(&self, suspects: Vec<Suspect>) -> BatchAnswer {
        let id = BatchId { sweeper: unique("by-hand").into(), number: 1 };
        let batch = Batch { id, suspects, act: PassMode::Reclaim, term: None };
        self.inflight.reclaim(batch).await.unwrap()
    }

    /// Waits until the server has been there for a whole threshold by its own account. The operator
    /// has confirmed the configuration.
    pub async fn settle(&self) {
        self.inflight.confirm_adoption().await.unwrap();
        let began = Instant::now();
        loop {
            let census = self.inflight.census().await.unwrap();
            if census.back_ms == 0 {
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

    /// The earliest that a job which was put back now can be an orphan again.
    pub async fn a_threshold_later(&self) {
        self.until_ms(self.app.now_ms() + THRESHOLD.as_millis() as u64 + 1).await;
    }

    pub fn sweeper(&self, who: &str) -> Sweeper {
        self.sweeper_with(who, Policy::default())
    }

    pub fn sweeper_with(&self, who: &str, policy: Policy) -> Sweeper {
        Sweeper::new(
            SweeperParts::new(unique(who), self.inflight.clone(), Arc::new(self.redis.clone()))
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
        self.redis.receipts(&id(), query).await.unwrap()
    }
}

pub fn id() -> SystemId {
    SystemId::new(Kind::Inflight, "requests").unwrap()
}
