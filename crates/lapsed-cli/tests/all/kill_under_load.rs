//! `kill -9`, fifty times, at any instant, under load.
//!
//! Four clients register for an owner that lives, while short-lived owners die and are reclaimed.
//! The daemon is killed; the next one must know every registration that was ever acknowledged, and
//! no entry may have been reclaimed twice.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Daemon, Home};
use serde_json::{Value, json};

const KILLS: u64 = 50;
const CLIENTS: u64 = 4;

/// The registrations that were acknowledged to the clients.
#[derive(Default)]
struct Acknowledged {
    keys: Mutex<Vec<String>>,
    next: AtomicU64,
    stop: AtomicBool,
}

/// One client: registers until the daemon no longer answers.
fn load(url: &str, told: &Acknowledged, round: u64, client: u64) {
    let agent = crate::support::agent();
    let send = |operation: &str, body: Value| -> Option<Value> {
        let reply = agent.post(format!("{url}/v1/registry/devices/{operation}")).send_json(body);
        let mut reply = reply.ok().filter(|reply| reply.status().is_success())?;
        reply.body_mut().read_json().ok()
    };
    let start_without_beats = format!("start_without_beats-{round}-{client}");
    while !told.stop.load(Ordering::Relaxed) {
        let n = told.next.fetch_add(5, Ordering::Relaxed);
        let keys: Vec<String> = (n..n + 5).map(|n| format!("kept-{n}")).collect();
        if send("register", json!({ "owner": "keeper", "keys": &keys })).is_some() {
            told.keys.lock().unwrap().extend(keys);
        }
        let keys: Vec<String> = (n..n + 5).map(|n| format!("start_without_beats-{n}")).collect();
        send("register", json!({ "owner": start_without_beats, "keys": keys }));
        send("beat", json!({ "owner": "keeper" }));
    }
}

fn verify(daemon: &Daemon, told: &Acknowledged) {
    let keys = told.keys.lock().unwrap();
    for some in keys.chunks(5_000) {
        let found = daemon.registry("lookup_many", json!({ "keys": some })).body;
        let found = found["results"].as_array().unwrap();
        for (key, entry) in some.iter().zip(found) {
            assert_eq!(entry["owner"], "keeper", "{key} was acknowledged and is lost");
        }
    }
}

/// Reads all receipts and checks that there is one per entry and incarnation; returns their number.
fn verify_receipts(daemon: &Daemon) -> usize {
    let mut seen = HashSet::new();
    let receipts = daemon.receipts();
    for receipt in &receipts {
        let id = (receipt["key"].to_string(), receipt["incarnation"].as_u64());
        assert!(seen.insert(id), "reclaimed twice: {receipt}");
        assert!(
            receipt["owner"].as_str().unwrap().starts_with("start_without_beats-"),
            "{receipt}"
        );
    }
    receipts.len()
}

#[test]
fn fifty_kills_lose_no_registration_and_reclaim_nothing_twice() {
    let home = Home::new("100ms", "sweep = { every = \"10ms\" }\nbrake = { share = 1.0 }");
    let told = Acknowledged::default();
    let daemon = home.serve();
    let keeper = daemon.registry("start", json!({ "owner": "keeper", "ttl_ms": 3_600_000 }));
    assert_eq!(keeper.status, 201);
    let mut daemon = Some(daemon);
    for round in 0..KILLS {
        let running = daemon.take().unwrap();
        verify(&running, &told);
        told.stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (url, told) = (running.url.clone(), &told);
                scope.spawn(move || load(&url, told, round, client));
            }
            // Somewhere between the first moments and a few passes.
            let until = Instant::now() + Duration::from_millis(20 + (round * 7919) % 180);
            while Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            running.kill();
            told.stop.store(true, Ordering::Relaxed);
        });
        daemon = Some(home.serve());
    }
    let daemon = daemon.unwrap();
    verify(&daemon, &told);
    let kept = told.keys.lock().unwrap().len();
    assert!(kept > 500, "too little load to mean anything: {kept}");
    crate::support::until("the mortals to be gone", || {
        let census = daemon.status()["census"].clone();
        let alone = census["owners_live"] == 1 && census["owners_overdue"] == 0;
        (alone && census["suspects"] == 0).then_some(())
    });
    let receipts = verify_receipts(&daemon);
    assert!(receipts > 100, "too few reclaims to mean anything: {receipts}");
}
