//! A long read of receipts does not block the thread of its caller: the runtime continues with other work
//! meanwhile, on a single thread too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::future::poll_fn;
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, BatchId, PassMode, Sweep};
use lapsed_core::{Name, Result};
use lapsed_embedded::{Embedded, EmbeddedRegistry};

use crate::fixture;

const RECEIPTS: usize = 5_000;

/// Writes receipts by reclaiming what an owner held that has ended.
async fn with_receipts(registry: &EmbeddedRegistry) -> Result<()> {
    let owner = Name::new("gone")?;
    let beat = registry.start(&owner, 600_000).await?;
    let claim = Claim::exact(owner, beat.incarnation);
    let keys: Vec<Name> =
        (0..RECEIPTS).map(|n| Name::new(&format!("k-{n}"))).collect::<Result<_>>()?;
    for some in keys.chunks(1_000) {
        registry.register(&claim, some, TakePolicy::Always).await?;
    }
    registry.end(&claim).await?;
    for number in 1.. {
        let suspects = registry.held_by(&claim, 1_000).await?;
        if suspects.is_empty() {
            break;
        }
        let id = BatchId { sweeper: "test".into(), number };
        registry.reclaim(Batch { id, suspects, act: PassMode::Reclaim, term: None }).await?;
    }
    Ok(())
}

async fn open() -> (tempfile::TempDir, Embedded, Arc<EmbeddedRegistry>) {
    let folder = tempfile::tempdir().unwrap();
    let (store, registry) = fixture::open(folder.path(), Duration::from_secs(600));
    with_receipts(&registry).await.unwrap();
    (folder, store, registry)
}

#[tokio::test]
async fn a_long_read_gives_its_thread_back_at_once() {
    let (_folder, store, _registry) = open().await;
    let query = ReceiptQuery { limit: RECEIPTS, ..ReceiptQuery::default() };
    let id = fixture::id();
    let mut read = store.receipts(&id, query);
    let first = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
    assert!(first.is_pending(), "it was read on the caller's thread");
    assert_eq!(read.await.unwrap().len(), RECEIPTS);
}

#[tokio::test]
async fn lookups_go_on_while_receipts_are_searched() {
    let (_folder, store, registry) = open().await;
    let (id, key) = (fixture::id(), Name::new("k-1").unwrap());
    let is_over = AtomicBool::new(false);
    let search = async {
        for _ in 0..5 {
            let query = ReceiptQuery { limit: RECEIPTS, ..ReceiptQuery::default() };
            assert_eq!(store.receipts(&id, query).await.unwrap().len(), RECEIPTS);
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let lookups = async {
        let mut count = 0_u64;
        while !is_over.load(Ordering::Relaxed) {
            registry.find(std::slice::from_ref(&key)).await.unwrap();
            count += 1;
            tokio::task::yield_now().await;
        }
        count
    };
    let (_, lookups) = tokio::join!(search, lookups);
    // On the caller's thread there would be one lookup between two reads: about five.
    assert!(lookups > 50, "{lookups} lookups during five reads of {RECEIPTS} receipts");
}
