//! One job as the scripts write it down: see `inflight_prelude.lua`.

use lapsed_core::inflight::rules::{DeadLetterReason, OnDeath, RecoveryPolicy, counting};
use lapsed_core::inflight::{JobToken, RecoveredJob, RecoveryAction};
use lapsed_core::{Name, Result};

/// Where a dead letter is kept that is not lapsed's own, in words.
pub(crate) const IN_SIDEKIQ: &str = "Sidekiq's dead set";

/// Where Sidekiq's set has the job of a dead letter. `inflight_adopt_prelude.lua` writes it down in
/// the place of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadSetPlace {
    pub score: String,
    /// SHA-1 of the member, in hexadecimal digits.
    pub sha: String,
}

impl DeadSetPlace {
    pub fn read(error: &str) -> Option<DeadSetPlace> {
        let (score, sha) = error.strip_prefix("sidekiq:")?.split_once(':')?;
        Some(DeadSetPlace { score: score.to_owned(), sha: sha.to_owned() })
    }
}

/// What stays the same wherever a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordTail {
    pub entered_ms: u64,
    pub crashes: Vec<u64>,
    pub queue: Name,
    pub payload: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordHead {
    Queued,
    InFlight { token: u64, inc: u64, since_ms: u64 },
    Dead { why: DeadLetterReason, at_ms: u64, error: String },
}

impl RecordTail {
    pub fn read(text: &[u8]) -> Option<RecordTail> {
        let end = text.iter().position(|byte| *byte == b'\n')?;
        let head = std::str::from_utf8(&text[..end]).ok()?;
        let mut parts = head.splitn(5, ':');
        let entered_ms = parts.next()?.parse().ok()?;
        let (_crashes_max, _way) = (parts.next()?, parts.next()?);
        let crashes = parts.next()?.split(',').filter_map(|at| at.parse().ok()).collect();
        let queue = Name::new(parts.next()?).ok()?;
        Some(RecordTail { entered_ms, crashes, queue, payload: text[end + 1..].to_vec() })
    }

    pub fn crashes(&self, window_ms: u64, now_ms: u64) -> u32 {
        counting(&self.crashes, window_ms, now_ms)
    }

    /// What it carries, shown as text: an element of somebody's list may be any bytes, and stays so
    /// in the store.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// Takes a record apart.
pub(crate) fn read(record: &[u8]) -> Option<(RecordHead, RecordTail)> {
    let number = |part: &[u8]| std::str::from_utf8(part).ok()?.parse::<u64>().ok();
    match record.first()? {
        b'q' => Some((RecordHead::Queued, RecordTail::read(record.get(2..)?)?)),
        b'f' => {
            let mut parts = record.splitn(5, |byte| *byte == b':');
            parts.next()?;
            let mut next = || number(parts.next()?);
            let head = RecordHead::InFlight { token: next()?, inc: next()?, since_ms: next()? };
            Some((head, RecordTail::read(parts.next()?)?))
        }
        b'd' => {
            let mut parts = record.splitn(4, |byte| *byte == b':');
            let why = why_of(*parts.next()?.get(1)?)?;
            let (at_ms, size) = (number(parts.next()?)?, number(parts.next()?)? as usize);
            let rest = parts.next()?;
            let error = String::from_utf8_lossy(rest.get(..size)?).into_owned();
            Some((RecordHead::Dead { why, at_ms, error }, RecordTail::read(rest.get(size..)?)?))
        }
        _ => None,
    }
}

/// The letter under which what to do is stored.
pub(crate) fn way_letter(way: Option<OnDeath>) -> &'static str {
    way.map_or("", OnDeath::letter)
}

/// What the policy does with jobs that do not say it themselves; `m`: they move to another queue.
pub(crate) fn policy_way(recovery: &RecoveryPolicy) -> &'static str {
    if recovery.move_to.is_some() { "m" } else { way_letter(Some(recovery.on_death)) }
}

fn why_of(letter: u8) -> Option<DeadLetterReason> {
    match letter {
        b'f' => Some(DeadLetterReason::Failed),
        b'c' => Some(DeadLetterReason::Crashes),
        b'o' => Some(DeadLetterReason::TooOld),
        b'a' => Some(DeadLetterReason::Asked),
        b'q' => Some(DeadLetterReason::Quarantined),
        _ => None,
    }
}

/// Between the queue of a job and the one that it was moved to. Names contain no control characters.
const MOVED: char = '\u{1}';

/// Before the time until which it waits, in milliseconds.
const DELAYED: char = '\u{2}';

/// What a receipt says: `did`, why and where (`s`: in Sidekiq's set), the claim, how many crashes, the
/// queue, the queue that it was moved to and until when it waits, if it was and does. A digit after the letters says how sure it is that the worker held the
/// job. `tail` is what it keeps of a dropped job.
pub(crate) fn recovered(note: &str, tail: Option<&[u8]>) -> Option<RecoveredJob> {
    let mut parts = note.splitn(4, ':');
    let word = parts.next()?;
    let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let mut did = letters.bytes();
    let (what, why, place) = (did.next()?, did.next(), did.next());
    let (token, crashes) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let queue = parts.next()?;
    let (queue, due_ms) = match queue.split_once(DELAYED) {
        Some((queue, due)) => (queue, Some(due.parse().ok()?)),
        None => (queue, None),
    };
    let (queue, moved_to) = match queue.split_once(MOVED) {
        Some((queue, to)) => (queue, Some(Name::new(to).ok()?)),
        None => (queue, None),
    };
    Some(RecoveredJob {
        did: match what {
            b'p' => RecoveryAction::PutBack,
            b'd' => RecoveryAction::DeadLetter,
            b'x' => RecoveryAction::Dropped,
            _ => return None,
        },
        why: why.and_then(why_of),
        token: JobToken(token),
        crashes,
        queue: Name::new(queue).ok()?,
        moved_to,
        due_ms,
        payload: tail.and_then(RecordTail::read).map(|tail| tail.shown()),
        kept_in: (place == Some(b's')).then(|| IN_SIDEKIQ.to_owned()),
        how_sure: how_sure(&word[letters.len()..]).map(str::to_owned),
    })
}

/// How sure it is that a dead worker held the job, where that is known by its heartbeats only.
fn how_sure(digit: &str) -> Option<&'static str> {
    match digit {
        "0" => Some("shown by a heartbeat that may not have been the last"),
        "1" => Some("shown by one heartbeat"),
        "2" => Some("shown by two or more heartbeats"),
        _ => None,
    }
}

/// The name in a word of an answer.
pub(crate) fn name(word: &[u8]) -> Result<Name> {
    Name::from_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_are_written() {
        let tail = b"1700:3:b:5,6:a:b\nx\n:\xff".to_vec();
        let read_back = |head: &[u8]| read(&[head, &tail].concat()).unwrap();
        let (queued, found) = read_back(b"q:");
        assert_eq!((queued, found.queue.as_str()), (RecordHead::Queued, "a:b"));
        assert_eq!((found.entered_ms, found.crashes.as_slice()), (1_700, &[5, 6][..]));
        assert_eq!(found.payload, b"x\n:\xff");
        let (flying, same) = read_back(b"f:7:8:9:");
        assert_eq!(flying, RecordHead::InFlight { token: 7, inc: 8, since_ms: 9 });
        assert_eq!(same, found);
        let (dead, same) = read_back(b"dc:12:3:a:b");
        assert_eq!(
            dead,
            RecordHead::Dead { why: DeadLetterReason::Crashes, at_ms: 12, error: "a:b".to_owned() }
        );
        assert_eq!(same, found);
        assert_eq!(read(b"?"), None);
    }

    #[test]
    fn notes_of_receipts_are_read() {
        let found = recovered("do:12:3:q:1", None).unwrap();
        assert_eq!(
            (found.did, found.why),
            (RecoveryAction::DeadLetter, Some(DeadLetterReason::TooOld))
        );
        assert_eq!((found.token, found.crashes, found.queue.as_str()), (JobToken(12), 3, "q:1"));
        let dropped = recovered("x:12:3:q", Some(b"1::::q\npayload")).unwrap();
        assert_eq!(dropped.payload.as_deref(), Some("payload"));
        assert_eq!(recovered("z:1:1:q", None), None);
        let shown = recovered("dcs2:0:3:q", None).unwrap();
        assert_eq!(shown.why, Some(DeadLetterReason::Crashes));
        assert_eq!(shown.how_sure.as_deref(), Some("shown by two or more heartbeats"));
        let shown = recovered("p1:0:1:q", None).unwrap();
        assert_eq!((shown.did, shown.why), (RecoveryAction::PutBack, None));
        assert_eq!(shown.how_sure.as_deref(), Some("shown by one heartbeat"));
        let moved = recovered("p:0:1:q\u{1}slow\u{2}1700", None).unwrap();
        let moved_to = moved.moved_to.as_ref().map(Name::as_str);
        assert_eq!(
            (moved.queue.as_str(), moved_to, moved.due_ms),
            ("q", Some("slow"), Some(1_700))
        );
        let delayed = recovered("p:0:1:q\u{2}1700", None).unwrap();
        assert_eq!(
            (delayed.queue.as_str(), delayed.moved_to, delayed.due_ms),
            ("q", None, Some(1_700))
        );
        let given_up = recovered("dcs:0:3:q", None).unwrap();
        assert_eq!(given_up.why, Some(DeadLetterReason::Crashes));
        assert_eq!((given_up.kept_in.as_deref(), found.kept_in), (Some(IN_SIDEKIQ), None));
    }
}
