//! The decisive step of a sweep: judge each suspect by what was read, write down what is intended, change
//! each by a conditional write, make the log final, and only then tidy the index.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lapsed_core::leases::rules::ClockReading;
use lapsed_core::leases::{RemovedLease, Subject};
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::{Batch, BatchAnswer, BatchId, Outcome, PassMode, Refusal, Suspect};
use lapsed_core::{Error, Name, Result};

use super::change::intent;
use super::forget::IdleStep;
use super::walk::{Entry, ListedSuspect};
use super::{ObjectLeases, decisions, run_bounded};
use crate::document::{Content, OwedReceipt};
use crate::log::{Intent, OpenLogObject};
use crate::objects::{Deleted, WriteCondition};
use crate::system_context::{Found, StoredObject};

/// The most objects that one log object takes: each may owe as many receipts as an object may.
const LOGGED_MAX: usize = 50;

/// How many of them, if a pass rests between two: a quarter of the time for which the log object may
/// be open.
pub(crate) fn logged_max(entry_delay: Duration, open_max: Duration) -> usize {
    let rests = (open_max / 4).as_micros().checked_div(entry_delay.as_micros());
    rests.map_or(LOGGED_MAX, |rests| rests.clamp(1, LOGGED_MAX as u128) as usize)
}

/// The busy time that is reported for a batch: a batch blocks no other client, so it need not shrink.
const HELD: Duration = Duration::from_micros(1);

/// The state of one suspect, which decides what the sweep does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The lease has expired and is cleared.
    Over,
    /// The lease has not expired; its index entry moves to the bucket of its deadline.
    Alive,
    /// Another token than the suspected one holds the lease.
    Moved,
    /// Nobody holds the lease any more.
    Free,
    /// Nobody has used the key for so long that its record is deleted.
    Forget,
    /// The object that the entry points to does not exist.
    Missing,
    /// The object that the entry points to cannot be read.
    Unreadable,
    /// The batch has the same suspect twice.
    Duplicate,
}

struct ReclaimPlan {
    suspect: Suspect,
    entries: Vec<Entry>,
    verdict: Verdict,
    held: Option<StoredObject>,
    /// The object to write; `None`: the stored object stays as it is.
    next: Option<StoredObject>,
    /// The intention to log before the object is written.
    intent: Option<Intent>,
    /// The index bucket to add the record to, so that it is forgotten in time.
    watch: Option<String>,
}

/// The result of a plan's write.
enum WriteResult {
    None,
    Made(Box<StoredObject>),
    Lost,
    Doubt(Error),
}

impl ObjectLeases {
    pub(crate) async fn reclaim_batch(&self, batch: Batch) -> Result<BatchAnswer> {
        let answer = |outcomes| BatchAnswer { outcomes, owners_ended: 0, held: HELD };
        if self.is_settled(&batch.id) {
            return Ok(answer(vec![Outcome::Gone; batch.suspects.len()]));
        }
        if let Some(term) = batch.term
            && self.context.term(&self.id).await? != Some(term)
        {
            let refused = Outcome::Refused(Refusal::NotLeader);
            return Ok(answer(vec![refused; batch.suspects.len()]));
        }
        let mut known = BTreeSet::new();
        let mut outcomes = Vec::with_capacity(batch.suspects.len());
        for chunk in batch.suspects.chunks(self.logged_max) {
            let mut plans = Vec::with_capacity(chunk.len());
            for suspect in chunk {
                let duplicate = !known.insert(suspect.key.clone());
                plans.push(self.plan(suspect, duplicate, &batch));
            }
            let plans: Result<Vec<ReclaimPlan>> = run_bounded(plans).await.into_iter().collect();
            let plans = plans?;
            match batch.act.reclaims() {
                true => outcomes.extend(self.carry_out(&batch.id, plans).await?),
                false => outcomes.extend(plans.iter().map(|plan| plan.verdict.preview())),
            }
        }
        Ok(answer(outcomes))
    }

    fn is_settled(&self, id: &BatchId) -> bool {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    /// Judges one suspect by its cached object, or else by the object that was read when it was listed.
    async fn plan(&self, suspect: &Suspect, duplicate: bool, batch: &Batch) -> Result<ReclaimPlan> {
        let mut plan = ReclaimPlan {
            suspect: suspect.clone(),
            entries: Vec::new(),
            verdict: Verdict::Duplicate,
            held: None,
            next: None,
            intent: None,
            watch: None,
        };
        if duplicate {
            return Ok(plan);
        }
        let seen = match batch.act.reclaims() {
            true => self.walks.take(&suspect.key),
            false => self.walks.seen(&suspect.key),
        };
        let ListedSuspect { entries, held } =
            seen.unwrap_or(ListedSuspect { entries: Vec::new(), held: None });
        plan.entries = match entries.is_empty() {
            true => self.expected_entry(suspect).into_iter().collect(),
            false => entries,
        };
        match self.newest(suspect, held, &plan.entries).await? {
            Ok(held) => match self.judge_held(&mut plan, held, batch).await {
                // Only the marker of this suspect's transaction is unreadable; the rest of the batch does not
                // need it.
                Err(Error::Corrupt { what, .. }) => plan.verdict = self.unreadable(&what),
                judged => judged?,
            },
            Err(verdict) => plan.verdict = verdict,
        }
        Ok(plan)
    }

    /// The newest known object of a suspect: as listed, from the cache, or read again.
    async fn newest(
        &self,
        suspect: &Suspect,
        seen: Option<StoredObject>,
        entries: &[Entry],
    ) -> Result<std::result::Result<StoredObject, Verdict>> {
        let subject = Subject::parse(suspect.key.as_str());
        let remembered = match &subject {
            Ok(Subject::Lease(key)) => self.cache.get(key),
            _ => None,
        };
        let newer =
            |held: &StoredObject| remembered.as_ref().is_none_or(|r| held.doc.epoch >= r.doc.epoch);
        if let Some(seen) = seen {
            return Ok(Ok(Some(seen).filter(newer).or(remembered).expect("one of them is newer")));
        }
        // The object is found by the entry: a name that was shortened does not contain the whole key.
        let Some(entry) = entries.first() else { return Ok(Err(Verdict::Duplicate)) };
        Ok(match self.target(entry).await? {
            Found::Document(held) => Ok(*held),
            Found::Nothing => Err(Verdict::Missing),
            Found::Unreadable(what) => Err(self.unreadable(&what)),
        })
    }

    fn unreadable(&self, what: &str) -> Verdict {
        tracing::warn!(system = %self.id, what, "left for a person to look at");
        Verdict::Unreadable
    }

    async fn judge_held(
        &self,
        plan: &mut ReclaimPlan,
        mut held: StoredObject,
        batch: &Batch,
    ) -> Result<()> {
        let at = self.context.clock_reading().await?;
        plan.verdict = verdict(&held, &plan.suspect, &at);
        if plan.verdict == Verdict::Over && batch.act == PassMode::Reclaim && has_staged(&held) {
            // The lease may have been renewed since it was listed, and a rollback is final, so the record is
            // read again.
            match self.newest(&plan.suspect, None, &plan.entries).await? {
                Ok(now) => held = now,
                Err(verdict) => {
                    plan.verdict = verdict;
                    return Ok(());
                }
            }
            plan.verdict = verdict(&held, &plan.suspect, &at);
        }
        let mut next = held.clone();
        let mut own = None;
        if plan.verdict == Verdict::Over && batch.act == PassMode::Reclaim {
            own = self.clear(&mut next, &at).await?;
        }
        if plan.verdict == Verdict::Free {
            // The entry is about to be deleted, so a later lease must write a new one.
            next.doc.bucket = None;
        }
        if let (Verdict::Over | Verdict::Free, PassMode::Reclaim) = (plan.verdict, batch.act)
            && let Some(forget) = self.forget_plan().await?
        {
            match self.idle_step(&forget, &mut next.doc, &at) {
                IdleStep::Leave => {}
                IdleStep::Watch(bucket) => plan.watch = Some(bucket),
                IdleStep::Forget if plan.verdict == Verdict::Free => {
                    plan.verdict = Verdict::Forget;
                    plan.held = Some(held);
                    return Ok(());
                }
                IdleStep::Forget => {}
            }
        }
        let mut paid = intent(&held.doc);
        if let Some(debt) = own {
            paid.debts.push((debt, batch.id.sweeper.to_string(), batch.id.number));
        }
        let owes = !paid.debts.is_empty();
        // An empty marker that owes nothing is deleted as it is.
        let writes = owes || (plan.verdict == Verdict::Free && !Self::is_empty_marker(&held));
        next.doc.owed.clear();
        plan.next = writes.then_some(next);
        plan.intent = owes.then_some(paid);
        plan.held = Some(held);
        Ok(())
    }

    /// Clears an expired lease or decision and returns the receipts that are owed for it.
    async fn clear(
        &self,
        next: &mut StoredObject,
        at: &ClockReading,
    ) -> Result<Option<OwedReceipt>> {
        let owed = next.doc.owed.len();
        match &mut next.doc.content {
            Content::Lease(_, record) => {
                let decision = match record.undecided().cloned() {
                    Some(txn) => Some(self.settle_txn(&txn).await?),
                    None => None,
                };
                let cleared = record.clear(at, decision);
                let debt = |cleared| OwedReceipt {
                    removed: RemovedLease::Lease(cleared),
                    judged_ms: at.judging_ms,
                };
                Ok(cleared.map(debt))
            }
            Content::Decision(..) => {
                decisions::clear(&mut next.doc, at);
                Ok(next.doc.owed.drain(owed..).next_back())
            }
        }
    }

    async fn carry_out(&self, id: &BatchId, plans: Vec<ReclaimPlan>) -> Result<Vec<Outcome>> {
        // The floor is raised before any record is deleted, and before the log object is opened.
        let forgotten = plans.iter().filter(|plan| plan.verdict == Verdict::Forget);
        self.raise_floor(forgotten.filter_map(ReclaimPlan::token).max().unwrap_or(0)).await?;
        let intents: Vec<Intent> = plans.iter().filter_map(|plan| plan.intent.clone()).collect();
        let opened = match intents.is_empty() {
            true => None,
            false => Some(self.log.open(id, &intents).await?),
        };
        let number = opened.as_ref().map(OpenLogObject::number);
        let writes = plans.iter().enumerate().map(|(at, plan)| async move {
            if at > 0 && !self.entry_delay.is_zero() {
                self.context.clock.sleep(self.entry_delay).await;
            }
            self.write_plan(plan, number).await
        });
        let changes: Vec<WriteResult> = self.run_entries(writes.collect()).await;
        let receipts = self.finish_log(id, opened, &plans, &changes).await?;
        let finished = plans.into_iter().zip(changes);
        let ends = finished.map(|(plan, change)| self.conclude(plan, change, &receipts)).collect();
        Ok(self.run_entries(ends).await)
    }

    async fn write_plan(&self, plan: &ReclaimPlan, number: Option<u64>) -> WriteResult {
        let (Some(held), Some(next)) = (&plan.held, &plan.next) else { return WriteResult::None };
        let mut doc = next.doc.clone();
        // The index entry is written before the record that refers to it.
        if let Some(bucket) = &plan.watch
            && let Err(error) = self.context.write_entry(&doc.subject(), bucket).await
        {
            return WriteResult::Doubt(error);
        }
        if let (Some(_), Some(number)) = (&plan.intent, number) {
            doc.logged_in = number;
        }
        let written = self.context.replace(held, doc).await;
        if let Subject::Lease(key) = held.doc.subject() {
            match &written {
                Ok(Some(written)) => self.cache.put(&key, written.clone()),
                Ok(None) | Err(_) => self.cache.forget(&key),
            }
        }
        match written {
            Ok(Some(written)) => WriteResult::Made(Box::new(written)),
            Ok(None) => WriteResult::Lost,
            Err(error) => WriteResult::Doubt(error),
        }
    }

    /// Makes the log object final and returns the receipts that this batch wrote, by their subject.
    async fn finish_log(
        &self,
        id: &BatchId,
        opened: Option<OpenLogObject<'_>>,
        plans: &[ReclaimPlan],
        changes: &[WriteResult],
    ) -> Result<BTreeMap<Name, Option<Receipt>>> {
        let Some(opened) = opened else { return Ok(BTreeMap::new()) };
        let logged = || plans.iter().zip(changes).filter(|(plan, _)| plan.intent.is_some());
        let mut intended = BTreeMap::new();
        for (plan, _) in logged() {
            let subject = plan.intent.as_ref().map(|intent| &intent.subject);
            let receipts = subject.map(|subject| opened.intended(subject)).unwrap_or_default();
            let own =
                receipts.into_iter().find(|r| r.sweeper == id.sweeper && r.batch == id.number);
            intended.insert(plan.suspect.key.clone(), own);
        }
        // A write that seems lost may have been made and overwritten since.
        let in_doubt = logged().any(|(_, change)| !matches!(change, WriteResult::Made(_)));
        let confirmed = match in_doubt {
            true => opened.settle().await?,
            false => {
                let made = logged().filter(|(_, change)| matches!(change, WriteResult::Made(_)));
                opened.close(&made.map(|(plan, _)| plan.suspect.key.to_string()).collect()).await?
            }
        };
        intended.retain(|key, _| confirmed.contains(key.as_str()));
        Ok(intended)
    }

    /// The outcome of one suspect. Also deletes or moves its entries in the index.
    async fn conclude(
        &self,
        plan: ReclaimPlan,
        change: WriteResult,
        receipts: &BTreeMap<Name, Option<Receipt>>,
    ) -> Outcome {
        let confirmed = receipts.get(&plan.suspect.key);
        let done = match (&plan.intent, &change) {
            (Some(_), _) => confirmed.is_some(),
            (None, WriteResult::None | WriteResult::Made(_)) => true,
            (None, WriteResult::Lost | WriteResult::Doubt(_)) => false,
        };
        if !done {
            return self.refusal(&plan, &change).await;
        }
        let version = match (&change, &plan.held) {
            (WriteResult::Made(held), _) => Some(held.as_ref().clone()),
            (WriteResult::None, Some(held)) => Some(held.clone()),
            _ => None,
        };
        if let Err(error) = self.tidy_index(&plan, version).await {
            // The entry stays, and the next pass looks again.
            tracing::warn!(system = %self.id, key = %plan.suspect.key, %error, "index not tidied");
        }
        match plan.verdict {
            Verdict::Over => Outcome::Reclaimed(confirmed.cloned().flatten().map(Box::new)),
            verdict => verdict.preview(),
        }
    }

    /// Another writer was faster: reads the record again to say why. The entry stays (D7).
    async fn refusal(&self, plan: &ReclaimPlan, change: &WriteResult) -> Outcome {
        if let WriteResult::Doubt(error) = change {
            tracing::warn!(system = %self.id, key = %plan.suspect.key, %error, "not reclaimed");
        }
        let busy = Outcome::Refused(Refusal::Busy);
        let Ok(found) = self.newest(&plan.suspect, None, &plan.entries).await else { return busy };
        let Ok(at) = self.context.clock_reading().await else { return busy };
        match found.map(|held| verdict(&held, &plan.suspect, &at)) {
            Ok(Verdict::Over) => busy,
            Ok(verdict) | Err(verdict) => verdict.preview(),
        }
    }

    async fn tidy_index(&self, plan: &ReclaimPlan, now: Option<StoredObject>) -> Result<()> {
        match plan.verdict {
            Verdict::Duplicate | Verdict::Unreadable => Ok(()),
            Verdict::Alive | Verdict::Moved => match now.and_then(|held| held.doc.deadline_ms()) {
                Some(deadline_ms) => self.move_entry(plan, deadline_ms).await,
                None => Ok(()),
            },
            Verdict::Forget => match &plan.held {
                Some(held) if self.forget_record(held).await? => {
                    self.delete_entries(plan, None).await
                }
                _ => Ok(()),
            },
            Verdict::Over | Verdict::Free | Verdict::Missing => {
                if let Some(held) = now.filter(Self::is_empty_marker)
                    && !self.delete_marker(&held).await?
                {
                    return Ok(());
                }
                self.delete_entries(plan, None).await
            }
        }
    }

    /// Writes the entry in the bucket of the deadline first, then deletes the stale entries (D1).
    async fn move_entry(&self, plan: &ReclaimPlan, deadline_ms: u64) -> Result<()> {
        let bucket = self.bucket(deadline_ms);
        let held = plan.held.as_ref();
        if let Some(held) = held.filter(|_| plan.entries.iter().all(|e| e.bucket != bucket)) {
            self.context.write_entry(&held.doc.subject(), &bucket).await?;
        }
        self.delete_entries(plan, Some(&bucket)).await
    }

    async fn delete_entries(&self, plan: &ReclaimPlan, but: Option<&str>) -> Result<()> {
        for entry in plan.entries.iter().filter(|entry| Some(entry.bucket.as_str()) != but) {
            let path = self.context.paths.entry(&entry.namespace, &entry.bucket, &entry.name);
            self.context.objects.delete(&path).await?;
            self.entries_deleted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Deletes an empty marker. False: it has a decision again and was not deleted.
    async fn delete_marker(&self, held: &StoredObject) -> Result<bool> {
        let WriteCondition::IfUnchanged(version) = &held.only else { return Ok(true) };
        let subject = held.doc.subject();
        let path = self.context.path(&subject);
        match self.context.objects.delete_if(&path, version).await? {
            Deleted::Done => Ok(true),
            Deleted::Lost => Ok(false),
            Deleted::Unable => {
                // Without conditional deletes, the marker is read once more immediately before the delete.
                let unchanged = self.context.load(&subject).await?.doc.epoch == held.doc.epoch;
                if unchanged {
                    self.context.objects.delete(&path).await?;
                }
                Ok(unchanged)
            }
        }
    }
}

impl ReclaimPlan {
    /// The newest token of the record; `None` for a decision.
    fn token(&self) -> Option<u64> {
        match &self.held.as_ref()?.doc.content {
            Content::Lease(_, record) => Some(record.token.0),
            Content::Decision(..) => None,
        }
    }
}

impl Verdict {
    /// The outcome in a dry run; in a real pass, too, except for what is cleared or forgotten.
    fn preview(self) -> Outcome {
        match self {
            Verdict::Over => Outcome::Reclaimed(None),
            Verdict::Alive => Outcome::Refused(Refusal::Alive),
            Verdict::Moved => Outcome::Refused(Refusal::Moved),
            Verdict::Unreadable => Outcome::Refused(Refusal::Unreadable),
            Verdict::Free | Verdict::Forget | Verdict::Missing | Verdict::Duplicate => {
                Outcome::Gone
            }
        }
    }
}

/// Whether the decision of a transaction is needed to clear it.
fn has_staged(held: &StoredObject) -> bool {
    matches!(&held.doc.content, Content::Lease(_, record) if record.undecided().is_some())
}

/// Compares a stored object with its suspect.
fn verdict(held: &StoredObject, suspect: &Suspect, at: &ClockReading) -> Verdict {
    let Some((_, token)) = held.doc.holder() else { return Verdict::Free };
    let over = match &held.doc.content {
        Content::Lease(_, record) => record.expired(at).is_some(),
        Content::Decision(_, marker) => marker.as_ref().is_some_and(|m| m.is_expired(at)),
    };
    match (over, token == suspect.incarnation.0) {
        (true, true) => Verdict::Over,
        (false, true) => Verdict::Alive,
        (_, false) => Verdict::Moved,
    }
}
