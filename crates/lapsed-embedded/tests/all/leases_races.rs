//! Many concurrent holders of few keys, in a folder under the real clock: what they saw is recorded
//! and checked afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fixture::{leases_id, leases_in_folder};
use lapsed_core::Name;
use lapsed_core::clock::ManualClock;
use lapsed_core::leases::conformance::contend::{Contender, number};
use lapsed_core::leases::conformance::history::check;
use lapsed_core::leases::conformance::keys;
use lapsed_core::leases::{AcquireRequest, Acquired, LeasesStore};
use lapsed_embedded::{Embedded, Options};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_holders_exclude_each_other_and_lose_no_change() {
    let (f, events) = (Arc::new(leases_in_folder()), Arc::new(Mutex::new(Vec::new())));
    let all = keys(&["k0", "k1", "k2"]);
    let hands: Vec<_> = (0..8)
        .map(|n| {
            let (f, events) = (f.clone(), events.clone());
            let who = format!("hand-{n}");
            let contender = Contender { who, keys: all.clone(), ttl: f.ttl, rounds: 6 };
            tokio::spawn(async move {
                let mut tell = |event| events.lock().unwrap().push(event);
                contender.run(&*f.leases, &mut tell).await;
            })
        })
        .collect();
    for hand in hands {
        hand.await.unwrap();
    }
    let mut last = BTreeMap::new();
    for key in &all {
        last.insert(key.to_string(), number(f.peek(key).await.state.as_ref()));
    }
    let events = events.lock().unwrap().clone();
    assert_eq!(check(&events, &last), Ok(48));
}

/// A lease that was granted in the middle of a millisecond is not over before a whole TTL has passed.
#[tokio::test]
async fn a_lease_lasts_its_ttl_to_a_fraction_of_a_millisecond() {
    let clock = ManualClock::at(1_700_000_000_000);
    let options = Options { clock: Arc::new(clock.clone()), ..Options::default() };
    let store = Embedded::in_memory(options).unwrap();
    let leases = store.leases(leases_id(), Duration::from_secs(1)).unwrap();
    let [key] = &keys(&["k"])[..] else { panic!("one key") };
    let wish = |owner: &str| AcquireRequest {
        key: key.clone(),
        owner: Name::new(owner).unwrap(),
        ttl_ms: 1_000,
        request: None,
    };
    clock.advance(Duration::from_micros(900));
    let first = leases.acquire(&wish("a")).await.unwrap().answer;
    assert!(matches!(first, Acquired::Granted(_)), "{first:?}");
    clock.advance(Duration::from_micros(999_500));
    let early = leases.acquire(&wish("b")).await.unwrap().answer;
    assert!(matches!(early, Acquired::Held(_)), "half a millisecond is left: {early:?}");
    clock.advance(Duration::from_micros(1_500));
    let late = leases.acquire(&wish("b")).await.unwrap().answer;
    assert!(matches!(late, Acquired::Granted(_)), "{late:?}");
}
