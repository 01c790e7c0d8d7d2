//! Our side: the same orphans among a million jobs in flight, what a pass costs when nobody has died,
//! how soon a death is noticed, and taking and completing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::inflight::{Finish, Finished, InflightStore, JOBS_MAX, NewJob};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::{PassMode, Sweep, Sweeper};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_redis::{InflightLayout, NativeInflight, QueueFormat, Template};

use super::super::probe::{Probe, p99};
use super::super::server_time::{MainThread, MeasuredSweep};
use super::super::{BenchRedis, pass, sweeper};
use super::bare::{BareLoad, PAYLOAD};
use super::peers::GET_EVERY;

/// Those who live beat once, for long enough.
const LIVING_TTL_MS: u64 = 3_600_000;
const LIVING: usize = 100;
/// The one who dies: long enough to be given its jobs.
const DYING_TTL_MS: u64 = 2_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// One system of jobs, and who sweeps it.
pub struct BenchJobs {
    pub inflight: Arc<NativeInflight>,
    timed: Arc<MeasuredSweep<NativeInflight>>,
    sweeper: Sweeper,
    pub queue: Name,
}

/// The measurements of one recovery.
pub struct RecoveryTime {
    pub took_ms: f64,
    pub p99_ms: f64,
    pub longest_us: f64,
    /// Calls that held the server for longer than 2 ms, by wall time.
    pub over: usize,
    /// What each batch worked, where that was measured.
    pub batches: Vec<Duration>,
}

impl BenchJobs {
    pub async fn open(place: &BenchRedis, name: &str) -> Result<BenchJobs> {
        let layout = InflightLayout {
            prefix: format!("lapsed:inflight:{name}"),
            queues: QueueFormat::Own,
            queue_key: Template::new("queue:{queue}", "queue").expect("it has a place for a name"),
            heartbeat_ttl: Duration::from_millis(DYING_TTL_MS),
            recovery: RecoveryPolicy::default(),
        };
        let id = SystemId::new(Kind::Inflight, name)?;
        let inflight = Arc::new(place.ours.inflight(id, layout)?);
        let timed = MeasuredSweep::new(inflight.clone(), MainThread::of(place).await?);
        let sweeper = sweeper(place, timed.clone());
        Ok(BenchJobs { inflight, timed, sweeper, queue: Name::new("work")? })
    }

    fn jobs(&self, what: &str, from: usize, to: usize) -> Result<Vec<NewJob>> {
        let job =
            |i| Ok(NewJob::new(Name::new(&format!("{what}-{i}"))?, self.queue.clone(), PAYLOAD));
        (from..to).map(job).collect()
    }

    /// Starts an owner that takes `count` jobs, beating until it has all; returns its deadline.
    async fn hold(&self, owner: &str, ttl_ms: u64, count: usize) -> Result<u64> {
        let name = Name::new(owner)?;
        let beat = self.inflight.start(&name, ttl_ms).await?;
        let claim = Claim::exact(name, beat.incarnation);
        for from in (0..count).step_by(JOBS_MAX) {
            let jobs = self.jobs(owner, from, (from + JOBS_MAX).min(count))?;
            self.inflight.register(&claim, &jobs).await?;
            self.inflight.beat(&claim).await?;
        }
        Ok(self.inflight.beat(&claim).await?.deadline_ms)
    }

    /// So many jobs in flight, of owners that live.
    pub async fn create(&self, count: usize) -> Result<()> {
        let each = count / LIVING;
        for some in (0..LIVING).collect::<Vec<_>>().chunks(4) {
            let owners: Vec<String> = some.iter().map(|nth| format!("live-{nth}")).collect();
            try_join_all(owners.iter().map(|owner| self.hold(owner, LIVING_TTL_MS, each))).await?;
        }
        Ok(())
    }

    /// Waits until `orphans` jobs are suspects and the store-away grace, caused by filling the
    /// server, is over.
    async fn until_due(&self, orphans: u64) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let census = self.inflight.census().await?;
            if census.suspects == orphans && census.back_ms == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < until, "the orphans are not there: {census:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Lets one worker with `orphans` jobs die; one pass puts them back.
    pub async fn recover(
        &self,
        place: &BenchRedis,
        round: usize,
        orphans: usize,
    ) -> Result<RecoveryTime> {
        self.hold(&format!("dying-{round}"), DYING_TTL_MS, orphans).await?;
        self.until_due(orphans as u64).await?;
        place.watch_slow().await?;
        let probe = Probe::every(place.server.port(), GET_EVERY)?;
        let began = Instant::now();
        pass(&self.sweeper, orphans).await?;
        let took_ms = began.elapsed().as_secs_f64() * 1e3;
        let p99_ms = p99(probe.stop()?);
        let (longest_us, over) = place.slowest(&["evalsha", "zrangebylex"]).await?;
        Ok(RecoveryTime { took_ms, p99_ms, longest_us, over, batches: self.timed.batches() })
    }

    /// How many commands a pass costs when nobody has died: the least of several, because the watch
    /// over the server sends some of its own now and then.
    pub async fn idle_commands(&self, place: &BenchRedis) -> Result<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..10 {
            let before = place.commands().await?;
            pass(&self.sweeper, 0).await?;
            least = least.min(place.commands().await? - before);
        }
        Ok(least)
    }

    /// From the last beat until the last job is back: a threshold, and a pass every `every`.
    pub async fn detect(&self, threshold: Duration, every: Duration, jobs: usize) -> Result<f64> {
        let ttl_ms = threshold.as_millis() as u64;
        let died_ms = self.hold("watched", ttl_ms, jobs).await? - ttl_ms;
        let (_stopper, stop) = StopSignal::channel();
        let until = Instant::now() + PATIENCE;
        let mut next = Instant::now();
        loop {
            next += every;
            self.sweeper.pass(PassMode::Reclaim, 0, &stop).await;
            let census = self.inflight.census().await?;
            if census.population == 0 {
                return Ok(census.now_ms.saturating_sub(died_ms) as f64 / 1e3);
            }
            ensure!(Instant::now() < until, "they do not come back: {census:?}");
            tokio::time::sleep(next.saturating_duration_since(Instant::now())).await;
        }
    }

    /// Jobs a second that were taken and completed, the load of the bare commands.
    pub async fn take_and_complete(&self, round: usize, load: BareLoad) -> Result<f64> {
        self.enqueue(&format!("r{round}"), load.jobs).await?;
        let began = Instant::now();
        let callers = (0..load.callers).map(|nth| self.caller(round, nth, load.depth));
        let done: usize = try_join_all(callers).await?.into_iter().sum();
        let took = began.elapsed();
        ensure!(done == load.jobs, "{done} of {} jobs were completed", load.jobs);
        Ok(load.jobs as f64 / took.as_secs_f64())
    }

    /// Enqueues `count` jobs, as many a call as the store takes.
    pub async fn enqueue(&self, what: &str, count: usize) -> Result<()> {
        for from in (0..count).step_by(JOBS_MAX) {
            let jobs = self.jobs(what, from, (from + JOBS_MAX).min(count))?;
            self.inflight.enqueue(&jobs).await?;
        }
        Ok(())
    }

    /// Starts a worker that lives long enough.
    pub async fn start(&self, owner: &str) -> Result<Claim> {
        let owner = Name::new(owner)?;
        let beat = self.inflight.start(&owner, LIVING_TTL_MS).await?;
        Ok(Claim::exact(owner, beat.incarnation))
    }

    /// Takes and completes until the queue is empty.
    async fn caller(&self, round: usize, nth: usize, depth: usize) -> Result<usize> {
        let claim = self.start(&format!("taker-{round}-{nth}")).await?;
        let mut done = 0;
        loop {
            let taken = self.inflight.take(&claim, &self.queue, depth).await?;
            if taken.jobs.is_empty() {
                return Ok(done);
            }
            let tickets: Vec<_> =
                taken.jobs.iter().map(|job| job.ticket(taken.incarnation)).collect();
            let finished = self.inflight.finish(&tickets, &Finish::Complete).await?;
            ensure!(finished.iter().all(|one| *one == Finished::Done), "somebody lost a job");
            done += tickets.len();
        }
    }
}
