//! `inflight`: jobs that were popped from a queue and are being worked on. A job whose worker dies
//! goes back to its queue.
//!
//! A job is always in exactly one place: on a queue, in flight, or a dead letter. A job in flight
//! belongs to one *claim*: one incarnation of an owner (the worker) and a token that only grows.
//! When that incarnation has ended, one atomic step removes the job from the in-flight set, puts it
//! back on its queue, raises its crash count and writes the receipt. A claim that was recovered in
//! this way can no longer complete, fail or give back the job.
//!
//! This module holds what is the same for every store: the rules ([`rules`]), the operations
//! ([`Inflight`]), taking and ending jobs although answers are lost (`delivery`), a worker that sends
//! its own heartbeats ([`Worker`]), the explanation of a job's state (`explain`), and the conformance
//! suite.

#[cfg(feature = "conformance")]
pub mod conformance;
mod delivery;
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
use crate::request::{RequestId, not_repeatable};
use crate::sweep::Sweep;
use crate::system::Restored;
use rules::{DeadLetterReason, OnDeath, QueueEnd};

pub use delivery::HeldClaim;
pub use operations::{Inflight, InflightParts};
pub use worker::{JobOutcome, JobResult, Worker};

/// Heartbeat interval of a worker, as in the application that this system was modelled on.
pub const HEARTBEAT_INTERVAL_MS: u64 = 60_000;

/// How long a heartbeat lasts unless the configuration says otherwise: a worker that is silent for
/// longer is overdue.
pub const ORPHAN_THRESHOLD_MS: u64 = 300_000;

/// Largest number of jobs in one call.
pub const JOBS_MAX: usize = 1_000;

/// Largest payload of one job, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Number of one claim of one job. Each is larger than every earlier one of the same system, and
/// none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobToken(pub u64);

impl fmt::Display for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A job to be put on a queue or, if the application popped it itself, to be tracked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewJob {
    /// Id of the job, unique in its system while the job exists.
    pub id: Name,
    /// The queue that the job is put on, and that it goes back to.
    pub queue: Name,
    /// Data of the application; lapsed does not interpret it.
    pub payload: String,
    /// What happens to the job when its worker dies; `None`: what the system's policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_death: Option<OnDeath>,
    /// With this many crashes within the window the job becomes a dead letter; `None`: the limit of
    /// the system's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crashes_max: Option<u32>,
}

impl NewJob {
    /// A job that follows its system's policy.
    pub fn new(id: Name, queue: Name, payload: &str) -> NewJob {
        NewJob { id, queue, payload: payload.to_owned(), on_death: None, crashes_max: None }
    }
}

/// Refuses too many jobs and too large payloads.
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
    Err(Error::Invalid(format!(
        "one call may contain at most {JOBS_MAX} jobs; this one has {jobs}"
    )))
}

/// Result of putting one job on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Enqueued {
    /// The job is on its queue.
    Queued,
    /// A job with that id exists already (queued, in flight or a dead letter). Nothing changed.
    Exists,
}

/// A job that a worker has taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {
    pub id: Name,
    /// Must be presented to `complete`, `fail` and `give_back`.
    pub token: JobToken,
    /// The queue that the job was taken from.
    pub queue: Name,
    /// The payload as it was enqueued.
    pub payload: String,
    /// How many workers died with this job within the crash window.
    pub crashes: u32,
}

/// Answer to a `take`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The incarnation that holds the jobs.
    pub incarnation: Incarnation,
    /// Its first heartbeat, if this call started that incarnation because the owner's name was new.
    pub started: Option<Beat>,
    /// The jobs that were taken, those that waited longest first.
    pub jobs: Vec<Claimed>,
}

/// Result of registering one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
#[non_exhaustive]
pub enum Tracked {
    /// The job is now in flight.
    Tracked { token: JobToken },
    /// This incarnation held the job already, by the claim with this token.
    Kept { token: JobToken },
    /// A job with that id is on a queue, held by another claim, or a dead letter. Nothing changed.
    Taken,
}

/// Answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackAnswer {
    /// The incarnation that holds the jobs.
    pub incarnation: Incarnation,
    /// Its first heartbeat, if this call started that incarnation because the owner's name was new.
    pub started: Option<Beat>,
    /// One result per job, in the order of the call.
    pub jobs: Vec<Tracked>,
}

/// Proof of a claim, which its holder presents to end it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTicket {
    pub id: Name,
    /// Token of the claim.
    pub token: JobToken,
    /// The incarnation that the claim belongs to, if the caller knows it. Some stores then need one
    /// read less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
}

/// How a worker ends its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The work is done. The job is removed.
    Complete,
    /// The work cannot be done. The job becomes a dead letter.
    Fail {
        /// Error text of the worker, kept with the dead letter.
        error: String,
    },
    /// The work was not done. The job goes back to its queue and no crash is counted.
    GiveBack(QueueEnd),
}

/// Result of ending one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finished {
    /// The claim was current and has ended.
    Done,
    /// The incarnation of the claim was declared dead or has retired. Its jobs are recovered, or
    /// will be by the next pass. Nothing changed.
    OwnerEnded,
    /// The claim was recovered before: the job is back on its queue or held by another claim.
    /// Nothing changed.
    Superseded,
    /// The job does not exist: it was completed or dropped, or never existed. Nothing changed.
    Gone,
}

impl Finished {
    /// Whether the caller no longer held the job.
    pub fn is_lost(self) -> bool {
        self != Finished::Done
    }

    /// A sentence that says what happened and what the worker should do.
    pub fn describe(self) -> &'static str {
        match self {
            Finished::Done => "done",
            Finished::OwnerEnded => {
                "its owner was declared dead or has retired, and the job is, or is about to be, \
                 somebody else's; start a new incarnation, then take new work"
            }
            Finished::Superseded => {
                "this claim is over: the job was taken back and continues without it; discard what \
                 was done"
            }
            Finished::Gone => {
                "there is no such job any more: it was completed or removed by another process; \
                 discard what was done"
            }
        }
    }
}

/// Where a job is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
#[non_exhaustive]
pub enum JobPlace {
    Queued,
    InFlight {
        owner: Name,
        incarnation: Incarnation,
        token: JobToken,
        /// When it was claimed, in milliseconds of the store's clock.
        since_ms: u64,
        /// When that incarnation's heartbeat runs out, including the store-away grace.
        due_ms: u64,
        /// How and when that incarnation ended, if it did.
        ended: Option<(Ending, u64)>,
    },
    Dead {
        why: DeadLetterReason,
        /// When it became a dead letter, in milliseconds of the store's clock.
        at_ms: u64,
        /// Error text of its last worker, if it gave one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// Where the job is kept, in words, if the application keeps it itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept_in: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: Name,
    pub queue: Name,
    /// The payload as it was enqueued.
    pub payload: String,
    /// How many workers died with this job within the crash window.
    pub crashes: u32,
    /// When the job came into the system, on the store's clock; 0 if that is not known.
    pub entered_ms: u64,
    #[serde(flatten)]
    pub place: JobPlace,
    pub now_ms: u64,
}

/// What a store says about a job that it does not keep itself, because a foreign job system does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// `live` if the job's holder lives; otherwise where the job is, in the foreign system's own word.
    pub state: String,
    /// How that is known, in sentences.
    pub because: Vec<String>,
}

/// Totals of a system. They always balance: `entered = completed + queued + in_flight + dead +
/// dropped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Counts))]
pub struct JobCounts {
    /// Jobs that were enqueued, or registered after the application popped them.
    pub entered: u64,
    /// Jobs that were completed.
    pub completed: u64,
    /// Jobs on a queue.
    pub queued: u64,
    /// Jobs held by a worker.
    pub in_flight: u64,
    /// Jobs that will not be retried automatically.
    pub dead: u64,
    /// Jobs that were dropped with a receipt, and dead letters that were deleted.
    pub dropped: u64,
}

impl JobCounts {
    /// Whether the totals balance, so that no job is missing or counted twice.
    pub fn balances(&self) -> bool {
        let somewhere = self.completed + self.queued + self.in_flight + self.dead + self.dropped;
        self.entered == somewhere
    }
}

/// The `removed` field of this system's receipts: what was done with the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveredJob {
    pub queue: Name,
    /// The claim that was ended.
    pub token: JobToken,
    /// How many workers have died with this job within the window, including this one.
    pub crashes: u32,
    /// What was done with the job.
    pub did: RecoveryAction,
    /// Why the job became a dead letter, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<DeadLetterReason>,
    /// The payload, if the job was dropped and only the receipt keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The queue that the job is on now, if the policy moves jobs of dead workers to another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<Name>,
    /// When the job may run again, in milliseconds of the store's clock, if the policy delays jobs of dead workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_ms: Option<u64>,
    /// Where the dead letter was put, in words, if the application keeps it itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_in: Option<String>,
    /// How sure it is that the dead worker held the job, in words; `None`: the store knew it exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how_sure: Option<String>,
}

/// What was done with a job whose worker died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RecoveryAction {
    /// The job is back on its queue.
    PutBack,
    /// The job is a dead letter.
    DeadLetter,
    /// The job was removed; the receipt keeps its payload.
    Dropped,
}

impl RecoveryAction {
    /// The word used in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            RecoveryAction::PutBack => "put_back",
            RecoveryAction::DeadLetter => "dead_letter",
            RecoveryAction::Dropped => "dropped",
        }
    }
}

/// What a store implements for `inflight`.
///
/// Suspects are the jobs of incarnations that are overdue or ended: `key` is the job's id, `owner`
/// and `incarnation` are those of the holder. [`Sweep::reclaim`] judges the holder by
/// [`registry::rules`](crate::registry::rules) and decides what happens to the job by
/// [`rules::decide`]. One atomic step then removes the job from the in-flight set, puts it where it
/// belongs, counts the crash and writes the receipt ([`RecoveredJob`]). The population of a census
/// is the number of jobs in flight.
#[async_trait]
pub trait InflightStore: OwnerStore + Sweep {
    /// Puts jobs on their queues. Durable when the call returns; repeating it is safe.
    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;

    /// Like [`enqueue`](Self::enqueue) for a request that may be repeated: all its attempts get the
    /// same results, also if a job was completed since. `KeyReused` if the key came before with
    /// another fingerprint.
    async fn enqueue_once(&self, request: &RequestId, _jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        Err(not_repeatable(Some(self.system()), "enqueue", request))
    }

    /// Pops up to `limit` jobs and registers them in the same step, so that no job is only in a
    /// worker's memory. Returns at once, possibly with no job. `Lost` if that incarnation has
    /// ended.
    async fn take(&self, claim: &Claim, queue: &Name, limit: usize) -> Result<Taken>;

    /// Like [`take`](Self::take) for a request that may be repeated because its answer was lost. What
    /// was taken is kept under the request's key in the same step. Another attempt of the same request
    /// takes nothing: it gets the jobs that this claim still holds, with the same tokens. A take that
    /// found no job is not kept. `KeyReused` if the key came before with another fingerprint;
    /// `Unavailable` if this attempt was given up before.
    async fn take_once(
        &self,
        request: &RequestId,
        _claim: &Claim,
        _queue: &Name,
        _limit: usize,
    ) -> Result<Taken> {
        Err(not_repeatable(Some(self.system()), "take", request))
    }

    /// Gives up one attempt of a take whose answer did not reach its caller. The jobs that the request
    /// took go back to the front of their queues, unless another attempt of it was answered. If the
    /// store carries out this attempt only afterwards, the attempt is refused. Returns how many jobs
    /// were given back; repeating the call is safe.
    async fn give_up_take(&self, request: &RequestId) -> Result<usize> {
        Err(not_repeatable(Some(self.system()), "take", request))
    }

    /// The answer to this take reached its caller, who has no key to repeat it with: what is kept of it
    /// may be forgotten with the next take. Does not wait for the store.
    fn forget_take(&self, _request: &RequestId) {}

    /// Is notified when a job may have arrived on `queue`; may also be notified for nothing.
    /// `None`: the store cannot notify, and the caller polls.
    fn waiter(&self, _queue: &Name) -> Option<Arc<Notify>> {
        None
    }

    /// Tracks jobs that the application popped itself. `Lost` if that incarnation has ended.
    async fn register(&self, claim: &Claim, jobs: &[NewJob]) -> Result<TrackAnswer>;

    /// Ends claims, each only if it is the current claim of its job and its incarnation has not
    /// ended. After [`Error::Unavailable`] it is safe to repeat the call: `Gone` then says that the
    /// job was completed, by this claim or, if its worker was declared dead meanwhile, by another
    /// one.
    async fn finish(&self, tickets: &[JobTicket], how: &Finish) -> Result<Vec<Finished>>;

    async fn job(&self, id: &Name) -> Result<Option<Job>>;

    /// Where a job of a foreign job system is that [`job`](Self::job) does not know.
    async fn whereabouts(&self, _id: &Name) -> Result<Option<Whereabouts>> {
        Ok(None)
    }

    /// The jobs that one incarnation holds, ordered by id, those after `after`, at most `limit`.
    /// `Lost` if that incarnation has ended.
    async fn in_flight(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>>;

    async fn counts(&self) -> Result<JobCounts>;

    /// Queues that are not empty, each with its length, ordered by name, those after `after`, at
    /// most `limit`.
    async fn queues(&self, after: Option<&Name>, limit: usize) -> Result<Vec<(Name, u64)>>;

    /// Dead letters after `after`, ordered by id, at most `limit`.
    async fn dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>>;

    /// Puts a dead letter back on its queue and clears its crashes; whether there was one.
    async fn put_back(&self, id: &Name, end: QueueEnd) -> Result<bool>;

    /// Deletes a dead letter; whether there was one.
    async fn delete(&self, id: &Name) -> Result<bool>;

    /// Puts the job of receipt `seq` back on its queue: a dropped job from the receipt, a dead
    /// letter from where it is. Refused for a job that is on its queue, in flight or completed
    /// since. Marks the receipt in the same step.
    async fn restore(&self, seq: u64) -> Result<Restored>;
}
