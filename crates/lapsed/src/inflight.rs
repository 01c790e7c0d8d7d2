//! Jobs that go back to their queue when their worker dies.

mod assembly;

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::inflight::{
    Claimed, Finish, Finished, HEARTBEAT_INTERVAL_MS, HeldClaim, Inflight, NewJob,
    ORPHAN_THRESHOLD_MS, Worker,
};
use lapsed_core::owner::Owner;
use lapsed_core::{Error, Kind, Name, Result};

use crate::assembly::Assembly;
use crate::common::{Running, Settings, common_operations, common_settings, member_operations};
use crate::open::Lapsed;

pub use assembly::InflightSpec;
#[cfg(feature = "redis")]
pub use assembly::RedisInflight;
pub use lapsed_core::inflight::JobResult;
pub use lapsed_core::inflight::rules::{OnDeath, QueueEnd};

impl Lapsed {
    /// Jobs that go back to their queue when their worker dies.
    pub fn inflight(&self, name: &str) -> InflightBuilder {
        InflightBuilder::new(Settings::new(self, Kind::Inflight, name))
    }
}

/// A builder for a system of jobs in flight.
#[must_use]
pub struct InflightBuilder {
    settings: Settings,
    ttl: Duration,
    recovery: RecoveryPolicy,
    move_to: Option<String>,
}

impl InflightBuilder {
    pub(crate) fn new(settings: Settings) -> Self {
        let ttl = Duration::from_millis(ORPHAN_THRESHOLD_MS);
        InflightBuilder { settings, ttl, recovery: RecoveryPolicy::default(), move_to: None }
    }

    /// How long a worker may be silent before it is dead; by default 5 min.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Where the jobs of a dead worker go; by default to the front of their queue.
    pub fn on_death(mut self, on_death: OnDeath) -> Self {
        self.recovery.on_death = on_death;
        self
    }

    /// Moves the jobs of a dead worker to the back of another queue, to which they belong from then on.
    pub fn move_on_death(mut self, queue: &str) -> Self {
        self.move_to = Some(queue.to_owned());
        self
    }

    /// How many workers may die with one job before it becomes a dead letter; by default 3.
    pub fn crashes_max(mut self, crashes: u32) -> Self {
        self.recovery.crashes_max = crashes;
        self
    }

    common_settings!();

    /// What [`start`](Self::start) assembles the system from. The daemon's tests compare its own defaults with this.
    #[doc(hidden)]
    pub fn assembly(&self) -> Result<(Assembly, InflightSpec)> {
        let beat_every = Duration::from_millis(HEARTBEAT_INTERVAL_MS).min(self.ttl / 3);
        let move_to = self.move_to.as_deref().map(Name::new).transpose()?;
        let recovery = RecoveryPolicy { move_to, ..self.recovery.clone() };
        let spec = InflightSpec::new(self.ttl, beat_every, recovery);
        Ok((self.settings.assembly(self.ttl)?, spec))
    }

    /// Starts the system: from now on passes run, unless the schedule is manual.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a name or a duration is wrong, [`Error::Unsupported`] when the store
    /// cannot keep jobs.
    pub async fn start(self) -> Result<InflightSystem> {
        let (assembly, spec) = self.assembly()?;
        let store = self.settings.lapsed.store();
        let inflight = assembly.inflight(store, self.settings.id()?, spec)?;
        let running = self.settings.run(&assembly, inflight.clone(), store.store());
        let process = self.settings.lapsed.process().to_owned();
        let next = Arc::new(AtomicU64::new(1));
        Ok(InflightSystem { inflight, running, process, next })
    }
}

/// A started system of jobs in flight; it is swept until the last clone is dropped.
#[derive(Clone)]
pub struct InflightSystem {
    inflight: Arc<Inflight>,
    running: Arc<Running>,
    process: String,
    next: Arc<AtomicU64>,
}

impl InflightSystem {
    /// Puts a job on `queue` under a new unique id, and returns that id.
    ///
    /// # Errors
    /// After [`Error::Unavailable`] the job may be on its queue; use
    /// [`enqueue_as`](Self::enqueue_as) where a repeated call must not add a second job.
    pub async fn enqueue(&self, queue: &str, payload: &str) -> Result<String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", self.process);
        self.enqueue_as(&id, queue, payload).await?;
        Ok(id)
    }

    /// Puts the job `id` on `queue`; false if a job with this id exists already, and nothing changed.
    pub async fn enqueue_as(&self, id: &str, queue: &str, payload: &str) -> Result<bool> {
        let job = NewJob::new(Name::new(id)?, Name::new(queue)?, payload);
        let answer = self.inflight.enqueue(&[job]).await?;
        Ok(answer.first() == Some(&lapsed_core::inflight::Enqueued::Queued))
    }

    /// How many jobs are on `queue`.
    pub async fn queued(&self, queue: &str) -> Result<u64> {
        let (queue, mut after) = (Name::new(queue)?, None);
        loop {
            let page = self.inflight.queues(after.as_ref(), 1_000).await?;
            let Some((last, _)) = page.last() else { return Ok(0) };
            if let Some((_, jobs)) = page.iter().find(|(name, _)| *name == queue) {
                return Ok(*jobs);
            }
            after = Some(last.clone());
        }
    }

    /// Starts a new incarnation of the worker `name`, which sends heartbeats until it is dropped.
    pub async fn join(&self, name: &str) -> Result<InflightMember> {
        let owner = self.inflight.owner(name).await?;
        Ok(InflightMember { inflight: self.inflight.clone(), owner })
    }

    /// Works on jobs of `queue` under the name `worker`, up to `at_once` at a time, until this
    /// system is stopped. What `work` answers ends the job: `Ok` completes it (or gives it back,
    /// see [`JobResult`]), an error makes it a dead letter. A worker that was lost drops the work
    /// that is under way and starts a new incarnation.
    ///
    /// # Errors
    /// Errors that a retry cannot help. A store that is unavailable is waited for.
    pub async fn worker<D, E, F>(
        &self,
        worker: &str,
        queue: &str,
        at_once: usize,
        work: impl Fn(String) -> F,
    ) -> Result<()>
    where
        D: Into<JobResult>,
        E: Display,
        F: Future<Output = std::result::Result<D, E>>,
    {
        let (queue, stop) = (Name::new(queue)?, &self.running.signal);
        loop {
            let alive = Worker::start(self.inflight.clone(), worker).await?;
            let done = alive.run(&queue, at_once, stop, |job| work(job.payload)).await;
            match done {
                Ok(()) => return alive.retire().await.map(drop),
                Err(Error::Lost(lost)) => {
                    tracing::warn!(%lost, "the worker starts a new incarnation")
                }
                Err(error) => return Err(error),
            }
        }
    }

    common_operations!();
}

/// One incarnation of a worker. Sends heartbeats until it is dropped, leaves or is lost.
pub struct InflightMember {
    inflight: Arc<Inflight>,
    owner: Owner,
}

impl InflightMember {
    /// The next job of `queue`, which this worker then holds. `None`: the queue is empty.
    ///
    /// # Errors
    /// After [`Error::Unavailable`], and when the call is dropped before it returns, a job that was
    /// taken goes back to the front of its queue as soon as the store answers again.
    pub async fn take(&self, queue: &str) -> Result<Option<HeldJob>> {
        self.take_within(queue, Duration::ZERO).await
    }

    /// Like [`take`](Self::take), but waits up to `wait` while the queue is empty.
    pub async fn take_within(&self, queue: &str, wait: Duration) -> Result<Option<HeldJob>> {
        let (inflight, claim) = (&self.inflight, self.owner.claim());
        let taken = inflight.take_or_give_back(claim, &Name::new(queue)?, 1, wait).await?;
        Ok(taken.jobs.into_iter().next().map(|job| {
            let ticket = job.ticket(self.owner.incarnation());
            let claim = HeldClaim::new(inflight.clone(), self.owner.watch(), ticket);
            HeldJob { claim, job }
        }))
    }

    member_operations!();
}

/// A job that a worker holds. It stays in flight until it is completed, failed or given back, or
/// until its worker is dead; dropping this handle changes nothing.
///
/// The calls that end it are repeated while the store does not answer, until it does or the worker is
/// lost. A call that was dropped or has failed may be made again on the same handle.
pub struct HeldJob {
    claim: HeldClaim,
    job: Claimed,
}

impl HeldJob {
    /// The id of the job, unique in its system.
    pub fn id(&self) -> &str {
        self.job.id.as_str()
    }

    /// The payload, as it was enqueued.
    pub fn payload(&self) -> &str {
        &self.job.payload
    }

    /// How many workers have died with this job within the window.
    pub fn crashes(&self) -> u32 {
        self.job.crashes
    }

    /// The fencing token of this claim, to pass along with what the work writes elsewhere.
    pub fn token(&self) -> u64 {
        self.job.token.0
    }

    /// The work is done: the job is gone. `false`: this worker no longer held it, and nothing
    /// changed; discard what was done.
    ///
    /// # Errors
    /// After [`Error::Unavailable`] the worker was lost while the store did not answer. The job may be
    /// gone, or it will be recovered; another call finds out.
    pub async fn complete(&self) -> Result<bool> {
        self.end(Finish::Complete).await
    }

    /// The work cannot be done: the job becomes a dead letter. `false` and errors: see
    /// [`complete`](Self::complete).
    pub async fn fail(&self, error: &str) -> Result<bool> {
        self.end(Finish::Fail { error: error.to_owned() }).await
    }

    /// The work was not done: the job goes back to the front of its queue. `false` and errors: see
    /// [`complete`](Self::complete).
    pub async fn give_back(&self) -> Result<bool> {
        self.end(Finish::GiveBack(QueueEnd::Front)).await
    }

    async fn end(&self, how: Finish) -> Result<bool> {
        Ok(self.claim.finish(&how).await? == Finished::Done)
    }
}
