//! Cases about what an owner holds and what the store remembers of it.

use std::time::Duration;

use super::{RegistryFixture, batch_id, name, names, policy};
use crate::error::Error;
use crate::owner::Claim;
use crate::receipt::{Reason, ReceiptQuery, Retention};
use crate::registry::{Registered, TakePolicy};
use crate::schedule::StopSignal;
use crate::store::conformance::a_brake_record_is_replaced_by_one_of_many;
use crate::sweep::brake::BrakeSetting;
use crate::sweep::policy::Policy;
use crate::sweep::{Outcome, PassMode, PassReport, Sweeper, SweeperParts, TidyLimits};
use crate::system::Restored;

async fn held(f: &RegistryFixture, claim: &Claim) -> Vec<String> {
    let keys = f.registry.entries(claim, None, 100).await.expect("entries");
    keys.iter().map(ToString::to_string).collect()
}

/// In the same step: it is never in two indexes, nor in none.
pub async fn a_moved_key_is_removed_from_its_first_owner(f: RegistryFixture) {
    let one = f.holding("one", &["a", "b"]).await;
    let two = f.start("two").await;
    let answer = f.registry.register(&two, &names(&["a", "c"]), TakePolicy::Always).await.unwrap();
    assert!(matches!(&answer.keys[0], Registered::Moved { from } if from.owner == name("one")));
    assert_eq!(answer.keys[1], Registered::New);
    assert_eq!(
        (held(&f, &one).await, held(&f, &two).await),
        (vec!["b".into()], vec!["a".into(), "c".into()])
    );
    let again = f.registry.register(&two, &names(&["a"]), TakePolicy::Always).await.unwrap();
    assert_eq!(again.keys, [Registered::Kept]);
    assert_eq!(f.registry.census().await.unwrap().population, 3);
    assert_eq!(f.registry.owner(&one).await.unwrap().unwrap().held, 1);
}

/// A late unregister of the first owner does not remove the second one's entry.
pub async fn unregister_removes_only_the_callers_keys(f: RegistryFixture) {
    let one = f.holding("one", &["a", "b"]).await;
    let two = f.holding("two", &["a"]).await;
    let keys = names(&["a", "b", "nothing"]);
    assert_eq!(f.registry.unregister(&one, &keys).await.unwrap(), [false, true, false]);
    assert_eq!(f.holder("a").await, two.incarnation);
    assert!(held(&f, &one).await.is_empty());
}

pub async fn registering_if_free_takes_no_held_key(f: RegistryFixture) {
    let one = f.holding("one", &["a"]).await;
    let two = f.start("two").await;
    let answer = f.registry.register(&two, &names(&["a", "b"]), TakePolicy::IfFree).await.unwrap();
    assert!(matches!(&answer.keys[0], Registered::Taken { by } if by.owner == name("one")));
    assert_eq!(answer.keys[1], Registered::New);
    assert_eq!(f.holder("a").await, one.incarnation);
}

/// A process that is started again within its TTL has its entries at once, although the incarnation before it has not ended.
pub async fn registering_if_free_takes_keys_of_an_older_incarnation(f: RegistryFixture) {
    let older = f.holding("i-1", &["a"]).await;
    let newer = f.start("i-1").await;
    let keys = names(&["a"]);
    let answer = f.registry.register(&newer, &keys, TakePolicy::IfFree).await.unwrap();
    assert!(
        matches!(&answer.keys[0], Registered::Moved { from } if Some(from.incarnation) == older.incarnation),
        "{answer:?}"
    );
    let late = f.registry.register(&older, &keys, TakePolicy::IfFree).await.unwrap();
    assert!(matches!(late.keys[0], Registered::Taken { .. }), "{late:?}");
    assert_eq!(f.holder("a").await, newer.incarnation);
}

/// Entries of an owner that has ended and was not swept yet are free, for itself and for others.
pub async fn registering_if_free_takes_keys_of_an_owner_that_has_ended(f: RegistryFixture) {
    let one = f.holding("one", &["a"]).await;
    let two = f.holding("two", &["b"]).await;
    for claim in [&one, &two] {
        f.registry.end(claim).await.unwrap();
    }
    let reborn = f.start("one").await;
    let keys = names(&["a", "b"]);
    let answer = f.registry.register(&reborn, &keys, TakePolicy::IfFree).await.unwrap();
    let moved = |put: &Registered| matches!(put, Registered::Moved { .. });
    assert!(answer.keys.iter().all(moved), "{answer:?}");
    assert_eq!(f.sweep().await.reclaimed, 0);
    assert_eq!(f.holder("a").await, reborn.incarnation);
    assert_eq!(f.holder("b").await, reborn.incarnation);
}

/// A process that was replaced and does not know it yet is late: numbers only grow.
pub async fn an_older_incarnation_cannot_take_keys_from_a_newer_one(f: RegistryFixture) {
    let older = f.holding("i-1", &["a"]).await;
    let newer = f.start("i-1").await;
    let take = |claim: Claim| {
        let registry = f.registry.clone();
        async move { registry.register(&claim, &names(&["a"]), TakePolicy::Always).await.unwrap().keys }
    };
    assert!(matches!(take(newer.clone()).await[..], [Registered::Moved { .. }]));
    let late = take(older.clone()).await;
    assert!(
        matches!(&late[..], [Registered::Taken { by }] if Some(by.incarnation) == newer.incarnation)
    );
    assert_eq!(f.holder("a").await, newer.incarnation);
}

pub async fn entries_are_paged(f: RegistryFixture) {
    let claim = f.holding("one", &["a", "ab", "b", "c"]).await;
    f.holding("two", &["aa"]).await;
    let page = |after: Option<&'static str>| {
        let (registry, claim) = (f.registry.clone(), claim.clone());
        async move { registry.entries(&claim, after.map(name).as_ref(), 2).await.unwrap() }
    };
    assert_eq!(page(None).await, names(&["a", "ab"]));
    assert_eq!(page(Some("ab")).await, names(&["b", "c"]));
    assert!(page(Some("c")).await.is_empty());
}

/// Which clock, which deadline, how late; numbers only grow, and are read from any one on.
pub async fn receipts_contain_the_evidence_and_are_paged(f: RegistryFixture) {
    let claim = f.holding("i-1", &["a", "b", "c"]).await;
    let due_ms = f.registry.owner(&claim).await.unwrap().unwrap().due_ms;
    (f.advance)(f.ttl * 2).await;
    f.pass("sweeper-1", PassMode::Reclaim, policy()).await;
    let receipts = f.receipts().await;
    let seqs: Vec<u64> = receipts.iter().map(|r| r.id.seq).collect();
    assert_eq!(seqs.len(), 3);
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    let [first, second, third] = seqs[..] else { unreachable!() };
    for receipt in &receipts {
        assert_eq!(receipt.evidence.deadline_ms, due_ms);
        assert_eq!(receipt.evidence.late_ms, receipt.evidence.judged_ms - due_ms);
        assert!(receipt.evidence.late_ms >= f.ttl_ms());
        assert!(receipt.sweeper.starts_with("sweeper-1"), "{receipt:?}");
        assert_eq!(receipt.reason, Reason::OwnerDead);
        assert_eq!(Some(receipt.incarnation), claim.incarnation);
    }
    let read = |after, before, limit| {
        let (store, system) = (f.store.clone(), f.registry.system().clone());
        async move {
            let query = ReceiptQuery { after, before, limit };
            let receipts = store.receipts(&system, query).await.unwrap();
            receipts.iter().map(|r| r.id.seq).collect::<Vec<_>>()
        }
    };
    assert_eq!(read(Some(first), None, 10).await, [second, third]);
    assert_eq!(read(Some(first), None, 1).await, [second]);
    assert_eq!(read(None, None, 2).await, [third, second], "newest first");
    assert_eq!(read(None, Some(third), 1).await, [second]);
    assert_eq!(read(None, Some(second), 2).await, [first]);
    let one = f.store.receipt(f.registry.system(), second).await.unwrap().unwrap();
    assert_eq!(one, receipts[1]);
    assert_eq!(f.store.receipt(f.registry.system(), third + 9).await.unwrap(), None);
}

/// The answer was lost, the batch was not: its receipts are found by its number, and only its.
pub async fn a_lost_answer_is_settled_by_batch(f: RegistryFixture) {
    f.holding("i-1", &["a", "b", "c"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    f.reclaim_as(&batch_id("s", 1), None, suspects[..2].to_vec()).await;
    f.reclaim_as(&batch_id("s", 2), None, suspects[2..].to_vec()).await;
    let settled = async |number| f.settle(&batch_id("s", number)).await;
    assert_eq!((settled(1).await, settled(2).await, settled(3).await), (2, 1, 0));
    f.holding("i-2", &["d"]).await;
    (f.advance)(f.ttl).await;
    let late = async |number| {
        f.reclaim_as(&batch_id("s", number), None, f.suspects().await).await.outcomes
    };
    assert_eq!(late(3).await, [Outcome::Gone], "settled as not carried out: it never will be");
    assert_eq!(late(2).await, [Outcome::Gone], "delivered twice: carried out once");
    assert_eq!(f.receipts().await.len(), 3);
    assert!(matches!(late(4).await[..], [Outcome::Reclaimed(Some(_))]));
}

/// An entry is restored for a live owner, once, and never replaces another holder.
pub async fn restore_works_once_and_only_if_the_key_is_free(f: RegistryFixture) {
    f.holding("i-1", &["a", "b"]).await;
    let other = f.start("i-2").await;
    f.outlive(f.ttl, &[&other]).await;
    f.sweep().await;
    let refused = |answer: Restored| match answer {
        Restored::Refused { why } => why,
        Restored::Restored { .. } => panic!("it was put back"),
    };
    let seq_of = |receipts: &[crate::receipt::Receipt], key: &str| {
        receipts.iter().find(|r| r.key.as_str() == key).map(|r| r.id.seq).unwrap()
    };
    let receipts = f.receipts().await;
    let (a, b) = (seq_of(&receipts, "a"), seq_of(&receipts, "b"));
    let why = refused(f.registry.restore(a).await.unwrap());
    assert!(why.contains("not alive"), "{why}");
    let reborn = f.start("i-1").await;
    f.register(&other, &["b"]).await;
    let back = f.registry.restore(a).await.unwrap();
    assert!(matches!(back, Restored::Restored { ref key, .. } if key == "a"), "{back:?}");
    assert_eq!(f.holder("a").await, reborn.incarnation);
    assert_eq!(held(&f, &reborn).await, ["a"]);
    assert!(refused(f.registry.restore(a).await.unwrap()).contains("before"));
    assert!(refused(f.registry.restore(b).await.unwrap()).contains("taken"));
    assert!(refused(f.registry.restore(b + 99).await.unwrap()).contains("no receipt"));
    assert_eq!(f.holder("b").await, other.incarnation);
    let marked = f.receipts().await.into_iter().find(|r| r.id.seq == a);
    assert!(marked.unwrap().restored_ms.is_some());
}

pub async fn settings_and_terms_are_kept(f: RegistryFixture) {
    let system = f.registry.system().clone();
    assert_eq!(f.store.brake_setting(&system).await.unwrap(), BrakeSetting::Auto);
    f.store.set_brake(&system, BrakeSetting::Hold).await.unwrap();
    assert_eq!(f.store.brake_setting(&system).await.unwrap(), BrakeSetting::Hold);
    a_brake_record_is_replaced_by_one_of_many(&*f.store, &system).await;
    assert_eq!(f.store.term(&system).await.unwrap(), None, "nobody has stood yet");
    let first = f.store.campaign(&system, "one", 60_000).await.unwrap().unwrap();
    let renewed = f.store.campaign(&system, "one", 60_000).await.unwrap().unwrap();
    assert_eq!(first.number, renewed.number, "renewing is the same term");
    assert!(f.store.campaign(&system, "two", 60_000).await.unwrap().is_none());
    assert_eq!(f.store.term(&system).await.unwrap(), Some(renewed), "whoever asks");
    f.store.resign(&system, first.number).await.unwrap();
    assert_eq!(f.store.term(&system).await.unwrap(), None, "given back");
    let second = f.store.campaign(&system, "two", 60_000).await.unwrap().unwrap();
    assert!(second.number > first.number);
    f.store.resign(&system, first.number).await.unwrap();
    assert!(
        f.store.campaign(&system, "one", 60_000).await.unwrap().is_none(),
        "a late resignation"
    );
}

/// Retention is by count and by age; an owner whose record was removed gets `Lost`.
pub async fn receipts_and_owners_beyond_retention_are_removed(f: RegistryFixture) {
    let gone = f.holding("i-1", &["a", "b", "c"]).await;
    (f.advance)(f.ttl).await;
    f.sweep().await;
    let tidy = |age_ms, count| {
        let registry = f.registry.clone();
        let retention = Retention { age_ms, count, ..Retention::default() };
        let limits = TidyLimits { rows: 100, undeclared_max: None, retention, term: None };
        async move { registry.tidy(limits).await.unwrap() }
    };
    let by_count = tidy(u64::MAX, 2).await;
    assert_eq!((by_count.receipts_pruned, by_count.owners_forgotten), (1, 0));
    assert_eq!(f.receipts().await.len(), 2);
    (f.advance)(f.ttl).await;
    let by_age = tidy(1, 100).await;
    assert_eq!((by_age.receipts_pruned, by_age.owners_forgotten), (2, 1));
    assert!(f.registry.beat(&gone).await.is_err());
    assert!(f.registry.beat(&Claim::newest(name("i-1"))).await.unwrap().started);
    let next = f.start("i-1").await;
    assert!(next.incarnation > gone.incarnation, "numbers are not used again");
}

/// The number of ended owners is bounded. The oldest go first, a limited number at a time; those that
/// ended a moment ago, and those that are alive, stay.
pub async fn ended_owners_beyond_their_number_are_removed_oldest_first(f: RegistryFixture) {
    let mut ended = Vec::new();
    for number in 0..5 {
        let claim = f.start(&format!("i-{number}")).await;
        f.registry.end(&claim).await.unwrap();
        ended.push(claim);
    }
    let alive = f.registry.start(&name("alive"), 600_000).await.unwrap().incarnation;
    (f.advance)(Duration::from_millis(10)).await;
    let tidy = |rows, owners_age_ms| {
        let registry = f.registry.clone();
        let retention = Retention { owners: 2, owners_age_ms, ..Retention::default() };
        let limits = TidyLimits { rows, undeclared_max: None, retention, term: None };
        async move { registry.tidy(limits).await.unwrap().owners_forgotten }
    };
    assert_eq!(tidy(100, 600_000).await, 0, "they ended a moment ago");
    assert_eq!(tidy(2, 1).await, 2, "as many as one call may remove");
    assert_eq!(tidy(2, 1).await, 1);
    assert_eq!(tidy(2, 1).await, 0, "as many are left as are kept");
    let left = f.registry.owners(None, 100).await.unwrap();
    let left: Vec<_> = left.into_iter().map(|info| info.incarnation).collect();
    let kept: Vec<_> = ended[3..].iter().filter_map(|claim| claim.incarnation).collect();
    assert_eq!(left, [kept, vec![alive]].concat());
    let lost = f.registry.beat(&ended[0]).await.unwrap_err();
    assert!(matches!(lost, Error::Lost(ref lost) if lost.ending.is_none()), "{lost}");
    let known = f.registry.beat(&ended[4]).await.unwrap_err();
    assert!(matches!(known, Error::Lost(ref lost) if lost.ending.is_some()), "{known}");
}

/// Runs a pass with that batch size, which keeps `kept` receipts and as many ended owners.
async fn keep(f: &RegistryFixture, kept: u64, batch: usize) -> PassReport {
    let (_stopper, stop) = StopSignal::channel();
    let retention =
        Retention { count: kept, owners: kept, owners_age_ms: 1, ..Retention::default() };
    let policy = Policy { batch, ..Policy::default() };
    let parts = SweeperParts::new("keeper".to_owned(), f.registry.clone(), f.store.clone());
    let sweeper = Sweeper::new(parts.policy(policy).retention(retention));
    sweeper.pass(PassMode::Reclaim, 0, &stop).await
}

/// More owners have ended since the last pass than one call removes, and more were overdue without an
/// entry than one call ends: one pass catches up, or the records would grow without bound.
pub async fn housekeeping_catches_up_in_one_pass(f: RegistryFixture) {
    let f = f.settled().await;
    for number in 0..12 {
        f.registry.start(&name(&format!("alive-{number}")), 600_000).await.unwrap();
    }
    for number in 0..8 {
        f.start(&format!("i-{number}")).await;
    }
    f.holding("holder", &["a", "b", "c", "d", "e", "f", "g", "h"]).await;
    (f.advance)(f.ttl).await;
    let report = keep(&f, 100, 3).await;
    assert_eq!((report.owners_ended, report.reclaimed), (9, 8), "{report:?}");
    (f.advance)(Duration::from_millis(10)).await;
    keep(&f, 2, 3).await;
    assert_eq!(f.registry.owners(None, 100).await.unwrap().len(), 12 + 2);
    assert_eq!(f.receipts().await.len(), 2);
}

/// A store that removes fewer receipts per call than a batch has is called again.
pub async fn receipts_of_large_batches_are_removed_in_one_pass(f: RegistryFixture) {
    let f = f.settled().await;
    for number in 0..3 {
        f.registry.start(&name(&format!("alive-{number}")), 600_000).await.unwrap();
    }
    let keys: Vec<String> = (0..1_300).map(|number| format!("k{number:04}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    f.holding("holder", &keys).await;
    (f.advance)(f.ttl).await;
    let report = keep(&f, 5, 600).await;
    assert_eq!(report.reclaimed, 1_300, "{report:?}");
    // Each shard keeps that many; no store under test has more than three.
    let left = f.receipts().await.len();
    assert!((5..=15).contains(&left), "{left} are left");
}

/// Pages have the size that was asked for, until the last one, whatever state the owners are in.
pub async fn owners_are_listed_in_pages_alive_or_not(f: RegistryFixture) {
    let mut all = Vec::new();
    for number in 0..7 {
        let claim = f.start(&format!("i-{number}")).await;
        if number % 2 == 0 {
            f.registry.end(&claim).await.unwrap();
        }
        all.extend(claim.incarnation);
    }
    let (mut listed, mut after, mut sizes) = (Vec::new(), None, Vec::new());
    loop {
        let page = f.registry.owners(after, 3).await.unwrap();
        sizes.push(page.len());
        listed.extend(page.iter().map(|info| (info.incarnation, info.ended.is_some())));
        after = listed.last().map(|(incarnation, _)| *incarnation);
        if page.len() < 3 {
            break;
        }
    }
    assert_eq!(sizes, [3, 3, 1]);
    let expected: Vec<_> = all.into_iter().zip((0..7).map(|number| number % 2 == 0)).collect();
    assert_eq!(listed, expected);
}
