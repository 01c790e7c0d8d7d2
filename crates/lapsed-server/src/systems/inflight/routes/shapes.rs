//! The bodies and answers of the routes of jobs in flight.

use lapsed_core::Name;
use lapsed_core::inflight::rules::{OnDeath, QueueEnd};
use lapsed_core::inflight::{
    Claimed, Enqueued, JOBS_MAX, Job, NewJob, Taken, TrackAnswer, Tracked,
};
use lapsed_core::owner::{Beat, Claim, Incarnation};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{HttpResult as Result, claim, page_limit};
use crate::schemas;

/// The end of its queue that a job is put on; by default `front`, where it is the next to be taken.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndWord {
    #[default]
    Front,
    Back,
}

impl From<EndWord> for QueueEnd {
    fn from(word: EndWord) -> QueueEnd {
        match word {
            EndWord::Front => QueueEnd::Front,
            EndWord::Back => QueueEnd::Back,
        }
    }
}

impl From<QueueEnd> for EndWord {
    fn from(end: QueueEnd) -> EndWord {
        match end {
            QueueEnd::Front => EndWord::Front,
            QueueEnd::Back => EndWord::Back,
        }
    }
}

/// What is done with a job when its worker dies, if it differs from the system's configuration.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDeathWord {
    Front,
    Back,
    Fail,
    Drop,
    DeadLetter,
}

impl From<OnDeathWord> for OnDeath {
    fn from(word: OnDeathWord) -> OnDeath {
        match word {
            OnDeathWord::Front => OnDeath::Front,
            OnDeathWord::Back => OnDeath::Back,
            OnDeathWord::Fail => OnDeath::Fail,
            OnDeathWord::Drop => OnDeath::Drop,
            OnDeathWord::DeadLetter => OnDeath::DeadLetter,
        }
    }
}

/// A job to put on a queue.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnqueueBody {
    #[schema(example = "mails")]
    pub queue: String,
    /// The job's id: 1 to 512 bytes, no control characters; generated if it is absent.
    pub id: Option<String>,
    /// The application's data, stored unchanged; at most 1 MiB.
    pub payload: String,
    pub on_death: Option<OnDeathWord>,
    /// The number of crashes after which the job becomes a dead letter, if it differs from the
    /// system's configuration; 0: never.
    pub crashes_max: Option<u32>,
}

impl EnqueueBody {
    /// The job; `made_up` is its id if the body has none.
    pub fn read(self, made_up: impl FnOnce() -> String) -> Result<NewJob> {
        let id = self.id.unwrap_or_else(made_up);
        Ok(NewJob {
            id: Name::new(&id)?,
            queue: Name::new(&self.queue)?,
            payload: self.payload,
            on_death: self.on_death.map(OnDeath::from),
            crashes_max: self.crashes_max,
        })
    }
}

/// Many jobs to put on queues, at most 1,000.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnqueueManyBody {
    pub jobs: Vec<EnqueueBody>,
}

/// The result of enqueuing one job.
#[derive(Serialize, ToSchema)]
pub struct EnqueueAnswer {
    pub id: String,
    /// `queued`, or `exists` if there is already a job with this id.
    #[schema(value_type = String, example = "queued")]
    pub outcome: Enqueued,
}

/// One result per job, in the order of the request.
#[derive(Serialize, ToSchema)]
pub struct EnqueueManyAnswer {
    pub results: Vec<EnqueueAnswer>,
}

/// An owner and the queue that it takes jobs from.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeBody {
    #[schema(example = "worker-1")]
    pub owner: String,
    pub incarnation: Option<u64>,
    #[schema(example = "mails")]
    pub queue: String,
    /// The most jobs to take; by default 1, at most 1,000.
    pub limit: Option<usize>,
    /// How long to wait for the first job, in milliseconds; by default 0, at most 30,000.
    pub wait_ms: Option<u64>,
}

/// A job that the caller holds.
#[derive(Serialize, ToSchema)]
pub struct ClaimedJob {
    pub id: String,
    /// The token that identifies the claim in `complete`, `fail` and `give_back`.
    pub token: u64,
    pub queue: String,
    pub payload: String,
    /// How many workers died while they held the job, within the crash window.
    pub crashes: u32,
}

impl ClaimedJob {
    fn of(job: Claimed) -> ClaimedJob {
        let Claimed { id, token, queue, payload, crashes } = job;
        ClaimedJob { id: id.into(), token: token.0, queue: queue.into(), payload, crashes }
    }
}

/// The jobs that were taken, the longest queued first; possibly none.
#[derive(Serialize, ToSchema)]
pub struct TakeAnswer {
    #[serde(flatten)]
    #[schema(inline)]
    pub life: OwnerIncarnation,
    pub jobs: Vec<ClaimedJob>,
}

impl TakeAnswer {
    pub fn of(owner: String, taken: Taken) -> Self {
        let life = OwnerIncarnation::of(owner, taken.incarnation, taken.started);
        TakeAnswer { life, jobs: taken.jobs.into_iter().map(ClaimedJob::of).collect() }
    }
}

/// The owner that holds the jobs, and its incarnation.
#[derive(Serialize, ToSchema)]
pub struct OwnerIncarnation {
    pub owner: String,
    pub incarnation: u64,
    /// Whether this call started the incarnation.
    pub started: bool,
    /// The deadline of the incarnation's next heartbeat, if this call started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

impl OwnerIncarnation {
    fn of(owner: String, incarnation: Incarnation, started: Option<Beat>) -> OwnerIncarnation {
        OwnerIncarnation {
            owner,
            incarnation: incarnation.0,
            started: started.is_some(),
            deadline_ms: started.map(|beat| beat.deadline_ms),
            ttl_ms: started.map(|beat| beat.ttl_ms),
        }
    }
}

/// A job that the caller has popped from its queue itself.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterJobBody {
    pub owner: String,
    pub incarnation: Option<u64>,
    pub id: String,
    /// The queue that the job goes back to.
    pub queue: String,
    pub payload: String,
    pub on_death: Option<OnDeathWord>,
    pub crashes_max: Option<u32>,
}

impl RegisterJobBody {
    pub fn read(self) -> Result<(Claim, NewJob)> {
        let claim = claim(&self.owner, self.incarnation)?;
        let RegisterJobBody { id, queue, payload, on_death, crashes_max, .. } = self;
        Ok((claim, JobToTrack { id, queue, payload, on_death, crashes_max }.read()?))
    }
}

/// One of many jobs that the caller has popped from their queues itself.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobToTrack {
    pub id: String,
    pub queue: String,
    pub payload: String,
    pub on_death: Option<OnDeathWord>,
    pub crashes_max: Option<u32>,
}

impl JobToTrack {
    pub fn read(self) -> Result<NewJob> {
        let JobToTrack { id, queue, payload, on_death, crashes_max } = self;
        let made_up = || id.clone();
        EnqueueBody { queue, id: None, payload, on_death, crashes_max }.read(made_up)
    }
}

/// Many jobs that one owner has popped from their queues itself, at most 1,000.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterJobsBody {
    pub owner: String,
    pub incarnation: Option<u64>,
    pub jobs: Vec<JobToTrack>,
}

/// The result of tracking one job: `tracked` or `kept` (with `token`), or `taken`.
#[derive(Serialize, ToSchema)]
pub struct TrackedShape {
    pub outcome: String,
    pub token: Option<u64>,
}

/// The result of tracking a job. The job is in flight, unless `outcome` is `taken`: then there is
/// another job with this id.
#[derive(Serialize, ToSchema)]
pub struct RegisterJobAnswer {
    #[serde(flatten)]
    #[schema(inline)]
    pub life: OwnerIncarnation,
    #[serde(flatten)]
    #[schema(inline, value_type = TrackedShape)]
    pub outcome: Option<Tracked>,
}

impl RegisterJobAnswer {
    pub fn of(owner: Name, answer: TrackAnswer) -> Self {
        let life = OwnerIncarnation::of(owner.into(), answer.incarnation, answer.started);
        RegisterJobAnswer { life, outcome: answer.jobs.first().copied() }
    }
}

/// The result of tracking one of many jobs.
#[derive(Serialize, ToSchema)]
pub struct OneTracked {
    pub id: String,
    #[serde(flatten)]
    #[schema(inline, value_type = TrackedShape)]
    pub outcome: Tracked,
}

/// One result per job, in the order of the request.
#[derive(Serialize, ToSchema)]
pub struct RegisterJobsAnswer {
    #[serde(flatten)]
    #[schema(inline)]
    pub life: OwnerIncarnation,
    pub results: Vec<OneTracked>,
}

impl RegisterJobsAnswer {
    pub fn of(owner: Name, jobs: Vec<NewJob>, answer: TrackAnswer) -> Self {
        let life = OwnerIncarnation::of(owner.into(), answer.incarnation, answer.started);
        let pairs = jobs.into_iter().zip(answer.jobs);
        let results = pairs.map(|(job, outcome)| OneTracked { id: job.id.into(), outcome });
        RegisterJobsAnswer { life, results: results.collect() }
    }
}

/// One page of the jobs that one incarnation of an owner holds.
#[derive(Serialize, ToSchema)]
pub struct HeldJobs {
    pub jobs: Vec<String>,
    /// The cursor of the next page: pass it as `after`. Absent on the last page.
    pub next: Option<String>,
}

/// The page of a list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobPageQuery {
    /// Start after this name: `next` of the previous page.
    pub after: Option<String>,
    /// The length of the page, at most 1,000.
    pub limit: Option<usize>,
}

impl JobPageQuery {
    pub fn read(&self) -> Result<(Option<Name>, usize)> {
        let after = self.after.as_deref().map(Name::new).transpose()?;
        Ok((after, page_limit(self.limit)?.min(JOBS_MAX)))
    }
}

/// A queue that is not empty.
#[derive(Serialize, ToSchema)]
pub struct Queue {
    pub queue: String,
    /// How many jobs are on the queue.
    pub jobs: u64,
}

/// One page of the queues that are not empty.
#[derive(Serialize, ToSchema)]
pub struct Queues {
    pub queues: Vec<Queue>,
    /// The cursor of the next page: pass it as `after`. Absent on the last page.
    pub next: Option<String>,
}

/// One page of the dead letters.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadLetters {
    #[schema(value_type = Vec<schemas::Job>)]
    pub dead: Vec<Job>,
    /// The cursor of the next page: pass it as `after`. Absent on the last page.
    pub next: Option<String>,
}

/// A dead letter to put back, and the end of its queue.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutBackBody {
    pub id: String,
    #[serde(default)]
    pub end: EndWord,
}

/// The job that the call is about.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobBody {
    pub id: String,
}

/// The result of an operation on a dead letter.
#[derive(Serialize, ToSchema)]
pub struct LetterAnswer {
    pub id: String,
    /// The result: `queued` (put back) or `deleted`.
    pub outcome: &'static str,
}

/// What the graceful end of a worker did.
#[derive(Serialize, ToSchema)]
pub struct JobsRetireAnswer {
    pub owner: String,
    pub incarnation: u64,
    /// How many jobs were put back on their queues, each with a receipt.
    pub put_back: u64,
}
