//! X1: every call ends by itself when the server accepts connections and never answers, and when it stops
//! answering after its time is known.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::conformance::unanswered::{
    calls_end_without_an_answer, leases_calls, store_calls, sweep_calls,
};
use lapsed_core::receipt::Reason;
use lapsed_core::store::Store;
use lapsed_object::{ObjectConfig, ObjectStore};
use lapsed_testbed::{Fault, HttpProxy, ObjectEngine, ObjectServer, Rule};

use crate::fixture::{config_by, layout, open, prefix, system};

/// When a call must have ended: several requests, each tried more than once.
const END: Duration = Duration::from_secs(12);

fn hasty(port: u16) -> Arc<ObjectStore> {
    let config = config_by(ObjectEngine::Seaweed, port, &prefix());
    open(ObjectConfig { timeout: Duration::from_millis(500), ..config })
}

async fn calls_end(store: &ObjectStore) {
    let (leases, system) = (store.leases(system(), layout()).unwrap(), system());
    let mut calls = store_calls(store, &system);
    calls.extend(sweep_calls(&*leases, "n/k", Reason::LeaseExpired));
    calls.extend(leases_calls(&*leases));
    // A survey only notes that a pass begins; leases have no owners that hold them; a census is the
    // time, which may be known; and a batch that this process never sent needs no settling.
    let unasked = ["survey", "survey for a dry run", "held_by", "census", "settle"];
    calls_end_without_an_answer(END, calls, &unasked).await;
}

#[tokio::test]
async fn trap_x1_no_call_waits_for_a_server_that_never_answers() {
    // The kernel accepts the connections, and nobody reads from them.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    calls_end(&hasty(silent.local_addr().unwrap().port())).await;
}

#[tokio::test]
async fn trap_x1_no_call_waits_for_a_server_that_stops_answering() {
    let proxy = HttpProxy::start(ObjectServer::shared(ObjectEngine::Seaweed).port()).unwrap();
    let store = hasty(proxy.port());
    store.info().await.unwrap();
    proxy.add(Rule::always("", "", Fault::DelayAnswer(Duration::from_secs(30))));
    calls_end(&store).await;
}
