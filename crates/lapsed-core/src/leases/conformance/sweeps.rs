//! Cases about sweeping expired leases.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join;

use super::{LeasesFixture, batch_id, done, json, key, keys, keys_of, policy, unique};
use crate::Name;
use crate::conformance::leading::leaders_that_stall_within_a_pass_reclaim_nothing_more;
use crate::conformance::{SweepMoment, WatchedSweep};
use crate::leases::{Acquired, Decision, LeaseKey, LeaseToken};
use crate::receipt::Reason;
use crate::schedule::StopSignal;
use crate::store::conformance::a_brake_record_is_replaced_by_one_of_many;
use crate::sweep::brake::BrakeSetting;
use crate::sweep::policy::Policy;
use crate::sweep::{Outcome, PassMode, Refusal, Stopped, Sweeper, SweeperParts};

pub async fn expired_leases_are_cleared_and_others_are_not(f: LeasesFixture) {
    f.acquire_all(&keys(&["a", "b", "c"]), "dead").await;
    f.acquire_long(&key("x"), "live").await;
    assert!(f.suspects().await.is_empty(), "their time runs");
    f.expire_in_index().await;
    let suspects = f.suspects().await;
    assert_eq!(keys_of(&suspects), ["n/a", "n/b", "n/c"]);
    assert_eq!((suspects[0].owner.as_str(), suspects[0].incarnation.0), ("dead", 1));
    assert_eq!(suspects[0].reason, Reason::LeaseExpired);
    let report = f.sweep().await;
    assert_eq!((report.reclaimed, report.stopped), (3, Stopped::Done), "{report:?}");
    for k in keys(&["a", "b", "c"]) {
        let cleared = f.peek(&k).await;
        assert_eq!((cleared.lease, cleared.token), (None, LeaseToken(1)));
    }
    assert!(f.peek(&key("x")).await.lease.is_some());
    let again = f.sweep().await;
    assert_eq!((again.reclaimed, again.suspects), (0, 0), "{again:?}");
}

/// Its entry in the index said an earlier time; it must not be forgotten with that entry.
pub async fn trap_d1_a_renewed_lease_is_swept_at_its_new_deadline(f: LeasesFixture) {
    let k = key("k");
    let ticket = f.acquire(&k, "a").await.ticket();
    let renewed = f.ttl_ms() * 2 + f.coarse.as_millis() as u64;
    done(f.leases.renew(&ticket, Some(renewed)).await.unwrap().answer);
    f.expire_in_index().await;
    assert_eq!(f.sweep().await.reclaimed, 0, "it is alive");
    assert!(f.peek(&k).await.lease.is_some());
    (f.advance)(Duration::from_millis(renewed) + f.coarse).await;
    let report = f.sweep().await;
    assert_eq!(report.reclaimed, 1, "{report:?}");
}

/// It was over when the page was read, say the index; it was renewed in time all the same.
pub async fn a_renewal_before_the_reclaim_wins(f: LeasesFixture) {
    let [k, l] = [key("k"), key("l")];
    f.acquire(&k, "a").await;
    f.acquire(&l, "b").await;
    f.expire_in_index().await;
    let suspects = f.suspects().await;
    assert_eq!(suspects.len(), 2);
    // Cleared by its former holder, who comes again and holds it by a newer token.
    let again = f.acquire_long(&k, "a").await;
    let answer = f.reclaim(suspects).await;
    let refused = answer.outcomes.iter().filter(|outcome| {
        matches!(outcome, Outcome::Refused(Refusal::Moved | Refusal::Alive) | Outcome::Gone)
    });
    assert_eq!(refused.count(), 1, "{answer:?}");
    let held = f.peek(&k).await;
    assert_eq!((held.token, held.lease.is_some()), (again.token, true));
    assert_eq!(f.peek(&l).await.lease, None);
}

pub async fn a_new_holder_before_the_reclaim_wins(f: LeasesFixture) {
    let k = key("k");
    f.acquire(&k, "a").await;
    f.expire_in_index().await;
    let suspects = f.suspects().await;
    assert!(matches!(f.attempt(&k, "b").await.answer, Acquired::Granted(_)));
    let before = f.peek(&k).await.lease;
    let answer = f.reclaim(suspects).await;
    assert!(!matches!(answer.outcomes[0], Outcome::Reclaimed(_)), "{answer:?}");
    assert_eq!(f.peek(&k).await.lease, before);
}

pub async fn released_leases_leave_no_suspects(f: LeasesFixture) {
    let ticket = f.acquire(&key("k"), "a").await.ticket();
    done(f.leases.release(&ticket).await.unwrap().answer);
    f.expire_in_index().await;
    let report = f.sweep().await;
    assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Done), "{report:?}");
    assert!(f.receipts().await.is_empty());
    assert_eq!(f.sweep().await.suspects, 0, "nor is it listed again");
}

/// The entries of the first namespace are refused in every pass and fill what a pass may do: the next
/// pass continues after them.
pub async fn trap_d6_a_namespace_that_stays_full_does_not_starve_the_others(f: LeasesFixture) {
    for namespace in ["a", "b", "c"] {
        for n in 0..4 {
            f.acquire(&LeaseKey::new(namespace, &format!("k{n}")).unwrap(), "dead").await;
        }
    }
    f.expire_in_index().await;
    let stuck = |key: &Name| key.as_str().starts_with("a/");
    let sweep = WatchedSweep::refusing(f.leases.clone(), stuck);
    let parts = SweeperParts::new(unique("s"), sweep.clone(), f.store.clone());
    let sweeper = Sweeper::new(parts.policy(Policy { max_ops: Some(4), batch: 2, ..policy() }));
    let (_stopper, stop) = StopSignal::channel();
    let mut reclaimed = 0;
    for _ in 0..3 {
        reclaimed += sweeper.pass(PassMode::Reclaim, 0, &stop).await.reclaimed;
    }
    assert_eq!(reclaimed, 8, "both others, within three passes: {:?}", sweep.pages());
    assert_eq!(f.receipts().await.len(), 8);
}

pub async fn trap_d7_one_refusal_does_not_stop_the_others(f: LeasesFixture) {
    f.acquire_all(&keys(&["a", "b", "c", "d"]), "dead").await;
    f.expire_in_index().await;
    let suspects = f.suspects().await;
    f.acquire_long(&key("b"), "live").await;
    let answer = f.reclaim(suspects).await;
    let reclaimed = answer.outcomes.iter().filter(|o| matches!(o, Outcome::Reclaimed(_)));
    assert_eq!(reclaimed.count(), 3, "{answer:?}");
    assert!(f.peek(&key("b")).await.lease.is_some());
    // It is not lost: when its time is over it is found.
    let ticket = f.peek(&key("b")).await;
    let ticket = crate::leases::LeaseTicket { key: key("b"), token: ticket.token };
    done(f.leases.release(&ticket).await.unwrap().answer);
    f.acquire(&key("b"), "dead").await;
    f.expire_in_index().await;
    assert_eq!(f.sweep().await.reclaimed, 1);
}

/// Committed work is published by the sweep, too; undecided work is rolled back for good.
pub async fn trap_d9_the_sweep_applies_the_decision(f: LeasesFixture) {
    let [k, l] = [key("k"), key("l")];
    let a = f.acquire(&k, "a").await.ticket();
    let b = f.acquire(&l, "b").await.ticket();
    done(f.stage(&a, "t", "new").await);
    done(f.stage(&b, "u", "new").await);
    f.decide("t", Decision::Commit).await;
    f.expire_in_index().await;
    let report = f.sweep().await;
    assert_eq!(report.reclaimed, 2, "{report:?}");
    assert_eq!(f.peek(&k).await.state, Some(json("new")));
    assert_eq!(f.peek(&l).await.state, None);
    assert_eq!(f.decide("u", Decision::Commit).await.decision, Decision::Rollback);
}

/// The pass is stopped when it has read its second page and reclaimed nothing of it. A cursor that
/// jumped to that page's end would hide it from the next pass until that one wraps around.
pub async fn trap_d11_a_pass_that_stops_within_a_page_leaves_the_cursor_before_it(
    f: LeasesFixture,
) {
    let all: Vec<LeaseKey> = (0..7).map(|n| key(&format!("k{n}"))).collect();
    f.acquire_all(&all, "dead").await;
    f.expire_in_index().await;
    let (stopper, stop) = StopSignal::channel();
    let watched = WatchedSweep::new(f.leases.clone(), move |moment| {
        if moment == SweepMoment::PageRead(2) {
            stopper.stop();
        }
        Box::pin(async {})
    });
    let parts = SweeperParts::new(unique("s"), watched.clone(), f.store.clone());
    let sweeper = Sweeper::new(parts.policy(Policy { batch: 2, ..policy() }));
    let first = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
    assert_eq!((first.reclaimed, first.stopped), (2, Stopped::Runtime), "{first:?}");
    let (_stopper, never) = StopSignal::channel();
    let second = sweeper.pass(PassMode::Reclaim, 0, &never).await;
    assert_eq!((second.reclaimed, second.stopped), (5, Stopped::Done), "{second:?}");
    let pages = watched.pages();
    assert_eq!(pages[2], pages[1], "the next pass begins with the page that was left: {pages:?}");
    let receipts = f.receipts().await;
    let distinct: BTreeSet<_> = receipts.iter().map(|receipt| receipt.key.clone()).collect();
    assert_eq!((receipts.len(), distinct.len()), (7, 7));
}

pub async fn two_sweepers_count_each_reclaim_once(f: LeasesFixture) {
    let all: Vec<LeaseKey> = (0..12).map(|n| key(&format!("k{n}"))).collect();
    f.acquire_all(&all, "dead").await;
    f.expire_in_index().await;
    let policy = Policy { batch: 3, ..policy() };
    let one = f.pass("one", PassMode::Reclaim, policy.clone());
    let (one, other) = join(one, f.pass("other", PassMode::Reclaim, policy.clone())).await;
    let mut reclaimed = one.reclaimed + other.reclaimed;
    // Where both met one of them may have stepped back: the next pass is alone.
    for _ in 0..3 {
        reclaimed += f.pass("last", PassMode::Reclaim, policy.clone()).await.reclaimed;
    }
    assert_eq!(reclaimed, 12, "{one:?} {other:?}");
    let receipts = f.receipts().await;
    let distinct: BTreeSet<_> = receipts.iter().map(|receipt| receipt.key.clone()).collect();
    assert_eq!((receipts.len(), distinct.len()), (12, 12));
}

pub async fn a_dry_run_lists_what_a_pass_does_and_changes_nothing(f: LeasesFixture) {
    f.acquire_all(&keys(&["a", "b"]), "dead").await;
    f.expire_in_index().await;
    let dry = f.pass("dry", PassMode::DryRun, policy()).await;
    assert_eq!((dry.reclaimed, dry.dry_run), (2, true), "{dry:?}");
    assert!(f.peek(&key("a")).await.expired, "nothing was changed");
    assert!(f.receipts().await.is_empty());
    let real = f.sweep().await;
    assert_eq!(real.reclaimed, 2);
    let named = |report: &crate::sweep::PassReport| -> BTreeSet<String> {
        report.entries.iter().map(|listed| listed.key.to_string()).collect()
    };
    assert_eq!(named(&dry), named(&real));
}

pub async fn the_same_suspect_twice_in_a_batch_counts_once(f: LeasesFixture) {
    f.acquire(&key("k"), "dead").await;
    f.expire_in_index().await;
    let mut suspects = f.suspects().await;
    suspects.push(suspects[0].clone());
    let answer = f.reclaim(suspects).await;
    let reclaimed = answer.outcomes.iter().filter(|o| matches!(o, Outcome::Reclaimed(_)));
    assert_eq!(reclaimed.count(), 1, "{answer:?}");
    assert_eq!(f.receipts().await.len(), 1);
}

pub async fn a_held_brake_spares_everything(f: LeasesFixture) {
    f.acquire(&key("k"), "dead").await;
    f.expire_in_index().await;
    assert!(f.suspects_within(Some(0)).await.is_empty());
    f.set_brake(BrakeSetting::Hold).await;
    let held = f.sweep().await;
    assert_eq!((held.reclaimed, held.stopped), (0, Stopped::Brake), "{held:?}");
    assert!(f.peek(&key("k")).await.expired);
    f.set_brake(BrakeSetting::Auto).await;
    assert_eq!(f.sweep().await.reclaimed, 1);
}

pub async fn a_step_or_an_override_of_the_brake_is_given_to_one(f: LeasesFixture) {
    a_brake_record_is_replaced_by_one_of_many(&*f.store, f.leases.system()).await;
}

/// It was the leader, stood still, and acts on what it saw before.
pub async fn trap_x5_a_stalled_leader_is_refused_by_the_store(f: LeasesFixture) {
    let system = f.leases.system().clone();
    let first = f.store.campaign(&system, "one", 1_000).await.unwrap().unwrap();
    f.acquire(&key("k"), "dead").await;
    (f.advance)(Duration::from_secs(1)).await;
    let second = f.store.campaign(&system, "two", 3_600_000).await.unwrap().unwrap();
    assert!(second.number > first.number);
    assert_eq!(f.store.term(&system).await.unwrap(), Some(second.clone()), "whoever asks");
    f.expire_in_index().await;
    let suspects = f.suspects().await;
    let leader = unique("leader");
    let batch = |number| batch_id(&leader, number);
    let stale = f.reclaim_as(&batch(1), Some(first.number), suspects.clone()).await;
    assert_eq!(stale.outcomes, [Outcome::Refused(Refusal::NotLeader)]);
    assert!(f.peek(&key("k")).await.expired);
    let current = f.reclaim_as(&batch(2), Some(second.number), suspects).await;
    assert!(matches!(current.outcomes[0], Outcome::Reclaimed(Some(_))), "{current:?}");
}

/// Stopped between any two of its calls, until its term is over.
pub async fn trap_x5_leaders_that_stall_within_a_pass_reclaim_nothing_more(f: LeasesFixture) {
    let all: Vec<LeaseKey> = (0..7).map(|n| key(&format!("k{n}"))).collect();
    f.acquire_all(&all, "dead").await;
    f.expire_in_index().await;
    // The store may tell its time in whole seconds.
    let (led, _keep) = f.led(Duration::from_secs(3));
    leaders_that_stall_within_a_pass_reclaim_nothing_more(led, 7).await;
}
