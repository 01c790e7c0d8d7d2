//! G6: an asynchronous standby is promoted that lacks the last commits of its primary.
//!
//! A sequence would go back to what the standby knows, and terms, versions and receipts would get numbers that
//! somebody has seen already. Here numbers are never below the clock in microseconds.

use std::sync::Arc;

use lapsed_availability::Truth;
use lapsed_core::store::Store;
use lapsed_postgres::Postgres;
use lapsed_testbed::PostgresServer;

use crate::fixture::{
    Bench, STALE_MS, Server, address, batch, flip_of, flipped, layout, name, system,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_g6_numbers_grow_although_a_standby_lacks_the_last_commits() {
    let b = Bench::alone().await;
    let states = b.there(&["before", "lost"]).await;
    b.age("1000 s");
    let term = b.postgres.campaign(&system(), "one", 600_000).await.unwrap().unwrap();
    let flip_before = b.truth.flip(&batch(1), &[flip_of(&states[0])], STALE_MS).await.unwrap();
    let standby = PostgresServer::standby_of(&b.server).unwrap();
    standby.kill().unwrap();

    // These commits reach no standby, and are gone with the primary.
    b.postgres.resign(&system(), term.number).await.unwrap();
    let lost_term = b.postgres.campaign(&system(), "two", 600_000).await.unwrap().unwrap();
    let flip_lost = b.truth.flip(&batch(2), &[flip_of(&states[1])], STALE_MS).await.unwrap();
    let (lost_receipt, lost_state) = flipped(&flip_lost[0]);
    b.server.kill().unwrap();
    standby.restart().unwrap();
    standby.promote().unwrap();

    let postgres = Postgres::new(&address(&standby.url(&b.database))).unwrap();
    let truth = postgres.availability(system(), layout()).unwrap();
    let b = Bench { server: Server::Own(Arc::new(standby)), postgres, truth, ..b };
    assert_eq!(b.receipts().await.len(), 1, "the second flip was lost");
    assert_eq!(flipped(&flip_before[0]).0.id, b.receipts().await[0].id);
    assert!(b.state("lost").await.online);
    assert_eq!(b.postgres.term(&system()).await.unwrap().unwrap().number, term.number);
    b.postgres.resign(&system(), term.number).await.unwrap();
    let next = b.postgres.campaign(&system(), "three", 600_000).await.unwrap().unwrap();
    assert!(next.number > lost_term.number, "{next:?} after {lost_term:?}");
    let state = b.state("lost").await;
    let again = b.truth.flip(&batch(3), &[flip_of(&state)], STALE_MS).await.unwrap();
    let (receipt, state) = flipped(&again[0]);
    assert!(receipt.id.seq > lost_receipt.id.seq, "{receipt:?} after {lost_receipt:?}");
    assert!(state.version > lost_state.version, "{state:?} after {lost_state:?}");
    let online = b.truth.set_online(&name("before"), true).await.unwrap().unwrap();
    assert!(online.state.version > lost_state.version);
}
