//! Many concurrent holders of few keys, in a folder under the real clock: what they saw is recorded
//! and checked afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::fixture::leases_in_folder;
use lapsed_core::leases::conformance::contend::{Contender, number};
use lapsed_core::leases::conformance::history::check;
use lapsed_core::leases::conformance::keys;

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
