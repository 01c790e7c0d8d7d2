//! Layout on disk: tables that map bytes to bytes, one set of tables per system (`S`).
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | name | counters, operator's settings, terms, marks and turns (JSON or a big-endian number) |
//! | `S/owners` | incarnation | [`OwnerRow`] as JSON |
//! | `S/held` | incarnation, key | an entry, filed under its holder: registered at; of sessions, the number of references; of jobs, the job with its claim |
//! | `S/lost` | incarnation, key | receipt number: what was taken from each incarnation |
//! | `S/receipts` | receipt number | the receipt (`receipt_row`); or, under the number of the last of them, those of a batch (`receipt_block`) |
//! | `S/batches` | sweeper, 0, batch number | first and last receipt number of that batch |
//! | `S/forbidden` | sweeper, 0, batch number | since when: batches settled as not carried out |
//! | `S/sessions` | session id | [`SessionRow`] as JSON |
//! | `S/broadcasters` | broadcaster | the id of its current session |
//! | `S/queued` | queue, 0, place | a job on that queue, with its id |
//! | `S/dead` | job id | a dead letter: the job, with why it is one |
//! | `S/leases` | namespace, 0, key | everything stored for one key (`leases::rules::LeaseRecord`, as `leases::record_row` writes it); deleted when nobody has used the key for long |
//! | `S/decisions` | transaction | the decision on it (`leases::rules::DecisionMarker`) as JSON |
//! | `S/providers` | provider | `availability::rows::ProviderRow` as JSON, with its version and the number of its sessions; never deleted |
//! | `S/chats` | session id | a session of a provider (`availability::Session`) as JSON; never deleted |
//! | `S/log` | log number | one flip between online and offline as JSON; pruned like receipts |
//! | `S/log_of` | provider, 0, log number | empty: the log rows of each provider |
//! | `S/requests` | key of a request, or `!` and an attempt that was given up | time, fingerprint and answer as JSON; ten minutes and 100,000 rows at most |
//! | `S/requests_at` | time, key of `S/requests` | empty: the requests by age; `requests_count/S` in `meta` has their number and a time before which there is none |
//! | `S/notes` | book, 0, number | one note (`notes::Note`) as JSON; the newest are kept |
//!
//! A job is one row that moves between `S/queued`, `S/held` and `S/dead`, so that it is always in
//! exactly one place. Its payload is moved unchanged; `inflight/rows.rs` defines the row. Positions
//! in a queue start in the middle of the number range, grow at the back and shrink at the front.
//! The totals of a system of jobs (`account/S` in `meta`: entered, completed, dropped, the next
//! token) are written once in every batch that changed them.
//!
//! The token floor of a system of leases (`token_floor/S` in `meta`) is raised to the token of a row
//! of `S/leases` in the transaction that deletes the row. Keys without a row start above it.
//!
//! The settings of an availability system (`settings/S` in `meta`) contain as JSON only what was
//! set; everything else has its default.
//!
//! Numbers in keys are big-endian, so that byte order is number order.

use std::sync::Arc;

use lapsed_core::owner::Ending;
use lapsed_core::sessions::SessionProfile;
use lapsed_core::{Name, SystemId};
use redb::TableDefinition;
use serde::{Deserialize, Serialize};

/// Type of all keys and values.
pub(crate) type Bytes = &'static [u8];

/// Version of this layout. A file with a newer version is refused.
pub(crate) const FORMAT: u64 = 4;

/// Older versions of this layout that this version reads, with a log. In 3, every receipt is a row of its own. The first
/// batch makes them [`FORMAT`].
pub(crate) const FORMATS_WITH_LOG: [u64; 1] = [3];

/// The same without a log. In 1, leases, receipts and jobs are JSON.
pub(crate) const FORMATS_WITHOUT_LOG: [u64; 2] = [1, 2];

/// Table of counters and settings.
pub(crate) const META: &str = "meta";

/// Names of the tables of one system.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub owners: Arc<str>,
    pub held: Arc<str>,
    pub lost: Arc<str>,
    pub receipts: Arc<str>,
    pub batches: Arc<str>,
    pub forbidden: Arc<str>,
    pub sessions: Arc<str>,
    pub broadcasters: Arc<str>,
    pub queued: Arc<str>,
    pub dead: Arc<str>,
    pub leases: Arc<str>,
    pub decisions: Arc<str>,
    pub providers: Arc<str>,
    pub chats: Arc<str>,
    pub log: Arc<str>,
    pub log_of: Arc<str>,
    pub requests: Arc<str>,
    pub requests_at: Arc<str>,
    pub account: Vec<u8>,
    pub next_incarnation: Vec<u8>,
    pub next_receipt: Vec<u8>,
    pub next_log: Vec<u8>,
    pub settings: Vec<u8>,
    pub token_floor: Vec<u8>,
    pub requests_count: Vec<u8>,
}

impl Tables {
    pub fn of(id: &SystemId) -> Self {
        let table = |what: &str| Arc::from(format!("{id}/{what}"));
        Tables {
            owners: table("owners"),
            held: table("held"),
            lost: table("lost"),
            receipts: table("receipts"),
            batches: table("batches"),
            forbidden: table("forbidden"),
            sessions: table("sessions"),
            broadcasters: table("broadcasters"),
            queued: table("queued"),
            dead: table("dead"),
            leases: table("leases"),
            decisions: table("decisions"),
            providers: table("providers"),
            chats: table("chats"),
            log: table("log"),
            log_of: table("log_of"),
            requests: table("requests"),
            requests_at: table("requests_at"),
            account: format!("account/{id}").into_bytes(),
            next_incarnation: format!("next_incarnation/{id}").into_bytes(),
            next_receipt: format!("next_receipt/{id}").into_bytes(),
            next_log: format!("next_log/{id}").into_bytes(),
            settings: format!("settings/{id}").into_bytes(),
            token_floor: format!("token_floor/{id}").into_bytes(),
            requests_count: format!("requests_count/{id}").into_bytes(),
        }
    }
}

pub(crate) fn definition(name: &str) -> TableDefinition<'_, Bytes, Bytes> {
    TableDefinition::new(name)
}

/// One incarnation on disk. Its deadline may be up to one second behind the one in memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OwnerRow {
    pub name: Name,
    pub ttl_ms: u64,
    pub started_ms: u64,
    pub deadline_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EndRow>,
}

/// How and when an incarnation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndRow {
    pub ending: Ending,
    pub at_ms: u64,
    /// When its heartbeat ran out; for a retired one, when it retired.
    pub deadline_ms: u64,
    /// How many entries it held then.
    pub held: u64,
}

/// One session on disk. Its references are rows of `S/held`; their number is kept here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionRow {
    #[serde(flatten)]
    pub profile: SessionProfile,
    pub references: u64,
    /// Since when there has been no reference.
    pub since_ms: u64,
    /// Whether a reference ended then.
    pub disconnected: bool,
    pub updated_ms: u64,
}

pub(crate) fn number(value: u64) -> [u8; 8] {
    value.to_be_bytes()
}

pub(crate) fn to_number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?))
}

/// The key of `S/held` and `S/lost`.
pub(crate) fn held_key(incarnation: u64, key: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + key.len());
    bytes.extend_from_slice(&number(incarnation));
    bytes.extend_from_slice(key.as_bytes());
    bytes
}

/// Splits a key of `S/held` or `S/lost`.
pub(crate) fn split_held(bytes: &[u8]) -> Option<(u64, &str)> {
    Some((to_number(bytes)?, std::str::from_utf8(&bytes[8..]).ok()?))
}

/// The key of `S/queued` and `S/log_of`. No name contains a zero byte, so queues do not mix.
pub(crate) fn queued_key(queue: &str, place: u64) -> Vec<u8> {
    batch_key(queue, place)
}

/// Splits a key of `S/queued` or `S/log_of`.
pub(crate) fn split_queued(bytes: &[u8]) -> Option<(&str, u64)> {
    let (queue, place) = bytes.split_at_checked(bytes.len().checked_sub(9)?)?;
    Some((std::str::from_utf8(queue).ok()?, to_number(&place[1..])?))
}

/// The value of `S/batches`: two numbers.
pub(crate) fn pair(first: u64, second: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number(first));
    bytes[8..].copy_from_slice(&number(second));
    bytes
}

pub(crate) fn split_pair(bytes: &[u8]) -> Option<(u64, u64)> {
    Some((to_number(bytes)?, to_number(bytes.get(8..)?)?))
}

/// The key of a batch in the table `S/batches`.
pub(crate) fn batch_key(sweeper: &str, batch: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(sweeper.len() + 9);
    bytes.extend_from_slice(sweeper.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&number(batch));
    bytes
}
