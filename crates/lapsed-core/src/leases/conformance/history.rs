//! What several processes saw of the same keys, and whether it can be true.
//!
//! Each process writes down what it saw, with times of one clock that all of them share. From that
//! [`check`] finds two that believed to hold one key at the same time, a token that went back, and a
//! change of a key's state that somebody overwrote without having seen it. A process that was killed
//! has perhaps done more than it wrote down, never less.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One line of what a process saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEvent {
    /// Name of the process, different for each of its runs.
    pub who: String,
    pub key: String,
    pub token: u64,
    #[serde(flatten)]
    pub what: What,
}

/// What a process saw. All times are nanoseconds of the clock that everybody shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum What {
    /// It was granted the lease.
    Granted {
        sent_ns: u64,
        /// When the acquisition was answered.
        got_ns: u64,
        /// Until when it believes that it holds the lease.
        until_ns: u64,
    },
    /// The holder renewed the lease.
    Renewed {
        /// Until when it believes that it holds the lease.
        until_ns: u64,
    },
    /// It found one number in the state and left the next.
    Counted {
        /// The number that it found.
        found: u64,
    },
    /// It is about to release the lease, and from now on believes nothing.
    Releasing { at_ns: u64 },
}

/// One holding of a key, reconstructed from its holder's events.
#[derive(Clone, Debug)]
struct Held {
    who: String,
    sent_ns: u64,
    got_ns: u64,
    until_ns: u64,
    found: Option<u64>,
}

/// Whether it can be true; `last` is each key's number at the end. The answer names what cannot be, or
/// is how many leases were held.
pub fn check(events: &[HistoryEvent], last: &BTreeMap<String, u64>) -> Result<usize, String> {
    let mut keys: BTreeMap<&str, BTreeMap<u64, Held>> = BTreeMap::new();
    for event in events {
        note(keys.entry(&event.key).or_default(), event)?;
    }
    for (key, holders) in &keys {
        check_tokens(key, holders)?;
        check_turns(key, holders)?;
        check_counts(key, holders, last.get(*key).copied().unwrap_or(0))?;
    }
    Ok(keys.values().map(BTreeMap::len).sum())
}

fn note(holders: &mut BTreeMap<u64, Held>, event: &HistoryEvent) -> Result<(), String> {
    if let What::Granted { sent_ns, got_ns, until_ns } = event.what {
        let held = Held { who: event.who.clone(), sent_ns, got_ns, until_ns, found: None };
        return match holders.insert(event.token, held) {
            None => Ok(()),
            Some(other) => Err(format!("one token, two holders: {event:?} and {}", other.who)),
        };
    }
    let held = holders.get_mut(&event.token).filter(|held| held.who == event.who);
    let Some(held) = held else { return Err(format!("it was never granted: {event:?}")) };
    match event.what {
        What::Granted { .. } => {}
        What::Renewed { until_ns } => held.until_ns = until_ns,
        What::Counted { found } => held.found = Some(found),
        What::Releasing { at_ns } => held.until_ns = held.until_ns.min(at_ns),
    }
    Ok(())
}

/// A grant that was requested after another one was answered must have the larger token.
fn check_tokens(key: &str, holders: &BTreeMap<u64, Held>) -> Result<(), String> {
    let mut by_answer: Vec<(u64, u64)> = holders.iter().map(|(t, h)| (h.got_ns, *t)).collect();
    by_answer.sort_unstable();
    for (token, held) in holders {
        let before = by_answer.partition_point(|(got_ns, _)| *got_ns < held.sent_ns);
        let newest = by_answer[..before].iter().map(|(_, token)| *token).max();
        if let Some(newest) = newest.filter(|newest| newest > token) {
            return Err(format!("{key}: token {token} was granted after {newest}"));
        }
    }
    Ok(())
}

/// Nobody believes to hold it before the one before has ceased to.
fn check_turns(key: &str, holders: &BTreeMap<u64, Held>) -> Result<(), String> {
    let mut latest: Option<(&u64, &Held)> = None;
    for (token, held) in holders {
        if let Some((before, other)) = latest.filter(|(_, other)| other.until_ns > held.got_ns) {
            return Err(format!(
                "{key}: {} held it by token {before} until {} and {} by {token} from {}",
                other.who, other.until_ns, held.who, held.got_ns
            ));
        }
        if latest.is_none_or(|(_, other)| held.until_ns > other.until_ns) {
            latest = Some((token, held));
        }
    }
    Ok(())
}

/// Each holder must have found the number that the previous one left.
fn check_counts(key: &str, holders: &BTreeMap<u64, Held>, last: u64) -> Result<(), String> {
    let mut left = 0;
    for (token, held) in holders {
        let Some(found) = held.found else { continue };
        if found < left {
            return Err(format!(
                "{key}: token {token} found {found}, though {left} had been left: a change was lost"
            ));
        }
        left = found + 1;
    }
    match last >= left {
        true => Ok(()),
        false => Err(format!("{key}: it ends with {last}, though {left} had been left")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(who: &str, token: u64, what: What) -> HistoryEvent {
        HistoryEvent { who: who.to_owned(), key: "k".to_owned(), token, what }
    }

    fn granted(who: &str, token: u64, from: u64, until_ns: u64) -> HistoryEvent {
        event(who, token, What::Granted { sent_ns: from - 1, got_ns: from, until_ns })
    }

    fn judge(events: &[HistoryEvent], last: u64) -> Result<usize, String> {
        check(events, &BTreeMap::from([("k".to_owned(), last)]))
    }

    fn counted(who: &str, token: u64, found: u64) -> HistoryEvent {
        event(who, token, What::Counted { found })
    }

    #[test]
    fn a_possible_history_is_accepted() {
        let events = [
            granted("a", 1, 10, 20),
            counted("a", 1, 0),
            event("a", 1, What::Renewed { until_ns: 40 }),
            event("a", 1, What::Releasing { at_ns: 25 }),
            granted("b", 2, 30, 50),
            counted("b", 2, 1),
            granted("c", 4, 60, 70),
            counted("c", 4, 3),
        ];
        assert_eq!(judge(&events, 4), Ok(3), "3 was killed before it wrote anything down");
    }

    #[test]
    fn an_impossible_history_is_rejected() {
        let wrong = |events: &[HistoryEvent], last, word: &str| {
            let said = judge(events, last).unwrap_err();
            assert!(said.contains(word), "{said}");
        };
        wrong(&[granted("a", 1, 10, 20), granted("b", 1, 30, 40)], 0, "two holders");
        wrong(
            &[granted("a", 1, 10, 20), granted("b", 2, 19, 40)],
            0,
            "held it by token 1 until 20",
        );
        let nested = [granted("a", 1, 10, 90), granted("b", 2, 91, 92), granted("c", 3, 95, 99)];
        assert!(judge(&nested, 0).is_ok());
        let long = [granted("a", 1, 10, 96), granted("b", 2, 97, 98), granted("c", 3, 97, 99)];
        wrong(&long, 0, "by 3 from 97");
        wrong(&[granted("a", 2, 10, 20), granted("b", 1, 30, 40)], 0, "granted after 2");
        let both = [granted("a", 1, 10, 20), counted("a", 1, 0)];
        wrong(&both, 0, "it ends with 0");
        let lost = [granted("b", 2, 30, 40), counted("b", 2, 0)];
        wrong(&[both.as_slice(), &lost].concat(), 1, "a change was lost");
        wrong(&[counted("a", 1, 0)], 1, "never granted");
    }
}
