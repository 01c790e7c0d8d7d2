//! Sweepers: the real engine on a wire of its own, and an account of what each has reported.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_core::activity::Activity;
use lapsed_core::clock::Clock;
use lapsed_core::leader::{Campaign, Leadership, TermOptions};
use lapsed_core::receipt::{Observer, Receipt, Retention};
use lapsed_core::schedule::{self, StopHandle, StopSignal};
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::policy::{Policy, SweepMode};
use lapsed_core::sweep::{PassReport, Sweeper, SweeperParts};
use lapsed_core::{Error, SystemId};
use tokio::task::JoinHandle;

use crate::bug::Bug;
use crate::bug::clock::{Wish, Wishful};
use crate::bug::sweep::Tampered;
use crate::clock::ProcessTime;
use crate::ground::system;
use crate::promise::{Broken, Promise};
use crate::remote::SimRemote;
use crate::scene::{EVERY_MS, JITTER, Scene, THRESHOLD_MS};
use crate::world::SimWorld;

/// A sweeper that takes part.
pub struct Crewed {
    pub process: Arc<ProcessTime>,
    /// What it has reported.
    pub tally: Arc<Tally>,
    /// To tell it to stop.
    pub stopper: StopHandle,
    /// Its tasks: the passes, the campaign.
    pub tasks: Vec<JoinHandle<()>>,
}

/// What a sweeper reported: the other side of the receipts.
pub struct Tally {
    world: Arc<SimWorld>,
    remote: Arc<SimRemote>,
    reported: AtomicU64,
    seen: Mutex<BTreeSet<u64>>,
}

impl Tally {
    /// How many reclaims it reported in all.
    pub fn reported(&self) -> u64 {
        self.reported.load(Ordering::Relaxed)
    }
}

impl Observer for Tally {
    fn reclaimed(&self, receipt: &Receipt) {
        let first = self.seen.lock().expect("nobody panics here").insert(receipt.id.seq);
        if !first {
            let what = format!("receipt {} was told twice", receipt.id);
            self.world.check(Err(Broken::new(Promise::P3, what)));
        }
    }

    fn passed(&self, report: &PassReport) {
        if !report.dry_run {
            self.reported.fetch_add(report.reclaimed, Ordering::Relaxed);
        }
    }

    fn store_error(&self, _: &SystemId, error: &Error) {
        if matches!(error, Error::Unavailable { .. }) {
            self.remote.watch.lock().expect("nobody panics here").note_unreachable();
        }
    }
}

pub fn join(scene: &Arc<Scene>) {
    let name = scene.fresh("sweeper");
    let process = scene.process(&name);
    let policy = policy(scene);
    let remote = scene.remote_for(&process, policy.mode, policy.batch);
    let clock = scene.clock(&process);
    let tally = Arc::new(Tally {
        world: scene.world.clone(),
        remote: remote.clone(),
        reported: AtomicU64::new(0),
        seen: Mutex::default(),
    });
    let (stopper, stop) = StopSignal::channel();
    let mut tasks = Vec::new();
    let leadership = (policy.mode == SweepMode::Leader).then(|| {
        let (leadership, task) = stand(scene, &name, &remote, &clock, stop.clone());
        tasks.push(task);
        leadership
    });
    let sweeper = Arc::new(Sweeper::new(SweeperParts {
        name: name.clone(),
        sweep: Tampered::wrap(remote.clone(), scene.world.bug()),
        store: remote,
        policy,
        brake: Arc::new(brake(scene)),
        clock: clock.clone(),
        activity: Arc::new(Activity::default()),
        leadership,
        witness: tally.clone(),
        retention: retention(scene),
    }));
    tasks.push(scene.world.spawn(schedule::run(sweeper, clock, stop)));
    scene.sweepers().insert(name, Crewed { process, tally, stopper, tasks });
}

/// Stands for the term, apart from the work.
fn stand(
    scene: &Arc<Scene>,
    name: &str,
    remote: &Arc<SimRemote>,
    clock: &Arc<dyn Clock>,
    stop: StopSignal,
) -> (Leadership, JoinHandle<()>) {
    let ttl = Duration::from_millis(scene.world.chance.between(1_500, 5_000));
    let options = TermOptions { ttl, timeout: ttl / 2 };
    let clock = match scene.world.bug() {
        Some(Bug::TrustFromTheAnswer) => {
            let took = remote.campaign_took_ms.clone();
            Wishful::shared(clock.clone(), Wish::FromTheAnswer(took))
        }
        Some(Bug::LeaderNeverStops) => Wishful::shared(clock.clone(), Wish::ForEver),
        _ => clock.clone(),
    };
    let (campaign, leadership) = Campaign::new(remote.clone(), clock, system(), name, options);
    let task = scene.world.spawn(async move { campaign.run(stop.told()).await });
    (leadership, task)
}

fn policy(scene: &Scene) -> Policy {
    let chance = &scene.world.chance;
    let base = Policy {
        every: Duration::from_millis(chance.between(EVERY_MS / 2, EVERY_MS)),
        jitter: JITTER,
        batch: chance.between(3, 12) as usize,
        mode: scene.scenario.mode,
        timeout: Duration::from_millis(chance.between(800, 2_000)),
        ..Policy::default()
    };
    if scene.scenario.strict_lag {
        return base;
    }
    let slow = scene.scenario.mode == SweepMode::Leader || chance.odds(0.3);
    Policy {
        op_delay: Duration::from_millis(if slow { chance.between(50, 400) } else { 0 }),
        max_ops: chance.odds(0.3).then(|| chance.between(4, 20)),
        max_runtime: chance.odds(0.2).then(|| Duration::from_millis(chance.between(1_000, 3_000))),
        ..base
    }
}

fn brake(scene: &Scene) -> Brake {
    let threshold = Duration::from_millis(THRESHOLD_MS);
    let policy = match scene.world.bug() {
        Some(Bug::NoBrake) => BrakePolicy { min_owners: u64::MAX, ..BrakePolicy::default() },
        _ => BrakePolicy::default(),
    };
    Brake::new(policy, threshold)
}

fn retention(scene: &Scene) -> Retention {
    match scene.scenario.forgetful {
        true => Retention { age_ms: 40_000, count: 60 },
        false => Retention::default(),
    }
}
