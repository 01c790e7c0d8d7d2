//! The properties that must hold after any fault: of both stores once the faults have ended, and of
//! every answer that was given meanwhile.
//!
//! Bounds are exact. Something that was sent at `s` and answered at `d` happened in between, and both
//! servers read the clock of this machine, in whole milliseconds: nothing else is allowed for.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{Beat, BeatAnswer, Change, History, Listing, Outcome, Source, Span, Toggle};
use super::observed::{Observed, ReceiptRow, Row};

/// Times are cut to milliseconds by the servers.
const MS: u64 = 1_000;

/// How long something that was not answered may still be on its way once everything runs again: the longest
/// of the daemons' own limits, and for a beat the mirror's and the truth's one after the other.
const LATE_US: u64 = 6_000_000;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Complaint {
    /// Set offline by a sweep, though it had beaten in time.
    AliveSetOffline { id: String, why: String },
    /// It was answered that it is offline, although it had beaten in time and nothing had set it offline.
    AliveToldOffline { id: String, why: String },
    /// Listed as available, though it had been silent for too long.
    SilentListed { id: String, why: String },
    /// Two rows in a row say the same, or the last one is not how it is.
    LogBroken { id: String, why: String },
    /// Rows and flips are not equally many.
    FlipsMiscounted { id: String, why: String },
    /// Two receipts for one time that it was online.
    TwiceReclaimed { id: String },
    /// A session is not as was answered.
    SessionLost { id: String, why: String },
    /// The capacity key is not the count.
    Capacity { id: String, why: String },
    /// A set of the mirror is not as the truth has it.
    Membership { id: String, why: String },
    /// The mirror has a heartbeat of an offline provider.
    HeartbeatLeft { id: String },
}

/// How many of each kind, and some of them.
pub fn describe(complaints: &[Complaint]) -> String {
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for complaint in complaints {
        let text = format!("{complaint:?}");
        let kind = text.split(' ').next().unwrap_or_default().to_owned();
        kinds.entry(kind).or_default().push(text);
    }
    let show = |(kind, all): (&String, &Vec<String>)| {
        let some: Vec<&str> = all.iter().take(4).map(String::as_str).collect();
        format!("{} of {kind}\n{}\n", all.len(), some.join("\n"))
    };
    kinds.iter().map(show).collect()
}

/// What is wrong with the stores, when all is calm.
pub fn check_stores(observed: &Observed) -> Vec<Complaint> {
    let mut found = Vec::new();
    let known: BTreeSet<&str> =
        observed.truth.providers.iter().map(|row| row.id.as_str()).collect();
    for row in &observed.truth.providers {
        check_provider(row, observed, &mut found);
    }
    let mirror = &observed.mirror;
    let strangers = mirror.online.iter().chain(&mirror.deactivated).chain(&mirror.heartbeats);
    for id in strangers.chain(mirror.capacity.keys()) {
        if !known.contains(id.as_str()) {
            let why = "in the mirror, and the truth has no provider with that id".to_owned();
            found.push(Complaint::Membership { id: id.clone(), why });
        }
    }
    found
}

fn check_provider(row: &Row, observed: &Observed, found: &mut Vec<Complaint>) {
    let (mirror, id) = (&observed.mirror, row.id.clone());
    let mut differ = |truth: bool, seen: bool, what: &str| {
        if truth != seen {
            let why = format!("{what} is {truth} in the truth and {seen} in the mirror");
            found.push(Complaint::Membership { id: id.clone(), why });
        }
    };
    differ(row.online, mirror.online.contains(&id), "online");
    differ(!row.active, mirror.deactivated.contains(&id), "deactivated");
    let noted = mirror.capacity.get(&id).map_or("0", String::as_str);
    if noted != row.sessions.to_string() {
        let why = format!("{} sessions in the truth, {noted:?} noted", row.sessions);
        found.push(Complaint::Capacity { id: id.clone(), why });
    }
    if !row.online && mirror.heartbeats.contains(&id) {
        found.push(Complaint::HeartbeatLeft { id });
    }
}

/// What is wrong with what went on.
pub fn check_history(observed: &Observed, history: &History, stale_s: u64) -> Vec<Complaint> {
    let stale_us = stale_s * 1_000_000;
    let mut found = Vec::new();
    for receipt in &observed.truth.receipts {
        found.extend(alive_set_offline(receipt, history, stale_us));
    }
    for (id, beats) in &history.beats {
        let receipts = observed.truth.receipts.iter().filter(|one| one.key == *id);
        let receipts: Vec<&ReceiptRow> = receipts.collect();
        found.extend(alive_told_offline(id, beats, &receipts, history, stale_us));
    }
    for listing in &history.listings {
        let silent = |id: &&String| !may_be_fresh(id, listing, history, stale_us);
        for id in listing.ids.iter().filter(silent) {
            let why = format!("in {:?} from the {:?}", listing.span, listing.source);
            let id = id.clone();
            let before = |span: &Span| span.sent_us < listing.span.sent_us;
            let beat = history.beats_of(&id).iter().rfind(|beat| before(&beat.span));
            let toggle = history.toggles_of(&id).iter().rfind(|toggle| before(&toggle.span));
            let why = format!("{why}; last {beat:?}, {toggle:?}");
            found.push(Complaint::SilentListed { id, why });
        }
    }
    check_logs(observed, history, &mut found);
    check_sessions(observed, history, &mut found);
    found
}

/// A sign of life: the last one of this provider before an event.
#[derive(Clone, Copy, Debug)]
struct SignOfLife {
    sent_us: u64,
    done_us: u64,
}

/// The newest sign of life that one store had before `before_us`, by when it was sent.
fn last_sign(history: &History, id: &str, source: Source, before_us: u64) -> Option<SignOfLife> {
    let beats = history.beats_of(id).iter().filter(|beat| beat.said == BeatAnswer::Noted(source));
    let beats = beats.map(|beat| beat.span);
    let toggles = history.toggles_of(id).iter().filter(|toggle| {
        source == Source::Truth
            && toggle.change == Change::Online
            && toggle.outcome != Outcome::Unknown
    });
    let spans = beats.chain(toggles.map(|toggle| toggle.span));
    let before = spans.filter(|span| span.done_us <= before_us);
    let signs = before.map(|span| SignOfLife { sent_us: span.sent_us, done_us: span.done_us });
    signs.max_by_key(|sign| sign.sent_us)
}

/// The truth must have had no sign for as long as that when it flipped, and the mirror none when it decided:
/// which was before the flip, and before anybody was refused because of it.
fn alive_set_offline(receipt: &ReceiptRow, history: &History, stale_us: u64) -> Option<Complaint> {
    let (id, flipped_us) = (&receipt.key, receipt.at_ms * MS);
    let complain = |why: String| Some(Complaint::AliveSetOffline { id: id.clone(), why });
    if let Some(sign) = last_sign(history, id, Source::Truth, flipped_us)
        && sign.sent_us + stale_us > flipped_us + MS
    {
        return complain(format!("the truth had {sign:?}, and flipped at {flipped_us}"));
    }
    let sign = last_sign(history, id, Source::Mirror, flipped_us)?;
    let decided_us =
        refused_us(history, id, sign.done_us).map_or(flipped_us, |us| us.min(flipped_us));
    if sign.sent_us + stale_us > decided_us + MS {
        return complain(format!("the mirror had {sign:?}, and decided by {decided_us}"));
    }
    None
}

/// When it was first answered "offline" after its last sign of life at `since_us`; `None` also if
/// it may have been set online meanwhile, so that the answer may belong to an earlier time.
fn refused_us(history: &History, id: &str, since_us: u64) -> Option<u64> {
    let toggled = |toggle: &Toggle| {
        toggle.change == Change::Online
            && (toggle.span.done_us > since_us || toggle.outcome == Outcome::Unknown)
    };
    if history.toggles_of(id).iter().any(toggled) {
        return None;
    }
    let refused =
        |beat: &&Beat| matches!(beat.said, BeatAnswer::Offline(_)) && beat.span.sent_us > since_us;
    history.beats_of(id).iter().find(refused).map(|beat| beat.span.done_us)
}

/// A beat in time, and the next one refused, with nothing that could be a reason: nobody said that it is
/// offline, and it was not changed in any way since the mirror noted a beat (what was changed while the
/// mirror was away it learns a moment after it is back).
fn alive_told_offline(
    id: &str,
    beats: &[Beat],
    receipts: &[&ReceiptRow],
    history: &History,
    stale_us: u64,
) -> Option<Complaint> {
    let toggles = history.toggles_of(id);
    let mut beats: Vec<&Beat> =
        beats.iter().filter(|beat| beat.said != BeatAnswer::Unknown).collect();
    beats.sort_by_key(|beat| beat.span.sent_us);
    let mut mirrored: Option<Span> = None;
    for pair in beats.windows(2) {
        let (noted, refused) = (pair[0].span, pair[1].span);
        if pair[0].said == BeatAnswer::Noted(Source::Mirror) {
            mirrored = Some(noted);
        }
        let Some(mirrored) = mirrored else { continue };
        let is_pair = matches!(pair[0].said, BeatAnswer::Noted(_))
            && matches!(pair[1].said, BeatAnswer::Offline(_));
        let in_time = noted.sent_us + stale_us > refused.done_us + MS;
        let could_be = |toggle: &Toggle| {
            let known = toggle.outcome != Outcome::Unknown && toggle.change != Change::Offline;
            toggle.span.sent_us < refused.done_us
                && !(known && toggle.span.done_us < mirrored.sent_us)
        };
        // That is a complaint of its own.
        let flipped = |one: &&ReceiptRow| {
            (mirrored.sent_us..=refused.done_us + stale_us).contains(&(one.at_ms * MS))
        };
        if is_pair && in_time && !toggles.iter().any(could_be) && !receipts.iter().any(flipped) {
            let why = format!("{:?}, then {:?}", pair[0], pair[1]);
            return Some(Complaint::AliveToldOffline { id: id.to_owned(), why });
        }
    }
    None
}

/// Whether anything that was sent can have made it fresh when that list was made.
fn may_be_fresh(id: &str, listing: &Listing, history: &History, stale_us: u64) -> bool {
    let late_us = |of: &[u64], done_us: u64| {
        of.iter().filter(|at_us| **at_us >= done_us).min().map(|at_us| at_us + LATE_US)
    };
    let latest_us = |done_us: u64, known: bool| match known {
        true => done_us,
        false => late_us(&history.heals_us, done_us).unwrap_or(done_us + LATE_US),
    };
    let sent = |sent_us: u64| sent_us < listing.span.done_us;
    let fresh = |latest_us: u64| latest_us + stale_us + MS > listing.span.sent_us;
    let beats = history.beats_of(id).iter().rev();
    let beats = beats.filter(|beat| sent(beat.span.sent_us)).any(|beat| match beat.said {
        // Also of what the truth took, or refused, in place of a mirror that carries it out later: the mirror learns
        // only a moment after it is back what was changed meanwhile.
        BeatAnswer::Noted(_)
        | BeatAnswer::Offline(Source::Truth)
        | BeatAnswer::Deactivated(Source::Truth) => fresh(latest_us(beat.span.done_us, true)),
        BeatAnswer::Unknown => fresh(latest_us(beat.span.done_us, false)),
        BeatAnswer::Offline(Source::Mirror) | BeatAnswer::Deactivated(Source::Mirror) => false,
    });
    beats
        || history.toggles_of(id).iter().any(|toggle| {
            let known = toggle.outcome != Outcome::Unknown;
            toggle.change == Change::Online
                && sent(toggle.span.sent_us)
                && fresh(latest_us(toggle.span.done_us, known))
        })
}

/// Rows alternate, the last one is how it is, and there are as many as flips.
fn check_logs(observed: &Observed, history: &History, found: &mut Vec<Complaint>) {
    let truth = &observed.truth;
    let mut rows: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
    for row in &truth.logs {
        rows.entry(&row.provider).or_default().push(row.status == "online");
    }
    let mut receipts: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for receipt in &truth.receipts {
        receipts.entry(&receipt.key).or_default().push(receipt.incarnation);
    }
    for provider in &truth.providers {
        let id = &provider.id;
        let rows = rows.get(id.as_str()).map_or(&[][..], Vec::as_slice);
        let twice = rows.windows(2).any(|pair| pair[0] == pair[1]);
        if twice || rows.first() == Some(&false) {
            let why = format!("the rows do not alternate: {rows:?}");
            found.push(Complaint::LogBroken { id: id.clone(), why });
        }
        if rows.last().copied().unwrap_or(false) != provider.online {
            let why = format!("online is {}, and the rows are {rows:?}", provider.online);
            found.push(Complaint::LogBroken { id: id.clone(), why });
        }
        let receipts = receipts.get(id.as_str()).map_or(&[][..], Vec::as_slice);
        if receipts.iter().collect::<BTreeSet<_>>().len() != receipts.len() {
            found.push(Complaint::TwiceReclaimed { id: id.clone() });
        }
        let offs = rows.iter().filter(|online| !**online).count();
        let ons = rows.len() - offs;
        let toggles = history.toggles_of(id);
        count(id, "online", ons, toggles, Change::Online, 0, found);
        count(id, "offline", offs, toggles, Change::Offline, receipts.len(), found);
    }
}

/// Those that are known to have changed it, and at most those that may have, besides the reclaimed.
fn count(
    id: &str,
    what: &str,
    rows: usize,
    toggles: &[Toggle],
    change: Change,
    receipts: usize,
    found: &mut Vec<Complaint>,
) {
    let of = |outcome: Outcome| {
        toggles.iter().filter(|one| one.change == change && one.outcome == outcome).count()
    };
    let least = of(Outcome::Done { changed: true }) + receipts;
    let most = least + of(Outcome::Unknown);
    if rows < least || rows > most {
        let why =
            format!("{rows} rows say {what}, of {least} to {most} flips ({receipts} receipts)");
        found.push(Complaint::FlipsMiscounted { id: id.to_owned(), why });
    }
}

fn check_sessions(observed: &Observed, history: &History, found: &mut Vec<Complaint>) {
    let rows: BTreeMap<&str, _> =
        observed.truth.sessions.iter().map(|row| (row.id.as_str(), row)).collect();
    for (id, is) in history.sessions.iter().filter_map(|(id, is)| Some((id, is.as_ref()?))) {
        let row = rows.get(id.as_str());
        let same = row.is_some_and(|row| {
            row.provider.as_deref() == Some(is.provider.as_str()) && row.status == is.status
        });
        if !same {
            let why = format!("answered {is:?}, and the truth has {row:?}");
            found.push(Complaint::SessionLost { id: id.clone(), why });
        }
    }
}
