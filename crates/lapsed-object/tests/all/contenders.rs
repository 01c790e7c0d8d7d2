//! Processes that compete for the same keys, frozen and killed at any moment, with sweepers beside them:
//! each writes down what it sees, and what they saw together must be possible.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::leases::conformance::contend::{Contender, number};
use lapsed_core::leases::conformance::history::{HistoryEvent, check};
use lapsed_core::leases::conformance::{keys, policy};
use lapsed_core::leases::{LeaseKey, LeasesStore};
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::store::Store;
use lapsed_core::sweep::PassMode;
use lapsed_testbed::{ObjectEngine, ObjectServer, Program};

use crate::fixture::{Site, config_by, layout, open, prefix, system};

const PART: &str = "LAPSED_TEST_PART";
const WHO: &str = "LAPSED_TEST_WHO";
const PLACE: &str = "LAPSED_TEST_PLACE";
const FILE: &str = "LAPSED_TEST_FILE";

const TTL: Duration = Duration::from_secs(1);
const ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(180);
/// How many processes are frozen; after that the others finish undisturbed.
const TURNS: usize = 6;

fn all_keys() -> Vec<LeaseKey> {
    keys(&["k0", "k1", "k2", "k3"])
}

/// Where a story takes place, and who plays in it.
struct Stage {
    engine: ObjectEngine,
    prefix: String,
    dir: tempfile::TempDir,
    lives: usize,
}

impl Stage {
    /// Starts this very program with a part to play.
    fn enter(&mut self, part: &str) -> Program {
        self.lives += 1;
        let (who, own) = (format!("{part}-{}", self.lives), std::env::current_exe().unwrap());
        let port = ObjectServer::shared(self.engine).port();
        let place = format!("{} {port} {}", self.engine as usize, self.prefix);
        Program::start(&own, |command| {
            command.args(["contenders::contender_process", "--exact", "--nocapture", "-q"]);
            command.env(PART, part).env(WHO, &who).env(PLACE, place);
            command.env(FILE, self.dir.path().join(&who));
        })
        .unwrap()
    }

    fn events(&self) -> Vec<HistoryEvent> {
        let files = std::fs::read_dir(self.dir.path()).unwrap();
        files.flat_map(|file| read(&file.unwrap().path())).collect()
    }
}

/// What one life wrote down. The last line of one that was killed may be half a line.
fn read(path: &Path) -> Vec<HistoryEvent> {
    let lines = BufReader::new(File::open(path).unwrap()).lines();
    lines.map_while(|line| serde_json::from_str(&line.unwrap()).ok()).collect()
}

/// The entry point of a child process. It does nothing unless another test has started it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contender_process() {
    let (Ok(part), Ok(place)) = (std::env::var(PART), std::env::var(PLACE)) else { return };
    let mut words = place.split(' ');
    let engine = ObjectEngine::GOOD.into_iter();
    let number: usize = words.next().unwrap().parse().unwrap();
    let engine = engine.into_iter().find(|engine| *engine as usize == number).unwrap();
    let port = words.next().unwrap().parse().unwrap();
    let store = open(config_by(engine, port, words.next().unwrap()));
    let leases = store.leases(system(), layout()).unwrap();
    if part == "sweeper" {
        return sweep(&Site::of(store, leases)).await;
    }
    let path = std::env::var(FILE).unwrap();
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    let who = std::env::var(WHO).unwrap();
    let contender = Contender { who, keys: all_keys(), ttl: TTL, rounds: ROUNDS };
    let mut tell = |event: HistoryEvent| {
        let line = serde_json::to_string(&event).unwrap() + "\n";
        file.write_all(line.as_bytes()).unwrap();
    };
    contender.run(&*leases, &mut tell).await;
}

/// Until it is killed.
async fn sweep(site: &Site) {
    let f = Site::of(site.store.clone(), site.leases.clone()).fixture();
    loop {
        f.pass("sweeper", PassMode::Reclaim, policy()).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn compete(engine: ObjectEngine, processes: usize) {
    let dir = tempfile::tempdir().unwrap();
    let mut stage = Stage { engine, prefix: prefix(), dir, lives: 0 };
    let mut contenders: Vec<Program> = (0..processes).map(|_| stage.enter("contender")).collect();
    let mut sweepers: Vec<Program> = (0..2).map(|_| stage.enter("sweeper")).collect();
    let chance = SystemClock::new();
    let mut killed = 0;
    for turn in 0..TURNS {
        contenders.retain(|one| one.ended().unwrap().is_none());
        if contenders.is_empty() {
            break;
        }
        let one = &contenders[chance.random() as usize % contenders.len()];
        // It may have ended by itself just now.
        if one.freeze().is_ok() {
            thread::sleep(if turn % 2 == 0 { TTL * 3 / 2 } else { TTL / 5 });
            let _ = one.thaw();
        }
        if killed < processes / 2 {
            let place = chance.random() as usize % contenders.len();
            contenders.swap_remove(place).kill().unwrap();
            contenders.push(stage.enter("contender"));
            killed += 1;
        }
        sweepers.remove(0).kill().unwrap();
        sweepers.push(stage.enter("sweeper"));
    }
    for one in contenders {
        one.finish(LIMIT).unwrap();
    }
    drop(sweepers);
    judge(&stage, processes).await;
}

async fn judge(stage: &Stage, processes: usize) {
    let site = Site::at(stage.engine, &stage.prefix, layout(), None);
    let mut last = BTreeMap::new();
    for key in all_keys() {
        let state = site.leases.peek(&key).await.unwrap().and_then(|found| found.state);
        last.insert(key.to_string(), number(state.as_ref()));
    }
    let events = stage.events();
    let held = check(&events, &last).unwrap_or_else(|why| panic!("{why}\n{events:#?}"));
    assert!(held >= processes, "{held} leases were held");
    let query = ReceiptQuery { after: Some(0), limit: 10_000, ..ReceiptQuery::default() };
    let receipts = site.store.receipts(&system(), query).await.unwrap();
    let distinct: BTreeSet<_> = receipts.iter().map(|r| (r.key.clone(), r.incarnation.0)).collect();
    assert_eq!(receipts.len(), distinct.len(), "one receipt a token at the most");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_moto_never_hold_one_lease_at_once() {
    compete(ObjectEngine::Moto, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_on_azurite_never_hold_one_lease_at_once() {
    compete(ObjectEngine::Azurite, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_on_seaweed_never_hold_one_lease_at_once() {
    compete(ObjectEngine::Seaweed, 8).await;
}

impl Site {
    fn of(
        store: Arc<lapsed_object::ObjectStore>,
        leases: Arc<lapsed_object::ObjectLeases>,
    ) -> Site {
        Site { prefix: String::new(), store, leases, proxy: None }
    }
}
