//! One operation on one key: read the record, clear what has expired, apply the operation, write conditionally.
//!
//! Clearing and doing are one write, so meeting an expired lease costs nothing more. Nothing else is
//! changed before that write has won, but for the index entry that must be there first (D2, D3).

use std::time::Duration;

use lapsed_core::clock::{backoff, jittered};
use lapsed_core::leases::rules::{AcquireOutcome, ClockReading, LeaseRecord, StagedState};
use lapsed_core::leases::{
    AcquireRequest, Acquired, DECISION_TTL_MS, Decision, Expiry, Fenced, Grant, LeaseInfo,
    LeaseKey, LeaseState, LeaseToken, Loss, RemovedLease, Subject, WithCleared,
};
use lapsed_core::sweep::BatchId;
use lapsed_core::{Error, Result};

use super::ObjectLeases;
use crate::document::{BY_OPERATION, Content, Document, OWED_MAX, OwedReceipt};
use crate::log::Intent;
use crate::objects::WriteCondition;
use crate::system_context::StoredObject;

/// How many times a change is tried while other writers are faster.
const TRIES: u32 = 30;

/// An operation on the lease of one key.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Acquire(AcquireRequest),
    Renew(LeaseToken, Option<u64>),
    Release(LeaseToken),
    SetState(LeaseToken, Option<LeaseState>),
    Stage(LeaseToken, Option<StagedState>),
    Describe,
}

impl Change {
    /// The token that the caller shows, if the operation needs one.
    fn token(&self) -> Option<LeaseToken> {
        match self {
            Change::Renew(token, _)
            | Change::Release(token)
            | Change::SetState(token, _)
            | Change::Stage(token, _) => Some(*token),
            Change::Acquire(_) | Change::Describe => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum ChangeAnswer {
    Granted(Grant),
    Held(Grant),
    Done,
    Lost(Loss),
    Described(Option<LeaseInfo>),
}

impl ChangeAnswer {
    pub(crate) fn unexpected(self) -> Error {
        Error::Invalid(format!("an answer to another question: {self:?}"))
    }

    pub(crate) fn acquired(self) -> Result<Acquired> {
        match self {
            ChangeAnswer::Granted(grant) => Ok(Acquired::Granted(grant)),
            ChangeAnswer::Held(grant) => Ok(Acquired::Held(grant)),
            other => Err(other.unexpected()),
        }
    }

    pub(crate) fn fenced_grant(self) -> Result<Fenced<Grant>> {
        match self {
            ChangeAnswer::Granted(grant) => Ok(Fenced::Done(grant)),
            ChangeAnswer::Lost(loss) => Ok(Fenced::Lost(loss)),
            other => Err(other.unexpected()),
        }
    }

    pub(crate) fn fenced(self) -> Result<Fenced<()>> {
        match self {
            ChangeAnswer::Done => Ok(Fenced::Done(())),
            ChangeAnswer::Lost(loss) => Ok(Fenced::Lost(loss)),
            other => Err(other.unexpected()),
        }
    }
}

impl ChangeAnswer {
    /// Whether the answer is a refusal. A cached record is not enough for a refusal; the store must be read.
    fn is_refusal(&self) -> bool {
        matches!(self, ChangeAnswer::Held(_) | ChangeAnswer::Lost(_) | ChangeAnswer::Described(_))
    }
}

struct JudgedChange {
    answer: ChangeAnswer,
    doc: Document,
    cleared: Vec<Expiry>,
    /// Whether the record was read from the store for this judgement, not taken from the cache.
    read_again: bool,
}

impl ObjectLeases {
    /// Carries out a change; retries when another writer was faster, at most [`TRIES`] times.
    pub(crate) async fn change(
        &self,
        key: &LeaseKey,
        change: &Change,
    ) -> Result<WithCleared<ChangeAnswer>> {
        let _key_lock = self.cache.lock_key(key).await;
        // A call that only reads must see the store's state, not the cache.
        let mut remembered = match change {
            Change::Describe => None,
            _ => self.cache.get(key),
        };
        for attempt in 0..TRIES {
            let fresh = remembered.is_none() || self.context.time.now().is_none();
            let mut held = match remembered.take().filter(|_| !fresh) {
                Some(held) => held,
                None => self.context.load(&Subject::Lease(key.clone())).await?,
            };
            if let (Change::Acquire(acquire), WriteCondition::IfAbsent) = (change, &held.only) {
                match self.make_record(key, &held, acquire.ttl_ms).await? {
                    Some(made) => held = made,
                    None => {
                        self.pause(attempt).await;
                        continue;
                    }
                }
            }
            let sent_ms = self.context.time.mono_ms();
            let (held, judged) = match self.judge(key, held, change).await {
                Ok(judged) => judged,
                Err(error) => {
                    self.cache.forget(key);
                    return Err(error);
                }
            };
            let fresh = fresh || judged.read_again;
            let unchanged = judged.doc == held.doc;
            if unchanged && !fresh && judged.answer.is_refusal() {
                self.cache.forget(key);
                continue;
            }
            if unchanged && fresh {
                if held.doc.epoch > 0 {
                    self.cache.put(key, held);
                }
                return Ok(WithCleared { answer: judged.answer, cleared: Vec::new() });
            }
            // Nothing changes, but the record came from the cache: writing it again proves that it is still
            // current.
            if judged.doc.owed.len() > OWED_MAX {
                self.log_owed_receipts(held).await?;
                continue;
            }
            if let Some(met) = self.write(key, &held, judged, sent_ms).await? {
                return Ok(met);
            }
            self.pause(attempt).await;
        }
        Err(Error::Throttled {
            store: self.context.name().to_owned(),
            what: format!("{key} is being changed by too many at once"),
        })
    }

    /// The conditional write. `None`: another writer was faster, so the change must be judged again.
    async fn write(
        &self,
        key: &LeaseKey,
        held: &StoredObject,
        mut judged: JudgedChange,
        sent_ms: i64,
    ) -> Result<Option<WithCleared<ChangeAnswer>>> {
        // The cached record is out of date, whatever the result of the write is.
        self.cache.forget(key);
        let subject = Subject::Lease(key.clone());
        self.ensure_entry_before_write(&subject, &mut judged.doc).await?;
        let Some(written) = self.context.replace(held, judged.doc).await? else { return Ok(None) };
        let late = self.granted_too_little(&judged.answer, sent_ms);
        self.ensure_entry_after_write(&subject, &written.doc).await?;
        self.cache.put(key, written.clone());
        if late {
            // This host slept, or the store's clock was set: what was granted is less than a TTL.
            let ChangeAnswer::Granted(grant) = &judged.answer else { return Ok(None) };
            return self.extend_grant(key, &written, grant, judged.cleared).await;
        }
        Ok(Some(WithCleared { answer: judged.answer, cleared: judged.cleared }))
    }

    /// Whether the answer shows that the store's clock was ahead of the latest time that was assumed.
    fn granted_too_little(&self, answer: &ChangeAnswer, sent_ms: i64) -> bool {
        let ChangeAnswer::Granted(grant) = answer else { return false };
        self.context.time.earliest_at(sent_ms).is_some_and(|earliest| earliest > grant.now_ms)
    }

    /// Grants the lease again from the newest known time. `None`: another writer changed the record in
    /// between.
    async fn extend_grant(
        &self,
        key: &LeaseKey,
        held: &StoredObject,
        grant: &Grant,
        cleared: Vec<Expiry>,
    ) -> Result<Option<WithCleared<ChangeAnswer>>> {
        let renewal = Change::Renew(grant.token, Some(grant.ttl_ms));
        let (held, mut judged) = self.judge(key, held.clone(), &renewal).await?;
        let subject = Subject::Lease(key.clone());
        self.ensure_entry_before_write(&subject, &mut judged.doc).await?;
        let written = self.context.replace(&held, judged.doc).await?;
        self.cache.forget(key);
        Ok(written.map(|_| WithCleared { answer: judged.answer, cleared }))
    }

    /// Applies the rules to the record and returns what becomes of it, with the record that was judged.
    ///
    /// A transaction that is settled is settled for good, whoever wins the write (D3): that is never done
    /// by what is remembered, or was read before the lease was over, but by how the record stands now.
    async fn judge(
        &self,
        key: &LeaseKey,
        mut held: StoredObject,
        change: &Change,
    ) -> Result<(StoredObject, JudgedChange)> {
        let at = self.context.clock_reading().await?;
        let read_again = to_settle(&held.doc, change, &at).is_some();
        if read_again {
            held = self.context.load(&Subject::Lease(key.clone())).await?;
        }
        let decision = match to_settle(&held.doc, change, &at) {
            Some(txn) => Some(self.settle_txn(txn).await?),
            None => None,
        };
        let mut doc = held.doc.clone();
        let Content::Lease(_, record) = &mut doc.content else {
            return Err(Error::Invalid(format!("{key} is not a lease")));
        };
        let mut cleared = Vec::new();
        if let Some(over) = record.clear(&at, decision) {
            cleared.push(Expiry {
                subject: Subject::Lease(key.clone()),
                deadline_ms: over.lease.deadline_ms,
                at_ms: at.judging_ms,
            });
            doc.owed
                .push(OwedReceipt { removed: RemovedLease::Lease(over), judged_ms: at.judging_ms });
        }
        let is_new = record.is_new();
        if is_new && matches!(change, Change::Acquire(_)) {
            // The floor is read after the record: this key cannot be forgotten without deleting the record.
            record.begin_above(self.token_floor().await?);
        }
        let mut answer = apply(key, record, change, decision, &at);
        if let (true, ChangeAnswer::Lost(loss), Some(token)) = (is_new, &mut answer, change.token())
        {
            *loss = LeaseRecord::loss_without_record(token, self.token_floor().await?);
        }
        Ok((held, JudgedChange { answer, doc, cleared, read_again }))
    }

    /// The decision on a transaction; where there is none it is rolled back, for good. One that need not be
    /// kept any longer counts as long as it is there: what waits for it was staged under it.
    pub(crate) async fn settle_txn(&self, txn: &lapsed_core::Name) -> Result<Decision> {
        let held = self.context.load(&Subject::Decision(txn.clone())).await?;
        if let Content::Decision(_, Some(marker)) = &held.doc.content {
            return Ok(marker.decision);
        }
        Ok(self.decide_once(txn, Decision::Rollback, DECISION_TTL_MS).await?.answer.decision)
    }

    /// Moves the receipts that an object owes to the log.
    async fn log_owed_receipts(&self, held: StoredObject) -> Result<()> {
        let number = self.batches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let sweeper = format!("{BY_OPERATION}-{:016x}", self.context.nonce());
        let id = BatchId { sweeper: sweeper.into(), number };
        let intent = intent(&held.doc);
        let opened = self.log.open(&id, std::slice::from_ref(&intent)).await?;
        let mut doc = held.doc.clone();
        doc.owed.clear();
        doc.logged_in = opened.number();
        match self.context.replace(&held, doc).await {
            Ok(Some(_)) => {
                let done = [intent.subject.name().to_string()].into();
                opened.close(&done).await?;
            }
            // The write may have been made and overwritten since; the log object shows which.
            Ok(None) | Err(_) => drop(opened.settle().await?),
        }
        Ok(())
    }

    pub(crate) async fn pause(&self, attempt: u32) {
        let base = backoff(Duration::from_millis(5), 2, attempt, Duration::from_millis(320));
        self.context.clock.sleep(jittered(&*self.context.clock, base, 1.0)).await;
    }
}

/// The transaction whose decision must be known before the lease ends, if this ends it.
fn to_settle<'d>(
    doc: &'d Document,
    change: &Change,
    at: &ClockReading,
) -> Option<&'d lapsed_core::Name> {
    let Content::Lease(_, record) = &doc.content else { return None };
    let ends = match change {
        Change::Release(token) => record.check(*token).is_ok(),
        _ => false,
    };
    record.undecided().filter(|_| ends || record.expired(at).is_some())
}

/// The receipts that an object owes, as an intention for the log.
pub(crate) fn intent(doc: &Document) -> Intent {
    let debts = doc.owed.iter().map(|debt| (debt.clone(), BY_OPERATION.to_owned(), 0));
    Intent { subject: doc.subject(), epoch: doc.epoch, debts: debts.collect() }
}

/// Applies the operation to a record from which everything expired was cleared.
fn apply(
    key: &LeaseKey,
    record: &mut LeaseRecord,
    change: &Change,
    decision: Option<Decision>,
    at: &ClockReading,
) -> ChangeAnswer {
    let fenced = |done: std::result::Result<(), Loss>| {
        done.map_or_else(ChangeAnswer::Lost, |()| ChangeAnswer::Done)
    };
    match change {
        Change::Acquire(acquire) => {
            let request = acquire.request.as_ref();
            let attempt = record.acquire(&acquire.owner, acquire.ttl_ms, request, at);
            let grant =
                record.grant(key, at).expect("whoever acquires or is held off sees a lease");
            match attempt {
                AcquireOutcome::Granted | AcquireOutcome::Repeated => ChangeAnswer::Granted(grant),
                AcquireOutcome::Held => ChangeAnswer::Held(grant),
            }
        }
        Change::Renew(token, ttl_ms) => match record.renew(*token, *ttl_ms, at) {
            Ok(()) => {
                ChangeAnswer::Granted(record.grant(key, at).expect("what was renewed is held"))
            }
            Err(loss) => ChangeAnswer::Lost(loss),
        },
        Change::Release(token) => fenced(record.release(*token, decision)),
        Change::SetState(token, state) => fenced(record.set_state(*token, state.clone())),
        Change::Stage(token, staged) => fenced(record.stage(*token, staged.clone())),
        Change::Describe => ChangeAnswer::Described(super::described(
            Content::Lease(key.clone(), record.clone()),
            at,
        )),
    }
}
