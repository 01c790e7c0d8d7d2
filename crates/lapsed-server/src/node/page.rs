//! Receipts of several systems as one list, read in pages with a single cursor.
//!
//! A cursor is `KIND/NAME:SEQ` for each system, joined by commas; for a single system the bare
//! number is enough. Pages are read from the store and never cached.
//!
//! If the store of one system does not answer, the page has the receipts of the others and names
//! that system. The cursor keeps the place of a system that is missing, so that a reader that continues
//! when the store is back misses nothing of it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use futures::future::join_all;
use lapsed_core::receipt::{Reason, Receipt, ReceiptQuery};
use lapsed_core::{Error, Result};

use super::live::LiveSystem;
use super::missing::{self, MissingSystem};
use super::shapes::ReceiptPage;

/// The most receipts in one page.
pub const PAGE_MAX: usize = 1_000;

/// The most receipts of one system that a request with filters examines.
const SCAN_MAX: usize = 20_000;

/// A position in the receipts of each system: the number of the last receipt that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptCursor {
    places: BTreeMap<String, u64>,
}

impl ReceiptCursor {
    /// Parses `42` (for a single system) or `registry/default:42,...`.
    pub fn parse(text: &str, systems: &[Arc<LiveSystem>]) -> Result<ReceiptCursor> {
        let wrong = || {
            Error::Invalid(format!(
                "{text:?} is not a cursor; take the one from `next` or from the `id` of an event"
            ))
        };
        let mut cursor = ReceiptCursor::default();
        if let Ok(seq) = text.parse() {
            let [only] = systems else {
                return Err(Error::Invalid(
                    "a bare number is a cursor only together with `system`".to_owned(),
                ));
            };
            cursor.set(&only.id().to_string(), seq);
            return Ok(cursor);
        }
        for place in text.split(',') {
            let (system, seq) = place.rsplit_once(':').ok_or_else(wrong)?;
            if !system.contains('/') {
                return Err(wrong());
            }
            cursor.set(system.trim(), seq.parse().map_err(|_| wrong())?);
        }
        Ok(cursor)
    }

    /// The position in the receipts of one system.
    pub fn get(&self, system: &str) -> Option<u64> {
        self.places.get(system).copied()
    }

    pub fn set(&mut self, system: &str, seq: u64) {
        self.places.insert(system.to_owned(), seq);
    }
}

impl fmt::Display for ReceiptCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (system, seq)) in self.places.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{system}:{seq}")?;
        }
        Ok(())
    }
}

/// The filter of a query for receipts.
#[derive(Clone, Debug, Default)]
pub struct ReceiptFilter {
    /// Only receipts after this position, oldest first.
    pub after: Option<ReceiptCursor>,
    /// Only receipts before this position, newest first.
    pub before: Option<ReceiptCursor>,
    /// The most receipts on the page.
    pub limit: usize,
    /// Only receipts of the entry with this key.
    pub key: Option<String>,
    /// Only receipts of entries of this owner.
    pub owner: Option<String>,
    /// Only receipts whose key or owner contains this text, regardless of case.
    pub search: Option<String>,
    /// Only receipts with this reason.
    pub reason: Option<Reason>,
    /// Only receipts written at this time or later, in milliseconds on the store's clock.
    pub since_ms: Option<u64>,
    /// Only receipts written before this time, in milliseconds on the store's clock.
    pub until_ms: Option<u64>,
}

impl ReceiptFilter {
    fn fits(&self, receipt: &Receipt) -> bool {
        self.key.as_ref().is_none_or(|key| receipt.key.as_str() == key)
            && self.owner.as_ref().is_none_or(|owner| receipt.owner.as_str() == owner)
            && self.reason.is_none_or(|reason| receipt.reason == reason)
            && self.since_ms.is_none_or(|since_ms| receipt.at_ms >= since_ms)
            && self.until_ms.is_none_or(|until_ms| receipt.at_ms < until_ms)
            && self.search.as_ref().is_none_or(|text| mentions(receipt, text))
    }

    fn is_filtered(&self) -> bool {
        self.key.is_some()
            || self.owner.is_some()
            || self.search.is_some()
            || self.reason.is_some()
            || self.since_ms.is_some()
            || self.until_ms.is_some()
    }

    /// Whether no receipt beyond `page` can match: all of the page lies outside the requested time.
    /// A single receipt is not enough, because receipts can be slightly out of order if somebody
    /// set the store's clock.
    fn is_past(&self, page: &[Receipt]) -> bool {
        let past = |receipt: &Receipt| match self.is_forward() {
            true => self.until_ms.is_some_and(|until_ms| receipt.at_ms >= until_ms),
            false => self.since_ms.is_some_and(|since_ms| receipt.at_ms < since_ms),
        };
        page.iter().all(past)
    }

    fn is_forward(&self) -> bool {
        self.after.is_some()
    }
}

/// Whether the receipt's key or owner contains `text`, regardless of case.
fn mentions(receipt: &Receipt, text: &str) -> bool {
    let text = text.to_lowercase();
    [&receipt.key, &receipt.owner].iter().any(|name| name.as_str().to_lowercase().contains(&text))
}

/// The matching receipts of one system.
struct SystemReceipts {
    system: String,
    found: VecDeque<Receipt>,
    /// The position of a reader that has seen none of `found`.
    start: u64,
    /// The position of a reader that has seen all of `found`.
    end: u64,
    /// Whether there are no receipts beyond `end`.
    exhausted: bool,
    /// How many receipts were examined.
    examined: usize,
}

/// Reads one page of the receipts of `systems`. An error only if none of their stores answers.
pub async fn read(systems: &[Arc<LiveSystem>], wanted: &ReceiptFilter) -> Result<ReceiptPage> {
    let scans = systems.iter().map(|live| scan(live, wanted));
    let (parts, missing) = missing::split(systems, join_all(scans).await)?;
    Ok(merge(parts, missing, wanted))
}

/// Reads the receipts of one system until enough of them match or [`SCAN_MAX`] were examined.
async fn scan(live: &LiveSystem, wanted: &ReceiptFilter) -> Result<SystemReceipts> {
    let system = live.id().to_string();
    let from = |cursor: &Option<ReceiptCursor>| cursor.as_ref().and_then(|c| c.get(&system));
    let mut query = ReceiptQuery {
        after: wanted.is_forward().then(|| from(&wanted.after).unwrap_or(0)),
        before: from(&wanted.before),
        limit: wanted.limit,
    };
    if wanted.is_filtered() {
        query.limit = PAGE_MAX;
    }
    let mut found = VecDeque::new();
    let mut examined = 0;
    let mut start = query.after.or(query.before);
    let mut end = start.unwrap_or(0);
    loop {
        let page = live.receipts(query.clone()).await?;
        let exhausted = page.len() < query.limit || wanted.is_past(&page);
        if let (None, Some(newest)) = (start, page.first()) {
            start = Some(newest.id.seq + 1);
        }
        let mut full = false;
        for receipt in page {
            examined += 1;
            end = receipt.id.seq;
            if wanted.fits(&receipt) {
                found.push_back(receipt);
                full = found.len() == wanted.limit;
            }
            if full {
                break;
            }
        }
        if full || exhausted || examined >= SCAN_MAX {
            let (start, exhausted) = (start.unwrap_or(0), exhausted && !full);
            return Ok(SystemReceipts { system, found, start, end, exhausted, examined });
        }
        if query.after.is_some() { query.after = Some(end) } else { query.before = Some(end) }
    }
}

/// Merges the receipts of all systems by time, keeping each system's own order, cuts the list at
/// the limit, and computes the cursor of the next page.
fn merge(
    mut parts: Vec<SystemReceipts>,
    missing: Vec<MissingSystem>,
    wanted: &ReceiptFilter,
) -> ReceiptPage {
    let mut receipts = Vec::new();
    while receipts.len() < wanted.limit {
        let Some(part) = next_part(&mut parts, wanted.is_forward()) else { break };
        let Some(receipt) = part.found.pop_front() else { break };
        part.start = receipt.id.seq;
        receipts.push(receipt);
    }
    let mut next = ReceiptCursor::default();
    for part in &parts {
        // When all matching receipts of a system are on the page, the next page skips the others
        // that were examined.
        let all_taken = part.found.is_empty() && part.end > 0;
        next.set(&part.system, if all_taken { part.end } else { part.start });
    }
    // A system that is missing stays where the reader was. Without a place, reading it begins as
    // without a cursor: at its newest receipt, or forward at its oldest one.
    let asked = wanted.after.as_ref().or(wanted.before.as_ref());
    for MissingSystem { system, .. } in &missing {
        if let Some(place) = asked.and_then(|cursor| cursor.get(system)) {
            next.set(system, place);
        }
    }
    // A reader that goes forward continues from here when the store is back.
    let more = parts.iter().any(|s| !s.exhausted || !s.found.is_empty())
        || (wanted.is_forward() && !missing.is_empty());
    let text = match parts.as_slice() {
        [only] if missing.is_empty() => next.get(&only.system).unwrap_or(0).to_string(),
        _ => next.to_string(),
    };
    let examined = parts.iter().map(|part| part.examined as u64).sum();
    ReceiptPage { receipts, next: more.then_some(text), examined, missing }
}

/// The system whose first remaining receipt comes next in time.
fn next_part(parts: &mut [SystemReceipts], forward: bool) -> Option<&mut SystemReceipts> {
    let at_ms = |s: &SystemReceipts| s.found.front().map_or(0, |r| r.at_ms);
    let waiting = parts.iter_mut().filter(|s| !s.found.is_empty());
    match forward {
        true => waiting.min_by_key(|s| at_ms(s)),
        false => waiting.max_by_key(|s| at_ms(s)),
    }
}
