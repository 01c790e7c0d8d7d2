//! Jobs in flight that the application registers itself: seed 004's layout, and its successor's.
//!
//! The application pops, registers, beats and unregisters as it always did. Its index is sorted by
//! the time of the last heartbeat, so suspects come from there by bounded pages; the guard reads that
//! time again in the step that removes a job, writes the receipt and puts it where it goes.
//!
//! What is not here: taking, beating, finishing. A process that comes back gets no answer, because
//! it does not ask; its late unregistering finds nothing, and changes nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::inflight::rules::{OnDeath, QueueEnd};
use lapsed_core::inflight::{
    Enqueued, Finish, Finished, InflightStore, Job, JobCounts, JobTicket, NewJob, Taken,
    TrackAnswer,
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

use super::AdoptedInflightLayout;
use crate::Redis;
use crate::owners::OwnerService;
use crate::queues::Queues;
use crate::script;
use crate::system_context::{Args, Shard, SystemContext};
use crate::write_probe::PROBE;

/// Jobs in flight that the application registers itself.
pub struct AdoptedInflight {
    pub(super) owners: OwnerService,
    pub(super) layout: AdoptedInflightLayout,
    pub(super) queues: Queues,
    /// The queues of recent batches, which the next batch names at once.
    pub(super) known: Mutex<BTreeSet<Vec<u8>>>,
    /// The score of each job of the last page in the index, as the server wrote it.
    pub(super) places: Mutex<HashMap<Name, String>>,
    /// Who may hold the application's lock.
    pub(super) collector: Mutex<Option<Arc<str>>>,
    /// The last dead letter that a pass compared with Sidekiq's set.
    pub(super) compared: Mutex<Option<Name>>,
}

pub(super) const LOCK: &str = "no holder of this lock panics";

impl AdoptedInflight {
    pub(super) fn open(redis: &Redis, id: SystemId, layout: AdoptedInflightLayout) -> Result<Self> {
        let queues = layout.check(redis.is_cluster())?;
        let context = SystemContext::new(
            redis.connection().clone(),
            redis.clock().clone(),
            id,
            layout.orphan_threshold,
            vec![layout.index_key.clone()],
        );
        let keys = [&layout.index_key, &layout.jobs_key, &layout.gc_lock_key].into_iter();
        let keys = keys.chain(&layout.details_key).chain(&layout.details_index_key);
        let written = keys.cloned().chain([queues.key.of(PROBE)]).collect();
        redis.register_context(&context, written);
        let ttl_ms = context.threshold_ms();
        let owners = OwnerService { context, heartbeat: None, ttl_ms };
        Ok(AdoptedInflight {
            owners,
            layout,
            queues,
            known: Mutex::default(),
            places: Mutex::default(),
            collector: Mutex::default(),
            compared: Mutex::default(),
        })
    }

    pub(super) fn context(&self) -> &Arc<SystemContext> {
        &self.owners.context
    }

    pub(super) fn shard(&self) -> &Shard {
        &self.context().shards[0]
    }

    /// The name of one of lapsed's own keys.
    pub(super) fn own(&self, what: &str) -> String {
        self.shard().prefix.key(what)
    }

    /// The key that a script takes for "no key here": `meta`.
    pub(super) fn none(&self) -> String {
        self.own("meta")
    }

    pub(super) fn letters_key(&self) -> String {
        self.own("letters")
    }

    pub(super) fn letter_ids(&self) -> String {
        self.own("letter_ids")
    }

    /// Sidekiq's set of dead jobs; a key that never exists where the queues are not Sidekiq's.
    pub(super) fn dead_set(&self) -> String {
        self.queues.dead.clone().unwrap_or_else(|| self.own("no_dead_set"))
    }

    pub(super) fn crashes(&self) -> String {
        self.own("crashes")
    }

    pub(super) fn crashes_at(&self) -> String {
        self.own("crashes_at")
    }

    pub(super) fn restored(&self) -> String {
        self.own("restored")
    }

    /// The set of queues: Sidekiq's, or lapsed's own of those that it put jobs back to.
    pub(super) fn names(&self) -> String {
        self.queues.names.clone().unwrap_or_else(|| self.own("queues"))
    }

    /// The key that exists while the process that registered `id` is alive.
    pub(super) fn process(&self, id: &str) -> Option<String> {
        let process = process_of(id)?;
        Some(self.layout.process_key.as_ref()?.of(process))
    }

    /// Which end of its queue a job goes to.
    pub(super) fn end(&self) -> QueueEnd {
        match self.layout.recovery.on_death {
            OnDeath::Back => QueueEnd::Back,
            _ => QueueEnd::Front,
        }
    }

    fn unsupported_in_adopt(&self, operation: &str) -> Error {
        Error::Unsupported {
            operation: format!(
                "`{operation}` while mode = \"adopt\", because the application pops and registers \
                 its jobs itself (use mode = \"native\" to take them through lapsed)"
            ),
            store: self.context().place(),
        }
    }

    /// The application's keys that live only as long as they are renewed.
    fn expiring_keys(&self) -> Vec<&str> {
        let layout = &self.layout;
        let details = layout.details().into_iter().flat_map(|(one, other)| [one, other]);
        [layout.index_key.as_str(), &layout.jobs_key].into_iter().chain(details).collect()
    }

    /// The end of a pass: lets go of the lock, renews the application's keys (E4).
    async fn end_pass(&self, limits: &TidyLimits) -> Result<()> {
        let collector = self.collector.lock().expect(LOCK).clone();
        let mut args = Args::default()
            .key(&self.layout.gc_lock_key)
            .key(self.crashes())
            .key(self.crashes_at())
            .key(&self.layout.index_key)
            .arg(collector.as_deref().unwrap_or_default())
            .arg(self.layout.recovery.crash_window_ms)
            .arg(self.layout.keys_ttl_s())
            .arg(limits.rows.min(500))
            // While the brake is held, nothing of the application is changed.
            .arg(if limits.undeclared_max == Some(0) { "" } else { "date" });
        for key in self.expiring_keys() {
            args = args.key(key);
        }
        let dated: u64 = self.context().run_with_keys(&script::INFLIGHT_ADOPT_TIDY, args).await?;
        if dated > 0 {
            let system = &self.context().id;
            tracing::warn!(%system, dated, "heartbeats were dated after the server's present; they count from now on");
        }
        *self.collector.lock().expect(LOCK) = None;
        self.forget_settled_letters().await
    }
}

/// The part of a request's id that names its process, if it has one.
pub(super) fn process_of(id: &str) -> Option<&str> {
    id.split_once('/').map(|(process, _)| process).filter(|process| !process.is_empty())
}

/// The owner of a job: the process in its id, or the job itself if ids name no process.
pub(super) fn owner_of(id: &Name) -> Name {
    process_of(id.as_str()).and_then(|name| Name::new(name).ok()).unwrap_or_else(|| id.clone())
}

/// The word that the scripts know an end of a queue by.
pub(super) fn end_word(end: QueueEnd) -> &'static str {
    match end {
        QueueEnd::Front => "front",
        QueueEnd::Back => "back",
    }
}

#[async_trait]
impl OwnerStore for AdoptedInflight {
    async fn start(&self, _: &Name, _: u64) -> Result<Beat> {
        Err(self.unsupported_in_adopt("start"))
    }

    async fn beat(&self, _: &Claim) -> Result<Beat> {
        Err(self.unsupported_in_adopt("beat"))
    }

    async fn end(&self, _: &Claim) -> Result<OwnerInfo> {
        Err(self.unsupported_in_adopt("retire"))
    }

    /// Lists the owners by reading the whole index.
    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        if after.is_some() {
            return Ok(Vec::new());
        }
        self.processes(limit).await
    }

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.one_process(&claim.owner).await
    }
}

#[async_trait]
impl Sweep for AdoptedInflight {
    fn system(&self) -> &SystemId {
        &self.context().id
    }

    fn threshold(&self) -> Duration {
        self.context().threshold
    }

    async fn census(&self) -> Result<Census> {
        self.count().await
    }

    /// The index is sorted by time, so that nothing has to be read in full.
    async fn survey(&self, act: PassMode) -> Result<Option<Census>> {
        Ok(Some(self.count_and_observe(act).await?))
    }

    async fn confirm_adoption(&self) -> Result<u64> {
        self.confirm().await
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        self.page(&request).await
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        self.place_after(suspect)
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        self.reclaim_batch(&batch).await
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        let receipts = self.context().settle(batch).await?;
        receipts.iter().for_each(super::adopt_reclaim::log_recovery);
        Ok(receipts)
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.end_pass(&limits).await?;
        self.owners.tidy(&limits).await
    }
}

#[async_trait]
impl InflightStore for AdoptedInflight {
    async fn enqueue(&self, _: &[NewJob]) -> Result<Vec<Enqueued>> {
        Err(self.unsupported_in_adopt("enqueue"))
    }

    async fn take(&self, _: &Claim, _: &Name, _: usize) -> Result<Taken> {
        Err(self.unsupported_in_adopt("take"))
    }

    async fn take_once(&self, _: &RequestId, _: &Claim, _: &Name, _: usize) -> Result<Taken> {
        Err(self.unsupported_in_adopt("take"))
    }

    async fn register(&self, _: &Claim, _: &[NewJob]) -> Result<TrackAnswer> {
        Err(self.unsupported_in_adopt("register"))
    }

    async fn finish(&self, _: &[JobTicket], how: &Finish) -> Result<Vec<Finished>> {
        Err(self.unsupported_in_adopt(match how {
            Finish::Complete => "complete",
            Finish::Fail { .. } => "fail",
            Finish::GiveBack(_) => "give_back",
        }))
    }

    async fn job(&self, id: &Name) -> Result<Option<Job>> {
        self.find(id).await
    }

    async fn in_flight(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.held_by_process(&claim.owner, after, limit).await
    }

    async fn counts(&self) -> Result<JobCounts> {
        self.account().await
    }

    async fn queues(&self, after: Option<&Name>, limit: usize) -> Result<Vec<(Name, u64)>> {
        self.filled_queues(after, limit).await
    }

    async fn dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        self.letters(after, limit).await
    }

    async fn put_back(&self, id: &Name, end: QueueEnd) -> Result<bool> {
        self.put_letter_back(id, end).await
    }

    async fn delete(&self, id: &Name) -> Result<bool> {
        self.delete_letter(id).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.restore_receipt(seq).await
    }
}
