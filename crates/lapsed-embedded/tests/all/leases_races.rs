//! Many hands on few keys at the same time, in a folder under the real clock: the history is recorded and
//! checked afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fixture::leases_in_folder;
use lapsed::leases::conformance::{Fixture, key};
use lapsed::leases::{Acquire, Acquired, Fenced, LeaseKey, State, Token};

/// What one hand saw, in the order in which it saw it; the store's clock at each.
#[derive(Clone, Debug)]
struct Seen {
    key: LeaseKey,
    token: Token,
    granted_ms: u64,
    /// Until when nobody else may have held it: just before its release, or its deadline.
    until_ms: u64,
    /// The state that it found, and the one that it left.
    found: u64,
    left: u64,
}

fn number(state: Option<State>) -> u64 {
    match state {
        None => 0,
        Some(State::Json(value)) => value.as_u64().unwrap(),
        Some(State::Bytes(_)) => panic!("nobody wrote bytes"),
    }
}

/// Adds one to the number that goes with the key, twenty times; sometimes dies with the lease in hand.
async fn hand(f: &Fixture, who: usize, history: &Mutex<Vec<Seen>>) {
    for round in 0..20 {
        let k = key(&format!("k{}", (who + round) % 3));
        let wish = Acquire { ttl_ms: 1_000, ..f.wish(&k, &format!("hand-{who}")) };
        let Acquired::Granted(grant) =
            f.system().acquire(&wish, Duration::from_secs(60)).await.unwrap()
        else {
            panic!("a minute is long enough for everybody")
        };
        let found = number(f.peek(&k).await.state);
        let state = State::Json((found + 1).into());
        let left = match f.leases.set_state(&grant.ticket(), Some(&state)).await.unwrap().answer {
            Fenced::Done(()) => found + 1,
            Fenced::Lost(_) => found,
        };
        let dies = (who + round).is_multiple_of(7);
        let mut until_ms = grant.deadline_ms;
        if !dies {
            until_ms = f.now_ms().await.min(until_ms);
            f.leases.release(&grant.ticket()).await.unwrap();
        }
        let seen =
            Seen { key: k, token: grant.token, granted_ms: grant.now_ms, until_ms, found, left };
        history.lock().unwrap().push(seen);
    }
}

/// No two holders of one token, none that begins before the one before it is over, no change lost.
fn check(history: &[Seen], last: &BTreeMap<LeaseKey, (Token, u64)>) {
    let mut by_key: BTreeMap<LeaseKey, BTreeMap<Token, &Seen>> = BTreeMap::new();
    for seen in history {
        let twice = by_key.entry(seen.key.clone()).or_default().insert(seen.token, seen);
        assert!(twice.is_none(), "one token, two holders: {seen:?} {twice:?}");
    }
    for (key, holders) in by_key {
        let mut before: Option<&Seen> = None;
        for seen in holders.values() {
            if let Some(before) = before {
                assert!(seen.granted_ms >= before.until_ms, "both held it: {before:?} {seen:?}");
                assert_eq!(seen.found, before.left, "a change was lost: {before:?} {seen:?}");
            }
            before = Some(seen);
        }
        let newest = before.unwrap();
        assert_eq!(last[&key], (newest.token, newest.left), "{newest:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_hands_never_hold_one_key_at_once_and_lose_no_change() {
    let f = Arc::new(leases_in_folder());
    let history = Arc::new(Mutex::new(Vec::new()));
    let mut hands = Vec::new();
    for who in 0..8 {
        let (f, history) = (f.clone(), history.clone());
        hands.push(tokio::spawn(async move { hand(&f, who, &history).await }));
    }
    for hand in hands {
        hand.await.unwrap();
    }
    let history = history.lock().unwrap().clone();
    assert_eq!(history.len(), 160);
    let mut last = BTreeMap::new();
    for k in ["k0", "k1", "k2"].map(key) {
        let now = f.peek(&k).await;
        last.insert(k, (now.token, number(now.state)));
    }
    check(&history, &last);
    let changes: u64 = history.iter().map(|seen| seen.left - seen.found).sum();
    assert_eq!(last.values().map(|(_, changes)| changes).sum::<u64>(), changes);
}
