//! A lease from its acquisition to its end, and a decision.

use lapsed::{Decision, Manual};

use crate::stores::{each, ms, until};

#[tokio::test]
async fn one_holds_a_key_and_the_next_one_has_a_larger_token() {
    for (lapsed, _folder) in each().await {
        let locks = lapsed.leases("locks").start().await.unwrap();
        let first = locks.acquire("report").await.unwrap();
        assert!(first.is_held());
        assert!(locks.try_acquire("report").await.unwrap().is_none());
        let token = first.token();
        let (second, released) = tokio::join!(locks.acquire("report"), first.release());
        assert!(released.unwrap());
        assert!(second.unwrap().token() > token);
    }
}

#[tokio::test]
async fn the_lease_of_a_dropped_guard_ends_with_its_ttl_and_is_swept_with_a_receipt() {
    for (lapsed, _folder) in each().await {
        let locks = lapsed.leases("locks").ttl(ms(1_000)).sweep(Manual).start().await.unwrap();
        drop(locks.acquire("report").await.unwrap());
        until("it is swept", || async { locks.pass().await.reclaimed == 1 }).await;
        assert_eq!(locks.receipts(1).await.unwrap()[0].key.as_str(), "default/report");
    }
}

#[tokio::test]
async fn a_transaction_is_decided_once() {
    for (lapsed, _folder) in each().await {
        let locks = lapsed.leases("locks").start().await.unwrap();
        assert!(locks.decision("t-1").await.unwrap().is_none());
        let first = locks.decide("t-1", Decision::Commit).await.unwrap();
        let second = locks.decide("t-1", Decision::Rollback).await.unwrap();
        assert_eq!((first.decision, second.decision), (Decision::Commit, Decision::Commit));
    }
}
