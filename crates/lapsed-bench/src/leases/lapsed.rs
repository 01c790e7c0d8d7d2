//! Our leases on the embedded store, as an application and a daemon use them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::future::BoxFuture;
use lapsed_core::leases::{
    AcquireRequest, Acquired, Fenced, LeaseKey, LeaseTicket, LeaseToken, Leases, LeasesParts,
    TTL_MS_MIN,
};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, Sweep, Sweeper, SweeperParts};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_embedded::{Embedded, EmbeddedLeases, LEASES_HOLD, Options};

use super::latency_probe::{LatencyProbe, p99};
use super::timed_sweep::{PassTimes, TimedSweep};
use crate::bench::progress;
use crate::bench_store::key;

const TTL: Duration = Duration::from_secs(30);
/// A lease that lasts for as long as a benchmark.
const LONG_MS: u64 = 24 * 3_600_000;
/// How many callers fill it at a time.
const FILLING: usize = 1_000;
/// How much one owner holds.
const EACH: usize = 20;
/// What the idle store is watched for, before the instant at which all expire.
const IDLE: Duration = Duration::from_secs(5);
/// How many can be acquired a second, as a first guess.
const FILLS_A_SECOND: f64 = 10_000.0;
const TTL_MIN: Duration = Duration::from_millis(TTL_MS_MIN);
const PATIENCE: Duration = Duration::from_secs(120);
const ATTEMPTS: usize = 5;

pub struct LapsedLeases {
    store: Embedded,
    leases: Arc<EmbeddedLeases>,
    operations: Arc<Leases>,
    timed: Arc<TimedSweep>,
    sweeper: Sweeper,
    next: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
pub struct Expired {
    pub seconds: f64,
    pub spent: PassTimes,
    /// What an acquire of another key took, in milliseconds: before, and meanwhile.
    pub idle_p99_ms: f64,
    pub p99_ms: f64,
}

impl LapsedLeases {
    pub fn open(dir: &Path) -> Result<LapsedLeases> {
        let store = Embedded::open(dir, Options::default())?;
        let id = SystemId::new(Kind::Leases, "default")?;
        let leases = store.leases(id.clone(), TTL)?;
        let brake = Arc::new(Brake::new(BrakePolicy::default(), leases.threshold()));
        let operations = Arc::new(Leases::new(
            LeasesParts::new(leases.clone(), Arc::new(store.clone()), TTL)
                .brake(brake.clone())
                .timeout(Duration::from_secs(60)),
            TTL,
        ));
        let timed = Arc::new(TimedSweep::new(leases.clone()));
        // Neither an idle grace nor a rest for each entry: those are for stores where requests are paid.
        let sweeper = Sweeper::new(
            SweeperParts::new("bench".to_owned(), timed.clone(), Arc::new(store.clone()))
                .policy(Policy {
                    hold: LEASES_HOLD,
                    timeout: Duration::from_secs(60),
                    ..Policy::default()
                })
                .brake(brake),
        );
        Ok(LapsedLeases { store, leases, operations, timed, sweeper, next: AtomicU64::new(0) })
    }

    pub fn close(self) -> Result<()> {
        drop((self.sweeper, self.timed, self.operations, self.leases));
        Ok(self.store.close()?)
    }

    /// Runs `cycles` cycles by `callers` concurrent callers, each on its own keys: cycles per
    /// second.
    pub async fn cycles(self: &Arc<Self>, cycles: usize, callers: usize) -> Result<f64> {
        let each = cycles / callers;
        let began = Instant::now();
        let running = (0..callers).map(|caller| {
            let ours = self.clone();
            tokio::spawn(async move {
                for _ in 0..each {
                    ours.cycle(caller).await?;
                }
                Ok::<_, anyhow::Error>(())
            })
        });
        for caller in running.collect::<Vec<_>>() {
            caller.await??;
        }
        Ok((each * callers) as f64 / began.elapsed().as_secs_f64())
    }

    async fn cycle(&self, caller: usize) -> Result<()> {
        let key = lease_key("cycles", caller as u64)?;
        let token = self.hold(key.clone(), caller, LONG_MS).await?;
        match self.operations.release(&LeaseTicket { key, token }).await? {
            Fenced::Done(()) => Ok(()),
            Fenced::Lost(loss) => bail!(loss.describe()),
        }
    }

    async fn hold(&self, key: LeaseKey, owner: usize, ttl_ms: u64) -> Result<LeaseToken> {
        let owner = Name::new(&format!("holder-{owner:06}"))?;
        let acquire = AcquireRequest { key, owner, ttl_ms, request: None };
        match self.operations.acquire(&acquire, Duration::ZERO).await? {
            Acquired::Granted(grant) => Ok(grant.token),
            Acquired::Held(grant) => bail!("held by {}", grant.owner),
        }
    }

    /// So many leases that all expire at one instant, cleared in one pass. On a machine so busy that
    /// the store takes itself for having been away, holders are spared: then it is done over.
    pub async fn expire(self: &Arc<Self>, leases: usize) -> Result<Expired> {
        for _ in 0..ATTEMPTS {
            self.fill(leases).await?;
            let waits = LatencyProbe::start(self.acquiring());
            tokio::time::sleep(IDLE).await;
            let idle_p99_ms = p99(waits.stop().await?);
            self.until_over(leases).await?;
            let waits = LatencyProbe::start(self.acquiring());
            let began = Instant::now();
            self.timed.take();
            let (_stopper, stop) = StopSignal::channel();
            let report = self.sweeper.pass(PassMode::Reclaim, 0, &stop).await;
            let seconds = began.elapsed().as_secs_f64();
            let p99_ms = p99(waits.stop().await?);
            if report.reclaimed == leases as u64 {
                let spent = self.timed.take();
                return Ok(Expired { seconds, spent, idle_p99_ms, p99_ms });
            }
            progress(format!("once more: {report:?}"));
            self.clear().await?;
        }
        bail!("the machine is too busy for a pass that is not interrupted");
    }

    /// Leases that end at one instant: what is granted later is granted for less time. How far off the
    /// instant must be is learned by trying.
    async fn fill(self: &Arc<Self>, leases: usize) -> Result<()> {
        let mut room = Duration::from_secs_f64(leases as f64 / FILLS_A_SECOND);
        for _ in 0..ATTEMPTS {
            let instant = Instant::now() + room + IDLE;
            self.acquire_until(instant, leases).await?;
            if instant.saturating_duration_since(Instant::now()) >= IDLE {
                return Ok(());
            }
            room *= 2;
            progress(format!("filling took too long; once more, within {room:?}"));
            tokio::time::sleep_until((instant.max(Instant::now()) + TTL_MIN).into()).await;
            self.clear().await?;
        }
        bail!("the machine is too busy to have {leases} leases end at one instant");
    }

    async fn acquire_until(self: &Arc<Self>, instant: Instant, leases: usize) -> Result<()> {
        let first = self.next.fetch_add(leases as u64, Ordering::Relaxed);
        let ours = self.clone();
        let acquired = in_turns(leases, move |number| {
            let ours = ours.clone();
            async move {
                let left = instant.saturating_duration_since(Instant::now()).max(TTL_MIN);
                let key = lease_key("expiring", first + number as u64)?;
                ours.hold(key, number / EACH, left.as_millis() as u64).await
            }
        });
        acquired.await?;
        Ok(())
    }

    async fn until_over(&self, leases: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let census = self.leases.census().await?;
            if census.suspects == leases as u64 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "they do not expire: {census:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Clears what an interrupted pass has left.
    async fn clear(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let census = self.leases.census().await?;
            if census.suspects + census.orphans_spared == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "what is left is not cleared: {census:?}");
            let (_stopper, stop) = StopSignal::channel();
            self.sweeper.pass(PassMode::Reclaim, 0, &stop).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// An unrelated client that acquires one key after the other.
    fn acquiring(self: &Arc<Self>) -> impl Fn() -> BoxFuture<'static, Result<()>> + Send + use<> {
        let ours = self.clone();
        move || {
            let ours = ours.clone();
            Box::pin(async move {
                let number = ours.next.fetch_add(1, Ordering::Relaxed);
                let key = lease_key("elsewhere", number)?;
                ours.hold(key, 0, LONG_MS).await.context("somebody else's acquire")?;
                Ok(())
            })
        }
    }
}

/// So many calls by [`FILLING`] callers.
async fn in_turns<T, F>(
    count: usize,
    call: impl Fn(usize) -> F + Clone + Send + 'static,
) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send,
{
    let callers = (0..FILLING).map(|caller| {
        let call = call.clone();
        tokio::spawn(async move {
            let mut answers = Vec::new();
            for number in (caller..count).step_by(FILLING) {
                answers.push(call(number).await?);
            }
            Ok::<_, anyhow::Error>(answers)
        })
    });
    let mut all = Vec::with_capacity(count);
    for caller in callers.collect::<Vec<_>>() {
        all.extend(caller.await??);
    }
    Ok(all)
}

fn lease_key(namespace: &str, number: u64) -> Result<LeaseKey> {
    Ok(LeaseKey::new(namespace, key(number).as_str())?)
}
