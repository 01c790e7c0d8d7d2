//! Leases and decisions as objects: one conditional write decides each.
//!
//! Layout: `<namespace>/meta/<key>.pb` is the truth about a key, `.txn-decisions/m/<txn>` about a
//! transaction; `<namespace>/.lease-index/<bucket>/<key>` and `.txn-decisions/e/<bucket>/<txn>` say where a
//! sweep should look when the bucket's time is over. An entry is written before what it points to (D2),
//! and an entry of a bucket that is not over is never deleted. `.lapsed/token-floor` is what no token of
//! a new record is below ([`forget`]).

mod cache;
mod change;
mod decisions;
mod forget;
mod reclaim;
mod reconcile;
mod restore;
mod sweep;
mod walk;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use lapsed_core::leases::rules::{ClockReading, StagedState};
use lapsed_core::leases::{
    AcquireRequest, Acquired, Decision, DecisionInfo, FORGET_AFTER_MS, Fenced, Grant, LeaseInfo,
    LeaseKey, LeaseState, LeaseTicket, LeasesStore, Namespace, Subject, WithCleared,
};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result, SystemId};

use crate::document::Content;
use crate::log::Log;
use crate::names::{BucketWidth, escape, namespace};
use crate::objects::ListRequest;
use crate::system_context::{Found, SystemContext};
use cache::Cache;
use change::{Change, ChangeAnswer};
use forget::{ForgetPlan, KnownFloor};
use walk::Walks;

/// How many objects are read at the same time.
const AT_ONCE: usize = 8;

/// How the leases of one system lie in the store.
#[derive(Clone, Debug)]
pub struct LeasesLayout {
    /// The width of a bucket of the index; it must divide a day. It may be changed at any time:
    /// entries of another width are found all the same.
    pub bucket: Duration,
    /// For how many keys the last written record is cached, which saves reading it again.
    pub remembered: usize,
    /// The most requests that one pass may send. `None`: only the caps of the pass limit it.
    pub requests_per_pass: Option<u64>,
    /// How long the record of a key that nobody uses is kept. `None`: for ever.
    pub forget_after: Option<Duration>,
    /// The pause of a pass between two entries.
    pub entry_delay: Duration,
    /// How long a batch may take after its intention was written. Another process settles it afterwards.
    pub log_open_max: Duration,
}

impl Default for LeasesLayout {
    fn default() -> Self {
        LeasesLayout {
            bucket: Duration::from_secs(3_600),
            remembered: 10_000,
            requests_per_pass: None,
            forget_after: Some(Duration::from_millis(FORGET_AFTER_MS)),
            entry_delay: Duration::ZERO,
            log_open_max: crate::log::LOG_OPEN_MAX,
        }
    }
}

/// The leases of one system.
pub struct ObjectLeases {
    context: Arc<SystemContext>,
    /// The same store with a separate budget of requests, for reconciling.
    reconciling: Arc<SystemContext>,
    log: Arc<Log>,
    id: SystemId,
    width: BucketWidth,
    cache: Cache,
    walks: Walks,
    settled: std::sync::Mutex<Vec<lapsed_core::sweep::BatchId>>,
    batches: std::sync::atomic::AtomicU64,
    requests_per_pass: Option<u64>,
    pass_budget: sweep::PassBudget,
    entries_deleted: std::sync::atomic::AtomicU64,
    forget: Option<ForgetPlan>,
    floor: KnownFloor,
    forgotten: std::sync::atomic::AtomicU64,
    entry_delay: Duration,
    /// The most entries of one log object, so that it does not stay open for too long.
    logged_max: usize,
}

impl ObjectLeases {
    pub(crate) fn new(
        (context, reconciling): (Arc<SystemContext>, Arc<SystemContext>),
        log: Arc<Log>,
        id: SystemId,
        layout: LeasesLayout,
    ) -> Result<Self> {
        let width = BucketWidth::new(layout.bucket)?;
        if layout.log_open_max.is_zero() {
            return Err(Error::Invalid("`log_open_max` must be longer than 0".to_owned()));
        }
        Ok(ObjectLeases {
            context,
            reconciling,
            log,
            id,
            width,
            cache: Cache::new(layout.remembered),
            walks: Walks::default(),
            settled: Default::default(),
            batches: Default::default(),
            requests_per_pass: layout.requests_per_pass,
            pass_budget: Default::default(),
            entries_deleted: Default::default(),
            forget: layout.forget_after.map(ForgetPlan::new),
            floor: KnownFloor::default(),
            forgotten: Default::default(),
            entry_delay: layout.entry_delay,
            logged_max: reclaim::logged_max(layout.entry_delay, layout.log_open_max),
        })
    }

    /// How many entries of the index were deleted since the system was opened, for metrics.
    pub fn entries_deleted(&self) -> u64 {
        self.entries_deleted.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The stored state of a key, for calls that only read.
    async fn describe_stored(&self, namespace: &str, name: &str) -> Result<Option<LeaseInfo>> {
        let path = self.context.paths.meta(namespace, name);
        match self.context.find(&path, Some(namespace)).await? {
            Found::Document(held) => {
                Ok(described(held.doc.content, &self.context.clock_reading().await?))
            }
            Found::Nothing => Ok(None),
            Found::Unreadable(what) => {
                Err(Error::Corrupt { store: self.context.name().to_owned(), what })
            }
        }
    }

    /// Like [`Self::describe_stored`], for a listing: an unreadable record must not hide the others.
    async fn describe_or_skip(&self, namespace: &str, name: &str) -> Result<Option<LeaseInfo>> {
        match self.describe_stored(namespace, name).await {
            Err(Error::Corrupt { what, .. }) => {
                tracing::warn!(system = %self.id, what, "left out of a listing");
                Ok(None)
            }
            other => other,
        }
    }
}

/// Runs `calls`, a few at the same time, and returns their answers in order.
pub(crate) async fn run_bounded<F: Future>(calls: Vec<F>) -> Vec<F::Output> {
    futures::stream::iter(calls).buffered(AT_ONCE).collect().await
}

impl ObjectLeases {
    /// Like [`run_bounded`], for the entries of a pass: one after the other if the pass pauses between
    /// entries.
    pub(crate) async fn run_entries<F: Future>(&self, calls: Vec<F>) -> Vec<F::Output> {
        let at_once = if self.entry_delay.is_zero() { AT_ONCE } else { 1 };
        futures::stream::iter(calls).buffered(at_once).collect().await
    }
}

fn described(content: Content, at: &ClockReading) -> Option<LeaseInfo> {
    match content {
        // A record without a token: nobody has held the key since it was made.
        Content::Lease(key, record) if record.token.0 > 0 => Some(LeaseInfo::new(&key, record, at)),
        Content::Lease(..) | Content::Decision(..) => None,
    }
}

#[async_trait]
impl LeasesStore for ObjectLeases {
    async fn acquire(&self, acquire: &AcquireRequest) -> Result<WithCleared<Acquired>> {
        // The request needs a name: without one, its own attempt in doubt looks like a competitor's.
        let own = || Name::new(&format!("~{:016x}", self.context.nonce()));
        let request = acquire.request.clone().map_or_else(own, Ok)?;
        let acquire = AcquireRequest { request: Some(request), ..acquire.clone() };
        let key = acquire.key.clone();
        let met = self.change(&key, &Change::Acquire(acquire)).await?;
        Ok(WithCleared { answer: met.answer.acquired()?, cleared: met.cleared })
    }

    async fn renew(
        &self,
        ticket: &LeaseTicket,
        ttl_ms: Option<u64>,
    ) -> Result<WithCleared<Fenced<Grant>>> {
        let met = self.change(&ticket.key, &Change::Renew(ticket.token, ttl_ms)).await?;
        Ok(WithCleared { answer: met.answer.fenced_grant()?, cleared: met.cleared })
    }

    async fn release(&self, ticket: &LeaseTicket) -> Result<WithCleared<Fenced<()>>> {
        self.fenced(&ticket.key, Change::Release(ticket.token)).await
    }

    async fn describe(&self, key: &LeaseKey) -> Result<WithCleared<Option<LeaseInfo>>> {
        let met = self.change(key, &Change::Describe).await?;
        match met.answer {
            ChangeAnswer::Described(found) => {
                Ok(WithCleared { answer: found, cleared: met.cleared })
            }
            other => Err(other.unexpected()),
        }
    }

    async fn peek(&self, key: &LeaseKey) -> Result<Option<LeaseInfo>> {
        self.describe_stored(key.namespace.as_str(), &escape(key.key.as_str())).await
    }

    async fn list(
        &self,
        namespace: &Namespace,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<LeaseInfo>> {
        let prefix = self.context.paths.metas(namespace.as_str());
        let after = after.map(|after| format!("{}.pb", escape(after.as_str())));
        let mut token = None;
        let mut all = Vec::new();
        loop {
            let request = ListRequest {
                prefix: &prefix,
                after: after.as_deref(),
                token,
                limit: limit - all.len(),
                ..ListRequest::default()
            };
            let listing = self.context.objects.list(request).await?;
            let names = listing.names.iter().filter_map(|name| name.strip_suffix(".pb"));
            let looks = names.map(|name| self.describe_or_skip(namespace.as_str(), name)).collect();
            let found: Result<Vec<Option<LeaseInfo>>> =
                run_bounded(looks).await.into_iter().collect();
            all.extend(found?.into_iter().flatten());
            all.truncate(limit);
            token = listing.token;
            // Only a page that is not full is the last one, even if records were left out of it.
            if all.len() == limit || token.is_none() {
                return Ok(all);
            }
        }
    }

    async fn namespaces(&self, after: Option<&Namespace>, limit: usize) -> Result<Vec<Namespace>> {
        let mut found = Vec::new();
        let mut token = None;
        loop {
            let request = ListRequest {
                prefix: self.context.paths.root(),
                flat: true,
                after: after.map(Namespace::as_str),
                token,
                limit: 1_000,
            };
            let listing = self.context.objects.list(request).await?;
            found.extend(listing.folders.iter().filter_map(|name| namespace(name)));
            token = listing.token;
            if found.len() >= limit || token.is_none() {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }

    async fn set_state(
        &self,
        ticket: &LeaseTicket,
        state: Option<&LeaseState>,
    ) -> Result<WithCleared<Fenced<()>>> {
        self.fenced(&ticket.key, Change::SetState(ticket.token, state.cloned())).await
    }

    async fn stage(
        &self,
        ticket: &LeaseTicket,
        staged: Option<&StagedState>,
    ) -> Result<WithCleared<Fenced<()>>> {
        self.fenced(&ticket.key, Change::Stage(ticket.token, staged.cloned())).await
    }

    async fn decide(
        &self,
        txn: &Name,
        decision: Decision,
        ttl_ms: u64,
    ) -> Result<WithCleared<DecisionInfo>> {
        self.decide_once(txn, decision, ttl_ms).await
    }

    async fn decision(&self, txn: &Name) -> Result<WithCleared<Option<DecisionInfo>>> {
        self.decision_kept(txn).await
    }

    async fn peek_decision(&self, txn: &Name) -> Result<Option<(DecisionInfo, bool)>> {
        self.look_at_decision(txn).await
    }

    fn keys_forgotten(&self) -> u64 {
        self.forgotten.load(std::sync::atomic::Ordering::Relaxed)
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.restore_receipt(seq).await
    }
}

impl ObjectLeases {
    async fn fenced(&self, key: &LeaseKey, change: Change) -> Result<WithCleared<Fenced<()>>> {
        let met = self.change(key, &change).await?;
        Ok(WithCleared { answer: met.answer.fenced()?, cleared: met.cleared })
    }

    /// The name of the index bucket for a deadline.
    fn bucket(&self, deadline_ms: u64) -> String {
        self.width.bucket(deadline_ms)
    }

    /// Writes the index entry for a deadline, unless the record's newest entry is in that bucket already.
    async fn ensure_entry_before_write(
        &self,
        subject: &Subject,
        doc: &mut crate::document::Document,
    ) -> Result<()> {
        let Some(deadline_ms) = doc.deadline_ms() else { return Ok(()) };
        let bucket = self.bucket(deadline_ms);
        // An empty record was created with its entry a moment ago. If the deadline is now in the next bucket, that
        // needs no second entry: a sweep adds it there.
        let is_filed = doc.epoch == 1 && doc.bucket.is_some();
        if !is_filed && doc.bucket.as_ref() != Some(&bucket) {
            self.context.write_entry(subject, &bucket).await?;
            doc.bucket = Some(bucket);
        }
        Ok(())
    }

    /// Writes the index entry again if its bucket may have been swept between the entry and the record, because this
    /// process stood still in between.
    async fn ensure_entry_after_write(
        &self,
        subject: &Subject,
        doc: &crate::document::Document,
    ) -> Result<()> {
        let (Some(bucket), Some(_)) = (&doc.bucket, doc.deadline_ms()) else { return Ok(()) };
        let Some((_, now_ms)) = self.context.time.now() else { return Ok(()) };
        if self.width.end_ms(bucket).is_some_and(|end_ms| end_ms <= now_ms) {
            self.context.write_entry(subject, bucket).await?;
        }
        Ok(())
    }
}
