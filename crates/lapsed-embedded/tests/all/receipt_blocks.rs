//! The receipts of a batch are one row. Whoever reads, restores or prunes them sees single receipts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::receipt::{Receipt, ReceiptQuery, Retention};
use lapsed_core::registry::{Registry, RegistryParts, RegistryStore, TakePolicy};
use lapsed_core::store::Store;
use lapsed_core::sweep::{Sweep, TidyLimits};
use lapsed_core::system::Restored;
use lapsed_core::{Kind, Name, SystemId};
use lapsed_embedded::{Embedded, EmbeddedRegistry, Options};

const TTL: Duration = Duration::from_secs(600);

fn id() -> SystemId {
    SystemId::new(Kind::Registry, "devices").unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn open(dir: &Path) -> (Embedded, Arc<EmbeddedRegistry>) {
    let store = Embedded::open(dir, Options::default()).unwrap();
    let registry = store.registry(id(), TTL).unwrap();
    (store, registry)
}

/// Retires owners with 7, 1 and 5 entries, each in one batch.
async fn with_receipts(store: &Embedded, registry: &Arc<EmbeddedRegistry>) {
    let operations =
        Registry::new(RegistryParts::new(registry.clone(), Arc::new(store.clone()), TTL));
    for (owner, entries) in [("a", 7), ("b", 1), ("c", 5)] {
        registry.start(&name(owner), TTL.as_millis() as u64).await.unwrap();
        let keys: Vec<Name> = (0..entries).map(|at| name(&format!("{owner}-{at}"))).collect();
        let claim = Claim::newest(name(owner));
        registry.register(&claim, &keys, TakePolicy::Always).await.unwrap();
        assert_eq!(operations.retire(&claim).await.unwrap().reclaimed, entries);
    }
}

async fn read(store: &Embedded, query: ReceiptQuery) -> Vec<Receipt> {
    store.receipts(&id(), query).await.unwrap()
}

async fn all(store: &Embedded) -> Vec<Receipt> {
    read(store, ReceiptQuery { after: Some(0), limit: 99, ..ReceiptQuery::default() }).await
}

#[tokio::test]
async fn receipts_are_read_from_any_number_in_either_direction() {
    let folder = tempfile::tempdir().unwrap();
    let (store, registry) = open(folder.path());
    with_receipts(&store, &registry).await;
    let receipts = all(&store).await;
    let numbers: Vec<u64> = receipts.iter().map(|receipt| receipt.id.seq).collect();
    assert_eq!(numbers, (1..=13).collect::<Vec<_>>());
    for from in 0..=15 {
        for limit in [0, 1, 2, 6, 99] {
            let after = ReceiptQuery { after: Some(from), limit, ..ReceiptQuery::default() };
            let expected = receipts.iter().filter(|it| it.id.seq > from).take(limit);
            assert!(read(&store, after).await.iter().eq(expected), "after {from}, {limit}");
            let before = ReceiptQuery { before: Some(from), limit, ..ReceiptQuery::default() };
            let expected = receipts.iter().rev().filter(|it| it.id.seq < from).take(limit);
            assert!(read(&store, before).await.iter().eq(expected), "before {from}, {limit}");
        }
        let one = store.receipt(&id(), from).await.unwrap();
        assert_eq!(one.as_ref(), receipts.iter().find(|it| it.id.seq == from), "{from}");
    }
}

#[tokio::test]
async fn one_receipt_of_a_batch_is_restored_and_the_others_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let (store, registry) = open(folder.path());
    with_receipts(&store, &registry).await;
    registry.start(&name("a"), TTL.as_millis() as u64).await.unwrap();
    let before = all(&store).await;
    let restored = registry.restore(3).await.unwrap();
    assert!(matches!(restored, Restored::Restored { .. }), "{restored:?}");
    let again = registry.restore(3).await.unwrap();
    assert!(matches!(again, Restored::Refused { .. }), "{again:?}");
    drop(registry);
    store.close().unwrap();
    let (store, registry) = open(folder.path());
    for (mut now, before) in all(&store).await.into_iter().zip(before) {
        assert_eq!(now.restored_ms.is_some(), now.id.seq == 3);
        now.restored_ms = None;
        assert_eq!(now, before);
    }
    let key = holder_of_restored(&registry).await;
    assert_eq!(key.as_deref(), Some("a"));
}

/// Who holds the entry that was restored.
async fn holder_of_restored(registry: &EmbeddedRegistry) -> Option<String> {
    let found = registry.find(&[name("a-2")]).await.unwrap().pop().unwrap();
    found.map(|entry| entry.holder.owner.to_string())
}

#[tokio::test]
async fn a_part_of_a_batch_is_pruned_and_the_rest_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (store, registry) = open(folder.path());
    with_receipts(&store, &registry).await;
    let before = all(&store).await;
    // At most four at a time, and eight are kept.
    for (pruned, left) in [(4, 9), (1, 8), (0, 8)] {
        let retention = Retention { count: 8, ..Retention::default() };
        let limits = TidyLimits { rows: 4, undeclared_max: None, retention, term: None };
        assert_eq!(registry.tidy(limits).await.unwrap().receipts_pruned, pruned);
        assert_eq!(all(&store).await, before[before.len() - left..]);
    }
    assert!(store.receipt(&id(), 5).await.unwrap().is_none());
    let gone = registry.restore(5).await.unwrap();
    assert!(matches!(&gone, Restored::Refused { why } if why.contains("retention")), "{gone:?}");
}
