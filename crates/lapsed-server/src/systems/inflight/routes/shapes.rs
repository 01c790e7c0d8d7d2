//! What the routes of jobs in flight are given and answer.

use lapsed_core::Name;
use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::inflight::rules::{OnDeath, QueueEnd};
use lapsed_core::inflight::{
    Claimed, Enqueued, JOBS_MAX, Job, NewJob, Taken, TrackAnswer, Tracked,
};
use lapsed_core::owner::{Beat, Claim, Incarnation};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{HttpResult as Result, claim, page_limit};
use crate::http::schemas;

/// Which end of its queue a job goes to: `front` (the next to be taken) unless told.
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

/// What becomes of a job when its worker dies, if not what the system does.
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

/// A job for a queue.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnqueueBody {
    #[schema(example = "mails")]
    pub queue: String,
    /// 1 to 512 bytes, no control characters. Made up when it is absent.
    pub id: Option<String>,
    /// The application's own, as it writes it; at most 1 MiB.
    pub payload: String,
    pub on_death: Option<OnDeathWord>,
    /// So many crashes and it is a dead letter, if not as many as the system says; 0: never.
    pub crashes_max: Option<u32>,
}

impl EnqueueBody {
    pub fn read(self) -> Result<NewJob> {
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

/// An id that nobody has.
fn made_up() -> String {
    let clock = SystemClock::new();
    format!("{:016x}{:016x}", clock.random(), clock.random())
}

/// Many jobs for queues; at most 1,000.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnqueueManyBody {
    pub jobs: Vec<EnqueueBody>,
}

/// What became of it.
#[derive(Serialize, ToSchema)]
pub struct EnqueueAnswer {
    pub id: String,
    /// `queued`, or `exists` when there is one of that id already.
    #[schema(value_type = String, example = "queued")]
    pub outcome: Enqueued,
}

/// One a job, in order.
#[derive(Serialize, ToSchema)]
pub struct EnqueueManyAnswer {
    pub results: Vec<EnqueueAnswer>,
}

/// Who takes, from where.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeBody {
    #[schema(example = "worker-1")]
    pub owner: String,
    pub incarnation: Option<u64>,
    #[schema(example = "mails")]
    pub queue: String,
    /// At most so many; 1 unless told, 1,000 at the most.
    pub limit: Option<usize>,
    /// How long to wait for the first; 0 unless told, 30,000 at the most.
    pub wait_ms: Option<u64>,
}

/// A job in the caller's hands.
#[derive(Serialize, ToSchema)]
pub struct ClaimedJob {
    pub id: String,
    /// To be shown at `complete`, `fail` and `give_back`.
    pub token: u64,
    pub queue: String,
    pub payload: String,
    /// How many workers died with it lately.
    pub crashes: u32,
}

impl ClaimedJob {
    fn of(job: Claimed) -> ClaimedJob {
        let Claimed { id, token, queue, payload, crashes } = job;
        ClaimedJob { id: id.into(), token: token.0, queue: queue.into(), payload, crashes }
    }
}

/// Those longest on the queue, in order; perhaps none.
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

/// Whose hands they are in.
#[derive(Serialize, ToSchema)]
pub struct OwnerIncarnation {
    pub owner: String,
    pub incarnation: u64,
    /// Whether this call began the life.
    pub started: bool,
    /// Until when that life lives, if this call began it.
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

/// A job that the caller has popped itself.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterJobBody {
    pub owner: String,
    pub incarnation: Option<u64>,
    pub id: String,
    /// Where it goes back to.
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

/// The same without its owner.
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
        EnqueueBody { queue, id: Some(id), payload, on_death, crashes_max }.read()
    }
}

/// Many jobs of one owner; at most 1,000.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterJobsBody {
    pub owner: String,
    pub incarnation: Option<u64>,
    pub jobs: Vec<JobToTrack>,
}

/// What became of registering one: `tracked` or `kept` (then `token`), or `taken`.
#[derive(Serialize, ToSchema)]
pub struct TrackedShape {
    pub outcome: String,
    pub token: Option<u64>,
}

/// It is in flight, unless `outcome` is `taken`: then there is a job of that id elsewhere.
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

/// One of many.
#[derive(Serialize, ToSchema)]
pub struct OneTracked {
    pub id: String,
    #[serde(flatten)]
    #[schema(inline, value_type = TrackedShape)]
    pub outcome: Tracked,
}

/// One a job, in order.
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

/// A page of the jobs that one life holds.
#[derive(Serialize, ToSchema)]
pub struct HeldJobs {
    pub jobs: Vec<String>,
    /// Where the next page begins: give it as `after`.
    pub next: Option<String>,
}

/// Which part of a list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobPageQuery {
    /// Those after this one: `next` of the page before.
    pub after: Option<String>,
    /// At most so many; 1,000 at the most.
    pub limit: Option<usize>,
}

impl JobPageQuery {
    pub fn read(&self) -> Result<(Option<Name>, usize)> {
        let after = self.after.as_deref().map(Name::new).transpose()?;
        Ok((after, page_limit(self.limit)?.min(JOBS_MAX)))
    }
}

/// A queue that holds something.
#[derive(Serialize, ToSchema)]
pub struct Queue {
    pub queue: String,
    /// How many.
    pub jobs: u64,
}

/// A page of queues.
#[derive(Serialize, ToSchema)]
pub struct Queues {
    pub queues: Vec<Queue>,
    /// Where the next page begins: give it as `after`.
    pub next: Option<String>,
}

/// A page of dead letters.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadLetters {
    #[schema(value_type = Vec<schemas::Job>)]
    pub dead: Vec<Job>,
    /// Where the next page begins: give it as `after`.
    pub next: Option<String>,
}

/// Which dead letter to put back, and where.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutBackBody {
    pub id: String,
    #[serde(default)]
    pub end: EndWord,
}

/// Which job.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobBody {
    pub id: String,
}

/// What became of a dead letter.
#[derive(Serialize, ToSchema)]
pub struct LetterAnswer {
    pub id: String,
    /// `queued` or `deleted`.
    pub outcome: &'static str,
}

/// What a graceful end did.
#[derive(Serialize, ToSchema)]
pub struct JobsRetireAnswer {
    pub owner: String,
    pub incarnation: u64,
    /// How many jobs are back on their queues, each with its receipt.
    pub put_back: u64,
}
