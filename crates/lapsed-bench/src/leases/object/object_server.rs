//! An object store with leases, and what they cost in requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use lapsed_core::clock::SystemClock;
use lapsed_core::leases::{
    AcquireRequest, Acquired, Fenced, LeaseKey, LeaseTicket, LeasesStore, Namespace, PAGE_MAX,
};
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::Store;
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, Sweep, Sweeper, SweeperParts};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_object::{LeasesLayout, ObjectConfig, ObjectLeases, ObjectStore, RequestCounts};
use lapsed_testbed::{ObjectEngine, ObjectServer};
use serde::{Deserialize, Serialize};

/// The narrowest that a configuration may say, so that the end of one can be waited for.
pub const BUCKET: Duration = Duration::from_secs(60);
/// Namespaces that keys are spread over.
const NAMESPACES: usize = 4;
/// Requests at a time while filling.
const FILLING: usize = 32;
/// What a daemon clears at once.
const BATCH: usize = 20;
const PATIENCE: Duration = Duration::from_secs(300);

/// How a process reaches the store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BucketAddress {
    url: String,
    endpoint: String,
    id: String,
    secret: String,
}

impl BucketAddress {
    pub fn open(&self, prefix: &str) -> Result<BucketLeases> {
        let config = ObjectConfig {
            endpoint: Some(self.endpoint.clone()),
            allow_http: true,
            region: Some("us-east-1".to_owned()),
            access_key_id: Some(self.id.clone()),
            secret_access_key: Some(self.secret.clone()),
            timeout: Duration::from_secs(60),
            requests_per_hour: u64::MAX,
            ..ObjectConfig::new("bench", &format!("{}/{prefix}", self.url))
        };
        let store = ObjectStore::open(config, SystemClock::shared())?;
        let layout = LeasesLayout { bucket: BUCKET, ..LeasesLayout::default() };
        let leases = store.leases(SystemId::new(Kind::Leases, "default")?, layout)?;
        Ok(BucketLeases { store, leases })
    }
}

/// A server of its own.
pub struct BenchObjectServer {
    server: ObjectServer,
}

impl BenchObjectServer {
    pub fn start() -> Result<BenchObjectServer> {
        Ok(BenchObjectServer { server: ObjectServer::start(ObjectEngine::Seaweed)? })
    }

    pub fn address(&self) -> BucketAddress {
        let (id, secret) = self.server.engine().credentials();
        BucketAddress {
            url: self.server.engine().url(),
            endpoint: self.server.engine().endpoint_by(self.server.port()),
            id: id.to_owned(),
            secret: secret.to_owned(),
        }
    }

    /// Leases below a prefix of their own, by a client that remembers nothing yet.
    pub fn open(&self, prefix: &str) -> Result<BucketLeases> {
        self.address().open(prefix)
    }
}

/// Leases below one prefix of the bucket, and the requests that they cost.
pub struct BucketLeases {
    pub store: Arc<ObjectStore>,
    pub leases: Arc<ObjectLeases>,
}

impl BucketLeases {
    pub async fn acquire(&self, key: &LeaseKey, ttl: Duration) -> Result<LeaseTicket> {
        let owner = Name::new("holder")?;
        let ttl_ms = ttl.as_millis() as u64;
        let acquire = AcquireRequest { key: key.clone(), owner, ttl_ms, request: None };
        match self.leases.acquire(&acquire).await?.answer {
            Acquired::Granted(grant) => Ok(LeaseTicket { key: key.clone(), token: grant.token }),
            Acquired::Held(grant) => bail!("{key} is held by {}", grant.owner),
        }
    }

    pub async fn release(&self, ticket: &LeaseTicket) -> Result<()> {
        match self.leases.release(ticket).await?.answer {
            Fenced::Done(()) => Ok(()),
            Fenced::Lost(loss) => bail!(loss.describe()),
        }
    }

    pub async fn describe(&self, key: &LeaseKey) -> Result<()> {
        self.leases.describe(key).await?;
        Ok(())
    }

    /// The number of requests that a call sends.
    pub async fn cost<T>(&self, call: impl Future<Output = Result<T>>) -> Result<f64> {
        let before = self.store.requests().total();
        call.await?;
        Ok((self.store.requests().total() - before) as f64)
    }

    /// Acquires `count` new keys, numbered from `first`.
    pub async fn fill(&self, count: usize, ttl: Duration, first: usize) -> Result<()> {
        let acquires = (first..first + count).map(|number| async move {
            let key = lease_key(&format!("ns{}", number % NAMESPACES), number)?;
            self.acquire(&key, ttl).await
        });
        stream::iter(acquires).buffer_unordered(FILLING).try_for_each(|_| async { Ok(()) }).await
    }

    /// Waits until the store's clock has advanced by at least `span`.
    pub async fn until_later(&self, span: Duration) -> Result<()> {
        let now_ms = self.store.info().await?.now_ms;
        let spread = self.store.offset().map_or(0, |offset| offset.hi_ms - offset.lo_ms);
        self.until(now_ms + spread.unsigned_abs() + span.as_millis() as u64).await
    }

    /// Waits until the index bucket has ended in which a lease granted now for `ttl` expires.
    pub async fn until_bucket_is_over(&self, ttl: Duration) -> Result<()> {
        self.until_later(ttl + BUCKET).await
    }

    async fn until(&self, at_ms: u64) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.store.info().await?.now_ms < at_ms {
            ensure!(Instant::now() < deadline, "the store's clock stands still");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// Without the index: what it sent, and how many are over.
    pub async fn naive(&self, keys: usize) -> Result<(RequestCounts, usize)> {
        let before = self.store.requests();
        let (mut read, mut over) = (0, 0);
        for number in 0..NAMESPACES {
            let namespace = Namespace::new(&format!("ns{number}"))?;
            let mut after = None;
            loop {
                let page = self.leases.list(&namespace, after.as_ref(), PAGE_MAX).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.key.clone());
                read += page.len();
                over += page.iter().filter(|described| described.expired).count();
            }
        }
        ensure!(read == keys, "of {keys} keys {read} were read");
        Ok((since(&before, &self.store.requests()), over))
    }

    /// Runs one complete pass, which must clear `expired` leases; returns the requests that it
    /// sent.
    pub async fn sweep(&self, expired: usize) -> Result<RequestCounts> {
        let store: Arc<dyn Store> = self.store.clone();
        let policy =
            Policy { batch: BATCH, timeout: Duration::from_secs(120), ..Policy::default() };
        let brake = Arc::new(Brake::new(BrakePolicy::default(), self.leases.threshold()));
        let sweeper = Sweeper::new(
            SweeperParts::new("bench".to_owned(), self.leases.clone(), store)
                // A request takes longer than a call may hold a store: batches would shrink to one.
                .policy(Policy { hold: Duration::from_secs(60), ..policy })
                .brake(brake),
        );
        let before = self.store.requests();
        let (_stopper, stop) = StopSignal::channel();
        let report = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
        ensure!(report.reclaimed == expired as u64, "not {expired}: {report:?}");
        Ok(since(&before, &self.store.requests()))
    }
}

/// What was sent in between.
fn since(before: &RequestCounts, after: &RequestCounts) -> RequestCounts {
    let by_kind = after.by_kind.iter().map(|(kind, sent)| (*kind, sent - before.of(*kind)));
    RequestCounts {
        by_kind: by_kind.collect(),
        throttled: after.throttled - before.throttled,
        withheld: after.withheld - before.withheld,
    }
}

pub fn lease_key(namespace: &str, number: usize) -> Result<LeaseKey> {
    Ok(LeaseKey::new(namespace, crate::bench_store::key(number as u64).as_str())?)
}
