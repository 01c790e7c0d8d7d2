//! Decisions: made once, kept for a time.

use futures::future::join_all;

use super::{LeasesFixture, keys_of, name};
use crate::leases::{Decision, Subject};
use crate::receipt::Reason;

pub async fn the_first_decision_stands(f: LeasesFixture) {
    let t = name("t/1 ä");
    assert_eq!(f.leases.decision(&t).await.unwrap().answer, None);
    let first = f.decide("t/1 ä", Decision::Commit).await;
    assert!(first.first);
    assert_eq!((first.txn.as_str(), first.decision), ("t/1 ä", Decision::Commit));
    let second = f.decide("t/1 ä", Decision::Rollback).await;
    assert_eq!((second.decision, second.first), (Decision::Commit, false));
    assert_eq!(second.deadline_ms, first.deadline_ms, "nor is it kept for longer");
    let read = f.leases.decision(&t).await.unwrap().answer.unwrap();
    assert_eq!((read.decision, read.first), (Decision::Commit, false));
    assert_eq!(f.decide("t2", Decision::Rollback).await.decision, Decision::Rollback);
}

pub async fn one_of_two_concurrent_decisions_wins(f: LeasesFixture) {
    for round in 0..5 {
        let t = name(&format!("t{round}"));
        let both = [Decision::Commit, Decision::Rollback, Decision::Commit, Decision::Rollback];
        let answers = join_all(both.iter().map(|one| f.leases.decide(&t, *one, 3_600_000))).await;
        let answers: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().answer).collect();
        assert_eq!(answers.iter().filter(|one| one.first).count(), 1, "{answers:?}");
        assert!(answers.iter().all(|one| one.decision == answers[0].decision), "{answers:?}");
        let read = f.leases.decision(&t).await.unwrap().answer.unwrap();
        assert_eq!(read.decision, answers[0].decision);
    }
}

pub async fn an_expired_decision_is_deleted_before_the_answer(f: LeasesFixture) {
    let t = name("t");
    f.leases.decide(&t, Decision::Commit, f.ttl_ms()).await.unwrap();
    assert!(!f.leases.peek_decision(&t).await.unwrap().unwrap().1);
    f.expire().await;
    let (looked, over) = f.leases.peek_decision(&t).await.unwrap().unwrap();
    assert!(over && looked.decision == Decision::Commit, "looking deletes nothing");
    let met = f.leases.decision(&t).await.unwrap();
    assert_eq!(met.answer, None);
    assert_eq!(met.cleared.len(), 1);
    assert_eq!(met.cleared[0].subject, Subject::Decision(t.clone()));
    assert_eq!(f.leases.peek_decision(&t).await.unwrap(), None);
    assert!(f.leases.decision(&t).await.unwrap().cleared.is_empty());
}

pub async fn an_expired_decision_may_be_made_again(f: LeasesFixture) {
    let t = name("t");
    f.leases.decide(&t, Decision::Commit, f.ttl_ms()).await.unwrap();
    f.expire().await;
    let met = f.leases.decide(&t, Decision::Rollback, 3_600_000).await.unwrap();
    assert_eq!((met.answer.decision, met.answer.first), (Decision::Rollback, true));
    assert_eq!(met.cleared.len(), 1);
    assert_eq!(f.leases.decision(&t).await.unwrap().answer.unwrap().decision, Decision::Rollback);
}

pub async fn the_sweep_deletes_expired_decisions_only(f: LeasesFixture) {
    for id in ["t1", "t2"] {
        f.leases.decide(&name(id), Decision::Commit, f.ttl_ms()).await.unwrap();
    }
    f.decide("kept", Decision::Rollback).await;
    f.expire_in_index().await;
    let suspects = f.suspects().await;
    assert_eq!(keys_of(&suspects), [".txn-decisions/t1", ".txn-decisions/t2"]);
    assert_eq!((suspects[0].owner.as_str(), suspects[0].incarnation.0), ("commit", 0));
    assert_eq!(suspects[0].reason, Reason::DecisionExpired);
    let report = f.sweep().await;
    assert_eq!(report.reclaimed, 2, "{report:?}");
    assert!(f.leases.peek_decision(&name("t1")).await.unwrap().is_none());
    assert!(f.leases.peek_decision(&name("kept")).await.unwrap().is_some());
    let receipts = f.receipts().await;
    assert_eq!(receipts.len(), 2);
    assert!(receipts.iter().all(|receipt| receipt.reason == Reason::DecisionExpired));
    assert_eq!(f.sweep().await.suspects, 0);
}
