//! An observer is written with what `lapsed` exports, and nothing else.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed::observe::{
    Healed, Kind, PassMode, Reason, ReconcileEnd, ReconcileReport, Reconciled, Stopped, SystemId,
};
use lapsed::{Error, Manual, Observer, PassReport, Receipt, open};

use crate::stores::{ms, until};

/// Writes down every call in one line.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn has(&self, line: &str) -> bool {
        self.0.lock().unwrap().iter().any(|noted| noted == line)
    }
}

impl Observer for Log {
    fn reclaimed(&self, receipt: &Receipt) {
        let is_dead = receipt.reason == Reason::OwnerDead;
        self.note(format!("reclaimed {} of {}, dead: {is_dead}", receipt.key, receipt.owner));
    }

    fn cleared(&self, system: &SystemId, reason: Reason, _late_ms: u64) {
        let is_lease = system.kind == Kind::Leases;
        self.note(format!("cleared in {}: {reason}, lease: {is_lease}", system.name));
    }

    fn batched(&self, system: &SystemId, suspects: usize, _took: Duration) {
        self.note(format!("batched in {system}: {suspects}"));
    }

    fn passed(&self, report: &PassReport) {
        let is_done = report.stopped == Stopped::Done;
        self.note(format!("passed in {}: {}, done: {is_done}", report.system, report.reclaimed));
    }

    fn zombie_rejected(&self, system: &SystemId) {
        self.note(format!("rejected in {system}"));
    }

    fn store_error(&self, system: &SystemId, error: &Error) {
        self.note(format!("failed in {system}: {error}"));
    }

    fn healed(&self, system: &SystemId, page: &Reconciled, act: PassMode) {
        let added = page.changes.iter().filter(|change| change.what == Healed::Added).count();
        let changes = if act == PassMode::DryRun { 0 } else { added };
        self.note(format!("healed in {system}: {changes} added"));
    }

    fn reconciled(&self, report: &ReconcileReport, ended: ReconcileEnd<'_>) {
        let how = match ended {
            ReconcileEnd::Whole => "whole".to_owned(),
            ReconcileEnd::Part => "part".to_owned(),
            ReconcileEnd::Failed(error) => error.to_string(),
            other => format!("{other:?}"),
        };
        self.note(format!("reconciled {}: {}, {how}", report.system, report.drift()));
    }
}

#[tokio::test]
async fn an_observer_sees_passes_their_batches_and_what_they_reclaimed() {
    let (lapsed, log) = (open("memory:").await.unwrap(), Arc::new(Log::default()));
    let devices = lapsed.registry("devices").ttl(ms(200)).sweep(Manual).observer(log.clone());
    let devices = devices.start().await.unwrap();
    let me = devices.join("gateway-1").await.unwrap();
    me.register("imei-1").await.unwrap();
    drop(me); // no more heartbeats
    until("it is reclaimed", || async { devices.pass().await.reclaimed == 1 }).await;
    assert!(log.has("reclaimed imei-1 of gateway-1, dead: true"), "{:?}", log.0);
    assert!(log.has("batched in registry/devices: 1"), "{:?}", log.0);
    assert!(log.has("passed in devices: 1, done: true"), "{:?}", log.0);
}

#[tokio::test]
async fn an_observer_sees_an_expired_lease_that_the_next_holder_clears() {
    let (lapsed, log) = (open("memory:").await.unwrap(), Arc::new(Log::default()));
    let locks = lapsed.leases("locks").ttl(ms(1_000)).sweep(Manual).observer(log.clone());
    let locks = locks.start().await.unwrap();
    drop(locks.acquire("nightly-report").await.unwrap()); // no more renewals
    let _guard = locks.acquire("nightly-report").await.unwrap();
    assert!(log.has("cleared in locks: lease_expired, lease: true"), "{:?}", log.0);
}
