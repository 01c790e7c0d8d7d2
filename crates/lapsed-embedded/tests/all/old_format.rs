//! A folder that an older version wrote is opened as it is, and is of format 4 from then on: one of format 1, in which
//! leases, receipts and jobs are JSON; and one of format 3, in which every receipt is a row of its own, and whose process
//! was killed, so that a part of it is only in the log.
//!
//! `tests/data/format-N.pages` is the database file of such a folder without its empty pages: its length (8
//! bytes, big-endian), then of each page its number (4 bytes) and its 4,096 bytes. `format-3.log` is the file of the log
//! that was in use.

use std::path::Path;
use std::time::Duration;

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::inflight::{InflightStore, JobPlace};
use lapsed_core::leases::{LeaseKey, LeaseState, LeaseTicket, LeasesStore};
use lapsed_core::notes::{NoteQuery, NoteStore};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::receipt::{Reason, ReceiptQuery};
use lapsed_core::registry::RegistryStore;
use lapsed_core::store::Store;
use lapsed_core::sweep::Sweep;
use lapsed_core::system::Restored;
use lapsed_core::{Kind, Name, SystemId};
use lapsed_embedded::{Embedded, Options};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
const PAGE: usize = 4_096;
const TTL: Duration = Duration::from_secs(90);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn id(kind: Kind, name: &str) -> SystemId {
    SystemId::new(kind, name).unwrap()
}

/// Writes the folder as the version with that format left it.
fn old_folder(dir: &Path, format: u64) {
    let data = Path::new(DATA);
    let pages = std::fs::read(data.join(format!("format-{format}.pages"))).unwrap();
    let length = u64::from_be_bytes(pages[..8].try_into().unwrap());
    let mut bytes = vec![0; length as usize];
    for page in pages[8..].chunks(4 + PAGE) {
        let at = u32::from_be_bytes(page[..4].try_into().unwrap()) as usize * PAGE;
        bytes[at..at + page.len() - 4].copy_from_slice(&page[4..]);
    }
    std::fs::write(dir.join("lapsed.redb"), bytes).unwrap();
    std::fs::write(dir.join("format"), "lapsed, format 1\n").unwrap();
    if format == 3 {
        std::fs::copy(data.join("format-3.log"), dir.join("log.0")).unwrap();
        std::fs::write(dir.join("log.1"), "").unwrap();
    }
}

fn format_of(dir: &Path) -> u64 {
    use redb::ReadableDatabase;
    let database = redb::Database::open(dir.join("lapsed.redb")).unwrap();
    let txn = database.begin_read().unwrap();
    let meta = txn.open_table(redb::TableDefinition::<&[u8], &[u8]>::new("meta")).unwrap();
    let format = meta.get(&b"format"[..]).unwrap().unwrap();
    u64::from_be_bytes(format.value().try_into().unwrap())
}

#[tokio::test]
async fn a_folder_of_format_1_is_opened_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    old_folder(folder.path(), 1);
    assert_eq!(format_of(folder.path()), 1);
    // What the first opening rewrites, the second one reads.
    for opening in 0..2 {
        let store = Embedded::open(folder.path(), Options::default()).unwrap();
        registry_is_there(&store).await;
        leases_are_there(&store, opening).await;
        jobs_are_there(&store).await;
        let devices = id(Kind::Registry, "devices");
        let query = NoteQuery { before: None, limit: 9 };
        let notes = NoteStore::notes(&store, &devices, &name("audit"), query).await.unwrap();
        assert_eq!(notes[0].text, "written by the old version");
        store.close().unwrap();
        assert_eq!(format_of(folder.path()), 4);
    }
}

async fn registry_is_there(store: &Embedded) {
    let devices = id(Kind::Registry, "devices");
    let registry = store.registry(devices.clone(), TTL).unwrap();
    let census = registry.census().await.unwrap();
    assert_eq!((census.population, census.owners_live), (2, 1));
    let found = registry.find(&[name("kept-1"), name("lost-1")]).await.unwrap();
    assert_eq!(found[0].as_ref().unwrap().holder.owner, name("alive"));
    assert!(found[1].is_none());
    assert!(registry.beat(&Claim::newest(name("alive"))).await.is_ok());
    let receipts = store
        .receipts(&devices, ReceiptQuery { limit: 9, ..ReceiptQuery::default() })
        .await
        .unwrap();
    assert_eq!(receipts.len(), 1);
    assert_eq!((receipts[0].key.as_str(), receipts[0].reason), ("lost-1", Reason::OwnerRetired));
}

async fn leases_are_there(store: &Embedded, opening: usize) {
    let locks = id(Kind::Leases, "locks");
    let leases = store.leases(locks.clone(), TTL).unwrap();
    let key = |key: &str| LeaseKey::new("ns", key).unwrap();
    let held = leases.peek(&key("held")).await.unwrap().unwrap();
    assert_eq!(held.state, Some(LeaseState::Json(serde_json::json!({ "step": 7 }))));
    let token = held.token;
    let ticket = LeaseTicket { key: key("held"), token };
    leases.renew(&ticket, None).await.unwrap();
    assert_eq!(leases.peek(&key("held")).await.unwrap().unwrap().token, token);
    let free = leases.peek(&key("free")).await.unwrap().unwrap();
    assert_eq!(free.token.0, 2, "tokens do not start again");
    let receipts =
        store.receipts(&locks, ReceiptQuery { limit: 9, ..ReceiptQuery::default() }).await.unwrap();
    assert_eq!((receipts.len(), receipts[0].key.as_str()), (1, "ns/over"));
    assert_eq!(receipts[0].restored_ms.is_some(), opening > 0);
    let restored = leases.restore(receipts[0].id.seq).await.unwrap();
    assert_eq!(matches!(restored, Restored::Restored { .. }), opening == 0, "{restored:?}");
}

async fn jobs_are_there(store: &Embedded) {
    let jobs = id(Kind::Inflight, "jobs");
    let inflight = store.inflight(jobs.clone(), TTL, RecoveryPolicy::default()).unwrap();
    let counts = inflight.counts().await.unwrap();
    assert_eq!((counts.queued, counts.in_flight, counts.dead), (3, 1, 0), "{counts:?}");
    let mut holders = Vec::new();
    for id in ["taken", "letter", "queued-1", "queued-2"] {
        let job = inflight.job(&name(id)).await.unwrap().unwrap();
        assert_eq!((job.payload.as_str(), job.queue.as_str()), ("{\"to\":1}", "mail"));
        match job.place {
            JobPlace::InFlight { owner, .. } => holders.push(owner.to_string()),
            place => assert_eq!(place, JobPlace::Queued),
        }
    }
    assert_eq!(holders, ["worker-2"]);
}

#[tokio::test]
async fn a_folder_of_format_3_is_opened_with_what_is_only_in_its_log() {
    let folder = tempfile::tempdir().unwrap();
    old_folder(folder.path(), 3);
    for opening in 0..2 {
        let store = Embedded::open(folder.path(), Options::default()).unwrap();
        let registry = store.registry(id(Kind::Registry, "devices"), TTL).unwrap();
        let leases = store.leases(id(Kind::Leases, "locks"), TTL).unwrap();
        let keys = ["kept-1", "kept-2", "lost-1", "lost-3"].map(name);
        let found = registry.find(&keys).await.unwrap();
        let holders: Vec<_> =
            found.iter().map(|entry| entry.as_ref().map(|it| it.holder.owner.as_str())).collect();
        assert_eq!(holders, [Some("alive"), Some("alive"), None, None], "opening {opening}");
        let devices = receipts(&store, Kind::Registry, "devices").await;
        assert_eq!(devices, [(1, "lost-1"), (2, "lost-2"), (3, "lost-3")].map(owned));
        let locks = receipts(&store, Kind::Leases, "locks").await;
        assert_eq!(locks, [(1, "ns/over"), (2, "ns/short")].map(owned));
        let token = async |key| {
            let key = LeaseKey::new("ns", key).unwrap();
            leases.peek(&key).await.unwrap().unwrap().token.0
        };
        assert_eq!((token("held").await, token("free").await), (1, 1));
        assert_eq!((token("over").await, token("short").await), (2, 2));
        // A receipt that is a row of its own is restored and marked as before.
        let restored = registry.restore(3).await.unwrap();
        assert!(matches!(restored, Restored::Refused { .. }), "`late` is not alive: {restored:?}");
        let again = registry.restore(1).await.unwrap();
        assert!(matches!(again, Restored::Refused { .. }), "{again:?}");
        drop((registry, leases));
        store.close().unwrap();
        assert_eq!(format_of(folder.path()), 4);
    }
}

fn owned((seq, key): (u64, &str)) -> (u64, String) {
    (seq, key.to_owned())
}

async fn receipts(store: &Embedded, kind: Kind, system: &str) -> Vec<(u64, String)> {
    let query = ReceiptQuery { after: Some(0), limit: 9, ..ReceiptQuery::default() };
    let receipts = store.receipts(&id(kind, system), query).await.unwrap();
    receipts.iter().map(|receipt| (receipt.id.seq, receipt.key.to_string())).collect()
}
