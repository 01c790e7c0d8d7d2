//! Terms, the operator's brake settings and receipts: the embedded store's implementation of
//! [`Store`].

use async_trait::async_trait;
use lapsed_core::leader::Term;
use lapsed_core::notes::NoteStore;
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::request::{KeptRequest, RequestId};
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::BrakeRecord;
use lapsed_core::{Error, Result, SystemId};
use serde::de::DeserializeOwned;

use crate::Embedded;
use crate::fault::Tried;
use crate::owners::load::open;
use crate::requests::Requests;
use crate::tables::{META, Tables};
use crate::tx::Tx;

/// The most receipts that are read without leaving the caller's thread: some tenths of a millisecond.
const READ_AT_ONCE: usize = 50;

fn term_key(system: &SystemId) -> Vec<u8> {
    format!("term/{system}").into_bytes()
}

fn brake_key(system: &SystemId) -> Vec<u8> {
    format!("brake/{system}").into_bytes()
}

fn read_term(tx: &mut Tx, system: &SystemId) -> Tried<Option<Term>> {
    match tx.meta_get(&term_key(system))? {
        Some(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        None => Ok(None),
    }
}

fn write_term(tx: &mut Tx, system: &SystemId, term: &Term) -> Tried<()> {
    tx.meta_put(&term_key(system), &serde_json::to_vec(term)?)
}

/// Whether `number` is the current term and has not expired. Checked inside the job that acts.
pub(crate) fn term_holds(tx: &mut Tx, system: &SystemId, number: u64, now_ms: u64) -> Tried<bool> {
    let term = read_term(tx, system)?;
    Ok(term.is_some_and(|term| term.number == number && now_ms < term.until_ms))
}

/// Whether this store keeps a term of `system` that is not `number`, or that has expired. If it
/// never kept one, the leader is elected elsewhere.
pub(crate) fn term_is_over(
    tx: &mut Tx,
    system: &SystemId,
    number: u64,
    now_ms: u64,
) -> Tried<bool> {
    let is_kept = read_term(tx, system)?.is_some();
    Ok(is_kept && !term_holds(tx, system, number, now_ms)?)
}

impl Embedded {
    /// Reads a value of `meta` from disk.
    fn read_meta<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>> {
        let read = || -> Tried<Option<T>> {
            let txn = self.inner.disk.read()?;
            let Some(meta) = open(&txn, META)? else { return Ok(None) };
            let value = meta.get(key)?;
            Ok(value.map(|value| serde_json::from_slice(value.value())).transpose()?)
        };
        read().map_err(|fault| fault.told(&self.inner.disk.name))
    }
}

#[async_trait]
impl Store for Embedded {
    async fn info(&self) -> Result<StoreInfo> {
        self.inner.disk.read()?;
        let (now_ms, back_ms) = self.inner.store_clock.look();
        Ok(StoreInfo {
            engine: "embedded".to_owned(),
            place: self.inner.disk.address(),
            incarnation: self.inner.incarnation.clone(),
            now_ms,
            back_ms,
        })
    }

    async fn receipts(&self, system: &SystemId, query: ReceiptQuery) -> Result<Vec<Receipt>> {
        // Few receipts are read at once. A longer read would hold up whatever else this thread has
        // to do, so it goes to a thread that may block, one such read at a time; outside of a Tokio
        // runtime there is no such thread.
        let runtime = tokio::runtime::Handle::try_current().ok();
        let long_reads = self.inner.long_reads.as_ref().filter(|_| query.limit > READ_AT_ONCE);
        let (Some(runtime), Some(long_reads)) = (runtime, long_reads) else {
            return self.inner.read_receipts(system, &query);
        };
        let _turn = long_reads.acquire().await;
        let (state, system) = (self.inner.state.clone(), system.clone());
        let read = runtime.spawn_blocking(move || state.read_receipts(&system, &query));
        read.await.unwrap_or_else(|ended| {
            let what = format!("reading receipts ended early: {ended}");
            Err(Error::Unavailable { store: self.inner.disk.name.clone(), what })
        })
    }

    async fn receipt(&self, system: &SystemId, seq: u64) -> Result<Option<Receipt>> {
        let query = ReceiptQuery { after: seq.checked_sub(1), limit: 1, ..ReceiptQuery::default() };
        let found = self.inner.read_receipts(system, &query)?.into_iter().next();
        Ok(found.filter(|receipt| receipt.id.seq == seq))
    }

    async fn campaign(
        &self,
        system: &SystemId,
        candidate: &str,
        ttl_ms: u64,
    ) -> Result<Option<Term>> {
        let (system, candidate) = (system.clone(), candidate.to_owned());
        let store_clock = self.inner.store_clock.clone();
        let job = move |tx: &mut Tx| {
            let now_ms = store_clock.now_ms();
            let held = read_term(tx, &system)?;
            let last = held.as_ref().map_or(0, |term| term.number);
            let number = match held.filter(|term| now_ms < term.until_ms) {
                Some(term) if term.holder != candidate => return Ok(None),
                Some(term) => term.number,
                None => last + 1,
            };
            let term = Term { number, holder: candidate, until_ms: now_ms + ttl_ms };
            write_term(tx, &system, &term)?;
            Ok(Some(term))
        };
        self.inner.writer.write(job, |_| {}).await
    }

    async fn term(&self, system: &SystemId) -> Result<Option<Term>> {
        let term: Option<Term> = self.read_meta(&term_key(system))?;
        let now_ms = self.inner.store_clock.now_ms();
        Ok(term.filter(|term| now_ms < term.until_ms))
    }

    async fn resign(&self, system: &SystemId, number: u64) -> Result<()> {
        let system = system.clone();
        let job = move |tx: &mut Tx| match read_term(tx, &system)? {
            // The number is kept, so that the next term's number is larger.
            Some(term) if term.number == number => {
                write_term(tx, &system, &Term { until_ms: 0, ..term })
            }
            _ => Ok(()),
        };
        self.inner.writer.write(job, |()| {}).await
    }

    async fn brake(&self, system: &SystemId) -> Result<BrakeRecord> {
        Ok(self.read_meta(&brake_key(system))?.unwrap_or_default())
    }

    async fn swap_brake(&self, system: &SystemId, next: &BrakeRecord) -> Result<bool> {
        let (key, record) = (brake_key(system), next.clone());
        let job = move |tx: &mut Tx| {
            let stored: BrakeRecord = match tx.meta_get(&key)? {
                Some(bytes) => serde_json::from_slice(&bytes)?,
                None => BrakeRecord::default(),
            };
            let is_next = stored.version + 1 == record.version;
            if is_next {
                tx.meta_put(&key, &serde_json::to_vec(&record)?)?;
            }
            Ok(is_next)
        };
        let is_swapped = self.inner.writer.write(job, |_| {}).await?;
        if is_swapped {
            let systems = self.inner.systems();
            for stored in systems.iter().filter(|stored| stored.owners().id == *system) {
                stored.owners().waive_until(next.waived_until_ms());
            }
        }
        Ok(is_swapped)
    }

    async fn kept_request(&self, system: &SystemId, request: &RequestId) -> Result<KeptRequest> {
        let (tables, now_ms) = (Tables::of(system), self.inner.store_clock.now_ms());
        let read = || -> Tried<KeptRequest> {
            let txn = self.inner.disk.read()?;
            let Some(rows) = open(&txn, &tables.requests)? else { return Ok(KeptRequest::Unknown) };
            let requests = Requests { tables: &tables, now_ms };
            match rows.get(request.key.as_str().as_bytes())? {
                Some(row) => requests.kept(row.value(), request),
                None => Ok(KeptRequest::Unknown),
            }
        };
        read().map_err(|fault| fault.told(&self.inner.disk.name))
    }

    async fn keep_answer(
        &self,
        system: &SystemId,
        request: &RequestId,
        answer: &str,
    ) -> Result<()> {
        let (tables, now_ms) = (Tables::of(system), self.inner.store_clock.now_ms());
        let (request, answer) = (request.clone(), Some(answer.to_owned()));
        let job = move |tx: &mut Tx| {
            Requests { tables: &tables, now_ms }.keep_answer(tx, &request, answer)
        };
        self.inner.writer.write(job, |()| {}).await
    }

    async fn forget_request(&self, system: &SystemId, request: &RequestId) -> Result<()> {
        let (tables, now_ms) = (Tables::of(system), self.inner.store_clock.now_ms());
        let request = request.clone();
        let job = move |tx: &mut Tx| Requests { tables: &tables, now_ms }.forget(tx, &request);
        self.inner.writer.write(job, |()| {}).await
    }

    fn notes(&self) -> &dyn NoteStore {
        self
    }
}
