//! Receipts, and what is done with them.

use std::collections::BTreeSet;

use super::{LeasesFixture, batch_id, done, json, key, lost, name, unique};
use crate::leases::{Decision, LeaseToken, RemovedLease};
use crate::receipt::Reason;
use crate::sweep::Outcome;
use crate::system::Restored;

pub async fn receipts_contain_the_evidence(f: LeasesFixture) {
    let k = key("k");
    let grant = f.acquire(&k, "a").await;
    f.expire_in_index().await;
    assert_eq!(f.sweep().await.reclaimed, 1);
    let receipts = f.receipts().await;
    assert_eq!(receipts.len(), 1);
    let receipt = &receipts[0];
    assert_eq!((receipt.key.as_str(), receipt.owner.as_str()), ("n/k", "a"));
    assert_eq!((receipt.incarnation.0, receipt.reason), (1, Reason::LeaseExpired));
    assert_eq!(receipt.evidence.deadline_ms, grant.deadline_ms);
    assert!(receipt.evidence.judged_ms >= grant.deadline_ms);
    let late = receipt.evidence.judged_ms - receipt.evidence.deadline_ms;
    assert_eq!(receipt.evidence.late_ms, late);
    let removed: RemovedLease = serde_json::from_value(receipt.removed.clone()).unwrap();
    let RemovedLease::Lease(cleared) = removed else { panic!("{removed:?}") };
    assert_eq!((cleared.token, cleared.lease.owner), (LeaseToken(1), name("a")));
    let one = f.store.receipt(f.leases.system(), receipt.id.seq).await.unwrap();
    assert_eq!(one.as_ref(), Some(receipt));
}

pub async fn an_operation_writes_receipts_for_what_it_cleared(f: LeasesFixture) {
    let k = key("k");
    f.acquire(&k, "a").await;
    f.expire().await;
    f.acquire(&k, "b").await;
    f.expire().await;
    f.leases.describe(&k).await.unwrap();
    f.leases.decide(&name("t"), Decision::Commit, f.ttl_ms()).await.unwrap();
    f.expire().await;
    f.leases.decision(&name("t")).await.unwrap();
    f.expire_in_index().await;
    let report = f.sweep().await;
    assert_eq!(report.reclaimed, 0, "an operation was first: {report:?}");
    let receipts = f.receipts().await;
    let what: BTreeSet<_> = receipts
        .iter()
        .map(|r| (r.key.to_string(), r.owner.to_string(), r.incarnation.0))
        .collect();
    let all = [("n/k", "a", 1), ("n/k", "b", 2), (".txn-decisions/t", "commit", 0)];
    let all = all.iter().map(|(key, owner, token)| (key.to_string(), owner.to_string(), *token));
    assert_eq!(what, all.collect());
    assert_eq!(receipts.len(), 3);
}

pub async fn each_token_has_at_most_one_receipt(f: LeasesFixture) {
    let all: Vec<_> = (0..8).map(|n| key(&format!("k{n}"))).collect();
    f.acquire_all(&all, "dead").await;
    f.expire_in_index().await;
    let sweeps = futures::future::join(f.sweep(), f.sweep());
    let takers = futures::future::join_all(all[..4].iter().map(|k| f.acquire_long(k, "next")));
    let ((one, other), _) = futures::future::join(sweeps, takers).await;
    let last = f.sweep().await;
    let swept = one.reclaimed + other.reclaimed + last.reclaimed;
    assert!((4..=8).contains(&swept), "{one:?} {other:?} {last:?}");
    let receipts = f.receipts().await;
    let distinct: BTreeSet<_> = receipts.iter().map(|r| (r.key.clone(), r.incarnation.0)).collect();
    assert_eq!((receipts.len(), distinct.len()), (8, 8), "{receipts:?}");
}

/// Receipts settle a batch whose answer was lost; a batch settled as not done is never carried out.
pub async fn a_lost_answer_is_settled_by_batch(f: LeasesFixture) {
    f.acquire_all(&[key("a"), key("b")], "dead").await;
    f.expire_in_index().await;
    let suspects = f.suspects().await;
    let never = batch_id(&unique("s"), 1);
    assert_eq!(f.settle(&never).await, 0);
    let late = f.reclaim_as(&never, None, suspects.clone()).await;
    let reclaimed = |o: &&Outcome| matches!(o, Outcome::Reclaimed(_));
    assert_eq!(late.outcomes.iter().filter(reclaimed).count(), 0, "it was settled as not done");
    let id = batch_id(&unique("s"), 1);
    let answer = f.reclaim_as(&id, None, suspects).await;
    assert_eq!(answer.outcomes.iter().filter(reclaimed).count(), 2, "{answer:?}");
    let settled = f.leases.settle(&id).await.unwrap();
    let settled: BTreeSet<_> = settled.iter().map(|receipt| receipt.id.seq).collect();
    let given: BTreeSet<_> =
        answer.outcomes.into_iter().filter_map(Outcome::receipt).map(|r| r.id.seq).collect();
    assert_eq!(settled, given);
}

pub async fn restoring_a_lease_grants_a_new_token(f: LeasesFixture) {
    let k = key("k");
    let old = f.acquire(&k, "a").await.ticket();
    done(f.set_state(&old, "kept").await);
    f.expire_in_index().await;
    assert_eq!(f.sweep().await.reclaimed, 1);
    let seq = f.receipts().await[0].id.seq;
    let restored = f.leases.restore(seq).await.unwrap();
    let Restored::Restored { key: what, owner, incarnation } = restored else {
        panic!("{restored:?}")
    };
    assert_eq!((what.as_str(), owner.as_str(), incarnation), ("n/k", "a", 2));
    let now = f.peek(&k).await;
    assert_eq!((now.token, now.state), (LeaseToken(2), Some(json("kept"))));
    assert_eq!(now.lease.unwrap().ttl_ms, f.ttl_ms());
    lost(f.set_state(&old, "zombie").await);
    assert!(matches!(f.leases.restore(seq).await.unwrap(), Restored::Refused { .. }), "once");
    let receipt = f.store.receipt(f.leases.system(), seq).await.unwrap().unwrap();
    assert!(receipt.restored_ms.is_some());
}

pub async fn restoring_a_lease_is_refused_after_a_newer_grant(f: LeasesFixture) {
    let k = key("k");
    f.acquire(&k, "a").await;
    f.expire_in_index().await;
    f.sweep().await;
    let next = f.acquire_long(&k, "b").await.ticket();
    let seq = f.receipts().await[0].id.seq;
    let refused = |restored| matches!(restored, Restored::Refused { .. });
    assert!(refused(f.leases.restore(seq).await.unwrap()));
    done(f.leases.release(&next).await.unwrap().answer);
    assert!(refused(f.leases.restore(seq).await.unwrap()));
    assert_eq!(f.token(&k).await, LeaseToken(2));
    assert!(refused(f.leases.restore(seq + 1_000_000).await.unwrap()), "no such receipt");
}

pub async fn restoring_a_decision_makes_it_again(f: LeasesFixture) {
    for id in ["t", "u"] {
        f.leases.decide(&name(id), Decision::Commit, f.ttl_ms()).await.unwrap();
    }
    f.expire_in_index().await;
    assert_eq!(f.sweep().await.reclaimed, 2);
    f.decide("u", Decision::Rollback).await;
    for receipt in f.receipts().await {
        let restored = f.leases.restore(receipt.id.seq).await.unwrap();
        let free = receipt.key.as_str() == ".txn-decisions/t";
        assert_eq!(matches!(restored, Restored::Restored { .. }), free, "{restored:?}");
    }
    let t = f.leases.peek_decision(&name("t")).await.unwrap().unwrap().0;
    assert_eq!(t.decision, Decision::Commit);
    let u = f.leases.peek_decision(&name("u")).await.unwrap().unwrap().0;
    assert_eq!(u.decision, Decision::Rollback);
}
