//! Jobs in flight that are written through lapsed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::inflight::rules::{QueueEnd, RecoveryPolicy};
use lapsed_core::inflight::{
    Enqueued, Finish, Finished, InflightStore, Job, JobCounts, JobTicket, NewJob, Taken,
    TrackAnswer,
};
use lapsed_core::owner::{Beat, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::receipt::Receipt;
use lapsed_core::request::RequestId;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, PageRequest, Suspect, SuspectPage, Sweep, Tidied,
    TidyLimits,
};
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result, SystemId};
use tokio::sync::Notify;

use super::InflightLayout;
use super::batching::{Complete, TakeCall};
use super::operations::AnswerWords;
use super::queue_waiter::QueueWaiters;
use crate::Redis;
use crate::call_batcher::CallBatcher;
use crate::overdue_owners::{self, OverduePages};
use crate::owners::OwnerService;
use crate::queues::{QueueFormat, Queues};
use crate::system_context::{Args, Shard, SystemContext};
use crate::write_probe::PROBE;

/// How many names of queues are remembered, to name them to a script in advance.
const QUEUES_KNOWN: usize = 32;

/// Jobs in flight that are written through lapsed. Clones share them.
#[derive(Clone)]
pub struct NativeInflight {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub owners: OwnerService,
    pub recovery: RecoveryPolicy,
    queues: Queues,
    pages: OverduePages,
    waiters: Arc<QueueWaiters>,
    known: Mutex<BTreeSet<Name>>,
    pub takes: Arc<CallBatcher<TakeCall, AnswerWords>>,
    /// Takes whose answers were delivered, to be forgotten with the next one.
    pub delivered: Mutex<Vec<Name>>,
    pub completions: Arc<CallBatcher<Complete, Vec<Finished>>>,
}

impl NativeInflight {
    pub(super) fn open(redis: &Redis, id: SystemId, layout: InflightLayout) -> Result<Self> {
        let InflightLayout { prefix, queues, queue_key, heartbeat_ttl, recovery } = layout;
        let queues = Queues::new(queues, queue_key, &prefix, redis.is_cluster())?;
        let (connection, clock) = (redis.connection().clone(), redis.clock().clone());
        let context = SystemContext::new(connection, clock, id, heartbeat_ttl, vec![prefix]);
        let written = match queues.format {
            QueueFormat::Own => Vec::new(),
            _ => vec![queues.key.of(PROBE)],
        };
        redis.register_context(&context, written);
        let ttl_ms = context.threshold_ms();
        let owners = OwnerService { context, heartbeat: None, ttl_ms };
        let (pages, waiters, known) = (OverduePages::default(), Arc::default(), Mutex::default());
        let (takes, completions) = (Arc::default(), Arc::default());
        let delivered = Mutex::default();
        let inner = Inner {
            owners,
            recovery,
            queues,
            pages,
            waiters,
            known,
            takes,
            delivered,
            completions,
        };
        Ok(NativeInflight { inner: Arc::new(inner) })
    }

    pub(super) fn owners(&self) -> &OwnerService {
        &self.inner.owners
    }

    pub(super) fn context(&self) -> &Arc<SystemContext> {
        &self.inner.owners.context
    }

    /// The only shard of the system; all its keys are in one slot.
    pub(super) fn shard(&self) -> &Shard {
        &self.context().shards[0]
    }

    pub(super) fn key(&self, what: &str) -> String {
        self.shard().prefix.key(what)
    }

    pub(super) fn format(&self) -> QueueFormat {
        self.inner.queues.format
    }

    /// The key of one queue.
    pub(super) fn queue_key(&self, queue: &Name) -> String {
        match self.format() {
            QueueFormat::Own => self.key(&format!("queue:{queue}")),
            _ => self.inner.queues.key_of(queue),
        }
    }

    /// Sidekiq's set of queues; the scripts take `meta` for none.
    pub(super) fn set_of_queues(&self) -> String {
        self.inner.queues.names.clone().unwrap_or_else(|| self.key("meta"))
    }

    pub(super) fn outbox(&self) -> &str {
        self.inner.recovery.outbox.as_ref().map_or("", Name::as_str)
    }

    /// The keys that the hot scripts share: see `job_keys` in `inflight_prelude.lua`.
    pub(super) fn job_keys(&self) -> Args {
        const WHAT: [&str; 9] =
            ["meta", "lives", "names", "counts", "jobs", "dead", "queues", "crashes", "crashes_at"];
        let args = WHAT.iter().fold(Args::default(), |args, what| args.key(self.key(what)));
        args.key(self.set_of_queues())
    }

    /// Stores the format of the queues, so that the server-side functions use the same queues.
    async fn note_format(&self) -> Result<()> {
        if self.format() == QueueFormat::Own && self.outbox().is_empty() {
            return Ok(());
        }
        let mut cmd = redis::cmd("HSET");
        cmd.arg(self.key("meta")).arg("format").arg(self.format().as_str());
        cmd.arg("outbox").arg(self.outbox());
        let _: u64 = self.context().connection.query("HSET", &cmd).await?;
        Ok(())
    }

    /// The queues of recent jobs, which are named to a script in advance.
    pub(super) fn known_queues(&self) -> BTreeSet<Name> {
        let mut known = self.inner.known.lock().expect(LOCK).clone();
        known.extend(self.inner.recovery.outbox.clone());
        known
    }

    pub(super) fn remember(&self, queues: &BTreeSet<Name>) {
        let mut known = self.inner.known.lock().expect(LOCK);
        if known.len() + queues.len() > QUEUES_KNOWN {
            known.clear();
        }
        known.extend(queues.iter().take(QUEUES_KNOWN).cloned());
    }
}

const LOCK: &str = "no holder of this lock panics";

#[async_trait]
impl OwnerStore for NativeInflight {
    async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        self.owners().start(owner, ttl_ms).await
    }

    async fn start_once(&self, request: &RequestId, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        self.owners().start_once(request, owner, ttl_ms).await
    }

    async fn beat(&self, claim: &Claim) -> Result<Beat> {
        self.owners().beat(claim).await
    }

    async fn end(&self, claim: &Claim) -> Result<OwnerInfo> {
        self.owners().end(claim).await
    }

    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.owners().owners(after, limit).await
    }

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.owners().owner(claim).await
    }
}

#[async_trait]
impl Sweep for NativeInflight {
    fn system(&self) -> &SystemId {
        &self.context().id
    }

    fn threshold(&self) -> Duration {
        self.context().threshold
    }

    async fn census(&self) -> Result<Census> {
        let mut census = self.owners().count().await?;
        census.population = self.account().await?.in_flight;
        Ok(census)
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        self.inner.pages.page(self.owners(), &request).await
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        overdue_owners::after(0, suspect)
    }

    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        self.owners().left_by(claim, limit).await
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        self.reclaim_batch(&batch).await
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.context().settle(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.note_format().await?;
        self.owners().tidy(&limits).await
    }
}

#[async_trait]
impl InflightStore for NativeInflight {
    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.enqueue_jobs(None, jobs).await
    }

    async fn enqueue_once(&self, request: &RequestId, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.enqueue_jobs(Some(request), jobs).await
    }

    async fn take(&self, claim: &Claim, queue: &Name, limit: usize) -> Result<Taken> {
        self.take_jobs(None, claim, queue, limit).await
    }

    async fn take_once(
        &self,
        request: &RequestId,
        claim: &Claim,
        queue: &Name,
        limit: usize,
    ) -> Result<Taken> {
        self.take_jobs(Some(request), claim, queue, limit).await
    }

    async fn give_up_take(&self, request: &RequestId) -> Result<usize> {
        self.give_up_attempt(request).await
    }

    fn forget_take(&self, request: &RequestId) {
        self.note_delivered(&request.key);
    }

    fn waiter(&self, queue: &Name) -> Option<Arc<Notify>> {
        if self.format() == QueueFormat::Stream {
            return None;
        }
        let context = self.context();
        self.inner.waiters.notification(
            queue,
            || self.queue_key(queue),
            &context.connection,
            &context.clock,
        )
    }

    async fn register(&self, claim: &Claim, jobs: &[NewJob]) -> Result<TrackAnswer> {
        self.register_jobs(claim, jobs).await
    }

    async fn finish(&self, tickets: &[JobTicket], how: &Finish) -> Result<Vec<Finished>> {
        self.finish_claims(tickets, how).await
    }

    async fn job(&self, id: &Name) -> Result<Option<Job>> {
        self.find_job(id).await
    }

    async fn in_flight(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.owners().held_by(claim, after, limit).await
    }

    async fn counts(&self) -> Result<JobCounts> {
        self.account().await
    }

    async fn queues(&self, after: Option<&Name>, limit: usize) -> Result<Vec<(Name, u64)>> {
        self.list_queues(after, limit).await
    }

    async fn dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        self.list_dead(after, limit).await
    }

    async fn put_back(&self, id: &Name, end: QueueEnd) -> Result<bool> {
        let end = if end == QueueEnd::Front { "front" } else { "back" };
        self.move_letter(id, end).await
    }

    async fn delete(&self, id: &Name) -> Result<bool> {
        self.move_letter(id, "delete").await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.restore_job(seq).await
    }
}
