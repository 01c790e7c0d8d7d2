//! Forgets unused keys: their records are deleted, and no token is ever used twice.
//!
//! The token floor is one object for the whole prefix. It only grows, and it is raised to the token of
//! a record before that record is deleted. The delete has the record's ETag as its condition: a lease that
//! is granted in between changes the ETag, and the delete fails. So a delete that comes late, or twice, does
//! nothing.
//!
//! A key without a record is leased in two steps: first an empty record is made (create-only), then the
//! floor is read, and the lease is written over the empty record with the token above the floor. The
//! floor must be read after the record was made: what was forgotten before that is below the floor, and
//! nothing of this key can be forgotten after it without deleting this very record. A record without a
//! token therefore means that the floor must be read.
//!
//! The index says which keys may be idle: when a sweep finds a key free, it adds an entry under the day on
//! which the key may be forgotten (its *watch*). Nothing is listed to find them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::try_join;
use lapsed_core::leases::rules::{ClockReading, IdleRecord};
use lapsed_core::leases::{LeaseKey, Subject};
use lapsed_core::{Error, Result};

use super::ObjectLeases;
use crate::document::{Content, Document};
use crate::names::BucketWidth;
use crate::objects::{Deleted, WriteCondition};
use crate::system_context::{StoredObject, SystemContext};

/// How many times a write is tried while other writers are faster.
const TRIES: usize = 100;

/// How long records are kept, and how the index files what may be forgotten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForgetPlan {
    pub(crate) after_ms: u64,
    width: BucketWidth,
}

impl ForgetPlan {
    pub(crate) fn new(after: Duration) -> ForgetPlan {
        ForgetPlan { after_ms: after.as_millis() as u64, width: BucketWidth::of_watches(after) }
    }
}

/// The token floor as this process knows it; it only grows.
#[derive(Default)]
pub(crate) struct KnownFloor(AtomicU64);

/// What a sweep does about a record that nobody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdleStep {
    /// The record is kept as it is, or is in the index already.
    Leave,
    /// The record is added to this bucket of the index, so that a later sweep looks at it again.
    Watch(String),
    /// The record is deleted.
    Forget,
}

impl ObjectLeases {
    /// Reads the current token floor; one request.
    pub(crate) async fn token_floor(&self) -> Result<u64> {
        let stored = self.context.stored::<u64>(&self.context.paths.token_floor()).await?.0;
        let floor = stored.unwrap_or(0);
        self.floor.0.fetch_max(floor, Ordering::Relaxed);
        Ok(floor)
    }

    /// Raises the floor to `token` at least, and returns when the store has it.
    pub(crate) async fn raise_floor(&self, token: u64) -> Result<()> {
        let path = self.context.paths.token_floor();
        for _ in 0..TRIES {
            if self.floor.0.load(Ordering::Relaxed) >= token {
                return Ok(());
            }
            let (stored, only) = self.context.stored::<u64>(&path).await?;
            let floor = stored.unwrap_or(0);
            if floor >= token || self.context.store(&path, &token, only).await? {
                self.floor.0.fetch_max(floor.max(token), Ordering::Relaxed);
                return Ok(());
            }
        }
        Err(Error::Throttled {
            store: self.context.name().to_owned(),
            what: format!("{path} is being written by too many at once"),
        })
    }

    /// Makes the empty record of a key that has none, and the index entry of the lease that is to
    /// follow. `None`: somebody else has made it.
    pub(crate) async fn make_record(
        &self,
        key: &LeaseKey,
        absent: &StoredObject,
        ttl_ms: u64,
    ) -> Result<Option<StoredObject>> {
        let deadline_ms = self.context.clock_reading().await?.granting_ms + ttl_ms;
        let (subject, bucket) = (Subject::Lease(key.clone()), self.bucket(deadline_ms));
        let entry = self.context.write_entry(&subject, &bucket);
        let record = self.context.replace(absent, absent.doc.clone());
        let ((), made) = try_join(entry, record).await?;
        Ok(made.map(|mut made| {
            // The bucket is set here but was not stored, because the two requests may arrive in any order.
            made.doc.bucket = Some(bucket);
            made
        }))
    }

    /// Whether this system forgets keys here: not on a store that cannot delete under a condition.
    pub(crate) async fn forget_plan(&self) -> Result<Option<ForgetPlan>> {
        let Some(plan) = self.forget else { return Ok(None) };
        Ok(self.context.deletes_under_condition().await?.then_some(plan))
    }

    /// What to do about the record in `doc`, which nobody holds. Sets the date since when it is idle, if it
    /// has none.
    pub(crate) fn idle_step(
        &self,
        plan: &ForgetPlan,
        doc: &mut Document,
        at: &ClockReading,
    ) -> IdleStep {
        let Content::Lease(_, record) = &mut doc.content else { return IdleStep::Leave };
        let mut dated = true;
        if record.idle(plan.after_ms) == IdleRecord::Undated {
            (record.ended_ms, dated) = (at.granting_ms, false);
        }
        let IdleRecord::ForgetAt(forget_ms) = record.idle(plan.after_ms) else {
            return IdleStep::Leave;
        };
        if dated && at.is_over(forget_ms) && doc.owed.is_empty() {
            return IdleStep::Forget;
        }
        let is_ahead = |bucket: &String| {
            self.width.end_ms(bucket).is_some_and(|end_ms| end_ms > at.judging_ms)
        };
        if doc.watch.as_ref().is_some_and(is_ahead) {
            return IdleStep::Leave;
        }
        let bucket = plan.width.bucket(forget_ms);
        doc.watch = Some(bucket.clone());
        IdleStep::Watch(bucket)
    }

    /// Deletes a record that may be forgotten. The floor must have been raised. False: somebody has
    /// changed it, or a receipt for it is still being written.
    pub(crate) async fn forget_record(&self, held: &StoredObject) -> Result<bool> {
        let WriteCondition::IfUnchanged(version) = &held.only else { return Ok(true) };
        // While a log object is open, settling it reads this record to see whether its change was made.
        if !self.log.is_final(held.doc.logged_in).await? {
            return Ok(false);
        }
        let subject = held.doc.subject();
        if let Subject::Lease(key) = &subject {
            self.cache.forget(key);
        }
        let path = self.context.path(&subject);
        let deleted = self.context.objects.delete_if(&path, version).await? == Deleted::Done;
        if deleted {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        Ok(deleted)
    }

    /// Files a record that nobody holds and nobody watches: one of an older version, or one whose
    /// entry was lost.
    pub(crate) async fn watch(&self, by: &SystemContext, held: &StoredObject) -> Result<()> {
        let Some(plan) = self.forget_plan().await? else { return Ok(()) };
        let at = self.context.clock_reading().await?;
        let mut doc = held.doc.clone();
        let bucket = match self.idle_step(&plan, &mut doc, &at) {
            IdleStep::Leave => return Ok(()),
            IdleStep::Watch(bucket) => bucket,
            // The current bucket, which the next pass reads.
            IdleStep::Forget => self.bucket(at.judging_ms.saturating_sub(plan.after_ms)),
        };
        by.write_entry(&doc.subject(), &bucket).await?;
        // If another writer was faster, the new entry is not needed, and a sweep removes it.
        by.replace(held, doc).await?;
        Ok(())
    }
}

impl SystemContext {
    /// Whether the server supports a delete on the condition of an ETag. It is tried once per process.
    pub(crate) async fn deletes_under_condition(&self) -> Result<bool> {
        self.deletes_if
            .get_or_try_init(|| crate::probe::deletes_under_condition(self))
            .await
            .copied()
    }
}
