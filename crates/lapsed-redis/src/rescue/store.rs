//! The operations of jobs in flight, as far as a foreign system leaves them to lapsed: looking, and putting back.

use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::inflight::rules::QueueEnd;
use lapsed_core::inflight::{
    Enqueued, Finish, Finished, InflightStore, Job, JobCounts, JobPlace, JobTicket, JobToken,
    NewJob, Taken, TrackAnswer, Whereabouts,
};
use lapsed_core::owner::{Beat, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::receipt::Receipt;
use lapsed_core::request::RequestId;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, PageRequest, PassMode, Suspect, SuspectPage,
    Sweep, Tidied, TidyLimits,
};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result, SystemId};

use super::RescuedInflight;
use super::profile::SeenWorker;
use super::reader::Reader;
use super::survey::{Survey, after};
use crate::inflight::log_recovery;

impl RescuedInflight {
    fn foreign(&self, operation: &str) -> Error {
        let title = self.profile.facts().title;
        Error::Unsupported {
            operation: format!(
                "`{operation}` for jobs of {title}: lapsed only puts back what dead workers left; use {title} itself for it"
            ),
            store: self.context().place(),
        }
    }

    fn info(&self, owner: &Name, worker: &SeenWorker) -> OwnerInfo {
        OwnerInfo {
            owner: owner.clone(),
            incarnation: Incarnation(0),
            ttl_ms: self.limit_ms(),
            started_ms: 0,
            due_ms: worker.due_ms,
            held: worker.held,
            ended: None,
        }
    }

    fn in_flight_job(&self, survey: &Survey, id: &Name) -> Option<Job> {
        let job = survey.job(id)?;
        let due_ms = survey.seen.workers.get(&job.worker).map_or(0, |worker| worker.due_ms);
        Some(Job {
            id: id.clone(),
            queue: job.queue.clone(),
            payload: String::new(),
            crashes: 0,
            entered_ms: 0,
            place: JobPlace::InFlight {
                owner: job.worker.clone(),
                incarnation: Incarnation(0),
                token: JobToken(0),
                since_ms: 0,
                due_ms,
                ended: None,
            },
            now_ms: survey.now_ms,
        })
    }
}

#[async_trait]
impl OwnerStore for RescuedInflight {
    async fn start(&self, _: &Name, _: u64) -> Result<Beat> {
        Err(self.foreign("start"))
    }

    async fn beat(&self, _: &Claim) -> Result<Beat> {
        Err(self.foreign("beat"))
    }

    async fn end(&self, _: &Claim) -> Result<OwnerInfo> {
        Err(self.foreign("retire"))
    }

    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        if after.is_some() {
            return Ok(Vec::new());
        }
        let survey = self.look(PassMode::DryRun).await?;
        let workers = survey.seen.workers.iter().take(limit);
        Ok(workers.map(|(name, worker)| self.info(name, worker)).collect())
    }

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        let survey = self.look(PassMode::DryRun).await?;
        Ok(survey.seen.workers.get(&claim.owner).map(|worker| self.info(&claim.owner, worker)))
    }
}

#[async_trait]
impl Sweep for RescuedInflight {
    fn system(&self) -> &SystemId {
        &self.context().id
    }

    fn threshold(&self) -> Duration {
        self.context().threshold
    }

    async fn census(&self) -> Result<Census> {
        let survey = self.recent_look().await?;
        self.count(&survey).await
    }

    async fn survey(&self, act: PassMode) -> Result<Option<Census>> {
        let survey = self.look_for_pass(act).await?;
        Ok(Some(self.count(&survey).await?))
    }

    async fn confirm_adoption(&self) -> Result<u64> {
        self.confirm().await
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        Ok(self.last_or_look().await?.page(&request))
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        after(suspect)
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        self.reclaim_batch(&batch).await
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        let receipts = self.context().settle(batch).await?;
        receipts.iter().for_each(log_recovery);
        Ok(receipts)
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.forget_letters().await?;
        self.owners.tidy(&limits).await
    }
}

#[async_trait]
impl InflightStore for RescuedInflight {
    async fn enqueue(&self, _: &[NewJob]) -> Result<Vec<Enqueued>> {
        Err(self.foreign("enqueue"))
    }

    async fn take(&self, _: &Claim, _: &Name, _: usize) -> Result<Taken> {
        Err(self.foreign("take"))
    }

    async fn take_once(&self, _: &RequestId, _: &Claim, _: &Name, _: usize) -> Result<Taken> {
        Err(self.foreign("take"))
    }

    async fn register(&self, _: &Claim, _: &[NewJob]) -> Result<TrackAnswer> {
        Err(self.foreign("register"))
    }

    async fn finish(&self, _: &[JobTicket], how: &Finish) -> Result<Vec<Finished>> {
        Err(self.foreign(match how {
            Finish::Complete => "complete",
            Finish::Fail { .. } => "fail",
            Finish::GiveBack(_) => "give_back",
        }))
    }

    /// A job that lapsed has given up, or one of a worker that shows no sign of life. Other jobs are the foreign system's business.
    async fn job(&self, id: &Name) -> Result<Option<Job>> {
        if let Some(letter) = self.letter(id).await? {
            return Ok(Some(letter));
        }
        let survey = self.look(PassMode::DryRun).await?;
        Ok(self.in_flight_job(&survey, id))
    }

    async fn whereabouts(&self, id: &Name) -> Result<Option<Whereabouts>> {
        let reader =
            Reader { connection: &self.context().connection, clock: &*self.context().clock };
        let found = self.profile.find(&reader, id.as_str()).await?;
        Ok(found.map(|found| Whereabouts { state: found.state, because: found.because }))
    }

    async fn in_flight(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let survey = self.look(PassMode::DryRun).await?;
        let mut keys: Vec<Name> = survey
            .seen
            .jobs
            .iter()
            .filter(|job| job.worker == claim.owner && after.is_none_or(|after| job.key > *after))
            .map(|job| job.key.clone())
            .collect();
        keys.sort();
        keys.truncate(limit);
        Ok(keys)
    }

    /// What the foreign system has completed only it knows: those that entered are those that are somewhere.
    async fn counts(&self) -> Result<JobCounts> {
        let survey = self.recent_look().await?;
        let (queued, in_flight) = (survey.seen.queues.values().sum(), survey.seen.in_flight);
        let dead = self.count_letters().await?;
        let entered = queued + in_flight + dead;
        Ok(JobCounts { entered, queued, in_flight, dead, ..JobCounts::default() })
    }

    async fn queues(&self, after: Option<&Name>, limit: usize) -> Result<Vec<(Name, u64)>> {
        let survey = self.look(PassMode::DryRun).await?;
        let filled = survey.seen.queues.iter().filter(|(_, jobs)| **jobs > 0);
        let filled = filled.filter(|(name, _)| after.is_none_or(|after| *name > after));
        Ok(filled.take(limit).map(|(name, jobs)| (name.clone(), *jobs)).collect())
    }

    /// Those that lapsed has given up, as far as they are still where the foreign system keeps its own.
    async fn dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        self.letters(after, limit).await
    }

    async fn put_back(&self, id: &Name, end: QueueEnd) -> Result<bool> {
        self.retry_letter(id, end).await
    }

    async fn delete(&self, id: &Name) -> Result<bool> {
        self.remove_letter(id).await
    }

    async fn restore(&self, _: u64) -> Result<Restored> {
        let title = self.profile.facts().title;
        let why = format!(
            "a job of {title} that was put back belongs to {title} again; one that was dropped must be enqueued with {title} (its payload is in the receipt)"
        );
        Ok(Restored::Refused { why })
    }
}
