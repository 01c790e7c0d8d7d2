//! The account finds what it is there to find: each wrong is planted and must be named, and what is right is not.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::account::{Complaint, check_counts, check_grants, check_job, check_receipts};
use super::caller::{CallSpan, Caller};
use super::ledger::{JobRecord, Ledger};
use crate::support::Home;

/// A job after these lines of its workers.
fn job_after(lines: &[&str]) -> JobRecord {
    let mut ledger = Ledger::default();
    ledger.job("j").entered = true;
    lines.iter().for_each(|line| ledger.worker_line(line));
    ledger.jobs["j"].clone()
}

#[test]
fn planted_wrongs_with_a_job_are_named() {
    let right = ["took j 1", "completing j 1", "done j 1"];
    assert_eq!(check_job("j", &job_after(&right), None), None);
    assert_eq!(check_job("j", &job_after(&["took j 1"]), Some("queued")), None);
    assert_eq!(check_job("j", &job_after(&["took j 1", "completing j 1"]), None), None);
    let twice = [&right[..], &["took j 2", "completing j 2", "done j 2"]].concat();
    let found = check_job("j", &job_after(&twice), None);
    assert!(matches!(found, Some(Complaint::JobCompletedTwice(_))), "{found:?}");
    let again = [&right[..], &["took j 2"]].concat();
    for (lines, state) in [(&again[..], None), (&right[..], Some("queued"))] {
        let found = check_job("j", &job_after(lines), state);
        assert!(matches!(found, Some(Complaint::JobRunAfterCompletion(_))), "{found:?}");
    }
    let found = check_job("j", &job_after(&["took j 1"]), None);
    assert!(matches!(found, Some(Complaint::JobLost(_))), "{found:?}");
}

#[test]
fn planted_wrongs_with_receipts_are_named() {
    let receipt = |number: u64, at_ms: u64| json!({ "id": format!("registry-devices-{number}"), "key": "k", "incarnation": 7, "at_ms": at_ms });
    let mut ledger = Ledger::default();
    ledger.sign("registry", 7, 1_000, CallSpan { sent_ms: 5_000, done_ms: 5_010 });
    assert_eq!(
        check_receipts(&[receipt(1, 6_000)], &mut ledger.clone()),
        [],
        "it was silent for a TTL"
    );
    let found = check_receipts(&[receipt(1, 5_900)], &mut ledger.clone());
    assert!(matches!(found[..], [Complaint::ReclaimedFromTheLiving(_)]), "{found:?}");
    let found = check_receipts(&[receipt(1, 6_000), receipt(2, 6_500)], &mut ledger);
    assert!(matches!(found[..], [Complaint::ReclaimedTwice(_)]), "{found:?}");
}

#[test]
fn planted_wrongs_with_leases_and_counts_are_named() {
    let grants = |second: CallSpan, late: Option<CallSpan>| {
        let mut ledger = Ledger::default();
        let key = ledger.grants.entry("k".to_owned()).or_default();
        let first = key.entry(1).or_default();
        first.ttl_ms = 3_000;
        first.held.push(CallSpan { sent_ms: 1_000, done_ms: 1_010 });
        first.held.extend(late);
        let next = key.entry(2).or_default();
        next.ttl_ms = 3_000;
        next.held.push(second);
        check_grants("k", &ledger.grants["k"])
    };
    let later = CallSpan { sent_ms: 4_500, done_ms: 4_510 };
    assert_eq!(grants(later, None), None);
    let early = CallSpan { sent_ms: 2_000, done_ms: 2_010 };
    assert!(matches!(grants(early, None), Some(Complaint::LeaseShared(_))));
    let zombie = CallSpan { sent_ms: 5_000, done_ms: 5_010 };
    assert!(matches!(grants(later, Some(zombie)), Some(Complaint::LeaseShared(_))));
    let counts = |entered: u64| json!({ "entered": entered, "completed": 1, "queued": 1, "in_flight": 0, "dead": 0, "dropped": 0 });
    let ledger = Ledger { entered: 2, tried: 2, ..Ledger::default() };
    assert_eq!(check_counts(&counts(2), &ledger, true), None);
    for (counts, ledger) in [(counts(3), &ledger), (counts(2), &Ledger::default())] {
        let found = check_counts(&counts, ledger, true);
        assert!(matches!(found, Some(Complaint::CountsDoNotBalance(_))), "{found:?}");
    }
}

/// A job that is taken out of a real store behind lapsed's back is found to be lost.
#[test]
fn a_job_that_vanished_from_the_store_is_found() {
    let home = Home::inflight("60s", "sweep = { every = \"1d\" }");
    let daemon = home.serve();
    let ledger: Arc<Mutex<Ledger>> = Arc::default();
    for id in ["kept", "gone"] {
        daemon.jobs("enqueue", json!({ "queue": "work", "id": id, "payload": "x" }));
        ledger.lock().unwrap().job(id).entered = true;
    }
    // Somebody else takes and completes it, and no worker of the load has said so.
    let taken = daemon.jobs("take", json!({ "owner": "stranger", "queue": "work", "limit": 2 }));
    let gone = taken["jobs"].as_array().unwrap().iter().find(|job| job["id"] == "gone").unwrap();
    daemon.jobs("complete", json!({ "id": "gone", "token": gone["token"] }));
    let mut caller = Caller::new(std::slice::from_ref(&daemon.url), 0);
    let mut check = |id: &str| {
        let place = caller.look(&format!("inflight/jobs/jobs/{id}"), None);
        let state = place.as_ref().and_then(|job: &Value| job["state"].as_str());
        check_job(id, &ledger.lock().unwrap().jobs[id], state)
    };
    assert_eq!(check("kept"), None);
    let found = check("gone");
    assert!(matches!(found, Some(Complaint::JobLost(_))), "{found:?}");
}
