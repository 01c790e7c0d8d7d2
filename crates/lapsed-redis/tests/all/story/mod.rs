//! What the stories with real servers have in common: sweepers, waiting, owners that go on beating,
//! an application that knows nothing of lapsed.

#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Cursor, PageRequest, PassMode, PassReport, Suspect, Sweep,
    Sweeper, SweeperParts,
};
use lapsed_core::{Error, Kind, Name, SystemId};
use lapsed_redis::{NativeRegistry, Redis, RedisAddress, RegistryLayout, Template};
use lapsed_testbed::RedisServer;
use lapsed_testbed::resp::{Reply, RespConnection};
use tokio::task::JoinHandle;

/// How long a beat lasts where living owners have to keep it up: busy machines stall.
pub const TTL: Duration = Duration::from_millis(1_500);

/// The longest that anything is waited for.
pub const LIMIT: Duration = Duration::from_secs(40);

/// Runs each case on both engines, each with its own servers.
macro_rules! on_both_engines {
    ($($case:ident,)*) => {
        mod on_redis {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let case = async || super::$case(lapsed_testbed::Engine::Redis).await;
                    lapsed_testbed::steadily_async(case).await;
                }
            )*
        }
        mod on_valkey {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let case = async || super::$case(lapsed_testbed::Engine::Valkey).await;
                    lapsed_testbed::steadily_async(case).await;
                }
            )*
        }
    };
}
pub(crate) use on_both_engines;

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn names<T: AsRef<str>>(texts: &[T]) -> Vec<Name> {
    texts.iter().map(|text| name(text.as_ref())).collect()
}

pub fn id() -> SystemId {
    SystemId::new(Kind::Registry, "devices").unwrap()
}

/// The layout of the original, by its own names.
pub fn layout(ttl: Duration) -> RegistryLayout {
    RegistryLayout {
        registry_key: "connections:registry".to_owned(),
        heartbeat_key: Template::new("instance:heartbeat:{owner}", "owner").unwrap(),
        heartbeat_ttl: ttl,
        shards: 1,
    }
}

/// With a time limit that a test can afford to wait for.
pub fn connect(url: &str) -> Redis {
    let address = RedisAddress {
        response_timeout: Duration::from_millis(400),
        connect_timeout: Duration::from_secs(1),
        ..RedisAddress::new(url)
    };
    Redis::new(&address).unwrap()
}

/// Until `look` answers with something.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = std::time::Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A sweeper with a name of its own.
pub fn sweeper(sweep: &Arc<dyn Sweep>, store: &Redis, policy: Policy) -> Sweeper {
    static SWEEPERS: AtomicU64 = AtomicU64::new(0);
    let name = format!("sweeper-{}", SWEEPERS.fetch_add(1, Ordering::Relaxed));
    sweeper_called(&name, sweep, store, policy)
}

/// A sweeper with that name, which no other may have.
pub fn sweeper_called(
    name: &str,
    sweep: &Arc<dyn Sweep>,
    store: &Redis,
    policy: Policy,
) -> Sweeper {
    Sweeper::new(
        SweeperParts::new(name.to_owned(), sweep.clone(), Arc::new(store.clone())).policy(policy),
    )
}

/// Small steps with pauses between them, so that something can happen in the middle.
pub fn slowly() -> Policy {
    Policy { batch: 10, op_delay: Duration::from_millis(5), ..Policy::default() }
}

pub async fn pass(sweeper: &Sweeper) -> PassReport {
    let (_stopper, stop) = StopSignal::channel();
    sweeper.pass(PassMode::Reclaim, 100_000, &stop).await
}

pub async fn dry(sweeper: &Sweeper) -> PassReport {
    let (_stopper, stop) = StopSignal::channel();
    sweeper.pass(PassMode::DryRun, 100_000, &stop).await
}

/// All that is suspect now.
pub async fn suspects(sweep: &dyn Sweep) -> Vec<Suspect> {
    let request = PageRequest { after: Cursor::default(), limit: 10_000, undeclared_max: None };
    sweep.suspects(request).await.unwrap().suspects
}

pub fn batch(who: &str, number: u64, suspects: Vec<Suspect>) -> Batch {
    let id = BatchId { sweeper: who.into(), number };
    Batch { id, suspects, act: PassMode::Reclaim, term: None }
}

pub async fn reclaim(sweep: &dyn Sweep, number: u64, suspects: Vec<Suspect>) -> BatchAnswer {
    sweep.reclaim(batch("by-hand", number, suspects)).await.unwrap()
}

/// Every receipt, oldest first.
pub async fn receipts(store: &Redis, system: &SystemId) -> Vec<Receipt> {
    let query = ReceiptQuery { after: Some(0), limit: 1_000_000, ..ReceiptQuery::default() };
    store.receipts(system, query).await.unwrap()
}

/// No grace of the store's is running any more.
pub async fn settled(sweep: &dyn Sweep) {
    eventually("the end of the store-away grace", async || {
        let census = sweep.survey(PassMode::Reclaim).await.unwrap();
        let census = match census {
            Some(census) => census,
            None => sweep.census().await.unwrap(),
        };
        (census.back_ms == 0).then_some(())
    })
    .await;
}

/// The application: it writes these keys by itself.
pub struct App(Mutex<RespConnection>);

impl App {
    pub fn on(server: &RedisServer) -> App {
        App(Mutex::new(server.connect(Duration::from_secs(10)).unwrap()))
    }

    pub fn call(&self, args: &[&str]) -> Reply {
        self.0.lock().unwrap().call(args).unwrap()
    }

    pub fn bytes(&self, args: &[&[u8]]) -> Reply {
        self.0.lock().unwrap().call(args).unwrap()
    }

    pub fn number(&self, args: &[&str]) -> i64 {
        match self.call(args) {
            Reply::Integer(n) => n,
            other => panic!("{args:?}: {other}"),
        }
    }

    pub fn text(&self, args: &[&str]) -> String {
        self.call(args).to_string()
    }

    pub fn register(&self, owner: &str, keys: &[String]) {
        for part in keys.chunks(500) {
            let mut args = vec!["HSET", "connections:registry"];
            part.iter().for_each(|key| args.extend([key.as_str(), owner]));
            self.call(&args);
        }
    }

    pub fn beat(&self, owner: &str, ttl_ms: u64) {
        let key = format!("instance:heartbeat:{owner}");
        self.call(&["SET", &key, "1", "PX", &ttl_ms.to_string()]);
    }

    /// The last beat of that owner is over.
    pub async fn dies(&self, owner: &str) {
        let key = format!("instance:heartbeat:{owner}");
        eventually("a heartbeat's end", async || {
            (self.number(&["EXISTS", &key]) == 0).then_some(())
        })
        .await;
    }

    pub fn registry(&self) -> BTreeMap<String, String> {
        let Reply::List(flat) = self.call(&["HGETALL", "connections:registry"]) else {
            panic!("no list");
        };
        flat.chunks_exact(2).map(|pair| (pair[0].to_string(), pair[1].to_string())).collect()
    }
}

/// `count` keys that begin with `prefix`.
pub fn keys(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n:06}")).collect()
}

/// Starts a life that holds these keys.
pub async fn holding(
    registry: &NativeRegistry,
    owner: &str,
    ttl: Duration,
    keys: &[String],
) -> Claim {
    let beat = registry.start(&name(owner), ttl.as_millis() as u64).await.unwrap();
    let claim = Claim::exact(name(owner), beat.incarnation);
    for part in keys.chunks(1_000) {
        registry.register(&claim, &names(part), TakePolicy::Always).await.unwrap();
        registry.beat(&claim).await.unwrap();
    }
    claim
}

/// An owner that beats for as long as this value is there, whatever the store does.
pub struct Living {
    pub claim: Claim,
    lost: Arc<Mutex<Option<String>>>,
    beats: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Living {
    pub async fn new(registry: &NativeRegistry, owner: &str, keys: &[String]) -> Living {
        let claim = holding(registry, owner, TTL, keys).await;
        let (lost, beats) = (Arc::<Mutex<Option<String>>>::default(), Arc::<AtomicU64>::default());
        let task = tokio::spawn({
            let (registry, claim) = (registry.clone(), claim.clone());
            let (lost, beats) = (lost.clone(), beats.clone());
            async move {
                loop {
                    match registry.beat(&claim).await {
                        Ok(_) => {
                            beats.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(Error::Unavailable { .. }) => {}
                        Err(error) => {
                            *lost.lock().unwrap() = Some(error.to_string());
                            return;
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        });
        Living { claim, lost, beats, task }
    }

    /// Its next beat has arrived.
    pub async fn beats(&self) {
        let before = self.beats.load(Ordering::SeqCst);
        eventually("a beat", async || {
            self.assert_alive();
            (self.beats.load(Ordering::SeqCst) > before).then_some(())
        })
        .await;
    }

    pub fn assert_alive(&self) {
        if let Some(why) = &*self.lost.lock().unwrap() {
            panic!("{} was declared dead: {why}", self.claim.owner);
        }
    }

    pub fn lost(&self) -> bool {
        self.lost.lock().unwrap().is_some()
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the reports of a sweeper say, summed up.
#[derive(Default, Debug)]
pub struct Sum {
    pub reclaimed: u64,
    pub in_doubt: u64,
    pub settled: u64,
    pub errors: u64,
    pub passes: u64,
    pub details: BTreeSet<String>,
}

impl Sum {
    pub fn add(&mut self, report: &PassReport) {
        self.reclaimed += report.reclaimed;
        self.settled += report.settled;
        self.errors += report.errors;
        self.in_doubt += report.skipped.get("in_doubt").copied().unwrap_or(0);
        self.passes += 1;
        if self.details.len() < 20 {
            self.details.extend(report.detail.clone());
        }
    }
}

/// Sweeps again and again until `done`, without a new connection or sweeper.
pub async fn sweep_until(sweeper: &Sweeper, sum: &mut Sum, mut done: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !done() || sweeper.is_in_doubt() {
        let report = pass(sweeper).await;
        sum.add(&report);
        assert!(began.elapsed() < LIMIT, "not done within {LIMIT:?}: {sum:#?} {report:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// No wrong reclaim, no double count: of `dead` everything is gone, with one receipt each, and the
/// reports say as much; of `living` everything is there.
pub fn audit(
    app: &App,
    receipts: &[Receipt],
    reclaimed: u64,
    dead: &[String],
    living: &[(String, String)],
) {
    let there = app.registry();
    let left: Vec<&String> = dead.iter().filter(|key| there.contains_key(*key)).collect();
    assert!(left.is_empty(), "{} of the dead are still there: {:?}", left.len(), left.first());
    for (key, owner) in living {
        assert_eq!(there.get(key), Some(owner), "`{key}` is {owner}'s, who lives");
    }
    assert_eq!(there.len(), living.len());
    let mut count: BTreeMap<&str, u32> = BTreeMap::new();
    receipts.iter().for_each(|r| *count.entry(r.key.as_str()).or_default() += 1);
    assert!(count.values().all(|n| *n == 1), "a key has two receipts");
    let expected: BTreeSet<&str> = dead.iter().map(String::as_str).collect();
    let got: BTreeSet<&str> = count.keys().copied().collect();
    assert_eq!(got, expected, "a receipt for every one of the dead, and for nobody else");
    assert_eq!(reclaimed, dead.len() as u64, "the reports count what happened");
}

/// Owner and key of each entry that is held.
pub fn held_by(owner: &str, keys: &[String]) -> Vec<(String, String)> {
    keys.iter().map(|key| (key.clone(), owner.to_owned())).collect()
}
