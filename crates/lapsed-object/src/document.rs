//! The two kinds of object that a conditional write decides about: a key's record and a transaction's
//! marker. Both carry what every such object needs besides: an epoch and a nonce (no body ever repeats,
//! so an old ETag never comes back), the newest bucket that the index has an entry for, and receipts
//! that are owed to the log.

use bytes::Bytes;
use lapsed_core::leases::rules::{DecisionMarker, Lease, LeaseRecord, StagedState};
use lapsed_core::leases::{LeaseKey, LeaseState, LeaseToken, RemovedLease, Subject};
use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::{Evidence, Receipt, ReceiptId};
use lapsed_core::{Error, Name, Result, SystemId};
use prost::Message;
use serde::{Deserialize, Serialize};

/// The most receipts that an object owes before they must go to the log.
pub(crate) const OWED_MAX: usize = 16;

/// The sweeper in a receipt when an operation, not a sweep, cleared the entry.
pub(crate) const BY_OPERATION: &str = "operation";

/// A receipt for what was cleared, stored in the object until it is in the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OwedReceipt {
    pub(crate) removed: RemovedLease,
    pub(crate) judged_ms: u64,
}

/// The content of a document: the record of a lease, or the marker of a decision.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "one is in hand at a time, never a list of them")]
pub(crate) enum Content {
    Lease(LeaseKey, LeaseRecord),
    /// `None`: the decision was deleted. The empty object counts as missing until it is deleted itself.
    Decision(Name, Option<DecisionMarker>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    /// Grows by one with every write.
    pub(crate) epoch: u64,
    pub(crate) content: Content,
    pub(crate) bucket: Option<String>,
    pub(crate) owed: Vec<OwedReceipt>,
    /// The log object to which owed receipts were last moved.
    pub(crate) logged_in: u64,
    /// The newest bucket of the index that lists this record as one to forget.
    pub(crate) watch: Option<String>,
}

impl Document {
    /// The empty record of a key that was never leased.
    pub(crate) fn lease(key: &LeaseKey) -> Document {
        Document::new(Content::Lease(key.clone(), LeaseRecord::default()))
    }

    /// The empty marker of a transaction that was never decided.
    pub(crate) fn decision(txn: &Name) -> Document {
        Document::new(Content::Decision(txn.clone(), None))
    }

    fn new(content: Content) -> Document {
        Document { epoch: 0, content, bucket: None, owed: Vec::new(), logged_in: 0, watch: None }
    }

    pub(crate) fn subject(&self) -> Subject {
        match &self.content {
            Content::Lease(key, _) => Subject::Lease(key.clone()),
            Content::Decision(txn, _) => Subject::Decision(txn.clone()),
        }
    }

    /// The deadline of the lease or of the decision; `None` if there is none.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        match &self.content {
            Content::Lease(_, record) => record.lease.as_ref().map(|lease| lease.deadline_ms),
            Content::Decision(_, marker) => marker.as_ref().map(|marker| marker.deadline_ms),
        }
    }

    /// The holder and the token of a lease; for a decision, its word (`commit`, `rollback`) and 0.
    pub(crate) fn holder(&self) -> Option<(Name, u64)> {
        match &self.content {
            Content::Lease(_, record) => {
                record.lease.as_ref().map(|lease| (lease.owner.clone(), record.token.0))
            }
            Content::Decision(_, marker) => {
                let word = marker.as_ref()?.decision.as_str();
                Some((Name::new(word).ok()?, 0))
            }
        }
    }

    /// Encodes the document as its next version, with the epoch raised by one.
    pub(crate) fn encode(&mut self, nonce: u64) -> Bytes {
        self.epoch += 1;
        match &self.content {
            Content::Lease(key, record) => encode_meta(self, key, record, nonce),
            Content::Decision(txn, marker) => {
                let stored = StoredMarker {
                    epoch: self.epoch,
                    nonce: format!("{nonce:016x}"),
                    txn: txn.clone(),
                    marker: marker.clone(),
                    bucket: self.bucket.clone(),
                    owed: self.owed.clone(),
                    logged_in: self.logged_in,
                };
                serde_json::to_vec(&stored).expect("a marker is JSON").into()
            }
        }
    }

    /// Decodes the record of a key. The error names `what` if the record cannot be read.
    pub(crate) fn decode_meta(
        namespace: &str,
        body: &[u8],
        what: &str,
    ) -> std::result::Result<Document, String> {
        let wrong =
            |why: &str| format!("{what} is not a record that this version can read ({why})");
        let meta = Meta::decode(body).map_err(|error| wrong(&error.to_string()))?;
        if meta.epoch == 0 || meta.epoch == u64::MAX || meta.format != FORMAT {
            return Err(wrong("it has no epoch, or none after it, or another format"));
        }
        let key = LeaseKey::new(namespace, &meta.key).map_err(|error| wrong(&error.to_string()))?;
        let record = meta.record().ok_or_else(|| wrong("a part of it makes no sense"))?;
        let owed: Option<Vec<OwedReceipt>> =
            meta.owed.iter().map(|debt| serde_json::from_slice(debt).ok()).collect();
        Ok(Document {
            epoch: meta.epoch,
            content: Content::Lease(key, record),
            bucket: Some(meta.bucket).filter(|bucket| !bucket.is_empty()),
            owed: owed.ok_or_else(|| wrong("what it owes makes no sense"))?,
            logged_in: meta.logged_in,
            watch: Some(meta.watch).filter(|bucket| !bucket.is_empty()),
        })
    }

    pub(crate) fn decode_marker(body: &[u8], what: &str) -> std::result::Result<Document, String> {
        let stored: StoredMarker = serde_json::from_slice(body).map_err(|error| {
            format!("{what} is not a marker that this version can read ({error})")
        })?;
        if stored.epoch == u64::MAX {
            return Err(format!("{what} is not a marker: there is no epoch after its own"));
        }
        Ok(Document {
            epoch: stored.epoch,
            content: Content::Decision(stored.txn, stored.marker),
            bucket: stored.bucket,
            owed: stored.owed,
            logged_in: stored.logged_in,
            watch: None,
        })
    }
}

/// The receipt for the cleared lease or decision.
pub(crate) fn receipt(
    system: &SystemId,
    seq: u64,
    subject: &Subject,
    debt: &OwedReceipt,
    by: (&str, u64),
) -> Result<Receipt> {
    let (owner, token, deadline_ms) = match &debt.removed {
        RemovedLease::Lease(cleared) => {
            (cleared.lease.owner.clone(), cleared.token.0, cleared.lease.deadline_ms)
        }
        RemovedLease::Decision(marker) => {
            (Name::new(marker.decision.as_str())?, 0, marker.deadline_ms)
        }
    };
    let removed = serde_json::to_value(&debt.removed)
        .map_err(|error| Error::Invalid(format!("what was removed is not JSON: {error}")))?;
    Ok(Receipt {
        id: ReceiptId { system: system.clone(), seq },
        key: subject.name(),
        owner,
        incarnation: Incarnation(token),
        reason: subject.reason(),
        evidence: Evidence {
            clock: "object store".to_owned(),
            deadline_ms,
            judged_ms: debt.judged_ms,
            late_ms: debt.judged_ms.saturating_sub(deadline_ms),
        },
        removed,
        sweeper: by.0.into(),
        batch: by.1,
        at_ms: debt.judged_ms,
        restored_ms: None,
    })
}

#[derive(Serialize, Deserialize)]
struct StoredMarker {
    epoch: u64,
    nonce: String,
    txn: Name,
    marker: Option<DecisionMarker>,
    #[serde(default)]
    bucket: Option<String>,
    #[serde(default)]
    owed: Vec<OwedReceipt>,
    #[serde(default)]
    logged_in: u64,
}

/// The version of the messages below; a record of any other version is refused.
const FORMAT: u32 = 1;

#[derive(Clone, PartialEq, Message)]
struct Meta {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(fixed64, tag = "2")]
    nonce: u64,
    #[prost(string, tag = "3")]
    key: String,
    #[prost(uint64, tag = "4")]
    token: u64,
    #[prost(message, optional, tag = "5")]
    lease: Option<LeaseMessage>,
    #[prost(message, optional, tag = "6")]
    state: Option<StateMessage>,
    #[prost(message, optional, tag = "7")]
    staged: Option<StagedMessage>,
    #[prost(string, tag = "8")]
    bucket: String,
    /// The owed receipts, each as a JSON object.
    #[prost(bytes = "vec", repeated, tag = "9")]
    owed: Vec<Vec<u8>>,
    #[prost(uint64, tag = "10")]
    logged_in: u64,
    #[prost(uint32, tag = "11")]
    format: u32,
    /// This field and the next are 0 and empty in records of older versions.
    #[prost(uint64, tag = "12")]
    ended_ms: u64,
    #[prost(string, tag = "13")]
    watch: String,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseMessage {
    #[prost(string, tag = "1")]
    owner: String,
    #[prost(uint64, tag = "2")]
    ttl_ms: u64,
    #[prost(uint64, tag = "3")]
    acquired_ms: u64,
    #[prost(uint64, tag = "4")]
    deadline_ms: u64,
    #[prost(string, optional, tag = "5")]
    request: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct StateMessage {
    #[prost(string, optional, tag = "1")]
    json: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    bytes: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct StagedMessage {
    #[prost(string, tag = "1")]
    txn: String,
    #[prost(message, optional, tag = "2")]
    state: Option<StateMessage>,
}

fn encode_meta(doc: &Document, key: &LeaseKey, record: &LeaseRecord, nonce: u64) -> Bytes {
    let lease = record.lease.as_ref().map(|lease| LeaseMessage {
        owner: lease.owner.to_string(),
        ttl_ms: lease.ttl_ms,
        acquired_ms: lease.acquired_ms,
        deadline_ms: lease.deadline_ms,
        request: lease.request.as_ref().map(Name::to_string),
    });
    let staged = record.staged.as_ref().map(|staged| StagedMessage {
        txn: staged.txn.to_string(),
        state: Some(state_message(&staged.state)),
    });
    let owed = doc.owed.iter().map(|debt| serde_json::to_vec(debt).expect("a debt is JSON"));
    let meta = Meta {
        epoch: doc.epoch,
        nonce,
        key: key.key.to_string(),
        token: record.token.0,
        lease,
        state: record.state.as_ref().map(state_message),
        staged,
        bucket: doc.bucket.clone().unwrap_or_default(),
        owed: owed.collect(),
        logged_in: doc.logged_in,
        format: FORMAT,
        ended_ms: record.ended_ms,
        watch: doc.watch.clone().unwrap_or_default(),
    };
    meta.encode_to_vec().into()
}

impl Meta {
    fn record(&self) -> Option<LeaseRecord> {
        let lease = match &self.lease {
            None => None,
            Some(lease) => Some(Lease {
                owner: Name::new(&lease.owner).ok()?,
                ttl_ms: lease.ttl_ms,
                acquired_ms: lease.acquired_ms,
                deadline_ms: lease.deadline_ms,
                request: match &lease.request {
                    None => None,
                    Some(request) => Some(Name::new(request).ok()?),
                },
            }),
        };
        let state = match &self.state {
            None => None,
            Some(state) => Some(read_state(state)?),
        };
        let staged = match &self.staged {
            None => None,
            Some(staged) => Some(StagedState {
                txn: Name::new(&staged.txn).ok()?,
                state: read_state(staged.state.as_ref()?)?,
            }),
        };
        let (token, ended_ms) = (LeaseToken(self.token), self.ended_ms);
        Some(LeaseRecord { token, lease, state, staged, ended_ms })
    }
}

fn state_message(state: &LeaseState) -> StateMessage {
    match state {
        LeaseState::Json(value) => StateMessage { json: Some(value.to_string()), bytes: None },
        LeaseState::Bytes(bytes) => StateMessage { json: None, bytes: Some(bytes.clone()) },
    }
}

fn read_state(message: &StateMessage) -> Option<LeaseState> {
    match (&message.json, &message.bytes) {
        (Some(json), None) => serde_json::from_str(json).ok().map(LeaseState::Json),
        (None, Some(bytes)) => Some(LeaseState::Bytes(bytes.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lapsed_core::leases::Decision;
    use lapsed_core::leases::rules::{ClearedLease, ClockReading};

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn a_record_comes_back_as_it_was_and_never_as_the_same_bytes() {
        let key = LeaseKey::new("n", "k/ä").unwrap();
        let at = ClockReading::exact(1_000, 0);
        let mut doc = Document::lease(&key);
        let Content::Lease(_, record) = &mut doc.content else { panic!() };
        record.acquire(&name("a"), 5_000, Some(&name("r")), &at);
        record.state = Some(LeaseState::Bytes(vec![0, 255]));
        let state = LeaseState::Json(serde_json::json!({"x": [1, null]}));
        record.staged = Some(StagedState { txn: name("t"), state });
        let lease = record.lease.clone().unwrap();
        let cleared = ClearedLease {
            token: LeaseToken(1),
            lease,
            staged: Some((name("t"), Decision::Commit)),
        };
        doc.owed.push(OwedReceipt { removed: RemovedLease::Lease(cleared), judged_ms: 7_000 });
        doc.bucket = Some("2026010811".to_owned());
        doc.watch = Some("20260208".to_owned());
        let one = doc.encode(1);
        assert_eq!(Document::decode_meta("n", &one, "x").unwrap(), doc);
        let mut again = Document::decode_meta("n", &one, "x").unwrap();
        assert_ne!(again.encode(1), one);
        let mut same = Document { epoch: 0, ..doc.clone() };
        assert_ne!(same.encode(2), one);
    }

    /// The record of key `k` with token 3, released, as a version without forgetting wrote it.
    #[test]
    fn a_record_of_an_older_version_is_read() {
        let body = b"\x08\x06\x11\x09\0\0\0\0\0\0\0\x1a\x01k\x20\x03\x42\x0a2026010811\x58\x01";
        let doc = Document::decode_meta("n", body, "x").unwrap();
        let Content::Lease(key, record) = &doc.content else { panic!() };
        assert_eq!((key.to_string().as_str(), record.token.0, doc.epoch), ("n/k", 3, 6));
        assert_eq!((record.ended_ms, doc.watch), (0, None));
    }

    #[test]
    fn a_marker_comes_back_as_it_was() {
        let mut doc = Document::decision(&name("t"));
        let marker = DecisionMarker::new(Decision::Commit, 1_000, &ClockReading::exact(5, 0));
        doc.content = Content::Decision(name("t"), Some(marker.clone()));
        doc.owed.push(OwedReceipt { removed: RemovedLease::Decision(marker), judged_ms: 1 });
        let body = doc.encode(9);
        assert_eq!(Document::decode_marker(&body, "x").unwrap(), doc);
    }

    #[test]
    fn rubbish_is_refused_by_name() {
        for body in [&b""[..], b"{}", b"\xff\xff\xff", b"hello"] {
            let error = Document::decode_meta("n", body, "n/meta/k.pb").unwrap_err();
            assert!(error.contains("n/meta/k.pb"), "{error}");
            assert!(Document::decode_marker(body, "m").is_err());
        }
    }
}
