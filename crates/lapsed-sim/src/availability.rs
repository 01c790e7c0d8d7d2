//! Availability: daemons on a truth and a mirror, each of which stands still, loses answers or (the mirror)
//! everything; providers that beat through any daemon; under a virtual clock, from one seed.
//!
//! Read in this order: [`executor`](crate::executor) (runs the futures one step at a time, in the
//! order of the seed), [`exchange`] (requests and answers), [`actors`] (the processes),
//! [`event_log`] (what really happened, checked at once), [`bug`] (the bugs that the simulation
//! must find).

pub mod actors;
pub mod bug;
pub mod event_log;
pub mod exchange;
pub mod mirror_connection;
pub mod truth_connection;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapsed_availability::memory::MemoryMirror;
use lapsed_availability::rules::SettingsPatch;
use lapsed_availability::{Mirror, ProviderProfile, ProviderState, Truth};
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::reconcile::Reconcile;
use lapsed_core::sweep::{Cursor, PassMode};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_embedded::{Embedded, EmbeddedTruth, Options};

use crate::availability::actors::{Fleet, ProviderClient, SimDaemon};
use crate::availability::bug::AvailabilityBug;
use crate::availability::event_log::{AvailabilityLog, STALE_MS};
use crate::availability::exchange::{Exchange, MirrorFaults};
use crate::availability::mirror_connection::MirrorConnection;
use crate::availability::truth_connection::TruthConnection;
use crate::executor::{Executor, ProcessClock, World};
use crate::promise::{Broken, BrokenPromise, Checked, Promise, holds};

/// The name of this simulation for `--scenario`.
pub const SCENARIO: &str = "availability";

/// How many providers there are; the last two are never silent.
pub const PROVIDERS: usize = 8;

/// How long the phase with faults lasts.
const FAULTS_FOR: Duration = Duration::from_secs(200);

/// How long the mirror may be silent before that counts as an absence.
const GAP: Duration = Duration::from_secs(4);

/// A run in which no promise was broken.
#[derive(Clone, Debug)]
pub struct AvailabilityRunReport {
    /// How often each kind of event happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// A hash of its trace, and how many lines it has.
    pub digest: (u64, u64),
}

/// The name of a provider.
pub fn provider(number: usize) -> Name {
    Name::new(&format!("m{number}")).expect("it is a name")
}

pub fn run(
    seed: u64,
    bug: Option<AvailabilityBug>,
    printed: bool,
) -> Result<AvailabilityRunReport, Box<BrokenPromise>> {
    let world = World::new(seed, printed);
    let context = Arc::new(AvailabilityContext::new(&world, bug));
    let mut executor = Executor::new(&world);
    let fleet = context.begin(&mut executor);
    context.inject_faults(&mut executor, &fleet);
    let judged = context.settle_and_judge(&mut executor, &fleet);
    let record = context.log.lock().broken.take();
    match record.map_or(judged, Err) {
        Ok(()) => {
            let counts = context.log.lock().counts.clone();
            Ok(AvailabilityRunReport { counts, digest: world.trace().digest() })
        }
        Err(broken) => {
            let (at_ms, tail) = (world.now().as_millis() as u64, world.trace().tail());
            Err(Box::new(BrokenPromise { seed, scenario: SCENARIO, at_ms, broken, tail }))
        }
    }
}

/// The stores, the log and the world of one run.
pub struct AvailabilityContext {
    pub world: Arc<World>,
    pub log: Arc<AvailabilityLog>,
    pub id: SystemId,
    truth: Arc<EmbeddedTruth>,
    mirror: Arc<MemoryMirror>,
    truth_end: Arc<Exchange>,
    mirror_end: Arc<Exchange>,
    over: AtomicBool,
    bug: Option<AvailabilityBug>,
}

impl AvailabilityContext {
    fn new(world: &Arc<World>, bug: Option<AvailabilityBug>) -> AvailabilityContext {
        // The clocks of the two stores are seconds apart (C11).
        let apart = |world: &Arc<World>| {
            let off_ms = world.random.between(0, 120_000) as i64 - 60_000;
            ProcessClock::shared(world, off_ms)
        };
        let options = Options { clock: apart(world), ..Options::default() };
        let store = Embedded::in_memory(options).expect("a store in memory opens");
        let id = SystemId::new(Kind::Availability, "mitras").expect("it is well-formed");
        let truth = store.availability(id.clone()).expect("it opens");
        AvailabilityContext {
            log: AvailabilityLog::new(world),
            truth,
            mirror: Arc::new(MemoryMirror::new(apart(world), Some(GAP))),
            truth_end: Exchange::new(world),
            mirror_end: Exchange::new(world),
            over: AtomicBool::new(false),
            world: world.clone(),
            id,
            bug,
        }
    }

    /// Whether clients should start nothing new.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// If the provider is online in the truth: how often it was toggled. If a later call returns
    /// the same number, it was online all the time.
    pub async fn online(&self, id: &Name) -> Option<usize> {
        let flaps = self.truth.log(id, 10_000).await.ok()?.len();
        self.state(id).await?.online.then_some(flaps)
    }

    /// Whether the mirror has the provider's newest epoch.
    pub async fn is_told(&self, id: &Name) -> Option<bool> {
        let seen =
            self.mirror.look(std::slice::from_ref(id)).await.ok()?.seen.into_iter().next()?;
        Some(seen.epoch == self.state(id).await?.epoch)
    }

    async fn state(&self, id: &Name) -> Option<ProviderState> {
        self.truth.read(std::slice::from_ref(id)).await.ok()?.into_iter().next()
    }

    /// Connections of one process to both stores.
    fn lines(&self) -> (Arc<dyn Truth>, Arc<dyn Mirror>) {
        let truth = TruthConnection {
            exchange: self.truth_end.clone(),
            truth: self.truth.clone(),
            log: self.log.clone(),
            bug: self.bug,
        };
        let mirror = MirrorConnection {
            world: self.world.clone(),
            exchange: self.mirror_end.clone(),
            mirror: self.mirror.clone(),
            log: self.log.clone(),
            bug: self.bug,
        };
        (Arc::new(truth), Arc::new(mirror))
    }

    /// Starts daemons, providers and clients, without faults.
    fn begin(self: &Arc<Self>, executor: &mut Executor) -> Fleet {
        let truth = self.truth.clone();
        self.world.spawn(0, async move {
            let patch = SettingsPatch {
                stale_after_seconds: Some(STALE_MS / 1_000),
                heartbeat_cadence_seconds: Some(3),
                ..SettingsPatch::default()
            };
            truth.set_settings(&patch).await.expect("they make sense");
            for number in 0..PROVIDERS {
                let profile = ProviderProfile { id: provider(number), display_name: None };
                truth.put_provider(&profile).await.expect("it is written");
            }
        });
        executor.run(self.world.now() + Duration::from_secs(1));
        let fleet = Fleet::default();
        for _ in 0..3 {
            let daemon = SimDaemon::new(self);
            daemon.begin(self);
            fleet.lock().push(daemon);
        }
        let client = ProviderClient { context: self.clone(), fleet: fleet.clone() };
        for number in 0..PROVIDERS {
            match number < PROVIDERS - 2 {
                true => self.world.spawn(0, client.clone().live(number)),
                false => self.world.spawn(0, client.clone().last(number)),
            }
        }
        self.world.spawn(0, client.clone().serve(1));
        self.world.spawn(0, client.clone().serve(2));
        self.world.spawn(0, client.operate());
        fleet
    }

    /// Injects faults into daemons, stores and connections until the phase with faults ends.
    fn inject_faults(self: &Arc<Self>, executor: &mut Executor, fleet: &Fleet) {
        let random = &self.world.random;
        let end = self.world.now() + FAULTS_FOR;
        while self.world.now() < end {
            self.truth_end.set_faults(self.faults());
            self.mirror_end.set_faults(self.faults());
            self.inject_one_fault(fleet);
            executor.run(self.world.now() + Duration::from_millis(random.between(500, 9_000)));
            if self.log.lock().broken.is_some() {
                return;
            }
        }
    }

    fn faults(&self) -> MirrorFaults {
        match self.world.random.between(0, 4) {
            0 | 1 => MirrorFaults { slow_ms: 5, ..MirrorFaults::default() },
            2 => MirrorFaults { lost: 0.05, unanswered: 0.05, refused: 0.05, slow_ms: 50 },
            3 => MirrorFaults { slow_ms: 1_500, ..MirrorFaults::default() },
            _ => MirrorFaults { lost: 0.2, unanswered: 0.2, refused: 0.3, slow_ms: 200 },
        }
    }

    fn inject_one_fault(self: &Arc<Self>, fleet: &Fleet) {
        let (world, random) = (&self.world, &self.world.random);
        let which = random.between(0, 2) as usize;
        let daemon = fleet.lock()[which].clone();
        let [truth, mirror] = [self.truth_end.server, self.mirror_end.server];
        match random.between(0, 8) {
            0 => {
                world.note("chaos", format_args!("daemon {} is killed", daemon.process));
                world.kill(daemon.process);
                let next = SimDaemon::new(self);
                next.begin(self);
                fleet.lock()[which] = next;
                self.log.count("daemons killed");
            }
            1 => {
                world.note("chaos", format_args!("daemon {} stands still", daemon.process));
                world.freeze(daemon.process);
            }
            2 => {
                world.note("chaos", format_args!("the mirror loses everything"));
                self.lose_mirror();
                self.log.count("mirrors lost");
            }
            3 => {
                world.note("chaos", format_args!("the mirror stands still"));
                world.freeze(mirror);
                self.log.count("mirrors frozen");
            }
            4 => {
                world.note("chaos", format_args!("the truth stands still"));
                world.freeze(truth);
            }
            _ => self.thaw(fleet),
        }
    }

    fn thaw(&self, fleet: &Fleet) {
        self.world.thaw(self.truth_end.server);
        self.world.thaw(self.mirror_end.server);
        fleet.lock().iter().for_each(|daemon| self.world.thaw(daemon.process));
    }

    fn lose_mirror(&self) {
        self.mirror.lose();
        if self.bug == Some(AvailabilityBug::UnseededAnswers) {
            let mirror = self.mirror.clone();
            self.world.spawn(0, async move {
                let attempt = mirror.begin_seed().await.expect("memory answers");
                mirror.end_seed(&attempt).await.expect("memory answers");
            });
        }
    }

    /// Ends all faults and lets all but two providers fall silent; then checks both stores.
    fn settle_and_judge(self: &Arc<Self>, executor: &mut Executor, fleet: &Fleet) -> Checked {
        self.truth_end.set_faults(MirrorFaults::default());
        self.mirror_end.set_faults(MirrorFaults::default());
        self.thaw(fleet);
        self.over.store(true, Ordering::Relaxed);
        self.world.note("chaos", format_args!("no more faults"));
        executor
            .run(self.world.now() + Duration::from_secs(60) + 4 * Duration::from_millis(STALE_MS));
        let judging = SimDaemon::new(self);
        let told = Arc::new(std::sync::Mutex::new(None));
        let (context, answer) = (self.clone(), told.clone());
        self.world.spawn(judging.process, async move {
            let judged = context.judge(&judging).await;
            *answer.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(judged);
        });
        executor.run(self.world.now() + Duration::from_secs(30));
        let judged = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        judged.unwrap_or_else(|| {
            Err(Broken::new(Promise::P2, "no answer although there are no faults any more"))
        })
    }

    async fn judge(&self, daemon: &SimDaemon) -> Checked {
        let failed = |error: lapsed_core::Error| Broken::new(Promise::P2, error.to_string());
        let mut after = Some(Cursor::default());
        while let Some(from) = after {
            let page = daemon.it.reconcile(from, 100, PassMode::DryRun).await.map_err(failed)?;
            holds(page.changes.is_empty(), Promise::P8, || format!("{:?}", page.changes))?;
            after = page.next;
        }
        for number in 0..PROVIDERS {
            let id = provider(number);
            let states = self.truth.read(std::slice::from_ref(&id)).await.map_err(failed)?;
            let (state, incarnations) = (&states[0], number >= PROVIDERS - 2);
            holds(incarnations || !state.online, Promise::P2, || {
                format!("silent, and online: {state:?}")
            })?;
            holds(!incarnations || !state.active || state.online, Promise::P1, || {
                format!("beating, and offline: {state:?}")
            })?;
            // A late request to deactivate may have come last, so an inactive provider may be
            // offline.
            let log = self.truth.log(&id, 10_000).await.map_err(failed)?;
            let alternates = log.windows(2).all(|two| two[0].online != two[1].online);
            holds(alternates, Promise::P3, || format!("the log of {id} is {log:?}"))?;
        }
        self.judge_receipts().await
    }

    /// P3: there is exactly one receipt for each time that a silent provider was set offline.
    async fn judge_receipts(&self) -> Checked {
        let query = ReceiptQuery { after: Some(0), before: None, limit: 100_000 };
        let receipts = self.truth.services().receipts(&self.id, query).await;
        let receipts = receipts.map_err(|error| Broken::new(Promise::P3, error.to_string()))?;
        let mut seen = BTreeSet::new();
        for receipt in &receipts {
            let first = seen.insert((receipt.key.clone(), receipt.incarnation));
            holds(first, Promise::P3, || format!("twice: {receipt:?}"))?;
        }
        let flips = self.log.lock().counts.get("reclaimed").copied().unwrap_or(0);
        holds(receipts.len() as u64 == flips, Promise::P3, || {
            format!("{} receipts for {flips} flips", receipts.len())
        })
    }
}
