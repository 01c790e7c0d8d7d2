//! Cases about suspects, the guard and passes.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{RegistryFixture, batch_id, keys_of, name, names};
use crate::conformance::leading::leaders_that_stall_within_a_pass_reclaim_nothing_more;
use crate::conformance::{SweepMoment, WatchedSweep, unique};
use crate::name::Name;
use crate::registry::TakePolicy;
use crate::schedule::StopSignal;
use crate::sweep::policy::Policy;
use crate::sweep::{
    Cursor, Outcome, PageRequest, PassMode, PassReport, Refusal, Stopped, Sweeper, SweeperParts,
};

pub async fn entries_of_dead_owners_are_reclaimed_and_others_are_not(f: RegistryFixture) {
    f.holding("dead", &["a", "b", "c"]).await;
    let live = f.holding("live", &["x", "y"]).await;
    f.outlive(f.ttl, &[&live]).await;
    let report = f.sweep().await;
    assert_eq!((report.reclaimed, report.stopped), (3, Stopped::Done), "{report:?}");
    assert_eq!(f.holder("a").await, None);
    assert_eq!(f.holder("x").await, live.incarnation);
    let again = f.sweep().await;
    assert_eq!((again.reclaimed, again.suspects), (0, 0));
    let census = f.registry.census().await.unwrap();
    assert_eq!((census.population, census.suspects, census.owners_live), (2, 0, 1));
}

/// At the deadline, not a millisecond later, an owner is overdue; what one judges all judge.
pub async fn equal_to_now_counts_as_expired(f: RegistryFixture) {
    let claim = f.holding("i-1", &["a"]).await;
    let due_ms = f.registry.owner(&claim).await.unwrap().unwrap().due_ms;
    (f.advance)(std::time::Duration::from_millis(due_ms - f.now_ms().await)).await;
    assert_eq!(f.suspects().await.len(), 1);
    assert_eq!(f.sweep().await.reclaimed, 1);
}

/// It was overdue when the page was read, and beat before the batch arrived (P1).
pub async fn a_heartbeat_before_the_reclaim_wins(f: RegistryFixture) {
    let claim = f.holding("i-1", &["a", "b"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    assert_eq!(suspects.len(), 2);
    f.registry.beat(&claim).await.expect("overdue is not dead");
    let answer = f.reclaim(suspects).await;
    assert_eq!(answer.outcomes, vec![Outcome::Refused(Refusal::Alive); 2]);
    assert_eq!(answer.owners_ended, 0);
    assert_eq!(f.holder("a").await, claim.incarnation);
    assert!(f.suspects().await.is_empty(), "and it is no suspect any more");
}

/// A's entry is listed; the device registers with C; the batch arrives.
pub async fn trap_a1_a_key_registered_elsewhere_before_the_reclaim_is_not_taken(
    f: RegistryFixture,
) {
    f.holding("a", &["imei-1", "imei-2"]).await;
    let c = f.start("c").await;
    f.outlive(f.ttl, &[&c]).await;
    let suspects = f.suspects().await;
    f.register(&c, &["imei-1"]).await;
    let moved = suspects.iter().position(|s| s.key == name("imei-1")).unwrap();
    let answer = f.reclaim(suspects).await;
    assert_eq!(answer.outcomes[moved], Outcome::Refused(Refusal::Moved));
    assert!(matches!(answer.outcomes[1 - moved], Outcome::Reclaimed(Some(_))));
    assert_eq!(f.holder("imei-1").await, c.incarnation);
    assert_eq!(f.receipts().await.len(), 1);
}

/// The same where nothing of the batch is left to the dead owner: a store may judge such a batch as a whole.
pub async fn trap_a1_keys_that_have_all_moved_before_the_reclaim_are_not_taken(f: RegistryFixture) {
    f.holding("a", &["imei-1", "imei-2"]).await;
    let c = f.start("c").await;
    f.outlive(f.ttl, &[&c]).await;
    let suspects = f.suspects().await;
    f.register(&c, &["imei-1", "imei-2"]).await;
    let answer = f.reclaim(suspects).await;
    assert_eq!(answer.outcomes, vec![Outcome::Refused(Refusal::Moved); 2]);
    for key in ["imei-1", "imei-2"] {
        assert_eq!(f.holder(key).await, c.incarnation, "{key}");
    }
    assert!(f.receipts().await.is_empty());
}

/// Both see the same suspects; each counts only what the store says it did.
pub async fn trap_a2_two_sweepers_count_each_reclaim_once(f: RegistryFixture) {
    let keys: Vec<String> = (0..200).map(|i| format!("k{i:03}")).collect();
    f.holding("i-1", &keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    (f.advance)(f.ttl).await;
    let policy = Policy { batch: 7, ..Policy::default() };
    let (one, two) = futures::join!(
        f.pass("one", PassMode::Reclaim, policy.clone()),
        f.pass("two", PassMode::Reclaim, policy.clone()),
    );
    assert_eq!(one.reclaimed + two.reclaimed, 200, "{one:?} {two:?}");
    assert_eq!(one.owners_ended + two.owners_ended, 1);
    let receipts = f.receipts().await;
    let distinct: BTreeSet<&Name> = receipts.iter().map(|r| &r.key).collect();
    assert_eq!((receipts.len(), distinct.len()), (200, 200));
}

/// A thousand living entries, five dead ones: a page has at most its limit, and what is examined
/// are the dead.
pub async fn trap_a6_pages_are_bounded_and_skip_entries_of_live_owners(f: RegistryFixture) {
    let keys: Vec<String> = (0..1_000).map(|i| format!("live-{i:04}")).collect();
    let live = f.holding("live", &keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    f.holding("dead", &["d1", "d2", "d3", "d4", "d5"]).await;
    f.outlive(f.ttl, &[&live]).await;
    let mut after = Cursor::default();
    let mut seen = Vec::new();
    loop {
        let request = PageRequest { after: after.clone(), limit: 2, undeclared_max: None };
        let page = f.registry.suspects(request).await.unwrap();
        assert!(page.suspects.len() <= 2);
        assert_eq!(page.examined, page.suspects.len() as u64);
        let Some(last) = page.suspects.last() else { break };
        after = f.registry.after(last);
        seen.extend(page.suspects.into_iter().map(|s| s.key));
    }
    seen.sort();
    assert_eq!(seen, names(&["d1", "d2", "d3", "d4", "d5"]));
}

/// One batch of one entry declares the owner dead; the other entries are invalid from then on,
/// though a later batch removes them.
pub async fn trap_x4_a_death_takes_effect_at_once_and_entries_go_in_batches(f: RegistryFixture) {
    f.holding("i-1", &["a", "b", "c"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    let answer = f.reclaim(suspects[..1].to_vec()).await;
    assert_eq!(answer.owners_ended, 1);
    for key in ["a", "b", "c"] {
        assert_eq!(f.holder(key).await, None, "{key}");
    }
    assert_eq!(f.registry.census().await.unwrap().population, 2);
    assert_eq!(f.sweep().await.reclaimed, 2);
}

/// Two terms: the batch of the first, sent late, is refused in the store's own step.
pub async fn trap_x5_a_stalled_leader_is_refused_by_the_store(f: RegistryFixture) {
    f.holding("i-1", &["a"]).await;
    let system = f.registry.system().clone();
    let first = f.store.campaign(&system, "one", f.ttl_ms() / 2).await.unwrap().unwrap();
    assert!(f.store.campaign(&system, "two", f.ttl_ms()).await.unwrap().is_none());
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    let second = f.store.campaign(&system, "two", 60_000).await.unwrap().unwrap();
    assert!(second.number > first.number);
    let late = f.reclaim_as(&batch_id("s", 1), Some(first.number), suspects.clone()).await;
    assert_eq!(late.outcomes, vec![Outcome::Refused(Refusal::NotLeader)]);
    assert!(f.receipts().await.is_empty());
    let current = f.reclaim_as(&batch_id("s", 2), Some(second.number), suspects).await;
    assert!(matches!(current.outcomes[0], Outcome::Reclaimed(Some(_))));
}

/// Stopped between any two of its calls, until its term is over.
pub async fn trap_x5_leaders_that_stall_within_a_pass_reclaim_nothing_more(f: RegistryFixture) {
    f.holding("i-1", &["a", "b", "c", "d", "e", "f", "g"]).await;
    (f.advance)(f.ttl).await;
    let (led, _keep) = f.led(Duration::from_millis(600));
    leaders_that_stall_within_a_pass_reclaim_nothing_more(led, 7).await;
}

/// The pass is stopped when it has read its second page and reclaimed nothing of it.
pub async fn trap_d11_a_pass_that_stops_within_a_page_leaves_the_cursor_before_it(
    f: RegistryFixture,
) {
    f.holding("i-1", &["a", "b", "c", "d", "e", "f", "g"]).await;
    (f.advance)(f.ttl).await;
    let (stopper, stop) = StopSignal::channel();
    let watched = WatchedSweep::new(f.registry.clone(), move |moment| {
        if moment == SweepMoment::PageRead(2) {
            stopper.stop();
        }
        Box::pin(async {})
    });
    let parts = SweeperParts::new(unique("s"), watched.clone(), f.store.clone());
    let sweeper = Sweeper::new(parts.policy(Policy { batch: 2, ..Policy::default() }));
    let first = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
    assert_eq!((first.reclaimed, first.stopped), (2, Stopped::Runtime), "{first:?}");
    let (_stopper, never) = StopSignal::channel();
    let second = sweeper.pass(PassMode::Reclaim, 0, &never).await;
    assert_eq!((second.reclaimed, second.stopped), (5, Stopped::Done), "{second:?}");
    let pages = watched.pages();
    assert_eq!(pages[2], pages[1], "the next pass begins with the page that was left: {pages:?}");
    assert_eq!(f.receipts().await.len(), 7);
}

/// The same set, and the dry run leaves no trace.
pub async fn a_dry_run_lists_what_a_pass_reclaims(f: RegistryFixture) {
    f.holding("one", &["a", "b"]).await;
    f.holding("two", &["c"]).await;
    // Two of four: all owners but one would be a mass death.
    let (live, other) = (f.holding("live", &["x"]).await, f.start("other").await);
    f.outlive(f.ttl, &[&live, &other]).await;
    let keys = |report: &PassReport| -> BTreeSet<Name> {
        report.entries.iter().map(|e| e.key.clone()).collect()
    };
    let dry = f.pass("s", PassMode::DryRun, Policy::default()).await;
    assert!(dry.dry_run && f.receipts().await.is_empty());
    assert_eq!(f.registry.census().await.unwrap().owners_overdue, 2, "nobody was declared dead");
    let real = f.pass("s", PassMode::Reclaim, Policy::default()).await;
    assert_eq!(keys(&dry), keys(&real));
    assert_eq!((dry.reclaimed, real.reclaimed), (3, 3));
    assert!(real.entries.iter().all(|e| e.receipt.is_some()));
}

/// Three at a time: each pass says why it stopped, and the next continues from there.
pub async fn a_pass_that_stops_early_resumes(f: RegistryFixture) {
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    f.holding("i-1", &keys).await;
    (f.advance)(f.ttl).await;
    let policy = Policy { batch: 2, max_ops: Some(3), ..Policy::default() };
    let sweeper = f.sweeper("s", policy);
    let (_stopper, stop) = StopSignal::channel();
    let mut taken = Vec::new();
    for expected in [Stopped::Ops, Stopped::Ops, Stopped::Done] {
        let report = sweeper.pass(PassMode::Reclaim, 100, &stop).await;
        assert_eq!(report.stopped, expected, "{report:?}");
        assert!(report.reclaimed <= 3);
        taken.extend(report.entries.into_iter().map(|e| e.key.to_string()));
    }
    taken.sort();
    assert_eq!(taken, keys);
}

/// A page is a hint: listing something twice must not reclaim it twice.
pub async fn the_same_suspect_twice_in_a_batch_is_reclaimed_once(f: RegistryFixture) {
    f.holding("i-1", &["a"]).await;
    (f.advance)(f.ttl).await;
    let suspect = f.suspects().await.remove(0);
    let answer = f.reclaim(vec![suspect.clone(), suspect]).await;
    assert!(matches!(answer.outcomes[0], Outcome::Reclaimed(Some(_))));
    assert_eq!(answer.outcomes[1], Outcome::Gone);
    assert_eq!(f.receipts().await.len(), 1);
}

/// With `undeclared_max` 0, entries of owners that were declared dead before are still reclaimed.
pub async fn the_brake_spares_only_undeclared_owners(f: RegistryFixture) {
    let retired = f.holding("retired", &["a"]).await;
    f.registry.end(&retired).await.unwrap();
    f.holding("overdue-1", &["b"]).await;
    f.holding("overdue-2", &["c"]).await;
    (f.advance)(f.ttl).await;
    assert_eq!(keys_of(&f.suspects_within(Some(0)).await), ["a"]);
    assert_eq!(keys_of(&f.suspects_within(Some(1)).await), ["a", "b"]);
    assert_eq!(keys_of(&f.suspects_within(None).await), ["a", "b", "c"]);
}

/// No entry of its leads to it, and yet it must not stay "alive".
pub async fn an_overdue_owner_without_entries_is_declared_dead(f: RegistryFixture) {
    let claim = f.start("i-1").await;
    (f.advance)(f.ttl).await;
    let report = f.sweep().await;
    assert_eq!((report.reclaimed, report.owners_ended), (0, 1));
    assert!(f.registry.beat(&claim).await.is_err());
    let census = f.registry.census().await.unwrap();
    assert_eq!((census.owners_live, census.owners_overdue), (0, 0));
    let late = f.registry.register(&claim, &[name("k")], TakePolicy::Always).await;
    assert!(late.is_err());
}
