//! The data folder: exclusive, durable, and left alone when it is damaged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::registry::{Registered, RegistryStore, TakePolicy};
use lapsed_core::store::Store;
use lapsed_core::sweep::Sweep;
use lapsed_core::{Error, Name};
use lapsed_embedded::{Embedded, Options};

use crate::fixture::copy_folder;

lapsed_testbed::steady_async_tests! {
    a_restart_spares_everyone_for_a_ttl,
    callers_share_commits,
}

const TTL: Duration = Duration::from_secs(90);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn names(count: usize) -> Vec<Name> {
    (0..count).map(|i| name(&format!("k{i:05}"))).collect()
}

#[tokio::test]
async fn a_folder_serves_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let (_store, _registry) = crate::fixture::open(folder.path(), TTL);
    let second = Embedded::open(folder.path(), Options::default());
    let Err(Error::InUse { holder, .. }) = second else { panic!("it was opened twice") };
    assert!(holder.contains(&std::process::id().to_string()), "it names the holder: {holder}");
}

/// A clock that stops the store's own thread, once, until it is released.
struct StoppingClock {
    clock: Arc<dyn Clock>,
    stops: AtomicBool,
    stopped: Mutex<Sender<()>>,
    goes_on: Mutex<Receiver<()>>,
}

impl Clock for StoppingClock {
    fn wall_ms(&self) -> u64 {
        let is_writer = std::thread::current().name() == Some("lapsed-writer");
        if is_writer && self.stops.swap(false, Ordering::AcqRel) {
            self.stopped.lock().unwrap().send(()).unwrap();
            let _ = self.goes_on.lock().unwrap().recv();
        }
        self.clock.wall_ms()
    }
    fn mono(&self) -> Duration {
        self.clock.mono()
    }
    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(span)
    }
    fn random(&self) -> u64 {
        self.clock.random()
    }
}

/// The store's own thread may be at work at that moment.
#[test]
fn the_folder_is_free_when_the_last_handle_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let (stopped, is_stopped) = channel();
    let (go_on, goes_on) = channel();
    let clock = Arc::new(StoppingClock {
        clock: SystemClock::shared(),
        stops: AtomicBool::new(false),
        stopped: Mutex::new(stopped),
        goes_on: Mutex::new(goes_on),
    });
    let store =
        Embedded::open(folder.path(), Options { clock: clock.clone(), ..Options::default() });
    let store = store.unwrap();
    clock.stops.store(true, Ordering::Release);
    is_stopped.recv().unwrap();
    let (dropped, is_dropped) = channel();
    // A drop that waits for the thread takes longer than this; one that does not is seen at once, and then the thread
    // goes on after the folder was opened again.
    let waiter =
        std::thread::spawn(move || match is_dropped.recv_timeout(Duration::from_millis(200)) {
            Ok(()) => is_dropped.recv().unwrap(),
            Err(_) => go_on.send(()).unwrap(),
        });
    drop(store);
    // Nobody listens any more if the drop has waited.
    let _ = dropped.send(());
    let again = Embedded::open(folder.path(), Options::default());
    let _ = dropped.send(());
    waiter.join().unwrap();
    assert!(again.is_ok(), "{:?}", again.err());
}

#[tokio::test]
async fn everything_is_there_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let (store, registry) = crate::fixture::open(folder.path(), TTL);
    let first = store.info().await.unwrap().incarnation;
    let claim = Claim::newest(name("i-1"));
    let answer = registry.register(&claim, &names(1_000), TakePolicy::Always).await.unwrap();
    registry.end(&Claim::exact(name("i-1"), answer.incarnation)).await.unwrap();
    let second = registry.start(&name("i-2"), 90_000).await.unwrap();
    drop(registry);
    store.close().unwrap();

    let (store, registry) = crate::fixture::open(folder.path(), TTL);
    assert_ne!(store.info().await.unwrap().incarnation, first, "another life of the store");
    let census = registry.census().await.unwrap();
    assert_eq!((census.population, census.suspects, census.owners_live), (1_000, 1_000, 1));
    assert!(registry.beat(&Claim::exact(name("i-2"), second.incarnation)).await.is_ok());
    assert!(
        matches!(registry.beat(&claim).await, Err(Error::Lost(lost)) if lost.held_total == 1_000)
    );
    let third = registry.start(&name("i-1"), 90_000).await.unwrap();
    assert!(third.incarnation > second.incarnation);
}

/// The process is gone without a word: what was answered is there. (The folder is copied under a
/// running store, which is what a crash leaves behind.)
#[tokio::test]
async fn answered_writes_are_durable() {
    let folder = tempfile::tempdir().unwrap();
    let (_store, registry) = crate::fixture::open(folder.path(), TTL);
    for round in 0..20 {
        let owner = Claim::newest(name(&format!("i-{round}")));
        let keys = [name(&format!("k{round}"))];
        registry.register(&owner, &keys, TakePolicy::Always).await.unwrap();
        let crashed = tempfile::tempdir().unwrap();
        copy_folder(folder.path(), crashed.path());
        let (_store, survivor) = crate::fixture::open(crashed.path(), TTL);
        assert_eq!(survivor.census().await.unwrap().population, round + 1);
        assert!(survivor.find(&keys).await.unwrap()[0].is_some());
    }
}

/// P7, on disk: after a restart even those long overdue get a whole TTL.
async fn a_restart_spares_everyone_for_a_ttl() {
    let folder = tempfile::tempdir().unwrap();
    let ttl = Duration::from_millis(300);
    let (store, registry) = crate::fixture::open(folder.path(), ttl);
    let beat = registry.start(&name("i-1"), 300).await.unwrap();
    let claim = Claim::exact(name("i-1"), beat.incarnation);
    registry.register(&claim, &names(3), TakePolicy::Always).await.unwrap();
    while store.info().await.unwrap().now_ms < beat.deadline_ms + 100 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(registry);
    store.close().unwrap();
    let (store, registry) = crate::fixture::open(folder.path(), ttl);
    let back_ms = store.info().await.unwrap().back_ms;
    let info = registry.owner(&claim).await.unwrap().unwrap();
    assert!(info.due_ms >= back_ms + 300, "{info:?} back at {back_ms}");
    assert_eq!(registry.census().await.unwrap().owners_overdue, 0);
    assert!(registry.beat(&claim).await.is_ok(), "it may beat again");
}

/// Garbage anywhere: a clear error, and not a byte is changed.
#[tokio::test]
async fn a_damaged_file_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (store, registry) = crate::fixture::open(folder.path(), TTL);
    registry
        .register(&Claim::newest(name("i-1")), &names(2_000), TakePolicy::Always)
        .await
        .unwrap();
    drop(registry);
    store.close().unwrap();
    let good = std::fs::read(folder.path().join("lapsed.redb")).unwrap();
    type Damage = Box<dyn Fn(&mut Vec<u8>)>;
    let damages: [(&str, Damage); 7] = [
        ("not a database", Box::new(|bytes| bytes[..4_096].fill(0x5a))),
        ("text", Box::new(|bytes| *bytes = b"hello".to_vec())),
        ("cut off", Box::new(|bytes| bytes.truncate(bytes.len() / 3))),
        ("pages overwritten", Box::new(|bytes| bytes[4_096..].fill(0xa5))),
        (
            "one page overwritten",
            Box::new(|bytes| {
                let at = find(bytes, b"k00500") / 4_096 * 4_096;
                bytes[at + 4..at + 3_004].fill(0x3c);
            }),
        ),
        (
            "one bit",
            Box::new(|bytes| {
                let at = find(bytes, b"k00500");
                bytes[at + 5] ^= 1;
            }),
        ),
        ("empty", Box::new(Vec::clear)),
    ];
    for (what, damage) in damages {
        let mut bytes = good.clone();
        damage(&mut bytes);
        let damaged = tempfile::tempdir().unwrap();
        copy_folder(folder.path(), damaged.path());
        let path = damaged.path().join("lapsed.redb");
        std::fs::write(&path, &bytes).unwrap();
        let opened = Embedded::open(damaged.path(), Options::default()).map(|_| ());
        assert!(matches!(opened, Err(Error::Corrupt { .. })), "{what}: {:?}", opened.err());
        assert!(std::fs::read(&path).unwrap() == bytes, "{what}: the file was changed");
    }
}

/// Where a live row with that text is: the last of its copies.
fn find(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).rposition(|window| window == text).unwrap()
}

/// A thousand callers at once, far fewer commits than callers.
async fn callers_share_commits() {
    let folder = tempfile::tempdir().unwrap();
    let (_store, registry) = crate::fixture::open(folder.path(), TTL);
    registry.beat(&Claim::newest(name("i-1"))).await.unwrap();
    let one = std::time::Instant::now();
    for i in 0..50 {
        let key = [name(&format!("warm-{i}"))];
        registry.register(&Claim::newest(name("i-1")), &key, TakePolicy::Always).await.unwrap();
    }
    let alone = one.elapsed() / 50;
    let many = std::time::Instant::now();
    let calls = names(1_000).into_iter().map(|key| {
        let registry = registry.clone();
        tokio::spawn(async move {
            registry
                .register(&Claim::newest(name("i-1")), &[key], TakePolicy::Always)
                .await
                .unwrap();
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let shared = many.elapsed() / 1_000;
    assert!(shared * 2 < alone, "{shared:?} each together, {alone:?} each alone");
    assert_eq!(registry.census().await.unwrap().population, 1_050);
}

/// A task that has done as much as tokio lets one do before it yields can still open and close a store.
#[tokio::test]
async fn a_store_opens_in_the_middle_of_a_busy_task() {
    let folder = tempfile::tempdir().unwrap();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..1_000 {
        sender.send(()).unwrap();
    }
    // Until nothing more is handed out, though there is more.
    while futures::FutureExt::now_or_never(receiver.recv()).is_some() {}
    Embedded::open(folder.path(), Options::default()).unwrap().close().unwrap();
}

/// An entry whose owner has no record (a file that was edited or repaired by hand) belongs to nobody:
/// a lookup does not find it, so a registration of its key must not name a previous holder either.
#[tokio::test]
async fn an_entry_without_an_owner_record_is_registered_as_new() {
    let folder = tempfile::tempdir().unwrap();
    let (store, registry) = crate::fixture::open(folder.path(), TTL);
    let key = [name("k")];
    registry.register(&Claim::newest(name("i-1")), &key, TakePolicy::Always).await.unwrap();
    drop(registry);
    store.close().unwrap();
    remove_owner_records(folder.path());

    let (_store, registry) = crate::fixture::open(folder.path(), TTL);
    assert_eq!(registry.find(&key).await.unwrap(), [None]);
    let claim = Claim::newest(name("i-2"));
    let answer = registry.register(&claim, &key, TakePolicy::IfFree).await.unwrap();
    assert_eq!(answer.keys, [Registered::New]);
    let found = registry.find(&key).await.unwrap().remove(0).unwrap();
    assert_eq!(found.holder.owner, name("i-2"));
    assert_eq!(registry.census().await.unwrap().population, 1);
}

fn remove_owner_records(folder: &std::path::Path) {
    let database = redb::Database::open(folder.join("lapsed.redb")).unwrap();
    let table = format!("{}/owners", crate::fixture::id());
    let owners = redb::TableDefinition::<&[u8], &[u8]>::new(&table);
    let write = database.begin_write().unwrap();
    write.delete_table(owners).unwrap();
    write.commit().unwrap();
}
