//! Requests that were carried out, so that a repetition is answered in the same way.
//!
//! A request is found and kept inside the job that makes its change, and jobs are serial: of two
//! attempts of one request, one makes the change and the other finds what was kept.

use lapsed_core::request::{CurrentRequest, KeptRequest, REQUEST_AGE_MS, REQUESTS_MAX, RequestId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fault::{Fault, Tried};
use crate::tables::{Tables, number, pair, split_pair, to_number};
use crate::tx::Tx;

/// How many old requests are forgotten when one is kept.
const FORGET_MAX: usize = 4;

/// A request on disk, with what its operation answered.
#[derive(Serialize, Deserialize)]
struct RequestRow<T> {
    at_ms: u64,
    fingerprint: String,
    answer: T,
}

/// What is kept of a request that its operation was not told: which attempt has changed something, and the
/// answer as soon as it is known.
#[derive(Serialize, Deserialize)]
struct Carried {
    attempt: String,
    answer: Option<String>,
}

/// The requests of one system.
pub(crate) struct Requests<'a> {
    pub tables: &'a Tables,
    pub now_ms: u64,
}

impl Requests<'_> {
    /// What was kept for this request. `KeyReused` if its key came before with other content.
    pub fn find<T: DeserializeOwned>(&self, tx: &mut Tx, request: &RequestId) -> Tried<Option<T>> {
        match self.row(tx, request.key.as_str())? {
            Some(row) => self.fresh(row, request),
            None => Ok(None),
        }
    }

    /// The answer in a row, unless the row is too old.
    fn fresh<T: DeserializeOwned>(
        &self,
        row: RequestRow<Value>,
        request: &RequestId,
    ) -> Tried<Option<T>> {
        if self.now_ms.saturating_sub(row.at_ms) >= REQUEST_AGE_MS {
            return Ok(None);
        }
        // The answer of another operation does not fit, whatever the fingerprint.
        match serde_json::from_value(row.answer) {
            Ok(answer) if row.fingerprint == request.fingerprint => Ok(Some(answer)),
            _ => Err(request.reused().into()),
        }
    }

    /// Carries out `work` for the request of the task that asked for it, and notes in the same
    /// transaction that this attempt has changed something. Refused if another attempt has.
    pub fn noted<T>(
        &self,
        tx: &mut Tx,
        current: Option<&CurrentRequest>,
        work: impl FnOnce(&mut Tx) -> Tried<T>,
    ) -> Tried<T> {
        let Some(CurrentRequest { request, system, .. }) = current else { return work(tx) };
        let found = self.find::<Carried>(tx, request)?;
        if found.as_ref().is_some_and(|before| before.attempt != request.attempt.as_str()) {
            return Err(request.overtaken(&system.to_string()).into());
        }
        let answer = work(tx)?;
        if found.is_none() {
            self.keep_answer(tx, request, None)?;
        }
        Ok(answer)
    }

    /// Keeps what this attempt was answered; `None`: that is not known yet.
    pub fn keep_answer(
        &self,
        tx: &mut Tx,
        request: &RequestId,
        answer: Option<String>,
    ) -> Tried<()> {
        self.keep(tx, request, &Carried { attempt: request.attempt.to_string(), answer })
    }

    /// What a row of `S/requests` says about a request.
    pub fn kept(&self, row: &[u8], request: &RequestId) -> Tried<KeptRequest> {
        match self.fresh::<Carried>(serde_json::from_slice(row)?, request)? {
            None => Ok(KeptRequest::Unknown),
            Some(Carried { answer: None, .. }) => Ok(KeptRequest::Begun),
            Some(Carried { answer: Some(answer), .. }) => Ok(KeptRequest::Answered(answer)),
        }
    }

    /// Carries out `work` and keeps its answer, or answers what was kept.
    pub fn once<T: Serialize + DeserializeOwned>(
        &self,
        tx: &mut Tx,
        request: &RequestId,
        work: impl FnOnce(&mut Tx) -> Tried<T>,
    ) -> Tried<T> {
        if let Some(answer) = self.find(tx, request)? {
            return Ok(answer);
        }
        let answer = work(tx)?;
        self.keep(tx, request, &answer)?;
        Ok(answer)
    }

    /// Keeps a request with its answer, in place of what was kept for it before.
    pub fn keep<T: Serialize + DeserializeOwned>(
        &self,
        tx: &mut Tx,
        request: &RequestId,
        answer: &T,
    ) -> Tried<()> {
        self.forget(tx, request)?;
        self.put(tx, request.key.as_str(), &request.fingerprint, answer)
    }

    pub fn forget(&self, tx: &mut Tx, request: &RequestId) -> Tried<()> {
        self.remove(tx, request.key.as_str())
    }

    /// Notes that this attempt was given up, so that it is not carried out any more.
    pub fn give_up(&self, tx: &mut Tx, request: &RequestId) -> Tried<()> {
        let key = given_up_key(request);
        self.remove(tx, &key)?;
        self.put(tx, &key, "", &())
    }

    pub fn is_given_up(&self, tx: &mut Tx, request: &RequestId) -> Tried<bool> {
        Ok(self.row(tx, &given_up_key(request))?.is_some())
    }

    /// A row that is not too old.
    fn row(&self, tx: &mut Tx, key: &str) -> Tried<Option<RequestRow<Value>>> {
        let Some(row) = tx.get(&self.tables.requests, key.as_bytes())? else { return Ok(None) };
        let row: RequestRow<Value> = serde_json::from_slice(&row)?;
        Ok(Some(row).filter(|row| self.now_ms.saturating_sub(row.at_ms) < REQUEST_AGE_MS))
    }

    fn put<T: Serialize>(
        &self,
        tx: &mut Tx,
        key: &str,
        fingerprint: &str,
        answer: &T,
    ) -> Tried<()> {
        let row = RequestRow { at_ms: self.now_ms, fingerprint: fingerprint.to_owned(), answer };
        let kept = self.kept_range(tx)?;
        tx.put(&self.tables.requests, key.as_bytes(), &serde_json::to_vec(&row)?)?;
        tx.put(&self.tables.requests_at, &at_key(self.now_ms, key.as_bytes()), &[])?;
        let oldest_ms = kept.oldest_ms.min(self.now_ms);
        self.forget_old(tx, KeptRange { count: kept.count + 1, oldest_ms })
    }

    fn remove(&self, tx: &mut Tx, key: &str) -> Tried<()> {
        let kept = self.kept_range(tx)?;
        let Some(row) = tx.take(&self.tables.requests, key.as_bytes())? else { return Ok(()) };
        let row: RequestRow<Value> = serde_json::from_slice(&row)?;
        tx.remove(&self.tables.requests_at, &at_key(row.at_ms, key.as_bytes()))?;
        self.set_kept_range(tx, KeptRange { count: kept.count.saturating_sub(1), ..kept })
    }

    /// What is known of the rows without reading them. A folder of an older version has no such row: they are counted
    /// once.
    fn kept_range(&self, tx: &mut Tx) -> Tried<KeptRange> {
        let row = tx.meta_get(&self.tables.requests_count)?;
        if let Some((count, oldest_ms)) = row.and_then(|row| split_pair(&row)) {
            return Ok(KeptRange { count, oldest_ms });
        }
        let rows = tx.range::<&[u8]>(&self.tables.requests_at, ..)?;
        let count = rows.map(|row| row.map(|_| 1)).sum::<Tried<u64>>()?;
        Ok(KeptRange { count, oldest_ms: 0 })
    }

    fn set_kept_range(&self, tx: &mut Tx, kept: KeptRange) -> Tried<()> {
        tx.meta_put(&self.tables.requests_count, &pair(kept.count, kept.oldest_ms))
    }

    /// Forgets some requests that are too old or too many, the oldest first.
    fn forget_old(&self, tx: &mut Tx, mut kept: KeptRange) -> Tried<()> {
        let over = kept.count.saturating_sub(REQUESTS_MAX);
        let over = usize::try_from(over).unwrap_or(FORGET_MAX).min(FORGET_MAX);
        let mut old: Vec<Vec<u8>> = Vec::new();
        let from = number(kept.oldest_ms);
        for row in tx.range(&self.tables.requests_at, &from[..]..)?.take(FORGET_MAX + 1) {
            let key = row?.0.value().to_vec();
            let at_ms =
                to_number(&key).ok_or_else(|| Fault::row("a key of `requests_at` has no time"))?;
            kept.oldest_ms = at_ms;
            let stays = old.len() >= over && self.now_ms.saturating_sub(at_ms) < REQUEST_AGE_MS;
            if stays || old.len() == FORGET_MAX {
                break;
            }
            old.push(key);
        }
        for key in &old {
            tx.remove(&self.tables.requests, &key[8..])?;
            tx.remove(&self.tables.requests_at, key)?;
        }
        kept.count = kept.count.saturating_sub(old.len() as u64);
        self.set_kept_range(tx, kept)
    }
}

/// What is known of the kept requests without reading them.
struct KeptRange {
    count: u64,
    /// No request is older. Reading begins here, and not where rows were removed long ago.
    oldest_ms: u64,
}

/// The key of `S/requests` under which an attempt is noted as given up. No request has such a key.
fn given_up_key(request: &RequestId) -> String {
    format!("!{}", request.attempt)
}

fn at_key(at_ms: u64, key: &[u8]) -> Vec<u8> {
    [&number(at_ms), key].concat()
}
