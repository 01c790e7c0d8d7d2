//! Operations on leases and on the state of a key. Each is one job.

use std::sync::Arc;

use async_trait::async_trait;
use lapsed_core::leases::rules::{AcquireOutcome, ClockReading, LeaseRecord, StagedState};
use lapsed_core::leases::{
    AcquireRequest, Acquired, Decision, DecisionInfo, Expiry, Fenced, Grant, LeaseInfo, LeaseKey,
    LeaseState, LeaseTicket, LeasesStore, Loss, Namespace, RemovedLease, Subject, WithCleared,
};
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result};
use tokio::sync::Notify;

use crate::fault::Tried;
use crate::leases::rows::{due_ms, expiry, prefix, prefix_end, row_key, split_row};
use crate::leases::{Core, EmbeddedLeases, record_row};
use crate::owners::load::open;
use crate::snapshot::Table;
use crate::tx::Tx;

/// A record that is being changed inside a job.
pub(super) struct Open<'a> {
    pub key: &'a LeaseKey,
    pub record: LeaseRecord,
    pub at: ClockReading,
    pub cleared: Vec<Expiry>,
    before: Option<LeaseRecord>,
}

impl Core {
    /// Reads a record, and clears its lease if it has expired.
    pub(super) fn open<'a>(&self, tx: &mut Tx, key: &'a LeaseKey) -> Tried<Open<'a>> {
        let at = self.moment();
        let before = self.record(tx, key)?;
        let record = before.clone().unwrap_or_default();
        let mut open = Open { key, record, at, cleared: Vec::new(), before };
        if open.record.expired(&at).is_none() {
            return Ok(open);
        }
        let decision = self.decide_stage(tx, &open.record, &at)?;
        if let Some(cleared) = open.record.clear(&at, decision) {
            let subject = Subject::Lease(key.clone());
            open.cleared.push(expiry(&subject, due_ms(&cleared, &at), &at));
            self.note(tx, &subject, &RemovedLease::Lease(cleared), &at)?;
        }
        Ok(open)
    }

    /// Writes the record back if anything has changed.
    pub(super) fn close<T>(&self, tx: &mut Tx, open: Open<'_>, answer: T) -> Tried<WithCleared<T>> {
        let changed = match &open.before {
            Some(before) => *before != open.record,
            None => open.record != LeaseRecord::default(),
        };
        if changed {
            self.put_record(tx, open.key, open.before.as_ref(), &open.record)?;
        }
        Ok(WithCleared { answer, cleared: open.cleared })
    }

    fn acquire(&self, tx: &mut Tx, wish: &AcquireRequest) -> Tried<WithCleared<Acquired>> {
        self.store_clock.mind_ttl(wish.ttl_ms);
        let mut open = self.open(tx, &wish.key)?;
        if open.record.is_new() {
            open.record.begin_above(self.token_floor(tx)?);
        }
        let attempt =
            open.record.acquire(&wish.owner, wish.ttl_ms, wish.request.as_ref(), &open.at);
        let grant = granted(&open);
        let answer = match attempt {
            AcquireOutcome::Granted | AcquireOutcome::Repeated => Acquired::Granted(grant),
            AcquireOutcome::Held => Acquired::Held(grant),
        };
        self.close(tx, open, answer)
    }

    /// Runs an operation that presents a token.
    fn act<T>(
        &self,
        tx: &mut Tx,
        ticket: &LeaseTicket,
        act: impl FnOnce(&mut Open<'_>, &mut Tx) -> Tried<std::result::Result<T, Loss>>,
    ) -> Tried<WithCleared<Fenced<T>>> {
        let mut open = self.open(tx, &ticket.key)?;
        let answer = match act(&mut open, tx)? {
            Ok(done) => Fenced::Done(done),
            Err(_) if open.record.is_new() => {
                let floor = self.token_floor(tx)?;
                Fenced::Lost(LeaseRecord::loss_without_record(ticket.token, floor))
            }
            Err(loss) => Fenced::Lost(loss),
        };
        self.close(tx, open, answer)
    }

    fn release(&self, tx: &mut Tx, ticket: &LeaseTicket) -> Tried<WithCleared<Fenced<()>>> {
        self.act(tx, ticket, |open, tx| {
            if let Err(loss) = open.record.check(ticket.token) {
                return Ok(Err(loss));
            }
            let decision = self.decide_stage(tx, &open.record, &open.at)?;
            Ok(open.record.release(ticket.token, decision))
        })
    }
}

fn granted(open: &Open<'_>) -> Grant {
    open.record.grant(open.key, &open.at).expect("whatever the attempt, somebody holds it now")
}

impl EmbeddedLeases {
    /// Reads what is committed.
    pub(super) fn read<T>(
        &self,
        table: &str,
        read: impl FnOnce(&Table) -> Tried<T>,
    ) -> Result<Option<T>> {
        let disk = &self.owner_service.inner.disk;
        let txn = disk.read()?;
        let read =
            || -> Tried<Option<T>> { open(&txn, table)?.map(|table| read(&table)).transpose() };
        read().map_err(|fault| fault.told(&disk.name))
    }

    pub(super) fn read_record(&self, key: &LeaseKey) -> Result<Option<LeaseRecord>> {
        let record = self.read(&self.core.tables.leases, |table| {
            let row = table.get(&row_key(key))?;
            row.map(|row| record_row::read(row.value())).transpose()
        })?;
        Ok(record.flatten())
    }
}

#[async_trait]
impl LeasesStore for EmbeddedLeases {
    async fn acquire(&self, acquire: &AcquireRequest) -> Result<WithCleared<Acquired>> {
        let wish = acquire.clone();
        self.write(move |core, tx| core.acquire(tx, &wish)).await
    }

    fn waiter(&self, key: &LeaseKey) -> Option<Arc<Notify>> {
        Some(self.core.waiters.of(&key.subject()))
    }

    async fn renew(
        &self,
        ticket: &LeaseTicket,
        ttl_ms: Option<u64>,
    ) -> Result<WithCleared<Fenced<Grant>>> {
        let ticket = ticket.clone();
        self.write(move |core, tx| {
            core.act(tx, &ticket, |open, _| {
                let renewed = open.record.renew(ticket.token, ttl_ms, &open.at);
                Ok(renewed.map(|()| granted(open)))
            })
        })
        .await
    }

    async fn release(&self, ticket: &LeaseTicket) -> Result<WithCleared<Fenced<()>>> {
        let ticket = ticket.clone();
        self.write(move |core, tx| core.release(tx, &ticket)).await
    }

    async fn describe(&self, key: &LeaseKey) -> Result<WithCleared<Option<LeaseInfo>>> {
        let looked = self.peek(key).await?;
        if !looked.as_ref().is_some_and(|described| described.expired) {
            return Ok(WithCleared::clean(looked));
        }
        let key = key.clone();
        self.write(move |core, tx| {
            let open = core.open(tx, &key)?;
            let described = LeaseInfo::new(&key, open.record.clone(), &open.at);
            core.close(tx, open, Some(described))
        })
        .await
    }

    async fn peek(&self, key: &LeaseKey) -> Result<Option<LeaseInfo>> {
        let at = self.core.moment();
        let record = self.read_record(key)?;
        Ok(record.map(|record| LeaseInfo::new(key, record, &at)))
    }

    async fn list(
        &self,
        namespace: &Namespace,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<LeaseInfo>> {
        let at = self.core.moment();
        let listed = self.read(&self.core.tables.leases, |table| {
            let mut from = prefix(namespace);
            if let Some(after) = after {
                from.extend_from_slice(after.as_str().as_bytes());
                // The next possible key: no key contains a zero byte.
                from.push(0);
            }
            let rows = table.range(&*from..&*prefix_end(namespace))?;
            rows.take(limit)
                .map(|row| {
                    let (key, record) = row?;
                    let record = record_row::read(record.value())?;
                    Ok(LeaseInfo::new(&split_row(key.value())?, record, &at))
                })
                .collect()
        })?;
        Ok(listed.unwrap_or_default())
    }

    async fn namespaces(&self, after: Option<&Namespace>, limit: usize) -> Result<Vec<Namespace>> {
        let found = self.read(&self.core.tables.leases, |table| {
            let mut from = after.map(prefix_end).unwrap_or_default();
            let mut found: Vec<Namespace> = Vec::new();
            while found.len() < limit {
                let Some(row) = table.range(&*from..)?.next() else { break };
                let namespace = split_row(row?.0.value())?.namespace;
                from = prefix_end(&namespace);
                found.push(namespace);
            }
            Ok(found)
        })?;
        Ok(found.unwrap_or_default())
    }

    async fn set_state(
        &self,
        ticket: &LeaseTicket,
        state: Option<&LeaseState>,
    ) -> Result<WithCleared<Fenced<()>>> {
        let (ticket, state) = (ticket.clone(), state.cloned());
        self.write(move |core, tx| {
            core.act(tx, &ticket, |open, _| Ok(open.record.set_state(ticket.token, state)))
        })
        .await
    }

    async fn stage(
        &self,
        ticket: &LeaseTicket,
        staged: Option<&StagedState>,
    ) -> Result<WithCleared<Fenced<()>>> {
        let (ticket, staged) = (ticket.clone(), staged.cloned());
        self.write(move |core, tx| {
            core.act(tx, &ticket, |open, _| Ok(open.record.stage(ticket.token, staged)))
        })
        .await
    }

    async fn decide(
        &self,
        txn: &Name,
        decision: Decision,
        ttl_ms: u64,
    ) -> Result<WithCleared<DecisionInfo>> {
        let txn = txn.clone();
        self.write(move |core, tx| core.decide(tx, &txn, decision, ttl_ms)).await
    }

    async fn decision(&self, txn: &Name) -> Result<WithCleared<Option<DecisionInfo>>> {
        self.decision_cleared(txn).await
    }

    async fn peek_decision(&self, txn: &Name) -> Result<Option<(DecisionInfo, bool)>> {
        self.look_at_decision(txn)
    }

    fn keys_forgotten(&self) -> u64 {
        self.core.forgotten.load(std::sync::atomic::Ordering::Relaxed)
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.write(move |core, tx| core.restore(tx, seq)).await
    }
}
