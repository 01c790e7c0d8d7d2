//! Cases about starting and ending owners, and their heartbeats.

use super::{RegistryFixture, name, names};
use crate::error::Error;
use crate::owner::{Claim, Ending, Incarnation, Lost};
use crate::receipt::Reason;
use crate::registry::{Registered, TakePolicy};

fn lost<T: std::fmt::Debug>(answer: crate::Result<T>) -> Lost {
    match answer {
        Err(Error::Lost(lost)) => *lost,
        other => panic!("expected Lost, got {other:?}"),
    }
}

pub async fn heartbeats_keep_an_owner_alive(f: RegistryFixture) {
    let claim = f.start("i-1").await;
    let before = f.registry.owner(&claim).await.unwrap().unwrap().due_ms;
    (f.advance)(f.ttl / 2).await;
    let beat = f.registry.beat(&claim).await.unwrap();
    assert!(beat.deadline_ms >= before + f.ttl_ms() / 2);
    assert_eq!(beat.deadline_ms, beat.now_ms + f.ttl_ms());
    assert!(!beat.started);
}

/// A first heartbeat with a new name starts an incarnation; the second one belongs to it.
pub async fn the_first_beat_of_a_new_name_starts_it(f: RegistryFixture) {
    let claim = Claim::newest(name("i-1"));
    let first = f.registry.beat(&claim).await.unwrap();
    let second = f.registry.beat(&claim).await.unwrap();
    assert!(first.started && !second.started);
    assert_eq!(first.incarnation, second.incarnation);
    let many = futures::future::join_all((0..20).map(|_| {
        let (registry, claim) = (f.registry.clone(), Claim::newest(name("i-2")));
        async move { registry.beat(&claim).await.unwrap() }
    }));
    let many = many.await;
    assert_eq!(many.iter().filter(|beat| beat.started).count(), 1, "twenty at once: one life");
    assert!(many.iter().all(|beat| beat.incarnation == many[0].incarnation));
}

/// Neither a number that was never used nor that of another owner is accepted.
pub async fn an_unknown_incarnation_is_lost(f: RegistryFixture) {
    let claim = f.start("i-1").await;
    let wrong = Claim::exact(name("i-1"), Incarnation(999));
    assert_eq!(lost(f.registry.beat(&wrong).await).ending, None);
    let other = Claim::exact(name("i-2"), claim.incarnation.unwrap());
    lost(f.registry.beat(&other).await);
    lost(f.registry.register(&other, &names(&["k"]), TakePolicy::Always).await);
    assert_eq!(f.holder("k").await, None);
}

/// Each incarnation has a larger number than every earlier one of any owner.
pub async fn incarnations_only_grow(f: RegistryFixture) {
    let mut last = Incarnation(0);
    for owner in ["a", "b", "a", "c", "a"] {
        let next = f.start(owner).await.incarnation.unwrap();
        assert!(next > last);
        last = next;
    }
}

/// The process is restarted under its old name: its beats keep its own entries, not those of the
/// one before, whose death they do not hide.
pub async fn trap_a3_a_restarted_owner_neither_keeps_nor_hides_old_entries(f: RegistryFixture) {
    f.holding("i-1", &["old-1", "old-2"]).await;
    let reborn = f.holding("i-1", &["new-1"]).await;
    f.outlive(f.ttl, &[&reborn]).await;
    let report = f.sweep().await;
    assert_eq!(report.reclaimed, 2, "{report:?}");
    assert_eq!(f.holder("old-1").await, None);
    assert_eq!(f.holder("new-1").await, reborn.incarnation);
}

/// An incarnation is alive from its start, so entries registered before its first heartbeat are
/// kept.
pub async fn trap_a3_a_new_incarnation_may_register_before_its_first_heartbeat(f: RegistryFixture) {
    let claim = f.holding("i-1", &["k"]).await;
    (f.advance)(f.ttl / 2).await;
    assert_eq!(f.sweep().await.reclaimed, 0);
    assert_eq!(f.holder("k").await, claim.incarnation);
    let unheard_of = Claim::newest(name("i-2"));
    let answer =
        f.registry.register(&unheard_of, &names(&["k-2"]), TakePolicy::Always).await.unwrap();
    assert!(answer.started.is_some());
    assert_eq!(f.sweep().await.reclaimed, 0);
    assert_eq!(f.holder("k-2").await, Some(answer.incarnation));
}

/// An owner stalls beyond its TTL and comes back: its next heartbeat says so and lists what it
/// held. It starts a new incarnation and registers again, without taking keys that have moved.
pub async fn trap_a4_a_dead_owner_learns_what_it_lost_and_can_register_again(f: RegistryFixture) {
    let stalled = f.holding("i-1", &["a", "b", "c"]).await;
    let other = f.start("i-2").await;
    f.outlive(f.ttl, &[&other]).await;
    assert_eq!(f.sweep().await.reclaimed, 3);
    f.register(&other, &["b"]).await;
    for claim in [stalled.clone(), Claim::newest(name("i-1"))] {
        let told = lost(f.registry.beat(&claim).await);
        assert_eq!(told.ending, Some(Ending::Dead));
        assert_eq!(told.held, names(&["a", "b", "c"]));
        assert_eq!(told.held_total, 3);
    }
    let reborn = f.start("i-1").await;
    let held = names(&["a", "b", "c"]);
    let answer = f.registry.register(&reborn, &held, TakePolicy::IfFree).await.unwrap();
    assert!(matches!(answer.keys[1], Registered::Taken { .. }), "{answer:?}");
    assert_eq!(f.holder("a").await, reborn.incarnation);
    assert_eq!(f.holder("b").await, other.incarnation);
    lost(f.registry.beat(&stalled).await);
}

/// Declared dead, the owner still writes: nothing of it is accepted.
pub async fn trap_a5_a_dead_incarnation_cannot_write(f: RegistryFixture) {
    let dead = f.holding("i-1", &["a"]).await;
    let other = f.holding("i-2", &["b"]).await;
    f.outlive(f.ttl, &[&other]).await;
    f.sweep().await;
    for claim in [dead, Claim::newest(name("i-1"))] {
        lost(f.registry.register(&claim, &names(&["a", "b", "z"]), TakePolicy::Always).await);
        lost(f.registry.unregister(&claim, &names(&["b"])).await);
        lost(f.registry.end(&claim).await);
        lost(f.registry.entries(&claim, None, 10).await);
    }
    assert_eq!(f.holder("a").await, None);
    assert_eq!(f.holder("b").await, other.incarnation);
    assert_eq!(f.registry.census().await.unwrap().population, 1);
}

/// The end is one step, the removal is guarded and receipted like any other.
pub async fn trap_a7_retiring_reclaims_with_receipts(f: RegistryFixture) {
    let system = f.system();
    let keys = ["a", "b", "c", "d", "e", "f", "g"];
    let claim = f.holding("i-1", &keys).await;
    let retired = system.retire(&claim).await.unwrap();
    assert_eq!(retired.reclaimed, 7, "in batches of three");
    let receipts = f.receipts().await;
    assert_eq!(receipts.len(), 7);
    assert!(receipts.iter().all(|r| r.reason == Reason::OwnerRetired));
    let told = lost(f.registry.beat(&claim).await);
    assert_eq!(told.ending, Some(Ending::Retired));
    lost(system.retire(&claim).await);
    assert_eq!(f.sweep().await.reclaimed, 0);
}

/// The end is written, then the process dies: the entries are invalid already, and the sweep finds them.
pub async fn trap_a7_what_a_crashed_retire_left_is_swept(f: RegistryFixture) {
    let claim = f.holding("i-1", &["a", "b"]).await;
    f.registry.end(&claim).await.unwrap();
    assert_eq!(f.holder("a").await, None, "invalid at once");
    let report = f.sweep().await;
    assert_eq!(report.reclaimed, 2);
    assert!(report.entries.iter().all(|e| e.reason == Reason::OwnerRetired));
    assert_eq!(f.registry.census().await.unwrap().population, 0);
}
