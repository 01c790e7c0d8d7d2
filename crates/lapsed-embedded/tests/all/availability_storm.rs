//! The availability protocol with several daemons on the embedded truth and a mirror in memory.
//! Calls are slow, fail before or after they were carried out, and the mirror loses its data or is
//! written to by another program. Everything depends on the seed: a failing seed replays exactly.
//!
//! What must hold: no provider that sent heartbeats in time is set offline (P1), no silent provider
//! is available, each flip has one log row, and after the faults end mirror and truth agree and
//! every silent provider is offline (P2, P8).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fixture::providers::{Bench, batch, name};
use crate::fixture::shaky::{Chance, Shaky};
use futures::future::join_all;
use lapsed_availability::memory::MemoryMirror;
use lapsed_availability::{
    Availability, AvailabilityParts, Mirror, ProviderBeat, SessionChange, Truth, WorkSession,
};
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::reconcile::Reconcile;
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::{Batch, Cursor, PageRequest, PassMode, Sweep};
use lapsed_embedded::LogStatus;

const DAEMONS: u64 = 3;
const PROVIDERS: u64 = 4;
const SESSIONS: u64 = 8;
const STALE: Duration = Duration::from_secs(90);

/// Time of each provider's last heartbeat, on the manual clock.
#[derive(Default)]
struct Signs {
    sure_ms: BTreeMap<String, u64>,
    /// Times of heartbeats that may have arrived.
    perhaps_ms: BTreeMap<String, u64>,
}

struct Storm {
    seed: u64,
    chance: Chance,
    clock: ManualClock,
    b: Bench,
    mirror: Arc<MemoryMirror>,
    daemons: Vec<Arc<Availability>>,
    signs: Mutex<Signs>,
    number: Mutex<u64>,
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let (b, clock) = Bench::in_memory();
        let chance = Chance::new(seed);
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let mirror = Arc::new(MemoryMirror::new(shared.clone(), None));
        let daemon = |_| {
            let truth: Arc<dyn Truth> = b.truth.clone();
            let reflected: Arc<dyn Mirror> = mirror.clone();
            Availability::new(
                AvailabilityParts::new(
                    crate::fixture::providers::system(),
                    Arc::new(Shaky { inner: truth, chance: chance.clone() }),
                    Arc::new(Shaky { inner: reflected, chance: chance.clone() }),
                )
                .brake(Arc::new(Brake::new(BrakePolicy::default(), STALE)))
                .clock(shared.clone())
                .timeout(Duration::from_secs(5))
                .mirror_timeout(Duration::from_secs(1))
                .snapshot_ttl(Duration::from_secs(10)),
            )
        };
        let daemons = (0..DAEMONS).map(daemon).collect();
        let (signs, number) = (Mutex::default(), Mutex::new(0));
        Storm { seed, chance, clock, b, mirror, daemons, signs, number }
    }

    fn now_ms(&self) -> u64 {
        self.clock.mono().as_millis() as u64
    }

    fn perhaps(&self, id: &str) {
        self.signs.lock().unwrap().perhaps_ms.insert(id.to_owned(), self.now_ms());
    }

    fn sure(&self, id: &str) {
        self.signs.lock().unwrap().sure_ms.insert(id.to_owned(), self.now_ms());
    }

    /// Runs a pass without the brake; its flips are checked after the round.
    async fn sweep(&self, daemon: &Availability) -> lapsed_core::Result<()> {
        daemon.survey(lapsed_core::sweep::PassMode::Reclaim).await?;
        let request = PageRequest { after: Cursor::default(), limit: 100, undeclared_max: None };
        let suspects = daemon.suspects(request).await?.suspects;
        let number = {
            let mut number = self.number.lock().unwrap();
            *number += 1;
            *number
        };
        daemon.reclaim(Batch { suspects, ..batch(number) }).await?;
        Ok(())
    }

    /// One random operation of a daemon. Errors are expected.
    async fn act(&self, daemon: &Availability) -> lapsed_core::Result<()> {
        self.chance.linger().await;
        let p = format!("p{}", self.chance.below(PROVIDERS));
        let id = name(&p);
        match self.chance.below(20) {
            0..=6 => {
                self.perhaps(&p);
                if daemon.heartbeat(&[id]).await?.answer == [ProviderBeat::Noted] {
                    self.sure(&p);
                }
            }
            7..=8 => {
                self.perhaps(&p);
                if daemon.set_online(&id).await?.is_some() {
                    self.sure(&p);
                }
            }
            9 => drop(daemon.set_offline(&id).await?),
            10 => drop(daemon.deactivate(&id).await?),
            11 => drop(daemon.activate(&id).await?),
            12..=14 => {
                let session = name(&format!("s{}", self.chance.below(SESSIONS)));
                let change = match self.chance.below(4) {
                    0 | 1 => SessionChange::Accept { session, provider: id },
                    2 => SessionChange::Reroute { session, to: id },
                    _ => SessionChange::End { session },
                };
                daemon.change_session(&change).await?;
            }
            15..=16 => self.sweep(daemon).await?,
            17 => drop(daemon.mirror_beats().await?),
            18 => {
                daemon.reconcile(Cursor::default(), 100, PassMode::Reclaim).await?;
            }
            _ => daemon.look_after().await?,
        }
        Ok(())
    }

    /// No silent provider is available by either store.
    async fn check_available(&self) {
        let now_ms = self.now_ms();
        for daemon in &self.daemons {
            let Ok(found) = daemon.available(&Cursor::default(), 100).await else { continue };
            for one in found.answer.available {
                let signs = self.signs.lock().unwrap();
                let last_ms = signs.perhaps_ms.get(one.id.as_str()).copied();
                let fresh = last_ms.is_some_and(|at_ms| now_ms - at_ms < STALE.as_millis() as u64);
                assert!(fresh, "seed {}: {} is silent since {last_ms:?}", self.seed, one.id);
            }
        }
    }

    /// P1: no provider set offline in this round had sent a heartbeat in time.
    async fn check_flips(&self, before: usize, signs: &BTreeMap<String, u64>) {
        let now_ms = self.now_ms();
        for receipt in &self.b.receipts().await[before..] {
            let last_ms = signs.get(receipt.key.as_str()).copied().unwrap_or(0);
            let silent = now_ms - last_ms >= STALE.as_millis() as u64;
            assert!(silent, "seed {}: {} beat at {last_ms}, now {now_ms}", self.seed, receipt.key);
        }
    }

    async fn round(&self) {
        let before = self.b.receipts().await.len();
        let signs = self.signs.lock().unwrap().sure_ms.clone();
        let acts = (0..6).map(|n| self.act(&self.daemons[n % DAEMONS as usize]));
        join_all(acts).await;
        self.check_flips(before, &signs).await;
        self.check_available().await;
        match self.chance.below(25) {
            0 => self.mirror.lose(),
            1..=3 => self.tamper(),
            _ => {}
        }
        self.clock.advance(Duration::from_millis(self.chance.below(30_000)));
    }

    /// Another program writes to the mirror.
    fn tamper(&self) {
        let id = name(&format!("p{}", self.chance.below(PROVIDERS)));
        let wrong = self.chance.below(3);
        self.mirror.tamper(&id, |row| match wrong {
            0 => row.sessions = 7,
            1 => row.deactivated = !row.deactivated,
            _ => (row.online, row.beat_ms) = (false, None),
        });
    }

    /// A live provider whose heartbeats reach only the truth is available after the next pass.
    async fn revive(&self) {
        self.clock.advance(STALE);
        let states = self.b.truth.page(None, 100).await.unwrap();
        let living = states.into_iter().filter(|state| state.online && state.active);
        let living: Vec<_> = living.map(|state| state.id).collect();
        let noted = vec![ProviderBeat::Noted; living.len()];
        assert_eq!(self.b.truth.beat(&living).await.unwrap(), noted);
        living.iter().for_each(|id| {
            self.perhaps(id.as_str());
            self.sure(id.as_str());
        });
        self.sweep(&self.daemons[2]).await.unwrap();
        let beats = self.daemons[1].heartbeat(&living).await.unwrap().answer;
        assert_eq!(beats, noted, "seed {}: {living:?}", self.seed);
    }

    /// Runs without faults until mirror and truth agree.
    async fn calm(&self) {
        self.chance.failing(0);
        // The circuit breaker lets a probe through.
        self.clock.advance(Duration::from_secs(60));
        for daemon in &self.daemons {
            daemon.look_after().await.unwrap();
        }
        self.reconcile(PassMode::Reclaim).await;
        let left = self.reconcile(PassMode::DryRun).await;
        assert!(left.is_empty(), "seed {}: {left:?}", self.seed);
    }

    async fn reconcile(&self, act: PassMode) -> Vec<lapsed_core::reconcile::IndexChange> {
        let (mut changes, mut after) = (Vec::new(), Some(Cursor::default()));
        while let Some(from) = after {
            let page = self.daemons[0].reconcile(from, 3, act).await.unwrap();
            changes.extend(page.changes);
            after = page.next;
        }
        changes
    }

    /// P2: all heartbeats stop, so that in the end nobody is online.
    async fn end(&self) {
        for _ in 0..6 {
            self.clock.advance(STALE);
            let before = self.b.receipts().await.len();
            let signs = self.signs.lock().unwrap().sure_ms.clone();
            self.sweep(&self.daemons[1]).await.unwrap();
            self.check_flips(before, &signs).await;
        }
        let states = self.b.truth.page(None, 100).await.unwrap();
        assert!(states.iter().all(|state| !state.online), "seed {}: {states:?}", self.seed);
        let left = self.reconcile(PassMode::DryRun).await;
        assert!(left.is_empty(), "seed {}: {left:?}", self.seed);
        assert_eq!(
            self.mirror.presence(90_000).await.unwrap().pending_offline,
            0,
            "seed {}",
            self.seed
        );
    }

    /// Checks that the log alternates and that the counts equal the sessions.
    async fn check_books(&self) {
        let log = self.b.log();
        for state in self.b.truth.page(None, 100).await.unwrap() {
            let mine: Vec<LogStatus> =
                log.iter().filter(|row| row.0 == state.id.as_str()).map(|row| row.1).collect();
            assert!(mine.windows(2).all(|pair| pair[0] != pair[1]), "seed {}: {mine:?}", self.seed);
            let online = mine.last() == Some(&LogStatus::Online);
            assert_eq!(online, state.online, "seed {}", self.seed);
            let mut sessions = 0;
            for n in 0..SESSIONS {
                let session = self.b.session(&format!("s{n}")).await.filter(WorkSession::occupies);
                sessions +=
                    u64::from(session.is_some_and(|s| s.provider == Some(state.id.clone())));
            }
            assert_eq!(state.sessions, sessions, "seed {}", self.seed);
        }
        let receipts = self.b.receipts().await.len();
        let offline = log.iter().filter(|row| row.1 == LogStatus::Offline).count();
        assert!(receipts <= offline, "seed {}", self.seed);
    }
}

async fn tell(seed: u64) -> usize {
    let storm = Storm::new(seed);
    for n in 0..PROVIDERS {
        storm.b.add(&format!("p{n}")).await;
    }
    storm.daemons[0].seed().await.unwrap();
    storm.chance.failing(8);
    for _ in 0..60 {
        storm.round().await;
    }
    storm.check_books().await;
    storm.calm().await;
    storm.revive().await;
    storm.end().await;
    storm.check_books().await;
    storm.b.receipts().await.len()
}

#[tokio::test]
async fn random_faults_never_set_live_providers_offline_or_keep_dead_ones() {
    let mut flips = 0;
    for seed in 1..=60 {
        flips += tell(seed).await;
    }
    assert!(flips > 60, "{flips} flips: the storms were too calm to show anything");
}
