//! Cases about references and the owners that they belong to.

use super::{SessionsFixture, keys_of, name, names};
use crate::error::Error;
use crate::owner::{Claim, Ending, Lost};
use crate::receipt::Reason;
use crate::sweep::brake::BrakeSetting;
use crate::sweep::{Outcome, Refusal, Stopped};

fn lost<T: std::fmt::Debug>(answer: crate::Result<T>) -> Lost {
    match answer {
        Err(Error::Lost(lost)) => *lost,
        other => panic!("expected Lost, got {other:?}"),
    }
}

/// A crashed server never disconnects: its references go with it, all at once, and from then on the
/// grace runs. Letting go is no deletion.
pub async fn trap_b5_references_end_with_their_incarnation(f: SessionsFixture) {
    let dead = f.connected("dead", &["s"]).await;
    f.connect(&dead, "s").await;
    (f.advance)(f.ttl).await;
    assert_eq!(f.sessions.census().await.unwrap().suspects, 1);
    let before_ms = f.now_ms().await;
    let report = f.sweep().await;
    assert_eq!((report.released, report.reclaimed, report.owners_ended), (1, 0, 1), "{report:?}");
    let session = f.session("s").await.unwrap();
    assert_eq!(session.references, 0);
    assert!(session.disconnected_ms.unwrap() >= before_ms, "its grace begins now");
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 1);
    assert!(f.receipts().await.is_empty());
    (f.advance)(f.grace).await;
    let report = f.sweep().await;
    assert_eq!((report.released, report.reclaimed), (0, 1), "{report:?}");
    assert_eq!(f.session("s").await, None);
    assert_eq!(f.receipts().await[0].reason, Reason::Orphaned);
}

/// Restarted under its old name, its beats keep its own references and no others.
pub async fn trap_b5_a_restarted_owner_neither_keeps_nor_hides_old_references(f: SessionsFixture) {
    f.connected("server", &["old"]).await;
    let reborn = f.connected("server", &["new"]).await;
    assert_eq!(f.sessions.referred(&reborn, None, 10).await.unwrap(), names(&["new"]));
    assert!(!f.disconnect(&reborn, "old").await.changed, "it is not its own");
    f.outlive(f.ttl, &[&reborn]).await;
    let report = f.sweep().await;
    assert_eq!((report.released, report.owners_ended), (1, 1), "{report:?}");
    assert_eq!((f.references("old").await, f.references("new").await), (0, 1));
}

pub async fn the_first_connect_of_a_new_name_starts_it(f: SessionsFixture) {
    f.activate(&["s"]).await;
    let claim = Claim::newest(name("server"));
    let first = f.connect(&claim, "s").await;
    let second = f.connect(&claim, "s").await;
    assert!(first.started.is_some() && second.started.is_none());
    assert_eq!(first.incarnation, second.incarnation);
    assert!(!f.sessions.beat(&claim).await.unwrap().started);
}

/// Overdue when the page was read, it beats before the batch arrives (P1).
pub async fn a_heartbeat_before_the_reclaim_wins(f: SessionsFixture) {
    let server = f.connected("server", &["a", "b"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    assert_eq!(keys_of(&suspects), ["a", "b"]);
    f.sessions.beat(&server).await.expect("overdue is not dead");
    let answer = f.reclaim(suspects).await;
    assert_eq!(answer.outcomes, vec![Outcome::Refused(Refusal::Alive); 2]);
    assert_eq!(answer.owners_ended, 0);
    assert_eq!((f.references("a").await, f.references("b").await), (1, 1));
    assert!(f.suspects().await.is_empty(), "and they are no suspects any more");
}

/// One batch of one reference declares the owner dead, in that very step: from then on nothing of it
/// arrives, though a later batch lets go of the other references.
pub async fn trap_x4_a_death_takes_effect_at_once_and_references_go_in_batches(f: SessionsFixture) {
    let dead = f.connected("dead", &["a", "b", "c"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    let answer = f.reclaim(suspects[..1].to_vec()).await;
    assert_eq!((&answer.outcomes[..], answer.owners_ended), (&[Outcome::Released][..], 1));
    let told = lost(f.sessions.beat(&dead).await);
    assert_eq!((told.ending, told.held), (Some(Ending::Dead), names(&["a", "b", "c"])));
    lost(f.sessions.connect(Some(&dead), &suspects[0].key).await);
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 1);
    let census = f.sessions.census().await.unwrap();
    assert_eq!((census.suspects, census.owners_overdue, census.owners_died_recently), (2, 0, 1));
    let rest = f.sweep().await;
    assert_eq!((rest.released, rest.owners_ended), (2, 0), "{rest:?}");
}

/// Declared dead, the owner continues: it is answered what it referred to, and nothing
/// of what it sends arrives (P5).
pub async fn a_dead_owner_is_refused_and_changes_nothing(f: SessionsFixture) {
    let dead = f.connected("dead", &["a", "b"]).await;
    let live = f.connected("live", &["c"]).await;
    f.connect(&live, "a").await;
    f.outlive(f.ttl, &[&live]).await;
    assert_eq!(f.sweep().await.released, 2);
    for claim in [dead.clone(), Claim::newest(name("dead"))] {
        let told = lost(f.sessions.beat(&claim).await);
        assert_eq!((told.ending, told.held_total), (Some(Ending::Dead), 2));
        assert_eq!(told.held, names(&["a", "b"]));
        for id in ["a", "b", "c"] {
            lost(f.sessions.connect(Some(&claim), &name(id)).await);
            lost(f.sessions.disconnect(Some(&claim), &name(id)).await);
        }
        lost(f.sessions.end(&claim).await);
        lost(f.sessions.referred(&claim, None, 10).await);
    }
    assert_eq!((f.references("a").await, f.references("c").await), (1, 1));
    let b = f.session("b").await.unwrap();
    assert_eq!(b.references, 0);
    assert!(b.disconnected_ms.is_some());
    let reborn = f.start("dead").await;
    assert_eq!(f.connect(&reborn, "b").await.references, 1);
}

/// Retiring ends the owner in one step; its references are removed like those of dead owners.
pub async fn retiring_releases_references_in_batches(f: SessionsFixture) {
    let system = f.system();
    let ids = ["a", "b", "c", "d", "e", "f", "g"];
    let server = f.connected("server", &ids).await;
    let other = f.start("other").await;
    f.connect(&other, "a").await;
    let retired = system.retire(&server).await.unwrap();
    assert_eq!((Some(retired.incarnation), retired.released), (server.incarnation, 7));
    assert_eq!(f.references("a").await, 1, "somebody else is connected");
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 6);
    assert!(f.receipts().await.is_empty());
    let told = lost(f.sessions.beat(&server).await);
    assert_eq!((told.ending, told.held_total), (Some(Ending::Retired), 7));
    lost(system.retire(&server).await);
    assert_eq!(f.sweep().await.released, 0);
}

/// The end is written, then the process dies: the sweep finds what it referred to.
pub async fn what_a_crashed_retire_left_is_swept(f: SessionsFixture) {
    let server = f.connected("server", &["a", "b"]).await;
    assert_eq!(f.sessions.end(&server).await.unwrap().held, 2);
    let suspects = f.suspects().await;
    assert_eq!(keys_of(&suspects), ["a", "b"]);
    assert!(suspects.iter().all(|s| s.reason == Reason::OwnerRetired));
    assert!(suspects.iter().all(|s| Some(s.incarnation) == server.incarnation));
    let report = f.sweep().await;
    assert_eq!((report.released, report.reclaimed), (2, 0), "{report:?}");
    assert_eq!((f.references("a").await, f.references("b").await), (0, 0));
}

pub async fn a_session_stays_while_one_of_its_owners_is_alive(f: SessionsFixture) {
    let live = f.connected("live", &["s"]).await;
    let dead = f.start("dead").await;
    f.connect(&dead, "s").await;
    f.outlive(f.ttl, &[&live]).await;
    assert_eq!(f.sweep().await.released, 1);
    let session = f.session("s").await.unwrap();
    assert_eq!((session.references, session.disconnected_ms, session.due_ms), (1, None, None));
    f.outlive(f.grace, &[&live]).await;
    assert_eq!(f.sweep().await.reclaimed, 0);
    assert_eq!(f.references("s").await, 1);
}

/// With `undeclared_max` 0, references of owners that have ended are still removed.
pub async fn the_brake_spares_only_undeclared_owners(f: SessionsFixture) {
    let retired = f.connected("retired", &["a"]).await;
    f.sessions.end(&retired).await.unwrap();
    f.connected("overdue-1", &["b"]).await;
    (f.advance)(f.ttl / 10).await;
    f.connected("overdue-2", &["c"]).await;
    (f.advance)(f.ttl).await;
    assert_eq!(keys_of(&f.suspects_within(Some(0)).await), ["a"]);
    assert_eq!(keys_of(&f.suspects_within(Some(1)).await), ["a", "b"], "the most overdue");
    assert_eq!(keys_of(&f.suspects_within(None).await), ["a", "b", "c"]);
}

/// Who holds the brake means all of it: nothing is deleted until it is let go.
pub async fn a_held_brake_spares_orphans_too(f: SessionsFixture) {
    f.orphaned(&["a", "b"]).await;
    let system = f.sessions.system().clone();
    f.store.set_brake(&system, BrakeSetting::Hold).await.unwrap();
    let held = f.sweep().await;
    assert_eq!((held.reclaimed, held.stopped), (0, Stopped::Brake), "{held:?}");
    assert_eq!(f.sessions.census().await.unwrap().population, 2);
    f.store.set_brake(&system, BrakeSetting::Auto).await.unwrap();
    assert_eq!(f.sweep().await.reclaimed, 2);
}

/// No reference leads to it, and yet it must not stay "alive".
pub async fn an_overdue_owner_without_references_is_declared_dead(f: SessionsFixture) {
    let claim = f.start("server").await;
    (f.advance)(f.ttl).await;
    let report = f.sweep().await;
    assert_eq!((report.released, report.owners_ended), (0, 1));
    lost(f.sessions.beat(&claim).await);
    let census = f.sessions.census().await.unwrap();
    assert_eq!((census.owners_live, census.owners_overdue), (0, 0));
}

/// The brake waits for it when only the sweeper has seen an absence: everybody needs theirs.
pub async fn the_threshold_is_the_longer_of_ttl_and_grace(f: SessionsFixture) {
    assert_eq!(f.sessions.threshold(), f.ttl.max(f.grace));
}
