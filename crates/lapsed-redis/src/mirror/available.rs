//! Lists the providers that can take work now, from plain reads in one transaction.
//!
//! A script would pass hundreds of values to Lua, which costs the server several times as much as reading them.
//! Anything may change between two reads, so everything that decides the answer is read at one instant (MULTI,
//! on one server or in one slot). Only the list of names was read before, and it is checked:
//! - If all names fit into one page, the answer counts only if exactly these providers were online at that
//!   instant. Otherwise the names are read again; if they keep changing, the script answers.
//! - Of a larger set a page is a part: a provider that has gone offline by that instant is left out, and one that
//!   has come online is in a later page or in none, as with every scan.
//! - If the mirror was not seeded, or has lost data, it says so at that instant, and nothing is answered.
//! - If a slot moves to another node, a permission is missing, or a key has another type, the transaction is
//!   refused or contains an error. Then the script is used, and reports the cause.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_availability::rules::AvailabilitySettings;
use lapsed_availability::{Available, AvailablePage};
use lapsed_core::sweep::Cursor;
use lapsed_core::{Name, Result};

use super::Inner;
use super::pages::{AnswerWords, next, number};
use super::provider_batch::{BatchReading, PageEnd, ProviderBatch};
use super::times::Times;
use crate::script;

/// The most providers that one transaction reads if that may be all of them. A larger set is read in smaller
/// pages, so that other clients of the server wait less.
const NAMES_AT_FIRST: usize = 400;
const NAMES_A_PAGE: usize = 64;

/// The server returns a set of small numbers whole, whatever limit is asked for. A larger one is left to the script.
const NAMES_MOST: usize = 1_000;

/// How many times plain reads are tried before the script is used.
const READ_ATTEMPTS: usize = 3;

/// How long no transaction is sent after the server has refused one.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// The name of this call in errors.
const CALL: &str = "MULTI … EXEC";

const LOCK: &str = "no holder of this lock panics";

/// One page of a query for available providers.
#[derive(Clone, Copy)]
struct PageQuery<'a> {
    settings: &'a AvailabilitySettings,
    place: &'a str,
    limit: usize,
    only_count: bool,
}

/// The result of one attempt to answer a query from plain reads.
enum ReadOutcome {
    Answered(Option<AvailablePage>),
    /// At least one provider is deactivated, and the batch did not ask which: repeat it with the same names.
    NeedsDeactivated(ProviderBatch),
    /// The set of online providers is not the one that the batch was made from.
    SetChanged,
}

impl Inner {
    pub(super) async fn available(
        &self,
        settings: &AvailabilitySettings,
        after: &Cursor,
        limit: usize,
        only_count: bool,
    ) -> Result<Option<AvailablePage>> {
        let place = self.place(after)?;
        let most = if place == "0" { NAMES_AT_FIRST } else { NAMES_A_PAGE };
        let query = PageQuery { settings, place, limit: limit.clamp(1, most), only_count };
        if self.read_hints.are_allowed(self.context.clock.mono())
            && let Some(page) = self.available_read(query).await?
        {
            return Ok(page);
        }
        self.available_scripted(query).await
    }

    /// Answers a query from plain reads. `None`: that is not possible, so the script must be used.
    async fn available_read(&self, query: PageQuery<'_>) -> Result<Option<Option<AvailablePage>>> {
        let mut guess = self.read_hints.guess(query);
        for _ in 0..READ_ATTEMPTS {
            let batch = match guess.take() {
                Some(batch) => Some(batch),
                None => self.scan_online(query).await?,
            };
            let Some(batch) = batch.filter(|batch| batch.names.len() <= NAMES_MOST) else {
                return Ok(None);
            };
            let answers =
                self.context.connection.transact(CALL, &batch.pipeline, batch.answer_at());
            let reading = answers.await?.and_then(|answers| batch.read(answers));
            let Some(reading) = reading else {
                self.read_hints.refused(self.context.clock.mono());
                return Ok(None);
            };
            self.read_hints.note(reading.deactivated > 0);
            match self.interpret(&batch, &reading, query) {
                ReadOutcome::Answered(page) => {
                    self.read_hints.keep(batch);
                    return Ok(Some(page));
                }
                ReadOutcome::NeedsDeactivated(batch) => guess = Some(Arc::new(batch)),
                ReadOutcome::SetChanged => {}
            }
        }
        Ok(None)
    }

    /// Scans the set of online providers from a cursor on; `None`: the server refuses the command.
    async fn scan_online(&self, query: PageQuery<'_>) -> Result<Option<Arc<ProviderBatch>>> {
        let mut scan = redis::pipe();
        scan.cmd("SSCAN").arg(&self.keys[1]).arg(query.place).arg("COUNT").arg(query.limit);
        let mut pages: Vec<Option<(String, AnswerWords)>> =
            self.context.connection.query_each("SSCAN", &scan, 1).await?;
        let Some((cursor, members)) = pages.pop().flatten() else { return Ok(None) };
        let after = match (query.place, cursor.as_str()) {
            ("0", "0") => PageEnd::Whole,
            (_, "0") => PageEnd::Last,
            _ => PageEnd::Continues(cursor),
        };
        let asks_deactivated = self.read_hints.has_deactivated();
        Ok(Some(Arc::new(ProviderBatch::new(self, members, after, asks_deactivated))))
    }

    fn interpret(
        &self,
        batch: &ProviderBatch,
        reading: &BatchReading,
        query: PageQuery<'_>,
    ) -> ReadOutcome {
        if !reading.is_seeded {
            return ReadOutcome::Answered(None);
        }
        let all = batch.names.len();
        let is_all = reading.online == all as u64 && (0..all).all(|at| reading.is_online(at));
        if batch.after == PageEnd::Whole && !is_all {
            return ReadOutcome::SetChanged;
        }
        if reading.deactivated > 0 && !batch.asks_deactivated && all > 0 {
            return ReadOutcome::NeedsDeactivated(batch.asking_deactivated(self));
        }
        ReadOutcome::Answered(Some(found(batch, reading, query)))
    }

    /// Answers a query by a script, in one step.
    async fn available_scripted(&self, query: PageQuery<'_>) -> Result<Option<AvailablePage>> {
        let script = &script::MIRROR_AVAILABLE;
        let settings = query.settings;
        let stale_ms = settings.require_ping.then(|| settings.stale_ms().to_string());
        let args = self
            .args(4)
            .arg(query.place)
            .arg(query.limit)
            .arg(stale_ms.unwrap_or_default())
            .arg(settings.max_customers_per_mitra);
        let args = self.capacities(self.heartbeats(args));
        let args = args.arg(if query.only_count { "count" } else { "list" });
        let words: Option<AnswerWords> = self.context.run_with_keys(script, args).await?;
        let Some(words) = words else { return Ok(None) };
        let [cursor, count, rows @ ..] = &words[..] else {
            return Err(self.context.unexpected_answer(script));
        };
        let row = |row: &[Vec<u8>]| -> Option<Available> {
            let [id, sessions] = row else { return None };
            let id = Name::from_bytes(id).ok()?;
            Some(Available { id, active_session_count: number(sessions)? })
        };
        let mut available: Vec<Available> = rows.chunks(2).filter_map(row).collect();
        available.sort_by(|a, b| a.id.cmp(&b.id));
        let count = self.read(script, || number(count))?;
        Ok(Some(AvailablePage { available, count, next: next(cursor) }))
    }
}

/// The providers of the batch that can take work.
fn found(batch: &ProviderBatch, reading: &BatchReading, query: PageQuery<'_>) -> AvailablePage {
    let PageQuery { settings, only_count, .. } = query;
    let latest_ms = reading.now_ms - i64::try_from(settings.stale_ms()).unwrap_or(i64::MAX);
    let mut times = Times::default();
    let mut is_fresh = |at: usize| {
        let beat_ms = reading.heartbeat(at).and_then(|text| times.read(text));
        !settings.require_ping || beat_ms.is_some_and(|beat_ms| beat_ms > latest_ms)
    };
    let most = settings.max_customers_per_mitra;
    let next = match &batch.after {
        PageEnd::Continues(cursor) => Some(Cursor(Some(cursor.clone()))),
        PageEnd::Whole | PageEnd::Last => None,
    };
    let mut page = AvailablePage { available: Vec::new(), count: 0, next };
    for (at, id) in batch.names.iter().enumerate() {
        let Some(id) = id.as_ref().filter(|_| reading.is_online(at) && !reading.is_deactivated(at))
        else {
            continue;
        };
        let sessions = reading.capacity(at).map_or(0, sessions_of);
        if sessions < most && is_fresh(at) {
            page.count += 1;
            if !only_count {
                let active_session_count = sessions;
                page.available.push(Available { id: id.clone(), active_session_count });
            }
        }
    }
    page
}

/// The number of sessions; an unreadable one counts as full, a negative one as 0.
fn sessions_of(text: &[u8]) -> u64 {
    let Ok(text) = std::str::from_utf8(text) else { return u64::MAX };
    if let Ok(sessions) = text.parse() {
        return sessions;
    }
    match text.trim().parse::<f64>() {
        Ok(sessions) if !sessions.is_nan() => sessions.ceil() as u64,
        _ => u64::MAX,
    }
}

/// What is kept between queries to save round trips. Every answer checks it again.
#[derive(Default)]
pub(super) struct ReadHints {
    /// All online providers, if they fit into one page.
    batch: Mutex<Option<Arc<ProviderBatch>>>,
    has_deactivated: AtomicBool,
    /// Until when no transaction is sent, on the monotonic clock.
    refused_until: Mutex<Duration>,
}

impl ReadHints {
    fn are_allowed(&self, now: Duration) -> bool {
        now >= *self.refused_until.lock().expect(LOCK)
    }

    fn refused(&self, now: Duration) {
        *self.refused_until.lock().expect(LOCK) = now + REFUSED_FOR;
    }

    fn guess(&self, query: PageQuery<'_>) -> Option<Arc<ProviderBatch>> {
        let fits =
            |batch: &Arc<ProviderBatch>| query.place == "0" && batch.names.len() <= query.limit;
        self.batch.lock().expect(LOCK).clone().filter(fits)
    }

    fn keep(&self, batch: Arc<ProviderBatch>) {
        if batch.after == PageEnd::Whole {
            *self.batch.lock().expect(LOCK) = Some(batch);
        }
    }

    fn note(&self, has_deactivated: bool) {
        self.has_deactivated.store(has_deactivated, Ordering::Relaxed);
    }

    fn has_deactivated(&self) -> bool {
        self.has_deactivated.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_that_cannot_be_read_leave_no_room() {
        for (text, sessions) in [("0", 0), ("2", 2), ("-1", 0), (" 2 ", 2), ("2.5", 3), ("1e1", 10)]
        {
            assert_eq!(sessions_of(text.as_bytes()), sessions, "{text:?}");
        }
        for text in ["", "many", "nan", "inf", "99999999999999999999999"] {
            assert_eq!(sessions_of(text.as_bytes()), u64::MAX, "{text:?}");
        }
        assert_eq!(sessions_of(&[0xff]), u64::MAX);
    }
}
