//! Leases across crashes, failing disks and restarts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fixture::fragile::{Fragile, survivor};
use crate::fixture::{SharedBytes, leases_on_bytes};
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::leases::conformance::{LeasesFixture, done, json, key, lost, name};
use lapsed_core::leases::{Decision, LeaseInfo, LeaseKey, LeaseTicket, LeaseToken};
use lapsed_core::sweep::{Batch, BatchId, PassMode, Suspect};

const START_MS: u64 = 1_700_000_000_000;

fn open(fragile: &Fragile, clock: &ManualClock) -> LeasesFixture {
    let fragile = fragile.clone();
    leases_on_bytes(move |file| fragile.file(file), clock)
}

/// An operation that writes more than one row.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Clears an expired lease, applies the decision to its staged state, and grants the next
    /// token.
    Take,
    /// Clears all expired leases by a sweep.
    Reclaim,
    /// Deletes an expired decision and decides again.
    Decide,
}

const STEPS: [Step; 3] = [Step::Take, Step::Reclaim, Step::Decide];

/// Prepares two leases and a decision that have expired. One lease has staged state that was
/// committed, the other has staged state without a decision.
async fn prepare(f: &LeasesFixture) -> Vec<Suspect> {
    for (k, id) in [("a", "committed"), ("b", "undecided")] {
        let ticket = f.acquire(&key(k), "dead").await.ticket();
        done(f.stage(&ticket, id, "new").await);
    }
    f.decide("committed", Decision::Commit).await;
    f.leases.decide(&name("over"), Decision::Commit, f.ttl_ms()).await.unwrap();
    f.expire().await;
    let suspects = f.suspects().await;
    assert_eq!(suspects.len(), 3);
    suspects
}

async fn step(f: &LeasesFixture, suspects: &[Suspect], step: Step) -> lapsed_core::Result<()> {
    match step {
        Step::Take => f.leases.acquire(&f.wish(&key("b"), "next")).await.map(|_| ()),
        Step::Reclaim => {
            let id = BatchId { sweeper: "s".into(), number: 1 };
            let batch =
                Batch { id, suspects: suspects.to_vec(), act: PassMode::Reclaim, term: None };
            f.leases.reclaim(batch).await.map(|_| ())
        }
        Step::Decide => {
            f.leases.decide(&name("over"), Decision::Rollback, 1_000_000).await.map(|_| ())
        }
    }
}

/// Everything that can be read, except what only depends on the clock.
#[derive(Debug, PartialEq)]
struct Seen {
    keys: Vec<LeaseInfo>,
    decisions: Vec<Option<Decision>>,
    receipts: Vec<String>,
    population: u64,
    suspects: u64,
}

async fn see(f: &LeasesFixture) -> Seen {
    let mut keys = Vec::new();
    for k in [key("a"), key("b")] {
        keys.push(LeaseInfo { now_ms: 0, expired: false, ..f.peek(&k).await });
    }
    let mut decisions = Vec::new();
    for id in ["committed", "undecided", "over"] {
        let decided = f.leases.peek_decision(&name(id)).await.unwrap();
        decisions.push(decided.map(|(decided, _)| decided.decision));
    }
    let mut receipts: Vec<String> = f.receipts().await.iter().map(|r| r.key.to_string()).collect();
    receipts.sort();
    let census = f.leases.census().await.unwrap();
    let suspects = census.suspects + census.orphans_spared;
    Seen { keys, decisions, receipts, population: census.population, suspects }
}

/// The process is killed before each single write of an operation. After reopening, all of it has
/// happened or nothing; after the grace, the rest is cleared.
#[tokio::test]
async fn a_crash_during_a_step_leaves_no_partial_write() {
    for which in STEPS {
        let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(START_MS));
        let f = open(&fragile, &clock).settled().await;
        let suspects = prepare(&f).await;
        let before = see(&f).await;
        *fragile.crashes.lock().unwrap() = Some(vec![fragile.all()]);
        step(&f, &suspects, which).await.unwrap();
        let mut crashes = fragile.crashes.lock().unwrap().take().unwrap();
        crashes.push(fragile.all());
        let after = see(&f).await;
        assert_ne!(before, after);
        let mut happened = Vec::new();
        for (at, left) in crashes.iter().enumerate() {
            let bytes = survivor(left);
            let then = ManualClock::at(clock.wall_ms());
            let survivor = leases_on_bytes(move |file| bytes.file(file), &then);
            let mut seen = see(&survivor).await;
            // Leases from before the crash have a whole TTL again, so they are held by their rows.
            for (now, then) in seen.keys.iter_mut().zip(&before.keys) {
                if let (Some(now), Some(then)) = (&mut now.lease, &then.lease)
                    && now.owner == then.owner
                {
                    now.deadline_ms = then.deadline_ms;
                }
            }
            if let (Some(now), Some(then)) = (&mut seen.keys[1].lease, &after.keys[1].lease)
                && now.owner == then.owner
            {
                now.deadline_ms = then.deadline_ms;
            }
            assert!(seen == before || seen == after, "{which:?}, crash {at}: {seen:#?}");
            happened.push(seen == after);
            (survivor.advance)(Duration::from_secs(3_600)).await;
            survivor.sweep().await;
            assert_eq!(
                survivor.leases.census().await.unwrap().suspects,
                0,
                "{which:?}, crash {at}"
            );
        }
        assert_eq!(happened.first().zip(happened.last()), Some((&false, &true)), "{which:?}");
    }
}

/// Tokens, states and decisions are there after a restart; leases that expired while the store was
/// closed have a whole TTL before they expire.
#[tokio::test]
async fn a_restart_keeps_tokens_and_spares_leases_that_could_not_be_renewed() {
    let clock = ManualClock::at(START_MS);
    let bytes = SharedBytes::default();
    let make = {
        let bytes = bytes.clone();
        move |file| bytes.file(file) as Box<dyn lapsed_embedded::Backend>
    };
    let f = leases_on_bytes(make.clone(), &clock);
    let ticket = f.acquire(&key("k"), "a").await.ticket();
    done(f.set_state(&ticket, "kept").await);
    f.decide("t", Decision::Commit).await;
    drop(f);
    clock.advance(Duration::from_secs(600));
    let f = leases_on_bytes(make, &clock);
    let census = f.leases.census().await.unwrap();
    assert_eq!((census.suspects, census.orphans_spared, census.population), (0, 1, 1));
    assert!(f.suspects().await.is_empty(), "nobody could renew");
    let renewed = done(f.leases.renew(&ticket, None).await.unwrap().answer);
    assert_eq!(renewed.token, LeaseToken(1));
    assert_eq!(f.peek(&key("k")).await.state, Some(json("kept")));
    assert_eq!(f.decide("t", Decision::Rollback).await.decision, Decision::Commit);
    f.expire().await;
    assert_eq!(f.suspects().await.len(), 1);
    lost(f.leases.renew(&ticket, None).await.unwrap().answer);
    assert_eq!(f.acquire(&key("k"), "b").await.token, LeaseToken(2));
}

#[tokio::test]
async fn an_override_of_the_brake_waives_the_grace_for_one_pass() {
    use lapsed_core::sweep::brake::BrakeSetting;
    let clock = ManualClock::at(START_MS);
    let bytes = SharedBytes::default();
    let make = {
        let bytes = bytes.clone();
        move |file| bytes.file(file) as Box<dyn lapsed_embedded::Backend>
    };
    let f = leases_on_bytes(make.clone(), &clock);
    f.acquire(&key("k"), "a").await;
    drop(f);
    clock.advance(Duration::from_secs(600));
    let f = leases_on_bytes(make, &clock);
    assert!(f.suspects().await.is_empty());
    f.set_brake(BrakeSetting::Override { reason: "they are gone".into() }).await;
    assert_eq!(f.sweep().await.reclaimed, 1);
}

/// A disk that fails leaves memory as the disk is.
#[tokio::test]
async fn a_failed_commit_leaves_the_index_as_it_was() {
    let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(START_MS));
    let f = open(&fragile, &clock).settled().await;
    let ticket = f.acquire(&key("k"), "a").await.ticket();
    let other: LeaseKey = key("other");
    // The disk fails once each time, and works again afterwards.
    fragile.left.store(0, Ordering::SeqCst);
    assert!(f.leases.acquire(&f.wish(&other, "b")).await.is_err());
    fragile.left.store(0, Ordering::SeqCst);
    assert!(f.leases.release(&ticket).await.is_err());
    assert_eq!(f.leases.peek(&other).await.unwrap(), None);
    assert!(f.peek(&key("k")).await.lease.is_some());
    assert_eq!(f.leases.census().await.unwrap().population, 1);
    let again = LeaseTicket { key: key("k"), token: LeaseToken(1) };
    assert_eq!(again, ticket);
    done(f.leases.release(&again).await.unwrap().answer);
    assert_eq!(f.leases.census().await.unwrap().population, 0);
}

/// The process is killed before each single write of a pass that forgets keys. After reopening, a key
/// is there or it is forgotten, and in both cases its next token is above all that it ever had.
#[tokio::test]
async fn a_crash_while_keys_are_forgotten_lets_no_token_go_back() {
    let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(START_MS));
    let f = open(&fragile, &clock).settled().await;
    let keys = [key("a"), key("b"), key("c")];
    for (k, times) in keys.iter().zip(1u64..) {
        for _ in 0..times {
            let ticket = f.acquire(k, "once").await.ticket();
            done(f.leases.release(&ticket).await.unwrap().answer);
        }
    }
    (f.advance)(Duration::from_secs(31 * 24 * 3_600)).await;
    *fragile.crashes.lock().unwrap() = Some(vec![fragile.all()]);
    f.sweep().await;
    let mut crashes = fragile.crashes.lock().unwrap().take().unwrap();
    crashes.push(fragile.all());
    assert_eq!(f.leases.keys_forgotten(), 3);
    let mut left_at = Vec::new();
    for (at, left) in crashes.iter().enumerate() {
        let bytes = survivor(left);
        let then = ManualClock::at(clock.wall_ms());
        let survivor = leases_on_bytes(move |file| bytes.file(file), &then);
        left_at.push(survivor.leases.list(&keys[0].namespace, None, 10).await.unwrap().len());
        for (k, times) in keys.iter().zip(1u64..) {
            let token = survivor.acquire(k, "next").await.token;
            assert!(token > LeaseToken(times), "crash {at}: {k} got {token} after {times}");
        }
    }
    assert_eq!((left_at.first(), left_at.last()), (Some(&3), Some(&0)), "{left_at:?}");
    assert!(left_at.iter().all(|left| [0, 3].contains(left)), "one transaction: {left_at:?}");
}
