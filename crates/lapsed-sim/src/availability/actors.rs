//! The processes of a run: daemons that serve and sweep, providers that beat, toggle and fall
//! silent, customers with sessions, and an operator.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::channel::oneshot;
use lapsed_availability::{Availability, AvailabilityParts, ProviderBeat, SessionChange};
use lapsed_core::Name;
use lapsed_core::clock::{Clock, within};
use lapsed_core::reconcile::Reconcile;
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Cursor, PassMode, Sweeper, SweeperParts};
use lapsed_core::system::System;

use crate::availability::event_log::STALE_MS;
use crate::availability::{AvailabilityContext, PROVIDERS, provider};
use crate::executor::{Process, ProcessClock};

/// How often a provider beats.
const CADENCE_MS: u64 = 3_000;

#[derive(Clone)]
pub struct SimDaemon {
    pub process: Process,
    pub it: Arc<Availability>,
    pub clock: Arc<dyn Clock>,
}

/// The settings are not read yet when a daemon starts, so its brake is told how long silence lasts.
fn brake() -> Arc<Brake> {
    Arc::new(Brake::new(BrakePolicy::default(), Duration::from_millis(STALE_MS)))
}

impl SimDaemon {
    /// A daemon in a new process, with its own clock and connections.
    pub fn new(context: &AvailabilityContext) -> SimDaemon {
        let process = context.world.new_process();
        let off_ms = context.world.random.between(0, 60_000) as i64 - 30_000;
        let clock = ProcessClock::shared(&context.world, off_ms);
        let (truth, mirror) = context.lines();
        let it = Availability::new(
            AvailabilityParts::new(context.id.clone(), truth, mirror)
                .brake(brake())
                .clock(clock.clone())
                .timeout(Duration::from_secs(3))
                .mirror_timeout(Duration::from_millis(400))
                .snapshot_ttl(Duration::from_secs(10)),
        );
        SimDaemon { process, it, clock }
    }

    /// Starts a daemon's background tasks.
    pub fn begin(&self, context: &AvailabilityContext) {
        let world = &context.world;
        world.spawn(self.process, self.clone().brake_model());
        world.spawn(self.process, self.clone().sweep());
        world.spawn(self.process, self.clone().reconcile());
        world.spawn(self.process, self.clone().mirror_beats());
    }

    async fn brake_model(self) {
        loop {
            let _ = self.it.look_after().await;
            self.clock.sleep(Duration::from_secs(1)).await;
        }
    }

    async fn mirror_beats(self) {
        let every = Duration::from_secs(5 + self.clock.random() % 10);
        loop {
            self.clock.sleep(every).await;
            let _ = self.it.mirror_beats().await;
        }
    }

    async fn sweep(self) {
        let sweeper = Sweeper::new(
            SweeperParts::new(
                format!("daemon-{}", self.process),
                self.it.sweep(),
                self.it.services(),
            )
            .policy(Policy { timeout: Duration::from_secs(10), ..Policy::default() })
            .brake(brake())
            .clock(self.clock.clone()),
        );
        let (_stopper, stop) = StopSignal::channel();
        loop {
            self.clock.sleep(Duration::from_millis(2_000 + self.clock.random() % 2_000)).await;
            sweeper.pass(PassMode::Reclaim, 0, &stop).await;
        }
    }

    async fn reconcile(self) {
        loop {
            self.clock.sleep(Duration::from_secs(12)).await;
            let mut after = Some(Cursor::default());
            while let Some(from) = after {
                let page = self.it.reconcile(from, 3, PassMode::Reclaim).await;
                after = page.ok().and_then(|page| page.next);
            }
        }
    }
}

/// The running daemons; a client picks any of them.
#[derive(Clone, Default)]
pub struct Fleet(Arc<Mutex<Vec<SimDaemon>>>);

impl Fleet {
    pub fn lock(&self) -> std::sync::MutexGuard<'_, Vec<SimDaemon>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client outside the daemons; it is never killed.
#[derive(Clone)]
pub struct ProviderClient {
    pub context: Arc<AvailabilityContext>,
    pub fleet: Fleet,
}

impl ProviderClient {
    /// Sends one request to a random daemon. It runs in that daemon's process and may be killed
    /// with it.
    async fn ask<T, F>(&self, request: impl FnOnce(Arc<Availability>) -> F) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = lapsed_core::Result<T>> + Send + 'static,
    {
        let world = &self.context.world;
        let daemon = world.random.pick(&self.fleet.lock())?.clone();
        let (sender, answer) = oneshot::channel();
        let work = request(daemon.it.clone());
        world.spawn(daemon.process, async move {
            let _ = sender.send(work.await);
        });
        let clock = ProcessClock::shared(world, 0);
        within(&*clock, Duration::from_secs(8), answer).await?.ok()?.ok()
    }

    async fn pause(&self, low_ms: u64, high_ms: u64) {
        let pause = self.context.world.random.between(low_ms, high_ms);
        self.context.world.sleep(Duration::from_millis(pause)).await;
    }

    /// A provider: beats for a while, and sometimes falls silent for longer than the threshold.
    pub async fn live(self, number: usize) {
        let id = provider(number);
        let random = &self.context.world.random;
        while !self.context.is_over() {
            let name = id.clone();
            let _ = self.ask(|it| async move { it.set_online(&name).await }).await;
            for _ in 0..random.between(1, 20) {
                self.pause(CADENCE_MS / 2, CADENCE_MS).await;
                match self.beat(&id).await {
                    Some(ProviderBeat::Offline) => break,
                    Some(ProviderBeat::Deactivated) => self.pause(1_000, 5_000).await,
                    _ => {}
                }
                if self.context.is_over() {
                    return;
                }
            }
            match random.between(0, 3) {
                0 => {
                    let name = id.clone();
                    let _ = self.ask(|it| async move { it.set_offline(&name).await }).await;
                    self.pause(0, 10_000).await;
                }
                1 => self.pause(STALE_MS / 2, 3 * STALE_MS).await,
                _ => {}
            }
        }
    }

    /// Beats until the run ends. Once the faults have ended, this provider must stay online.
    pub async fn last(self, number: usize) {
        let id = provider(number);
        loop {
            if self.beat(&id).await == Some(ProviderBeat::Offline) {
                let name = id.clone();
                let _ = self.ask(|it| async move { it.set_online(&name).await }).await;
            }
            self.pause(CADENCE_MS / 2, CADENCE_MS).await;
        }
    }

    /// Beats, and checks P5: a provider that the mirror had as online may be answered `Offline`
    /// only if it was set offline.
    async fn beat(&self, id: &Name) -> Option<ProviderBeat> {
        let ids = [id.clone()];
        let is_told = self.context.is_told(id).await == Some(true);
        let before = self.context.online(id).await.filter(|_| is_told);
        let beats = self.ask(|it| async move { it.heartbeat(&ids).await }).await?;
        let beat = beats.answer.first().copied();
        if beat == Some(ProviderBeat::Offline)
            && before.is_some()
            && self.context.online(id).await == before
        {
            self.context.log.told_offline(id, beats.source);
        }
        beat
    }

    /// Customers: sessions that are accepted, moved and ended; and the lists of available providers that they read.
    pub async fn serve(self, number: usize) {
        let random = &self.context.world.random;
        let mut made = 0;
        while !self.context.is_over() {
            made += 1;
            let session = Name::new(&format!("s{number}-{made}")).expect("it is a name");
            let someone = || provider(random.between(0, PROVIDERS as u64 - 1) as usize);
            let mut changes =
                vec![SessionChange::Accept { session: session.clone(), provider: someone() }];
            if random.odds(0.5) {
                changes.push(SessionChange::Reroute { session: session.clone(), to: someone() });
            }
            if random.odds(0.9) {
                changes.push(SessionChange::End { session });
            }
            for change in changes {
                let _ = self.ask(|it| async move { it.change_session(&change).await }).await;
                self.pause(0, 2_000).await;
                let after = Cursor::default();
                let _ = self.ask(|it| async move { it.available(&after, 100).await }).await;
            }
        }
    }

    /// An operator who deactivates providers and activates them again.
    pub async fn operate(self) {
        let random = &self.context.world.random;
        while !self.context.is_over() {
            self.pause(2_000, 15_000).await;
            let id = provider(random.between(0, PROVIDERS as u64 - 1) as usize);
            let name = id.clone();
            let _ = self.ask(|it| async move { it.deactivate(&name).await }).await;
            self.pause(0, 8_000).await;
            // Repeated until it succeeds, so that no provider stays inactive.
            while self.ask(activating(id.clone())).await.is_none() {
                self.pause(500, 1_000).await;
            }
        }
    }
}

type Activating = futures::future::BoxFuture<'static, lapsed_core::Result<()>>;

fn activating(id: Name) -> impl FnOnce(Arc<Availability>) -> Activating {
    move |it| Box::pin(async move { it.activate(&id).await.map(|_| ()) })
}
