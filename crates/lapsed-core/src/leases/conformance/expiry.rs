//! Cases about expired leases, which the next operation clears before it does anything else.

use super::{LeasesFixture, done, json, key, lost, name};
use crate::leases::{Acquired, Decision, Expiry, LeaseToken, LossReason, Subject};

fn only(cleared: &[Expiry]) -> &Expiry {
    assert_eq!(cleared.len(), 1, "{cleared:?}");
    &cleared[0]
}

pub async fn the_next_acquire_clears_an_expired_lease_first(f: LeasesFixture) {
    let k = key("k");
    let first = f.acquire(&k, "a").await;
    f.expire().await;
    let met = f.attempt(&k, "b").await;
    let Acquired::Granted(second) = met.answer else { panic!("it was over") };
    assert_eq!((second.owner.as_str(), second.token), ("b", LeaseToken(2)));
    let expiry = only(&met.cleared);
    assert_eq!(expiry.subject, Subject::Lease(k.clone()));
    assert_eq!(expiry.deadline_ms, first.deadline_ms);
    assert!(expiry.at_ms >= expiry.deadline_ms);
    let clean = f.attempt(&k, "c").await;
    assert!(clean.cleared.is_empty(), "nothing was in the way");
}

pub async fn a_renewal_after_expiry_is_refused(f: LeasesFixture) {
    let k = key("k");
    let ticket = f.acquire(&k, "a").await.ticket();
    f.expire().await;
    let met = f.leases.renew(&ticket, None).await.unwrap();
    assert_eq!(lost(met.answer).why, LossReason::Ended);
    only(&met.cleared);
    assert_eq!(f.peek(&k).await.lease, None);
    let again = f.leases.renew(&ticket, None).await.unwrap();
    assert!(again.cleared.is_empty());
    lost(again.answer);
}

pub async fn a_release_after_expiry_is_refused(f: LeasesFixture) {
    let ticket = f.acquire(&key("k"), "a").await.ticket();
    f.expire().await;
    let met = f.leases.release(&ticket).await.unwrap();
    assert_eq!(lost(met.answer).why, LossReason::Ended);
    only(&met.cleared);
}

pub async fn a_state_set_after_expiry_is_refused(f: LeasesFixture) {
    let k = key("k");
    let ticket = f.acquire(&k, "a").await.ticket();
    done(f.set_state(&ticket, "in time").await);
    f.expire().await;
    lost(f.set_state(&ticket, "late").await);
    lost(f.stage(&ticket, "t", "late").await);
    let now = f.peek(&k).await;
    assert_eq!((now.state, now.staged), (Some(json("in time")), None));
}

pub async fn describing_clears_and_peeking_does_not(f: LeasesFixture) {
    let k = key("k");
    f.acquire(&k, "a").await;
    f.expire().await;
    for _ in 0..2 {
        let looked = f.peek(&k).await;
        assert!(looked.expired && looked.lease.is_some());
    }
    let listed = f.leases.list(&k.namespace, None, 10).await.unwrap();
    assert!(listed[0].expired);
    let met = f.leases.describe(&k).await.unwrap();
    only(&met.cleared);
    let described = met.answer.unwrap();
    assert_eq!((described.lease, described.expired, described.token), (None, false, LeaseToken(1)));
    assert!(f.leases.describe(&k).await.unwrap().cleared.is_empty());
}

pub async fn trap_d5_tokens_only_grow(f: LeasesFixture) {
    let k = key("k");
    let released = f.acquire_long(&k, "a").await;
    done(f.leases.release(&released.ticket()).await.unwrap().answer);
    let swept = f.acquire(&k, "b").await;
    f.expire_in_index().await;
    assert_eq!(f.sweep().await.reclaimed, 1);
    let described = f.acquire(&k, "c").await;
    f.expire().await;
    f.leases.describe(&k).await.unwrap();
    let last = f.acquire_long(&k, "d").await;
    let tokens = [released.token, swept.token, described.token, last.token];
    assert_eq!(tokens, [1, 2, 3, 4].map(LeaseToken));
    for old in [&released, &swept, &described] {
        assert_eq!(lost(f.set_state(&old.ticket(), "old").await).why, LossReason::Superseded);
    }
}

/// The holder, a rival, a look: all say the same.
pub async fn trap_d8_all_operations_agree_on_expiry(f: LeasesFixture) {
    let [k, l] = [key("k"), key("l")];
    let ticket = f.acquire(&k, "a").await.ticket();
    f.acquire(&l, "a").await;
    f.expire().await;
    assert!(f.peek(&k).await.expired && f.peek(&l).await.expired);
    lost(f.leases.renew(&ticket, None).await.unwrap().answer);
    assert!(matches!(f.attempt(&l, "b").await.answer, Acquired::Granted(_)));
}

/// Clearing a lease must not discard a state whose transaction was committed.
pub async fn trap_d9_a_committed_stage_is_published(f: LeasesFixture) {
    let k = key("k");
    let ticket = f.acquire(&k, "a").await.ticket();
    done(f.set_state(&ticket, "old").await);
    done(f.stage(&ticket, "t", "new").await);
    assert_eq!(f.peek(&k).await.state, Some(json("old")), "staged is not published");
    assert!(f.decide("t", Decision::Commit).await.first);
    f.expire().await;
    f.acquire_long(&k, "b").await;
    let now = f.peek(&k).await;
    assert_eq!((now.state, now.staged), (Some(json("new")), None));
}

/// Clearing a lease with undecided state decides `rollback`, and a late commit learns that.
pub async fn trap_d9_an_undecided_stage_is_rolled_back_for_good(f: LeasesFixture) {
    let k = key("k");
    let ticket = f.acquire(&k, "a").await.ticket();
    done(f.set_state(&ticket, "old").await);
    done(f.stage(&ticket, "t", "new").await);
    f.expire().await;
    f.acquire_long(&k, "b").await;
    assert_eq!(f.peek(&k).await.state, Some(json("old")));
    let late = f.decide("t", Decision::Commit).await;
    assert_eq!((late.decision, late.first), (Decision::Rollback, false));
}

/// A decision that has expired but is not deleted still decides staged state.
pub async fn trap_d9_an_expired_decision_that_exists_still_counts(f: LeasesFixture) {
    let [k, l] = [key("k"), key("l")];
    let [a, b] = [f.acquire(&k, "a").await.ticket(), f.acquire(&l, "b").await.ticket()];
    done(f.stage(&a, "t", "new").await);
    done(f.stage(&b, "t", "new").await);
    f.leases.decide(&name("t"), Decision::Commit, f.ttl_ms()).await.unwrap();
    f.expire_in_index().await;
    f.acquire_long(&k, "c").await;
    assert_eq!(f.peek(&k).await.state, Some(json("new")), "by whoever comes next");
    f.sweep().await;
    assert_eq!(f.peek(&l).await.state, Some(json("new")), "and by the sweep");
    assert!(f.leases.peek_decision(&name("t")).await.unwrap().is_none(), "which deletes it after");
}

pub async fn a_release_applies_the_decision_to_staged_state(f: LeasesFixture) {
    let [k, l] = [key("k"), key("l")];
    let [a, b] = [f.acquire_long(&k, "a").await.ticket(), f.acquire_long(&l, "b").await.ticket()];
    done(f.stage(&a, "t", "new").await);
    done(f.stage(&b, "u", "new").await);
    f.decide("t", Decision::Commit).await;
    done(f.leases.release(&a).await.unwrap().answer);
    done(f.leases.release(&b).await.unwrap().answer);
    assert_eq!(f.peek(&k).await.state, Some(json("new")));
    assert_eq!(f.peek(&l).await.state, None);
    assert_eq!(f.decide("u", Decision::Commit).await.decision, Decision::Rollback);
    let taken_back = f.acquire_long(&key("m"), "c").await.ticket();
    done(f.stage(&taken_back, "v", "new").await);
    done(f.leases.stage(&taken_back, None).await.unwrap().answer);
    done(f.leases.release(&taken_back).await.unwrap().answer);
    assert_eq!(f.leases.decision(&name("v")).await.unwrap().answer, None, "nothing was asked");
}
