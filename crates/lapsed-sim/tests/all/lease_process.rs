//! One process with leases in the simulated bucket, whose requests can be watched, delayed and cut off.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::clock::Clock;
use lapsed_core::leases::{AcquireRequest, Acquired, Fenced, Grant, LeaseKey, LeasesStore};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, PassReport, Sweeper, SweeperParts};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_object::{LeasesLayout, ObjectConfig, ObjectLeases, ObjectStore};
use lapsed_sim::executor::{Executor, ProcessClock, World};
use lapsed_sim::leases::bucket::{BucketConnection, SimBucket};
use object_store::client::{HttpError, HttpRequest, HttpResponse, HttpService};

/// The width of the index buckets, and how long these processes keep a key that nobody uses.
pub const BUCKET: Duration = Duration::from_secs(5);
pub const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Longer than any request of the simulated network takes.
pub const TTL_MS: u64 = 30_000;

/// What becomes of a request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Sent,
    /// The process ends before the request is sent.
    Unsent,
    /// The request is carried out, and the process has ended before the answer.
    Unanswered,
    /// The request is carried out that much later.
    Late(Duration),
}

type Judge = Arc<dyn Fn(usize, &str, &str) -> Fate + Send + Sync>;

/// The connection of a process: notes when which request was sent, and decides about its fate.
#[derive(Clone)]
pub struct Tap {
    world: Arc<World>,
    line: BucketConnection,
    judge: Judge,
    /// When, by which method, of what.
    pub seen: Arc<Mutex<Vec<(Duration, String, String)>>>,
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

#[async_trait]
impl HttpService for Tap {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let number = {
            let mut seen = self.seen.lock().unwrap();
            seen.push((self.world.now(), method.clone(), path.clone()));
            seen.len() - 1
        };
        match (self.judge)(number, &method, &path) {
            Fate::Sent => self.line.call(request).await,
            Fate::Unsent => std::future::pending().await,
            Fate::Unanswered => {
                self.line.call(request).await?;
                std::future::pending().await
            }
            Fate::Late(by) => {
                self.world.sleep(by).await;
                self.line.call(request).await
            }
        }
    }
}

/// A process with its own clients and caches.
#[derive(Clone)]
pub struct Process {
    pub clock: Arc<dyn Clock>,
    pub store: Arc<ObjectStore>,
    pub leases: Arc<ObjectLeases>,
    pub tap: Tap,
}

impl Process {
    pub fn new(world: &Arc<World>, bucket: &Arc<SimBucket>) -> Process {
        Process::with(world, bucket, layout(), |_, _, _| Fate::Sent)
    }

    pub fn with(
        world: &Arc<World>,
        bucket: &Arc<SimBucket>,
        layout: LeasesLayout,
        judge: impl Fn(usize, &str, &str) -> Fate + Send + Sync + 'static,
    ) -> Process {
        Process::within(world, bucket, layout, 1_000_000, judge)
    }

    /// With a budget of requests per hour.
    pub fn within(
        world: &Arc<World>,
        bucket: &Arc<SimBucket>,
        layout: LeasesLayout,
        requests_per_hour: u64,
        judge: impl Fn(usize, &str, &str) -> Fate + Send + Sync + 'static,
    ) -> Process {
        let clock = ProcessClock::shared(world, 0);
        let text = |text: &str| Some(text.to_owned());
        let config = ObjectConfig {
            endpoint: text("http://s3.test"),
            region: text("r"),
            access_key_id: text("k"),
            secret_access_key: text("s"),
            allow_http: true,
            requests_per_hour,
            ..ObjectConfig::new("sim", "s3://bucket")
        };
        let line = bucket.line("p");
        let tap = Tap { world: world.clone(), line, judge: Arc::new(judge), seen: Arc::default() };
        let store = ObjectStore::open_over(config, clock.clone(), Arc::new(tap.clone())).unwrap();
        let leases = store.leases(system(), layout).unwrap();
        Process { clock, store, leases, tap }
    }

    pub async fn sleep(&self, seconds: u64) {
        self.clock.sleep(Duration::from_secs(seconds)).await;
    }

    /// Acquires a key, or says who holds it.
    pub async fn acquire(&self, key: &str, ttl_ms: u64) -> Result<Grant, Grant> {
        let (key, owner) = (LeaseKey::new("n", key).unwrap(), Name::new("o").unwrap());
        let wish = AcquireRequest { key, owner, ttl_ms, request: None };
        match self.leases.acquire(&wish).await.unwrap().answer {
            Acquired::Granted(grant) => Ok(grant),
            Acquired::Held(grant) => Err(grant),
        }
    }

    /// Acquires and releases a key; its token.
    pub async fn use_once(&self, key: &str) -> u64 {
        let grant = self.acquire(key, TTL_MS).await.unwrap();
        let released = self.leases.release(&grant.ticket()).await.unwrap().answer;
        assert!(matches!(released, Fenced::Done(())), "{released:?}");
        grant.token.0
    }

    /// One pass that waits for nothing.
    pub async fn pass(&self) -> PassReport {
        let name = format!("s-{:x}", self.clock.random());
        let policy = Policy { timeout: Duration::from_secs(60), ..Policy::default() };
        self.pass_by(
            SweeperParts::new(name, self.leases.clone(), self.store.clone()).policy(policy),
        )
        .await
    }

    pub async fn pass_by(&self, parts: SweeperParts) -> PassReport {
        let (_stopper, stop) = StopSignal::channel();
        Sweeper::new(parts.clock(self.clock.clone())).pass(PassMode::Reclaim, 0, &stop).await
    }

    /// Waits until a key that was used before is forgotten, up to the pass that does it.
    pub async fn let_it_be_forgotten(&self) {
        self.sleep(60).await;
        self.pass().await;
        self.sleep(2 * FORGET_AFTER.as_secs() + 120).await;
    }
}

pub fn system() -> SystemId {
    SystemId::new(Kind::Leases, "locks").unwrap()
}

pub fn layout() -> LeasesLayout {
    let forget_after = Some(FORGET_AFTER);
    LeasesLayout { bucket: BUCKET, forget_after, ..LeasesLayout::default() }
}

/// Runs one story to its end, within so many hours of virtual time.
pub fn tell<T: Send + 'static>(
    world: &Arc<World>,
    hours: u64,
    story: impl Future<Output = T> + Send + 'static,
) -> T {
    let told = Arc::new(Mutex::new(None));
    let result = told.clone();
    let number = world.new_process();
    world.spawn(number, async move {
        let end = story.await;
        *result.lock().unwrap() = Some(end);
    });
    Executor::new(world).run(world.now() + Duration::from_secs(hours * 3_600));
    told.lock().unwrap().take().expect("the story came to its end")
}
