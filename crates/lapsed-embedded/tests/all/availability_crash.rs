//! The truth of availability across crashes, failing disks, restarts and a clock that was set back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fixture::fragile::{Fragile, survivor};
use crate::fixture::providers::{Bench, STALE_MS, START_MS, batch, flip_of, name, silence};
use crate::fixture::{SharedBytes, copy_folder};
use futures::FutureExt;
use lapsed_availability::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_availability::{
    Flip, ListedProvider, ProviderQuery, ProviderState, SessionChange, Truth, WorkSession,
};
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::receipt::Receipt;
use lapsed_core::{Error, Result};
use lapsed_embedded::{Backend, LogRow, StoreFile};

fn open(fragile: &Fragile, clock: &ManualClock) -> Bench {
    let fragile = fragile.clone();
    Bench::on_bytes(clock, move |file| fragile.file(file))
}

type Look = Box<dyn FnMut() + Send>;

/// Files that report each write before it is made, until they fail permanently.
#[derive(Clone, Default)]
struct Watched {
    bytes: SharedBytes,
    look: Arc<Mutex<Option<Look>>>,
    broken: Arc<AtomicBool>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("watched bytes")
    }
}

impl Watched {
    fn file(&self, file: StoreFile) -> Box<dyn Backend> {
        Box::new(WatchedFile { disk: self.clone(), file: self.bytes.file(file) })
    }

    fn look(&self) -> std::io::Result<()> {
        if let Some(look) = self.look.lock().unwrap().as_mut() {
            look();
        }
        match self.broken.load(Ordering::SeqCst) {
            true => Err(std::io::Error::other("the disk is gone")),
            false => Ok(()),
        }
    }
}

/// One file of that disk.
#[derive(Debug)]
struct WatchedFile {
    disk: Watched,
    file: Box<dyn Backend>,
}

impl Backend for WatchedFile {
    fn len(&self) -> std::io::Result<u64> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.file.set_len(len)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        self.disk.look()
    }
    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.disk.look()?;
        self.file.write(offset, data)
    }
}

/// Everything that can be read, except what only depends on the clock.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    states: Vec<ProviderState>,
    listed: Vec<ListedProvider>,
    sessions: Vec<Option<WorkSession>>,
    settings: AvailabilitySettings,
    log: Vec<LogRow>,
    receipts: Vec<Receipt>,
    available: u64,
    online: u64,
}

async fn see(b: &Bench) -> Seen {
    let mut states = b.truth.page(None, 100).await.unwrap();
    states.iter_mut().for_each(|state| state.beat_age_ms = None);
    let mut sessions = Vec::new();
    for id in ["s1", "s2", "new"] {
        sessions.push(b.session(id).await);
    }
    let listing = ProviderQuery { limit: 100, ..ProviderQuery::default() };
    let lax = AvailabilitySettings { require_ping: false, ..AvailabilitySettings::default() };
    Seen {
        states,
        listed: b.truth.list(&listing).await.unwrap(),
        sessions,
        settings: b.truth.settings().await.unwrap(),
        log: b.truth.logs(0, 1_000).unwrap(),
        receipts: b.receipts().await,
        available: b.truth.count_available(&lax).await.unwrap(),
        online: b.truth.count_online().await.unwrap(),
    }
}

/// Checks that the rows in memory and their counts agree with the sessions.
async fn agree(b: &Bench, when: &str) {
    for state in b.truth.page(None, 100).await.unwrap() {
        let mut count = 0;
        for id in ["s1", "s2", "new"] {
            let session = b.session(id).await.filter(WorkSession::occupies);
            count += u64::from(session.is_some_and(|one| one.provider == Some(state.id.clone())));
        }
        assert_eq!(state.sessions, count, "{when}: {state:?}");
    }
    let flips = b.log().iter().filter(|(_, s)| *s == lapsed_embedded::LogStatus::Offline).count();
    assert_eq!(b.receipts().await.len(), flips, "{when}: only flips set anybody offline here");
}

/// An operation that writes more than one row.
#[derive(Clone, Copy, Debug)]
enum Step {
    Flip,
    Restore,
    Accept,
    Reroute,
    Online,
    Beats,
    Settle,
    Settings,
}

const STEPS: [Step; 8] = [
    Step::Flip,
    Step::Restore,
    Step::Accept,
    Step::Reroute,
    Step::Online,
    Step::Beats,
    Step::Settle,
    Step::Settings,
];

/// Prepares two silent online providers with sessions, and one that a receipt set offline.
async fn prepare(b: &Bench, clock: &ManualClock) -> (Vec<Flip>, u64) {
    let states = b.there(&["a", "b", "c"]).await;
    for (session, provider) in [("s1", "a"), ("s2", "b")] {
        b.accept(session, provider, 3).await;
    }
    silence(clock);
    b.flip(1, &states[2..]).await;
    let seq = b.receipts().await[0].id.seq;
    (states[..2].iter().map(flip_of).collect(), seq)
}

async fn step(b: &Bench, prepared: &(Vec<Flip>, u64), which: Step) -> Result<()> {
    let (flips, seq) = prepared;
    let truth = &b.truth;
    match which {
        Step::Flip => truth.flip(&batch(2), flips, STALE_MS).await.map(|_| ()),
        Step::Restore => truth.restore(*seq).await.map(|_| ()),
        Step::Accept => {
            let change = SessionChange::Accept { session: name("new"), provider: name("a") };
            truth.change_session(&change, 3).await.map(|_| ())
        }
        Step::Reroute => {
            let change = SessionChange::Reroute { session: name("s1"), to: name("b") };
            truth.change_session(&change, 3).await.map(|_| ())
        }
        Step::Online => truth.set_online(&name("c"), true).await.map(|_| ()),
        Step::Beats => truth.beat(&[name("a"), name("b"), name("c")]).await.map(|_| ()),
        Step::Settle => truth.settle(&batch(2).id).await.map(|_| ()),
        Step::Settings => {
            let patch = SettingsPatch { stale_after_seconds: Some(60), ..Default::default() };
            truth.set_settings(&patch).await.map(|_| ())
        }
    }
}

/// The process is killed before each single write of an operation. After reopening, all of it has
/// happened or nothing, and what was not done can be done.
#[tokio::test]
async fn a_crash_during_a_step_leaves_no_partial_write() {
    for which in STEPS {
        let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(START_MS));
        let b = open(&fragile, &clock);
        let prepared = prepare(&b, &clock).await;
        let before = see(&b).await;
        *fragile.crashes.lock().unwrap() = Some(vec![fragile.all()]);
        step(&b, &prepared, which).await.unwrap();
        let mut crashes = fragile.crashes.lock().unwrap().take().unwrap();
        crashes.push(fragile.all());
        let after = see(&b).await;
        let mut happened = Vec::new();
        for (at, left) in crashes.iter().enumerate() {
            let when = format!("{which:?}, crash {at}");
            let bytes = survivor(left);
            let then = ManualClock::at(clock.wall_ms());
            let survivor = Bench::on_bytes(&then, move |file| bytes.file(file));
            let seen = see(&survivor).await;
            assert!(seen == before || seen == after, "{when}: {seen:#?}");
            happened.push(seen == after);
            agree(&survivor, &when).await;
            let forbidden = step(&survivor, &prepared, Step::Flip).await;
            let settled = matches!(which, Step::Settle) && at + 1 == crashes.len();
            assert!(forbidden.is_ok() || matches!(which, Step::Settle), "{when}: {forbidden:?}");
            assert!(forbidden.is_err() || !settled, "{when}: it was settled as not carried out");
        }
        if before != after {
            assert_eq!(happened.first().zip(happened.last()), Some((&false, &true)), "{which:?}");
        }
    }
}

/// The disk fails at each single write of an operation: memory equals disk, and the operation can
/// be repeated.
#[tokio::test]
async fn after_a_failed_commit_memory_equals_disk() {
    for which in STEPS {
        let mut writes = 0;
        loop {
            let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(START_MS));
            let b = open(&fragile, &clock);
            let prepared = prepare(&b, &clock).await;
            let before = see(&b).await;
            fragile.left.store(writes, Ordering::SeqCst);
            let answer = step(&b, &prepared, which).await;
            fragile.left.store(i64::MIN, Ordering::SeqCst);
            let when = format!("{which:?}, {writes} writes, then {answer:?}");
            let seen = see(&b).await;
            let bytes = survivor(&fragile.all());
            let then = ManualClock::at(clock.wall_ms());
            let on_disk = Bench::on_bytes(&then, move |file| bytes.file(file));
            assert_eq!(seen, see(&on_disk).await, "{when}");
            agree(&b, &when).await;
            if answer.is_ok() {
                assert!(writes > 2, "{when}");
                break;
            }
            assert!(matches!(answer, Err(Error::Unavailable { .. })), "{when}");
            // A commit that failed may have reached the disk nevertheless; otherwise nothing has
            // changed.
            let repeated = step(&b, &prepared, which).await;
            assert!(repeated.is_ok(), "{when}: {repeated:?}");
            if seen == before && !matches!(which, Step::Settle) {
                assert_ne!(see(&b).await, before, "{when}");
            }
            writes += 1;
            assert!(writes < 60, "{when}");
        }
    }
}

/// Nobody reads what is not durable yet, and after a permanent disk failure durable data can still
/// be read.
#[tokio::test]
async fn nothing_is_read_before_it_is_durable() {
    let (watched, clock) = (Watched::default(), ManualClock::at(START_MS));
    let backend = watched.clone();
    let b = Bench::on_bytes(&clock, move |file| backend.file(file));
    b.add("p").await;
    let (seen, truth) = (Arc::new(Mutex::new(Vec::new())), b.truth.clone());
    let noted = seen.clone();
    *watched.look.lock().unwrap() = Some(Box::new(move || {
        let state = truth.read(&[name("p")]).now_or_never().unwrap().unwrap().remove(0);
        noted.lock().unwrap().push(state.online);
    }));
    let state = b.online("p").await.state;
    let during = std::mem::take(&mut *seen.lock().unwrap());
    assert!(during.len() > 2 && during.iter().all(|online| !online), "{during:?}");
    assert!(b.state("p").await.online);
    *watched.look.lock().unwrap() = None;
    watched.broken.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let answer = b.truth.set_online(&name("p"), false).await;
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
        assert_eq!(b.state("p").await, state);
        assert_eq!(b.truth.count_online().await.unwrap(), 1);
    }
}

/// After closing and reopening, everything is there, and settled batches stay settled.
#[tokio::test]
async fn reopening_keeps_everything() {
    let (bytes, clock) = (SharedBytes::default(), ManualClock::at(START_MS));
    let reopen = || {
        let bytes = bytes.clone();
        Bench::on_bytes(&clock, move |file| bytes.file(file))
    };
    let b = reopen();
    let prepared = prepare(&b, &clock).await;
    step(&b, &prepared, Step::Settings).await.unwrap();
    step(&b, &prepared, Step::Settle).await.unwrap();
    b.truth.set_active(&name("b"), false).await.unwrap();
    let before = see(&b).await;
    let receipts = b.truth.settle(&batch(1).id).await.unwrap();
    drop(b);
    clock.advance(Duration::from_secs(600));
    let b = reopen();
    assert_eq!(see(&b).await, before);
    assert_eq!(b.truth.settle(&batch(1).id).await.unwrap(), receipts);
    assert!(step(&b, &prepared, Step::Flip).await.is_err());
    assert_eq!(b.state("a").await.beat_age_ms, Some(STALE_MS + 600_000), "nobody is fresher by it");
    agree(&b, "opened again").await;
}

/// X7: versions only grow, also if the host's clock was set back by a year.
#[tokio::test]
async fn trap_x7_versions_grow_across_a_clock_set_back() {
    let bytes = SharedBytes::default();
    let reopen = |clock: &ManualClock| {
        let bytes = bytes.clone();
        Bench::on_bytes(clock, move |file| bytes.file(file))
    };
    let mut last = 0;
    let mut epoch = 0;
    let year_ms = 365 * 24 * 3_600_000;
    for start_ms in [START_MS, START_MS - year_ms, START_MS - 2 * year_ms, START_MS + 1] {
        let clock = ManualClock::at(start_ms);
        let b = reopen(&clock);
        b.add("p").await;
        for online in [true, false, true] {
            let state = b.truth.set_online(&name("p"), online).await.unwrap().unwrap().state;
            assert!(state.version > last && state.epoch > epoch, "{state:?} after {last}");
            (last, epoch) = (state.version, state.epoch);
            clock.jump_wall(-60_000);
        }
        assert!(b.truth.refresh(&[(name("p"), 0)]).await.unwrap()[0].version > last);
        assert_eq!(b.state("p").await.beat_age_ms, Some(0), "the store's clock goes on");
        last = b.state("p").await.version;
    }
}

/// The process dies without closing the store: answered writes are there. (The folder is copied
/// while the store runs, which is what a crash leaves behind.)
#[tokio::test]
async fn answered_writes_are_durable() {
    let folder = tempfile::tempdir().unwrap();
    let b = Bench::in_folder(folder.path());
    let mut answered = Vec::new();
    for round in 0..12 {
        let id = format!("p{round:02}");
        b.add(&id).await;
        answered.push(b.online(&id).await.state);
        if round % 3 == 2 {
            // A threshold of zero makes every provider silent at once.
            let flips = [flip_of(&answered[round])];
            b.truth.flip(&batch(round as u64), &flips, 0).await.unwrap();
        }
        b.accept(&format!("s{round}"), &id, 3).await;
        let crashed = tempfile::tempdir().unwrap();
        copy_folder(folder.path(), crashed.path());
        let survivor = Bench::in_folder(crashed.path());
        assert_eq!(survivor.truth.extent().await.unwrap(), round as u64 + 1);
        assert!(survivor.session(&format!("s{round}")).await.is_some());
        assert_eq!(survivor.log(), b.log());
        assert_eq!(survivor.receipts().await, b.receipts().await);
        let versions = |states: Vec<ProviderState>| -> Vec<(u64, u64, u64)> {
            states.iter().map(|state| (state.version, state.epoch, state.sessions)).collect()
        };
        assert_eq!(
            versions(survivor.truth.page(None, 100).await.unwrap()),
            versions(b.truth.page(None, 100).await.unwrap())
        );
    }
}
