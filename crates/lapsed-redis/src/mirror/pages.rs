//! Reads of the mirror in bounded pages: entries, heartbeats, pending providers, traces.

use lapsed_availability::rules::PendingOffline;
use lapsed_availability::{BeatPage, MassBeats, MirrorEntry, MirrorView, OnlineBeat, SeenBeat};
use lapsed_core::sweep::Cursor;
use lapsed_core::{Error, Name, Result};

use super::decide::parse_pending;
use super::{Inner, NAMES_A_CALL};
use crate::script::{self, Script};

/// The keys in which traces of providers are searched, in this order.
const KINDS: [&str; 6] =
    ["versions", "online", "deactivated", "doomed", "heartbeats", "capacities"];

/// How many keys of the database one step scans; perhaps few of them belong to this system.
const KEYS_A_LOOK: usize = 1_000;

/// How many providers one step describes in full.
const SEEN_A_CALL: usize = 250;

/// The words of an answer. Names may be any bytes, because applications write them.
pub(super) type AnswerWords = Vec<Vec<u8>>;

fn text(word: &[u8]) -> Option<&str> {
    std::str::from_utf8(word).ok()
}

pub(super) fn number(word: &[u8]) -> Option<u64> {
    text(word)?.parse().ok()
}

/// A time, `m` and since when it is missed, or `u`.
fn beat(word: &[u8]) -> Option<SeenBeat> {
    match text(word)? {
        "u" => Some(SeenBeat::Unreadable),
        "m" => Some(SeenBeat::Missing(None)),
        word => match word.strip_prefix('m') {
            Some(since) => Some(SeenBeat::Missing(Some(since.parse().ok()?))),
            None => Some(SeenBeat::At(word.parse().ok()?)),
        },
    }
}

/// `at_ms:beats:looked at`; `None` if it is empty.
pub(super) fn mass_beats(word: &str) -> Option<MassBeats> {
    let mut numbers = word.split(':').map(|number| number.parse().ok());
    let mut next = || numbers.next()?;
    Some(MassBeats { at_ms: next()?, beats: next()?, of: next()? })
}

/// The cursor at which the scan of a set continues.
pub(super) fn next(cursor: &[u8]) -> Option<Cursor> {
    (cursor != b"0").then(|| Cursor(text(cursor).map(str::to_owned)))
}

fn entry_of(id: &Name, words: &[Vec<u8>]) -> Option<MirrorEntry> {
    let [version, online, deactivated, sessions, last, pending_offline] = words else {
        return None;
    };
    let (version, epoch) = match text(version)?.split_once(':') {
        Some((version, epoch)) => (Some(version.parse().ok()?), epoch.parse().ok()?),
        None => (None, 0),
    };
    let pending_offline = Some(text(pending_offline)?).filter(|pending| !pending.is_empty());
    Some(MirrorEntry {
        id: id.clone(),
        version,
        epoch,
        online: online == b"1",
        deactivated: deactivated == b"1",
        sessions: number(sessions),
        beat: beat(last)?,
        pending_offline: pending_offline.and_then(parse_pending),
    })
}

impl Inner {
    pub(super) fn place<'c>(&self, after: &'c Cursor) -> Result<&'c str> {
        let place = after.0.as_deref().unwrap_or("0");
        let fits = !place.is_empty() && place.bytes().all(|b| b.is_ascii_digit());
        let wrong = || Error::Invalid(format!("{place:?} is not a place in a mirror"));
        fits.then_some(place).ok_or_else(wrong)
    }

    /// Returns what was read, or the error for an answer of another shape.
    pub(super) fn read<T>(&self, script: &Script, read: impl FnOnce() -> Option<T>) -> Result<T> {
        read().ok_or_else(|| self.context.unexpected_answer(script))
    }

    pub(super) async fn look(&self, ids: &[Name]) -> Result<MirrorView> {
        let script = &script::MIRROR_SHOW;
        let mut view = MirrorView { seen: Vec::with_capacity(ids.len()), now_ms: 0, seeded: true };
        let mut rest = ids;
        loop {
            let (part, after) = rest.split_at(rest.len().min(SEEN_A_CALL));
            let args = self.capacities(self.heartbeats(self.args(7))).names(part);
            let words: AnswerWords = self.context.run_with_keys(script, args).await?;
            let [now_ms, seeded, rows @ ..] = &words[..] else {
                return Err(self.context.unexpected_answer(script));
            };
            // The first clock: what was read later is not older than it says.
            if view.now_ms == 0 {
                view.now_ms = self.read(script, || number(now_ms))?;
            }
            view.seeded &= seeded == b"1";
            let rows = rows.chunks(6);
            let found: Option<Vec<MirrorEntry>> =
                part.iter().zip(rows).map(|(id, row)| entry_of(id, row)).collect();
            view.seen
                .extend(self.read(script, || found.filter(|found| found.len() == part.len()))?);
            rest = after;
            if rest.is_empty() {
                return Ok(view);
            }
        }
    }

    pub(super) async fn beats(
        &self,
        after: &Cursor,
        limit: usize,
        older_ms: u64,
    ) -> Result<Option<BeatPage>> {
        let script = &script::MIRROR_BEATS;
        let args = self.args(7).arg(self.place(after)?).arg(limit.clamp(1, NAMES_A_CALL));
        let args = self.heartbeats(args.arg(older_ms));
        let words: Option<AnswerWords> = self.context.run_with_keys(script, args).await?;
        let Some(words) = words else { return Ok(None) };
        let [now_ms, cursor, examined, mass, rows @ ..] = &words[..] else {
            return Err(self.context.unexpected_answer(script));
        };
        let ahead = rows.chunks(3).filter_map(|row| match row {
            [id, _, last] if last == b"f" => Name::from_bytes(id).ok(),
            _ => None,
        });
        let row = |row: &[Vec<u8>]| -> Option<OnlineBeat> {
            let [id, epoch, last] = row else { return None };
            // A member that cannot be a name is left alone, because lapsed knows no such provider.
            let id = Name::from_bytes(id).ok()?;
            Some(OnlineBeat { id, epoch: number(epoch)?, beat: beat(last)? })
        };
        Ok(Some(BeatPage {
            ahead: ahead.collect(),
            beats: rows.chunks(3).filter_map(row).collect(),
            examined: self.read(script, || number(examined))?,
            now_ms: self.read(script, || number(now_ms))?,
            next: next(cursor),
            mass_beats: text(mass).and_then(mass_beats),
        }))
    }

    pub(super) async fn clamp_beats(&self, ids: &[Name]) -> Result<u64> {
        let mut changed = 0;
        for part in ids.chunks(NAMES_A_CALL) {
            let args = self.heartbeats(self.args(4)).names(part);
            changed += self.context.run_with_keys::<u64>(&script::MIRROR_CLAMP, args).await?;
        }
        Ok(changed)
    }

    pub(super) async fn pending_offline(
        &self,
        limit: usize,
    ) -> Result<Vec<(Name, PendingOffline)>> {
        let (mut found, mut after, script) = (Vec::new(), 0, &script::MIRROR_PENDING);
        let row = |row: &[Vec<u8>]| {
            let [id, pending] = row else { return None };
            Some((Name::from_bytes(id).ok()?, parse_pending(text(pending)?)?))
        };
        while after < limit {
            let most = (limit - after).min(NAMES_A_CALL);
            let args = self.args(6).arg(after).arg(most);
            let words: AnswerWords = self.context.run_with_keys(script, args).await?;
            let [examined, rows @ ..] = &words[..] else {
                return Err(self.context.unexpected_answer(script));
            };
            found.extend(rows.chunks(2).filter_map(row));
            after += most;
            if self.read(script, || number(examined))? < most as u64 {
                break;
            }
        }
        Ok(found)
    }

    /// In pages over the smaller of both sets: a count of moments close together.
    pub(super) async fn count_online(&self) -> Result<Option<u64>> {
        let script = &script::MIRROR_COUNT;
        let (mut both, mut cursor, mut which) = (0, "0".to_owned(), String::new());
        loop {
            let args = self.args(4).arg(&cursor).arg(NAMES_A_CALL).arg(&which);
            let words: Option<Vec<String>> = self.context.run_with_keys(script, args).await?;
            let Some(words) = words else { return Ok(None) };
            let [online, some, at, set] = &words[..] else {
                return Err(self.context.unexpected_answer(script));
            };
            both += self.read(script, || some.parse::<u64>().ok())?;
            (cursor, which) = (at.clone(), set.clone());
            if cursor == "0" {
                let online = self.read(script, || online.parse::<u64>().ok())?;
                return Ok(Some(online.saturating_sub(both)));
            }
        }
    }

    pub(super) async fn traces(
        &self,
        after: &Cursor,
        limit: usize,
    ) -> Result<(Vec<Name>, Option<Cursor>)> {
        let place = after.0.as_deref().unwrap_or("versions:0");
        let found = place.split_once(':');
        let found = found.and_then(|(kind, at)| Some((KINDS.iter().position(|k| *k == kind)?, at)));
        let Some((kind, cursor)) = found else {
            return Err(Error::Invalid(format!("{place:?} is not a place in a mirror")));
        };
        let (template, what) = match KINDS[kind] {
            "heartbeats" => (Some(&self.layout.heartbeat_key), "keys"),
            "capacities" => (Some(&self.layout.capacity_key), "keys"),
            other => (None, other),
        };
        let limit = template.map_or(limit.clamp(1, NAMES_A_CALL), |_| KEYS_A_LOOK);
        let mut args = self.args(5).arg(what).arg(cursor).arg(limit);
        if let Some(template) = template {
            let (before, after) = template.parts();
            args = args.arg(template.pattern()).arg(before).arg(after);
        }
        let script = &script::MIRROR_TRACES;
        let words: AnswerWords = self.context.run_with_keys(script, args).await?;
        let [cursor, ids @ ..] = &words[..] else {
            return Err(self.context.unexpected_answer(script));
        };
        let next = match (&cursor[..], KINDS.get(kind + 1)) {
            (b"0", None) => None,
            (b"0", Some(later)) => Some(format!("{later}:0")),
            _ => text(cursor).map(|cursor| format!("{}:{cursor}", KINDS[kind])),
        };
        let names = ids.iter().filter_map(|id| Name::from_bytes(id).ok()).collect();
        Ok((names, next.map(|next| Cursor(Some(next)))))
    }
}
