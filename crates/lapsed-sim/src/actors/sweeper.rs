//! Sweepers: the library's engine with a connection of its own, and a tally of what each reported.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
use crate::bug::clock::{BuggyClock, ClockBug};
use crate::bug::sweep::BuggySweep;
use crate::clock::ProcessTime;
use crate::promise::{Broken, Promise};
use crate::remote::SimRemote;
use crate::run_context::{EVERY_MS, JITTER, RunContext, THRESHOLD_MS};
use crate::system::system_id;
use crate::world::SimWorld;

/// A process that runs a sweeper.
pub struct SweeperProcess {
    pub process: Arc<ProcessTime>,
    /// What it has reported so far.
    pub tally: Arc<Tally>,
    /// Tells the sweeper to stop.
    pub stopper: StopHandle,
    /// Its tasks: the passes, and in leader mode the campaign.
    pub tasks: Vec<JoinHandle<()>>,
}

/// Counts what a sweeper reports, to be compared with the receipts that bear its name.
pub struct Tally {
    world: Arc<SimWorld>,
    remote: Arc<SimRemote>,
    reported: AtomicU64,
    seen: Mutex<BTreeSet<u64>>,
}

impl Tally {
    /// The number of reclaims that it reported.
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
            self.remote.brake_model.lock().expect("nobody panics here").note_unreachable();
        }
    }
}

pub fn join(context: &Arc<RunContext>) {
    let name = context.new_name("sweeper");
    let process = context.process(&name);
    let policy = policy(context);
    let remote = context.remote_for(&process, policy.mode, policy.batch);
    let clock = context.clock(&process);
    let tally = Arc::new(Tally {
        world: context.world.clone(),
        remote: remote.clone(),
        reported: AtomicU64::new(0),
        seen: Mutex::default(),
    });
    let (stopper, stop) = StopSignal::channel();
    let mut tasks = Vec::new();
    let leadership = (policy.mode == SweepMode::Leader).then(|| {
        let (leadership, task) = stand(context, &name, &remote, &clock, stop.clone());
        tasks.push(task);
        leadership
    });
    let sweeper = Arc::new(Sweeper::new(
        SweeperParts::new(
            name.clone(),
            BuggySweep::wrap(remote.clone(), context.world.bug()),
            remote,
        )
        .policy(policy)
        .brake(Arc::new(brake(context)))
        .clock(clock.clone())
        .leadership(leadership)
        .observer(tally.clone())
        .retention(retention(context)),
    ));
    tasks.push(context.world.spawn(schedule::run(sweeper, clock, stop)));
    context.sweepers().insert(name, SweeperProcess { process, tally, stopper, tasks });
}

/// Campaigns for the term in a task of its own.
fn stand(
    context: &Arc<RunContext>,
    name: &str,
    remote: &Arc<SimRemote>,
    clock: &Arc<dyn Clock>,
    stop: StopSignal,
) -> (Leadership, JoinHandle<()>) {
    let ttl = Duration::from_millis(context.world.random.between(1_500, 5_000));
    let options = TermOptions { ttl, timeout: ttl / 2 };
    let clock = match context.world.bug() {
        Some(Bug::TrustFromTheAnswer) => {
            let took = remote.campaign_took_ms.clone();
            BuggyClock::shared(clock.clone(), ClockBug::FromTheAnswer(took))
        }
        Some(Bug::LeaderNeverStops) => BuggyClock::shared(clock.clone(), ClockBug::ForEver),
        _ => clock.clone(),
    };
    let (campaign, leadership) = Campaign::new(remote.clone(), clock, system_id(), name, options);
    let task = context.world.spawn(async move { campaign.run(stop.stopped()).await });
    (leadership, task)
}

fn policy(context: &RunContext) -> Policy {
    let random = &context.world.random;
    let base = Policy {
        every: Duration::from_millis(random.between(EVERY_MS / 2, EVERY_MS)),
        jitter: JITTER,
        batch: random.between(3, 12) as usize,
        mode: context.scenario.mode,
        timeout: Duration::from_millis(random.between(800, 2_000)),
        ..Policy::default()
    };
    if context.scenario.strict_lag {
        return base;
    }
    let slow = context.scenario.mode == SweepMode::Leader || random.odds(0.3);
    Policy {
        op_delay: Duration::from_millis(if slow { random.between(50, 400) } else { 0 }),
        max_ops: random.odds(0.3).then(|| random.between(4, 20)),
        max_runtime: random.odds(0.2).then(|| Duration::from_millis(random.between(1_000, 3_000))),
        ..base
    }
}

fn brake(context: &RunContext) -> Brake {
    let threshold = Duration::from_millis(THRESHOLD_MS);
    let policy = match context.world.bug() {
        // No share is above all, and no fleet is small.
        Some(Bug::NoBrake) => BrakePolicy { share: 1.0, min_owners: 0, ..BrakePolicy::default() },
        _ => BrakePolicy::default(),
    };
    Brake::new(policy, threshold)
}

fn retention(context: &RunContext) -> Retention {
    match context.scenario.forgetful {
        true => Retention { age_ms: 40_000, count: 60, owners: 4, owners_age_ms: 10_000 },
        false => Retention::default(),
    }
}
