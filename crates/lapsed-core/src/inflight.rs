//! `inflight`: jobs popped from a queue and being worked on, put back when their worker dies.
//!
//! A job is on a queue, in flight, or a dead letter; there is no moment at which it is nowhere. In
//! flight it belongs to one *claim*: one life of an owner (the worker), and a token that only grows.
//! When that life is over the job leaves the in-flight set and is back on its queue, with its crash
//! count raised and the receipt written, in one step. A claim that was recovered can no longer
//! complete, fail or give back anything.
//!
//! What is written here once, for every store: the rules ([`rules`]), the operations ([`Inflight`]),
//! a worker that beats by itself ([`Worker`]), why a job is where it is (`explain`), and the
//! conformance suite that every store must pass.

#[cfg(feature = "conformance")]
pub mod conformance;
mod explain;
mod operations;
pub mod rules;
mod worker;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::{Beat, Claim, Ending, Incarnation, OwnerStore};
use crate::sweep::{Suspect, Sweep};
use crate::system::Restored;
use rules::{DeadLetterReason, OnDeath, QueueEnd};

pub use operations::{Inflight, InflightParts, RetiredWorker};
pub use worker::{JobOutcome, JobResult, Worker};

/// How often a worker of the original beats.
pub const HEARTBEAT_INTERVAL_MS: u64 = 60_000;

/// After how long a silence the original takes a job for an orphan: how long a beat lasts unless told.
pub const ORPHAN_THRESHOLD_MS: u64 = 300_000;

/// The most jobs in one call.
pub const JOBS_MAX: usize = 1_000;

/// The most bytes of one job's payload.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// One claim of one job: each larger than every one before it in its system, and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobToken(pub u64);

impl fmt::Display for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A job to be put on a queue, or (popped by somebody else) to be tracked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewJob {
    /// Which job. Unique in its system for as long as it is there.
    pub id: Name,
    /// The queue that it is put on, or goes back to.
    pub queue: Name,
    /// The application's own, as it writes it.
    pub payload: String,
    /// What becomes of it when its worker dies, if not what the system does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_death: Option<OnDeath>,
    /// So many crashes within the window and it is a dead letter, if not as many as the system says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crashes_max: Option<u32>,
}

impl NewJob {
    /// A job that follows its system's rules.
    pub fn new(id: Name, queue: Name, payload: &str) -> NewJob {
        NewJob { id, queue, payload: payload.to_owned(), on_death: None, crashes_max: None }
    }
}

/// Refuses what no store should be asked to carry.
fn check(jobs: &[NewJob]) -> Result<()> {
    check_count(jobs.len())?;
    match jobs.iter().find(|job| job.payload.len() > PAYLOAD_BYTES_MAX) {
        None => Ok(()),
        Some(job) => Err(Error::Invalid(format!(
            "a payload has at most {PAYLOAD_BYTES_MAX} bytes; that of `{}` has {}",
            job.id,
            job.payload.len()
        ))),
    }
}

fn check_count(jobs: usize) -> Result<()> {
    if jobs <= JOBS_MAX {
        return Ok(());
    }
    Err(Error::Invalid(format!("one call carries at most {JOBS_MAX} jobs; this one has {jobs}")))
}

/// What became of putting one job on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enqueued {
    /// It is on its queue.
    Queued,
    /// There is a job of that id already (queued, in flight or a dead letter): nothing changed.
    Exists,
}

/// A job in somebody's hands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {
    pub id: Name,
    /// To be shown at `complete`, `fail` and `give_back`.
    pub token: JobToken,
    /// Where it came from.
    pub queue: Name,
    /// As it was put there.
    pub payload: String,
    /// How many workers died with it within the window.
    pub crashes: u32,
}

/// The answer to a `take`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The life that holds them now.
    pub incarnation: Incarnation,
    /// Whether this call began that life (a name never seen before).
    pub started: Option<Beat>,
    /// What was taken: those longest on the queue, in order.
    pub jobs: Vec<Claimed>,
}

/// What became of registering one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Tracked {
    /// It is in flight.
    Tracked { token: JobToken },
    /// This life held it already, by this claim.
    Kept { token: JobToken },
    /// There is a job of that id, on a queue, in other hands or a dead letter: nothing changed.
    Taken,
}

/// The answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackAnswer {
    /// The life that holds them now.
    pub incarnation: Incarnation,
    /// Whether this call began that life (a name never seen before).
    pub started: Option<Beat>,
    /// One a job, in order.
    pub jobs: Vec<Tracked>,
}

/// A claim, as its holder shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTicket {
    pub id: Name,
    /// Which claim of it.
    pub token: JobToken,
    /// Which life the claim belongs to, if the caller knows: spares some stores a second look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
}

/// How a claim ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The work is done: the job is gone.
    Complete,
    /// The work cannot be done: a dead letter, with what the worker says of it.
    Fail {
        /// In the worker's words.
        error: String,
    },
    /// The work was not done, and nobody died: back on its queue, no crash.
    GiveBack(QueueEnd),
}

/// What became of ending one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finished {
    /// It was the current claim, and it has ended.
    Done,
    /// The life that it belongs to was declared dead or has retired: its jobs are, or are about to
    /// be, somebody else's. Nothing changed.
    OwnerEnded,
    /// The job is on, by another claim or back on its queue: this one is over. Nothing changed.
    Superseded,
    /// There is no such job: completed, dropped, or never there. Nothing changed.
    Gone,
}

impl Finished {
    /// Whether the caller no longer held what it acted on.
    pub fn is_lost(self) -> bool {
        self != Finished::Done
    }

    /// What happened, and what to do.
    pub fn describe(self) -> &'static str {
        match self {
            Finished::Done => "done",
            Finished::OwnerEnded => {
                "its owner was declared dead or has retired, and the job is, or is about to be, \
                 somebody else's; start a new incarnation, then take new work"
            }
            Finished::Superseded => {
                "this claim is over: the job was taken back and goes on without it; discard what \
                 was done"
            }
            Finished::Gone => {
                "there is no such job any more: it was completed or removed by somebody else; \
                 discard what was done"
            }
        }
    }
}

/// Where a job is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum JobPlace {
    Queued,
    InFlight {
        owner: Name,
        incarnation: Incarnation,
        token: JobToken,
        /// Since when, on the store's clock.
        since_ms: u64,
        /// Until when that life lives, the store-away grace included.
        due_ms: u64,
        /// How and when it ended.
        ended: Option<(Ending, u64)>,
    },
    Dead {
        why: DeadLetterReason,
        /// Since when, on the store's clock.
        at_ms: u64,
        /// What its last worker said, if it said something.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: Name,
    pub queue: Name,
    /// As it was put there.
    pub payload: String,
    /// How many workers died with it within the window.
    pub crashes: u32,
    /// When it came into the system, on the store's clock; 0 where that is not known.
    pub entered_ms: u64,
    #[serde(flatten)]
    pub place: JobPlace,
    pub now_ms: u64,
}

/// The account of a system. Whatever happens:
/// `entered = completed + queued + in_flight + dead + dropped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCounts {
    /// Jobs that were put on a queue, or registered as popped by somebody else.
    pub entered: u64,
    /// Jobs that were completed.
    pub completed: u64,
    /// Jobs on a queue.
    pub queued: u64,
    /// Jobs in somebody's hands.
    pub in_flight: u64,
    pub dead: u64,
    /// Jobs that were dropped with a receipt, and dead letters that were deleted.
    pub dropped: u64,
}

impl JobCounts {
    /// Whether every job is somewhere.
    pub fn balances(&self) -> bool {
        let somewhere = self.completed + self.queued + self.in_flight + self.dead + self.dropped;
        self.entered == somewhere
    }
}

/// What a receipt of this system says was done: its `removed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveredJob {
    pub queue: Name,
    /// The claim that was ended.
    pub token: JobToken,
    /// How many workers have died with it within the window, this one included.
    pub crashes: u32,
    /// What was done with it.
    pub did: RecoveryAction,
    /// DeadLetterReason it is a dead letter, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<DeadLetterReason>,
    /// What it carried, if nothing else keeps it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
}

/// What was done with a job whose worker died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryAction {
    /// It is back on its queue.
    PutBack,
    /// It is a dead letter.
    DeadLetter,
    /// It is gone; the receipt keeps what it carried.
    Dropped,
}

/// The seam that stores fill for `inflight`.
///
/// Suspects are the jobs of lives that are overdue or ended: the key is the job's id, owner and
/// incarnation are that life's. [`Sweep::reclaim`] judges the life as
/// [`registry::rules`](crate::registry::rules) has it, decides by [`rules::decide`] what becomes of
/// the job, and does it in the same step: it leaves the in-flight set, is where it goes, its crash
/// is counted, the receipt ([`RecoveredJob`]) is written. The population of a census is what is in
/// flight.
#[async_trait]
pub trait InflightStore: OwnerStore + Sweep {
    /// Puts jobs on their queues. Durable when answered; repeating is safe.
    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;

    /// Pops up to `limit` jobs and registers them in the same step, so that no job is only in a
    /// worker's memory. Answers at once, perhaps with none. `Lost` when that life has ended.
    async fn take(&self, claim: &Claim, queue: &Name, limit: usize) -> Result<Taken>;

    /// Rings when something may have arrived on `queue`; may ring for nothing. `None`: look again
    /// after a while.
    fn bell(&self, _queue: &Name) -> Option<Arc<Notify>> {
        None
    }

    /// Tracks jobs that somebody else has popped. `Lost` when that life has ended.
    async fn register(&self, claim: &Claim, jobs: &[NewJob]) -> Result<TrackAnswer>;

    /// Ends claims, each if it is still the current one of its job and its life has not ended.
    /// After a call that failed with [`Error::Unavailable`] it is safe to repeat it: `Gone` then says
    /// that the job was completed, by this claim or (if its worker was taken for dead meanwhile) by
    /// another.
    async fn finish(&self, tickets: &[JobTicket], how: &Finish) -> Result<Vec<Finished>>;

    async fn job(&self, id: &Name) -> Result<Option<Job>>;

    /// The jobs that one life holds, by id, those after `after`, at most `limit`. `Lost` when that
    /// life has ended.
    async fn in_flight(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>>;

    /// What one *ended* life still holds, as suspects, at most `limit`: what retiring puts back.
    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>>;

    async fn counts(&self) -> Result<JobCounts>;

    /// Queues that hold something, by name, those after `after`, at most `limit`, each with how many.
    async fn queues(&self, after: Option<&Name>, limit: usize) -> Result<Vec<(Name, u64)>>;

    /// Dead letters, by id, those after `after`, at most `limit`.
    async fn dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>>;

    /// Puts a dead letter back on its queue, its crashes forgotten; whether there was one.
    async fn put_back(&self, id: &Name, end: QueueEnd) -> Result<bool>;

    /// Deletes a dead letter; whether there was one.
    async fn delete(&self, id: &Name) -> Result<bool>;

    /// Puts the job of receipt `seq` on its queue: what was dropped, from the receipt; a dead
    /// letter, from there. Refused for a job that is on its queue, in flight or completed since.
    /// Marks the receipt in the same step.
    async fn restore(&self, seq: u64) -> Result<Restored>;
}
