//! The log in front of the database: what is only in the log survives a crash, a checkpoint changes nothing that can be
//! read, and a log that is damaged or missing is refused.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapsed_core::clock::ManualClock;
use lapsed_core::owner::Claim;
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::sweep::Sweep;
use lapsed_core::{Error, Name};
use lapsed_embedded::{Embedded, EmbeddedRegistry, Options};

use crate::fixture::fragile::{Fragile, survivor};
use crate::fixture::{copy_folder, id};

const TTL: Duration = Duration::from_secs(90);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn keys(range: Range<usize>) -> Vec<Name> {
    range.map(|i| name(&format!("k{i:05}"))).collect()
}

fn open(folder: &std::path::Path, checkpoint_bytes: usize) -> (Embedded, Arc<EmbeddedRegistry>) {
    let options = Options { checkpoint_bytes, ..Options::default() };
    let store = Embedded::open(folder, options).unwrap();
    let registry = store.registry(id(), TTL).unwrap();
    (store, registry)
}

async fn register(registry: &EmbeddedRegistry, range: Range<usize>) {
    registry.register(&Claim::newest(name("i-1")), &keys(range), TakePolicy::Always).await.unwrap();
}

async fn population(registry: &EmbeddedRegistry) -> u64 {
    registry.census().await.unwrap().population
}

/// The folder as a crash leaves it, with rows in the database and rows in the log.
async fn crashed(in_log: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (store, registry) = open(folder.path(), usize::MAX);
    register(&registry, 0..100).await;
    drop(registry);
    store.close().unwrap();
    let (_store, registry) = open(folder.path(), usize::MAX);
    for i in 0..in_log {
        register(&registry, 100 + i..101 + i).await;
    }
    let left = tempfile::tempdir().unwrap();
    copy_folder(folder.path(), left.path());
    left
}

#[tokio::test]
async fn batches_that_are_only_in_the_log_survive_a_crash() {
    let folder = crashed(20).await;
    for _ in 0..2 {
        let (store, registry) = open(folder.path(), usize::MAX);
        assert_eq!(population(&registry).await, 120);
        drop(registry);
        store.close().unwrap();
    }
}

/// A clean close leaves everything in the database, so that the next opening has no log to read.
#[tokio::test]
async fn a_closed_store_has_an_empty_log() {
    let folder = crashed(20).await;
    let (store, registry) = open(folder.path(), usize::MAX);
    register(&registry, 300..310).await;
    drop(registry);
    store.close().unwrap();
    for log in ["log.0", "log.1"] {
        assert_eq!(std::fs::metadata(folder.path().join(log)).unwrap().len(), 0);
    }
}

#[tokio::test]
async fn a_damaged_log_is_refused_and_not_changed() {
    let folder = crashed(20).await;
    let log = folder.path().join("log.0");
    let good = std::fs::read(&log).unwrap();
    let used = good.iter().rposition(|byte| *byte != 0).unwrap();
    for at in [0, 30, used / 2] {
        let mut bytes = good.clone();
        bytes[at] ^= 0x11;
        std::fs::write(&log, &bytes).unwrap();
        let database = std::fs::read(folder.path().join("lapsed.redb")).unwrap();
        let refused = Embedded::open(folder.path(), Options::default()).map(|_| ());
        let Err(Error::Corrupt { what, .. }) = &refused else { panic!("{at}: {refused:?}") };
        assert!(what.contains("log") && what.contains("Nothing was changed"), "{at}: {what}");
        assert!(std::fs::read(&log).unwrap() == bytes, "{at}: the log was changed");
        let after = std::fs::read(folder.path().join("lapsed.redb")).unwrap();
        assert!(after == database, "{at}: the database was changed");
    }
    // The very last record cannot be told from one that a crash has torn, whose callers were never answered.
    let mut torn = good.clone();
    torn[used] ^= 0x11;
    std::fs::write(&log, &torn).unwrap();
    let (_store, registry) = open(folder.path(), usize::MAX);
    assert_eq!(population(&registry).await, 119);
}

/// A backup of the database alone would silently lack what was in the log.
#[tokio::test]
async fn a_folder_without_its_log_is_refused() {
    let folder = crashed(3).await;
    std::fs::remove_file(folder.path().join("log.1")).unwrap();
    let refused = Embedded::open(folder.path(), Options::default()).map(|_| ());
    let Err(Error::Corrupt { what, .. }) = &refused else { panic!("{refused:?}") };
    assert!(what.contains("log.1") && what.contains("missing"), "{what}");
}

/// Readers go on while checkpoints bring rows into the database, and see each of them all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_every_row_during_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let (store, registry) = open(folder.path(), 200_000);
    register(&registry, 0..1_000).await;
    let done = Arc::new(AtomicBool::new(false));
    let reader = {
        let (registry, done) = (registry.clone(), done.clone());
        tokio::spawn(async move {
            let mut reads = 0;
            while !done.load(Ordering::Acquire) {
                let claim = Claim::newest(name("i-1"));
                let found = registry.entries(&claim, None, 1_000).await.unwrap();
                assert_eq!(found, keys(0..1_000), "read {reads}");
                reads += 1;
                tokio::task::yield_now().await;
            }
            reads
        })
    };
    for round in 1..40 {
        register(&registry, round * 1_000..(round + 1) * 1_000).await;
        let gone = keys(round * 1_000..round * 1_000 + 500);
        registry.unregister(&Claim::newest(name("i-1")), &gone).await.unwrap();
    }
    done.store(true, Ordering::Release);
    assert!(reader.await.unwrap() > 0);
    assert_eq!(population(&registry).await, 1_000 + 39 * 500);
    let left = tempfile::tempdir().unwrap();
    drop(registry);
    store.close().unwrap();
    for file in ["log.0", "log.1", "lapsed.redb", "format"] {
        std::fs::copy(folder.path().join(file), left.path().join(file)).unwrap();
    }
    let (_store, registry) = open(left.path(), usize::MAX);
    assert_eq!(population(&registry).await, 1_000 + 39 * 500);
}

/// The process is killed before each single write of a checkpoint, and of the batches around it.
#[tokio::test]
async fn a_crash_during_a_checkpoint_loses_nothing() {
    let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(1_700_000_000_000));
    let on = |fragile: &Fragile| {
        let fragile = fragile.clone();
        let options = Options {
            clock: Arc::new(clock.clone()),
            checkpoint_bytes: 1_000,
            ..Options::default()
        };
        Embedded::with_backend(options, move |file| fragile.file(file)).unwrap()
    };
    let store = on(&fragile);
    let registry = store.registry(id(), TTL).unwrap();
    *fragile.crashes.lock().unwrap() = Some(Vec::new());
    let mut answered = Vec::new();
    for i in 0..40 {
        register(&registry, i..i + 1).await;
        answered.push(fragile.crashes.lock().unwrap().as_ref().unwrap().len());
    }
    let crashes = fragile.crashes.lock().unwrap().take().unwrap();
    assert!(crashes.len() > 40 * 2 + 40, "there were checkpoints: {}", crashes.len());
    for (at, left) in crashes.iter().enumerate() {
        let bytes = survivor(left);
        let survivor = on(&Fragile { bytes, ..Fragile::unlimited() });
        let registry = survivor.registry(id(), TTL).unwrap();
        let durable = answered.iter().filter(|written| **written <= at).count() as u64;
        let found = population(&registry).await;
        assert!((durable..=durable + 1).contains(&found), "crash {at}: {found} of {durable}");
        register(&registry, 90..95).await;
        assert_eq!(population(&registry).await, found + 5, "crash {at}: and it goes on");
    }
}

/// After most of what a large file held was removed, it gets smaller while the store runs, and nothing of the rest is lost.
#[tokio::test]
async fn the_file_shrinks_when_most_of_it_was_removed() {
    const ROWS: usize = 60_000;
    let folder = tempfile::tempdir().unwrap();
    let (store, registry) = open(folder.path(), 2_000_000);
    let long = |i: usize| name(&format!("k{i:05}-{}", "x".repeat(400)));
    let claim = Claim::newest(name("i-1"));
    for from in (0..ROWS).step_by(1_000) {
        let keys: Vec<Name> = (from..from + 1_000).map(long).collect();
        registry.register(&claim, &keys, TakePolicy::Always).await.unwrap();
    }
    let length = || std::fs::metadata(folder.path().join("lapsed.redb")).unwrap().len();
    for from in (1_000..ROWS).step_by(1_000) {
        let keys: Vec<Name> = (from..from + 1_000).map(long).collect();
        registry.unregister(&claim, &keys).await.unwrap();
    }
    // Each batch may be the one that begins a checkpoint, which looks at the file.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while length() > 12 << 20 {
        assert!(std::time::Instant::now() < until, "the file has {} bytes", length());
        let keys: Vec<Name> = (90_000..91_000).map(long).collect();
        registry.register(&claim, &keys, TakePolicy::Always).await.unwrap();
        registry.unregister(&claim, &keys).await.unwrap();
    }
    register(&registry, 0..10).await;
    assert_eq!(population(&registry).await, 1_010);
    drop(registry);
    store.close().unwrap();
    let (_store, registry) = open(folder.path(), 2_000_000);
    assert_eq!(population(&registry).await, 1_010);
    assert_eq!(registry.entries(&claim, None, 20_000).await.unwrap().len(), 1_010);
}
