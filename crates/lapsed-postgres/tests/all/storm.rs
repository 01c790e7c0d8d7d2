//! Four daemons on real servers, PostgreSQL and Valkey, while one of them (or both) is killed, frozen or
//! emptied: providers beat and toggle, sessions come and go, everybody sweeps.
//!
//! What must hold: no provider that beat in time was set offline, by the answers to its heartbeats; one that was silent
//! is offline in the end; log rows are flips; and mirror and truth agree. `LAPSED_STORM_SECONDS` makes
//! each storm longer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapsed_availability::rules::SettingsPatch;
use lapsed_availability::{Availability, AvailabilityParts, ProviderBeat, SessionChange, Truth};
use lapsed_core::Name;
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::reconcile::Reconcile;
use lapsed_core::schedule::{StopHandle, StopSignal};
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Cursor, PassMode, Sweeper, SweeperParts};
use lapsed_core::system::System;
use lapsed_postgres::Postgres;
use lapsed_redis::{MirrorLayout, Redis};
use lapsed_testbed::{Engine, RedisServer as Valkey};
use tokio::task::{JoinHandle, block_in_place};

use crate::fixture::{Bench, address, eventually, layout, name, system};

const STALE: Duration = Duration::from_secs(2);
const STALE_MS: u64 = STALE.as_millis() as u64;
const DAEMONS: usize = 4;
const LIVING: usize = 10;
const SILENT: usize = 4;
/// Of the clocks, which are one, only the rounding differs.
const ROUNDING_MS: u64 = 20;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// A sign of life that was answered: when it was sent, and when the answer was there.
type Sign = (u64, u64);

struct Storm {
    b: Bench,
    valkey: Valkey,
    daemons: Vec<Arc<Availability>>,
    signs: Mutex<BTreeMap<Name, Vec<Sign>>>,
    chance: ManualClock,
}

impl Storm {
    async fn begin() -> Arc<Storm> {
        let b = Bench::alone().await;
        let valkey = Valkey::start(Engine::Valkey).unwrap();
        let patch = SettingsPatch {
            stale_after_seconds: Some(STALE.as_secs()),
            heartbeat_cadence_seconds: Some(1),
            ..SettingsPatch::default()
        };
        b.truth.set_settings(&patch).await.unwrap();
        for n in 0..LIVING + SILENT {
            b.there(&[&format!("p{n:02}")]).await;
        }
        let daemons = (0..DAEMONS).map(|_| daemon(&b, &valkey)).collect();
        let storm =
            Storm { b, valkey, daemons, signs: Mutex::default(), chance: ManualClock::at(0) };
        storm.daemons[0].seed().await.unwrap();
        Arc::new(storm)
    }

    fn below(&self, most: usize) -> usize {
        (self.chance.random() % most as u64) as usize
    }

    fn any(&self) -> &Availability {
        &self.daemons[self.below(DAEMONS)]
    }

    fn note(&self, id: &Name, sent_ms: u64) {
        self.signs.lock().unwrap().entry(id.clone()).or_default().push((sent_ms, now_ms()));
    }

    /// A live provider: sends heartbeats, and goes online again when it is answered that it is offline.
    async fn live(self: Arc<Self>, id: Name, stop: StopSignal) {
        while !stop.is_stopped() {
            let sent_ms = now_ms();
            match self.any().heartbeat(std::slice::from_ref(&id)).await {
                Ok(beats) if beats.answer == [ProviderBeat::Noted] => self.note(&id, sent_ms),
                Ok(beats) if beats.answer == [ProviderBeat::Offline] => {
                    let sent_ms = now_ms();
                    if self.any().set_online(&id).await.is_ok() {
                        self.note(&id, sent_ms);
                    }
                }
                Ok(_) | Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    }

    /// Sessions, deactivations and toggles of everybody but the silent.
    async fn bustle(self: Arc<Self>, stop: StopSignal) {
        while !stop.is_stopped() {
            let id = name(&format!("p{:02}", self.below(LIVING)));
            let session = name(&format!("s{:02}", self.below(20)));
            let daemon = self.any();
            // Errors are part of it.
            let _ = match self.below(8) {
                0..3 => {
                    let accept = SessionChange::Accept { session, provider: id };
                    daemon.change_session(&accept).await.map(|_| ())
                }
                3 => {
                    let reroute = SessionChange::Reroute { session, to: id };
                    daemon.change_session(&reroute).await.map(|_| ())
                }
                4 => daemon.change_session(&SessionChange::End { session }).await.map(|_| ()),
                5 => daemon.deactivate(&id).await.map(|_| ()),
                6 => daemon.activate(&id).await.map(|_| ()),
                _ => daemon.set_offline(&id).await.map(|_| ()),
            };
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What a daemon does by itself.
    async fn serve(self: Arc<Self>, at: usize, stop: StopSignal) {
        let daemon = self.daemons[at].clone();
        let sweeper = sweeper(&daemon);
        let passes = async {
            while !stop.is_stopped() {
                sweeper.pass(PassMode::Reclaim, 100, &stop).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        };
        let every = Duration::from_secs(1);
        futures::join!(
            daemon.watch(&stop),
            daemon.mirror_beats_every(every, &stop, || true),
            passes
        );
    }

    fn start(self: &Arc<Self>, stop: &StopSignal) -> Vec<JoinHandle<()>> {
        let mut all = Vec::new();
        for n in 0..LIVING {
            all.push(tokio::spawn(self.clone().live(name(&format!("p{n:02}")), stop.clone())));
        }
        for at in 0..DAEMONS {
            all.push(tokio::spawn(self.clone().serve(at, stop.clone())));
        }
        for _ in 0..3 {
            all.push(tokio::spawn(self.clone().bustle(stop.clone())));
        }
        all
    }

    /// P1: no provider that beat in time was set offline.
    async fn check_flips(&self) {
        let signs = self.signs.lock().unwrap().clone();
        for receipt in self.b.receipts().await {
            let Some(signs) = signs.get(&receipt.key) else { continue };
            let (from_ms, until_ms) = (receipt.at_ms - STALE_MS, receipt.at_ms);
            let in_time = |(sent, acked): &&Sign| {
                *sent > from_ms + ROUNDING_MS && *acked + ROUNDING_MS < until_ms
            };
            assert_eq!(signs.iter().find(in_time), None, "{receipt:?}");
        }
    }

    fn check_books(&self) {
        let wrong = "SELECT count(*) FROM (SELECT status, lag(status) OVER (PARTITION BY mitra_id \
                     ORDER BY id) AS before FROM mitra_online_logs) l WHERE status = before";
        assert_eq!(self.b.sql(wrong), "0", "log rows are flips");
        let wrong = "SELECT count(*) FROM mitra_online_status s WHERE s.is_online IS DISTINCT FROM \
                     (SELECT l.status = 'online' FROM mitra_online_logs l WHERE l.mitra_id = s.mitra_id \
                     ORDER BY l.id DESC LIMIT 1)";
        assert_eq!(self.b.sql(wrong), "0", "and the last one says what is");
    }

    /// Mirror and truth say the same, once they were compared.
    async fn check_agreement(&self) {
        eventually("a reconciliation", async || {
            reconcile(&self.daemons[0], PassMode::Reclaim).await.is_ok()
        })
        .await;
        let left = reconcile(&self.daemons[1], PassMode::DryRun).await.unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
}

async fn reconcile(
    daemon: &Availability,
    act: PassMode,
) -> lapsed_core::Result<Vec<lapsed_core::reconcile::IndexChange>> {
    let (mut changes, mut after) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = after {
        let page = daemon.reconcile(from, 100, act).await?;
        changes.extend(page.changes);
        after = page.next;
    }
    Ok(changes)
}

fn daemon(b: &Bench, valkey: &Valkey) -> Arc<Availability> {
    let hasty = lapsed_postgres::PostgresAddress {
        connect_timeout: Duration::from_secs(1),
        call_timeout: Duration::from_secs(2),
        ..address(&b.url())
    };
    let truth = Postgres::new(&hasty).unwrap().availability(system(), layout()).unwrap();
    let mut place = lapsed_redis::RedisAddress::new(&valkey.url());
    place.response_timeout = Duration::from_millis(500);
    place.connect_timeout = Duration::from_millis(500);
    let mirror = Redis::new(&place).unwrap();
    let mirror = mirror.mirror(system(), MirrorLayout::default(), STALE).unwrap();
    Availability::new(
        AvailabilityParts::new(system(), Arc::new(truth), mirror)
            .brake(Arc::new(Brake::new(BrakePolicy::default(), STALE)))
            .timeout(Duration::from_secs(3))
            .mirror_timeout(Duration::from_millis(500))
            .snapshot_ttl(Duration::from_secs(10)),
    )
}

fn sweeper(daemon: &Arc<Availability>) -> Sweeper {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    Sweeper::new(
        SweeperParts::new(
            format!("storm-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            daemon.sweep(),
            daemon.services(),
        )
        .brake(Arc::new(Brake::new(BrakePolicy::default(), STALE)))
        .policy(Policy { timeout: Duration::from_secs(5), ..Policy::default() }),
    )
}

/// One storm; `strike` does its worst, and returns when all is as it should be again.
async fn rage(strike: impl AsyncFn(&Storm)) {
    let storm = Storm::begin().await;
    let (stopper, stop): (StopHandle, StopSignal) = StopSignal::channel();
    let all = storm.start(&stop);
    let seconds = std::env::var("LAPSED_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = now_ms() + seconds.unwrap_or(4) * 1_000;
    loop {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        strike(&storm).await;
        if now_ms() >= until {
            break;
        }
    }
    // P2: whoever was silent from the beginning is offline, however bad it was.
    eventually("the end of the silent", async || {
        let ids: Vec<Name> = (LIVING..LIVING + SILENT).map(|n| name(&format!("p{n:02}"))).collect();
        storm.b.truth.read(&ids).await.is_ok_and(|states| states.iter().all(|state| !state.online))
    })
    .await;
    // And those who live are there.
    eventually("the living", async || {
        let ids: Vec<Name> = (0..LIVING).map(|n| name(&format!("p{n:02}"))).collect();
        let states = storm.b.truth.read(&ids).await.unwrap_or_default();
        states.iter().filter(|state| state.online).count() > LIVING / 2
    })
    .await;
    stopper.stop();
    for one in all {
        one.await.unwrap();
    }
    storm.check_flips().await;
    storm.check_books();
    storm.check_agreement().await;
}

/// As long as an absence that everybody notices.
async fn away() {
    tokio::time::sleep(Duration::from_millis(1_200)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_hold_while_valkey_is_killed_and_comes_back_empty() {
    rage(async |storm: &Storm| {
        block_in_place(|| storm.valkey.kill().unwrap());
        away().await;
        block_in_place(|| storm.valkey.restart().unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_hold_while_valkey_is_frozen() {
    rage(async |storm: &Storm| {
        block_in_place(|| storm.valkey.freeze().unwrap());
        away().await;
        block_in_place(|| storm.valkey.thaw().unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_hold_while_valkey_is_emptied() {
    rage(async |storm: &Storm| {
        block_in_place(|| storm.valkey.command(&["FLUSHALL"]).unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_hold_while_postgres_is_killed() {
    rage(async |storm: &Storm| {
        block_in_place(|| storm.b.server.kill().unwrap());
        away().await;
        block_in_place(|| storm.b.server.restart().unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_hold_while_postgres_is_frozen() {
    rage(async |storm: &Storm| {
        block_in_place(|| storm.b.server.freeze().unwrap());
        away().await;
        block_in_place(|| storm.b.server.thaw().unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_hold_while_both_are_killed() {
    rage(async |storm: &Storm| {
        block_in_place(|| storm.valkey.kill().unwrap());
        block_in_place(|| storm.b.server.kill().unwrap());
        away().await;
        block_in_place(|| storm.b.server.restart().unwrap());
        block_in_place(|| storm.valkey.restart().unwrap());
    })
    .await;
}
