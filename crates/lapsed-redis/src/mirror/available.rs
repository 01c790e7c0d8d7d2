//! Who can take work now: plain reads in one transaction, reckoned here.
//!
//! A script would hand hundreds of values to Lua, which costs the server several times what reading them
//! does. What may change between the reads: everything. So all that is judged is of one instant (MULTI, on one
//! server or in one slot), and the roll of names, which was read before, is only a guess:
//! - Where everybody fits into one page, the answer counts only if, at that instant, the whole roll was online
//!   and nobody else. Otherwise the names are read again; where they change all the time, the script looks.
//! - Of larger sets a page is some names: whoever of them has gone by that instant is left out, and who has
//!   come is in no page or in a later one, as with every scan.
//! - A mirror that was not seeded, or has lost something, says so at that instant, and nothing is answered.
//! - A slot that moves to another node, a permission that is missing, a key of another type: the transaction
//!   is refused or has an error in it. Then the script looks, and says what is wrong.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_availability::rules::AvailabilitySettings;
use lapsed_availability::{Available, AvailablePage};
use lapsed_core::sweep::Cursor;
use lapsed_core::{Name, Result};

use super::Inner;
use super::looks::{Words, next, number};
use super::roll::{Called, Place, ProviderBatch};
use super::times::Times;
use crate::script;

/// How many are looked at in one go where these may be all; what is larger than that goes in smaller pages, so
/// that somebody else on the server hardly notices.
const NAMES_AT_FIRST: usize = 400;
const NAMES_A_PAGE: usize = 64;

/// A set of small numbers comes whole, however many are asked for; more than so many go to the script.
const NAMES_MOST: usize = 1_000;

/// How often the names are looked at, before the script does.
const LOOKS: usize = 3;

/// How long the server is not asked for transactions after it has refused one.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// What errors call it.
const CALL: &str = "MULTI … EXEC";

const LOCK: &str = "no holder of this lock panics";

/// What somebody asks for, in one page.
#[derive(Clone, Copy)]
struct Asked<'a> {
    settings: &'a AvailabilitySettings,
    place: &'a str,
    limit: usize,
    only_count: bool,
}

/// What became of an attempt.
enum Look {
    Answered(Option<AvailablePage>),
    /// It was not asked who is deactivated: the same names again.
    Again(ProviderBatch),
    /// Others have come or gone.
    Changed,
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
        let asked = Asked { settings, place, limit: limit.clamp(1, most), only_count };
        if self.reads.are_allowed(self.ground.clock.mono())
            && let Some(page) = self.available_read(asked).await?
        {
            return Ok(page);
        }
        self.available_scripted(asked).await
    }

    /// `None`: nothing can be said this way.
    async fn available_read(&self, asked: Asked<'_>) -> Result<Option<Option<AvailablePage>>> {
        let mut guess = self.reads.guess(asked);
        for _ in 0..LOOKS {
            let roll = match guess.take() {
                Some(roll) => Some(roll),
                None => self.call_names(asked).await?,
            };
            let Some(roll) = roll.filter(|roll| roll.names.len() <= NAMES_MOST) else {
                return Ok(None);
            };
            let answers = self.ground.link.transact(CALL, &roll.pipeline, roll.answer_at());
            let called = answers.await?.and_then(|answers| roll.read(answers));
            let Some(called) = called else {
                self.reads.refused(self.ground.clock.mono());
                return Ok(None);
            };
            self.reads.note(called.deactivated > 0);
            match self.judge(&roll, &called, asked) {
                Look::Answered(page) => {
                    self.reads.keep(roll);
                    return Ok(Some(page));
                }
                Look::Again(roll) => guess = Some(Arc::new(roll)),
                Look::Changed => {}
            }
        }
        Ok(None)
    }

    /// Some names of those online, from a place on; `None`: the server refuses to say.
    async fn call_names(&self, asked: Asked<'_>) -> Result<Option<Arc<ProviderBatch>>> {
        let mut scan = redis::pipe();
        scan.cmd("SSCAN").arg(&self.keys[1]).arg(asked.place).arg("COUNT").arg(asked.limit);
        let mut pages: Vec<Option<(String, Words)>> =
            self.ground.link.query_each("SSCAN", &scan, 1).await?;
        let Some((cursor, members)) = pages.pop().flatten() else { return Ok(None) };
        let after = match (asked.place, cursor.as_str()) {
            ("0", "0") => Place::Whole,
            (_, "0") => Place::End,
            _ => Place::At(cursor),
        };
        let asks_deactivated = self.reads.has_deactivated();
        Ok(Some(Arc::new(ProviderBatch::new(self, members, after, asks_deactivated))))
    }

    fn judge(&self, roll: &ProviderBatch, called: &Called, asked: Asked<'_>) -> Look {
        if !called.is_seeded {
            return Look::Answered(None);
        }
        let all = roll.names.len();
        let is_all = called.online == all as u64 && (0..all).all(|at| called.is_online(at));
        if roll.after == Place::Whole && !is_all {
            return Look::Changed;
        }
        if called.deactivated > 0 && !roll.asks_deactivated && all > 0 {
            return Look::Again(roll.asking_deactivated(self));
        }
        Look::Answered(Some(found(roll, called, asked)))
    }

    /// The same by a script, in one step whatever happens.
    async fn available_scripted(&self, asked: Asked<'_>) -> Result<Option<AvailablePage>> {
        let script = &script::MIRROR_AVAILABLE;
        let settings = asked.settings;
        let stale_ms = settings.require_ping.then(|| settings.stale_ms().to_string());
        let args = self
            .args(4)
            .arg(asked.place)
            .arg(asked.limit)
            .arg(stale_ms.unwrap_or_default())
            .arg(settings.max_customers_per_mitra);
        let args = self.capacities(self.heartbeats(args));
        let args = args.arg(if asked.only_count { "count" } else { "list" });
        let words: Option<Words> = self.ground.run_bare(script, args).await?;
        let Some(words) = words else { return Ok(None) };
        let [cursor, count, rows @ ..] = &words[..] else {
            return Err(self.ground.nonsense(script));
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

/// Those of the roll that can take work.
fn found(roll: &ProviderBatch, called: &Called, asked: Asked<'_>) -> AvailablePage {
    let Asked { settings, only_count, .. } = asked;
    let latest_ms = called.now_ms - i64::try_from(settings.stale_ms()).unwrap_or(i64::MAX);
    let mut times = Times::default();
    let mut is_fresh = |at: usize| {
        let beat_ms = called.heartbeat(at).and_then(|text| times.read(text));
        !settings.require_ping || beat_ms.is_some_and(|beat_ms| beat_ms > latest_ms)
    };
    let most = settings.max_customers_per_mitra;
    let next = match &roll.after {
        Place::At(cursor) => Some(Cursor(Some(cursor.clone()))),
        Place::Whole | Place::End => None,
    };
    let mut page = AvailablePage { available: Vec::new(), count: 0, next };
    for (at, id) in roll.names.iter().enumerate() {
        let Some(id) = id.as_ref().filter(|_| called.is_online(at) && !called.is_deactivated(at))
        else {
            continue;
        };
        let sessions = called.capacity(at).map_or(0, sessions_of);
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

/// One that cannot be read has no room, as far as anybody can tell; one below zero has all of it.
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

/// What is remembered from one look to the next, to spare round trips; nothing of it is believed.
#[derive(Default)]
pub(super) struct Reads {
    /// Everybody, where all fit into one page.
    roll: Mutex<Option<Arc<ProviderBatch>>>,
    has_deactivated: AtomicBool,
    /// Until when the server is not asked for a transaction, on the monotonic clock.
    refused_until: Mutex<Duration>,
}

impl Reads {
    fn are_allowed(&self, now: Duration) -> bool {
        now >= *self.refused_until.lock().expect(LOCK)
    }

    fn refused(&self, now: Duration) {
        *self.refused_until.lock().expect(LOCK) = now + REFUSED_FOR;
    }

    fn guess(&self, asked: Asked<'_>) -> Option<Arc<ProviderBatch>> {
        let fits =
            |roll: &Arc<ProviderBatch>| asked.place == "0" && roll.names.len() <= asked.limit;
        self.roll.lock().expect(LOCK).clone().filter(fits)
    }

    fn keep(&self, roll: Arc<ProviderBatch>) {
        if roll.after == Place::Whole {
            *self.roll.lock().expect(LOCK) = Some(roll);
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
