//! Moves jobs between queue, holder and dead letters, inside a job of the writer. Every write is
//! followed by the same change in memory after the commit.

use std::sync::Arc;

use lapsed_core::Name;
use lapsed_core::inflight::JobToken;
use lapsed_core::inflight::rules::{QueueEnd, counting};

use crate::fault::{Fault, Tried};
use crate::inflight::Core;
use crate::inflight::job_index::{JobLocation, JobTotals};
use crate::inflight::rows::{Body, Death, Head, claim_mark};
use crate::owners::slot::Slot;
use crate::tables::{held_key, queued_key, split_queued};
use crate::tx::Tx;

/// Position of the first job of an empty queue, far from both ends of the number range.
const MIDDLE: u64 = 1 << 63;

impl Core {
    /// The location of a job, including this batch's changes.
    pub(super) fn location(&self, tx: &Tx, id: &Name) -> Option<JobLocation> {
        let changed = tx.jobs_changed(&self.tables.held).and_then(|jobs| jobs.jobs.get(id));
        match changed {
            Some(place) => place.clone(),
            None => self.jobs.get(id),
        }
    }

    fn is_now(&self, tx: &mut Tx, id: &Name, place: Option<JobLocation>) {
        tx.jobs(&self.tables.held).jobs.insert(id.clone(), place);
    }

    /// The totals including this batch's changes, to be changed.
    pub(super) fn account<'t>(&self, tx: &'t mut Tx) -> &'t mut JobTotals {
        let changes = tx.jobs(&self.tables.held);
        changes.account.get_or_insert_with(|| self.jobs.account())
    }

    /// How many of a job's crashes are within the window.
    pub(super) fn crashes(&self, head: &Head, now_ms: u64) -> u32 {
        counting(&head.crashes, self.recovery.crash_window_ms, now_ms)
    }

    /// The queue that a job goes back to: the outbox if there is one, otherwise its own.
    pub(super) fn return_queue<'a>(&'a self, head: &'a Head) -> &'a Name {
        self.recovery.outbox.as_ref().unwrap_or(&head.queue)
    }

    /// Puts a job on a queue.
    pub(super) fn put_on(
        &self,
        tx: &mut Tx,
        queue: &Name,
        end: QueueEnd,
        id: &Name,
        body: Body<'_>,
    ) -> Tried<()> {
        let place = self.next_place(tx, queue, end);
        let key = queued_key(queue.as_str(), place);
        tx.put(&self.tables.queued, &key, &body.marked(id.as_str().as_bytes()))?;
        self.is_now(tx, id, Some(JobLocation::Queued { queue: queue.clone(), place }));
        *tx.jobs(&self.tables.held).arrived.entry(queue.clone()).or_default() += 1;
        Ok(())
    }

    /// The next position at that end. Jobs taken meanwhile leave a gap, which does no harm.
    fn next_place(&self, tx: &mut Tx, queue: &Name, end: QueueEnd) -> u64 {
        let (place, ends) = match (self.ends(tx, queue), end) {
            (None, _) => (MIDDLE, (MIDDLE, MIDDLE)),
            (Some((first, last)), QueueEnd::Front) => (first - 1, (first - 1, last)),
            (Some((first, last)), QueueEnd::Back) => (last + 1, (first, last + 1)),
        };
        tx.jobs(&self.tables.held).ends.insert(queue.clone(), ends);
        place
    }

    /// Between which positions the jobs of a queue lie, including this batch's changes.
    fn ends(&self, tx: &Tx, queue: &Name) -> Option<(u64, u64)> {
        let changed = tx.jobs_changed(&self.tables.held).and_then(|jobs| jobs.ends.get(queue));
        changed.copied().or_else(|| self.jobs.ends(queue))
    }

    /// Removes and returns the first `limit` rows of a queue.
    pub(super) fn pop(&self, tx: &mut Tx, queue: &Name, limit: usize) -> Tried<Vec<Vec<u8>>> {
        let Some((first, last)) = self.ends(tx, queue) else { return Ok(Vec::new()) };
        if limit == 0 || first > last {
            return Ok(Vec::new());
        }
        let name = queue.as_str();
        let (from, to) = (queued_key(name, first), queued_key(name, last));
        let mut popped = Vec::new();
        for row in tx.range(&self.tables.queued, &*from..=&*to)?.take(limit) {
            let (key, value) = row?;
            popped.push((key.value().to_vec(), value.value().to_vec()));
        }
        for (key, _) in &popped {
            tx.remove(&self.tables.queued, key)?;
        }
        let next = match popped.last() {
            Some((key, _)) if popped.len() == limit => place_of(key)? + 1,
            _ => last + 1,
        };
        tx.jobs(&self.tables.held).ends.insert(queue.clone(), (next, last));
        Ok(popped.into_iter().map(|(_, row)| row).collect())
    }

    /// Gives a job to an incarnation, by a new claim.
    pub(super) fn hold(
        &self,
        tx: &mut Tx,
        slot: &Arc<Slot>,
        id: &Name,
        body: Body<'_>,
        now_ms: u64,
    ) -> Tried<JobToken> {
        let account = self.account(tx);
        let token = account.next_token;
        account.next_token += 1;
        let key = held_key(slot.incarnation, id.as_str());
        tx.put(&self.tables.held, &key, &body.marked(&claim_mark(token, now_ms)))?;
        let incarnation = slot.incarnation;
        self.is_now(tx, id, Some(JobLocation::InFlight { incarnation, token }));
        slot.hold_one();
        Ok(JobToken(token))
    }

    /// Removes a job from its holder. The caller must put it somewhere.
    pub(super) fn let_go(&self, tx: &mut Tx, slot: &Arc<Slot>, id: &Name) -> Tried<Vec<u8>> {
        let row = tx.take(&self.tables.held, &held_key(slot.incarnation, id.as_str()))?;
        let row = row.ok_or_else(|| missing(id, "in flight"))?;
        self.note_let_go(slot);
        self.is_now(tx, id, None);
        Ok(row)
    }

    /// Makes a job a dead letter.
    pub(super) fn make_dead_letter(
        &self,
        tx: &mut Tx,
        id: &Name,
        body: Body<'_>,
        death: &Death,
    ) -> Tried<()> {
        let row = body.marked(&serde_json::to_vec(death)?);
        tx.put(&self.tables.dead, id.as_str().as_bytes(), &row)?;
        self.is_now(tx, id, Some(JobLocation::Dead));
        Ok(())
    }

    /// Removes a dead letter. The caller must put it somewhere.
    pub(super) fn take_dead_letter(&self, tx: &mut Tx, id: &Name) -> Tried<Vec<u8>> {
        let row = tx.take(&self.tables.dead, id.as_str().as_bytes())?;
        let row = row.ok_or_else(|| missing(id, "a dead letter"))?;
        self.is_now(tx, id, None);
        Ok(row)
    }
}

fn missing(id: &Name, what: &str) -> Fault {
    Fault::row(format!("job `{id}` is {what}, and its row is missing"))
}

fn place_of(key: &[u8]) -> Tried<u64> {
    let place = split_queued(key).map(|(_, place)| place);
    place.ok_or_else(|| Fault::row("a key of `queued` has no position"))
}
