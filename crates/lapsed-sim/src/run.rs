//! A whole run: things go wrong for a while, then nothing does, and everything must come right.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::sweep::brake::BrakeSetting;

use crate::actors::{chaos, client, owner, sweeper};
use crate::bug::{Bug, PlantedBug};
use crate::clock::{ProcessTime, SimClock, Time};
use crate::promise::{Broken, BrokenPromise, Checked, Promise, holds};
use crate::random::SimRandom;
use crate::run_context::{EVERY_MS, JITTER, RunContext, THRESHOLD_MS};
use crate::scenario::Scenario;
use crate::system::{ReceiptAudit, SimCounts, SimSystem, SimSystemOptions};
use crate::world::{NetworkFaults, SimWorld};

/// How long everything may take to come right once nothing goes wrong any more: those who stopped
/// just then are due a threshold later; a sweeper that saw the store away waits for another, and for
/// one more if it takes what it sees for a mass death, which then opens in a few passes.
const SETTLE_MS: u64 = 3 * THRESHOLD_MS + 12 * EVERY_MS;
/// From one comparison of everything to the next.
const AUDIT_MS: (u64, u64) = (2_000, 6_000);

#[derive(Clone, Copy, Debug)]
pub struct RunPlan {
    /// Everything follows from it.
    pub seed: u64,
    /// What the run is like.
    pub scenario: &'static Scenario,
    pub bug: Option<Bug>,
    /// Whether to print every line.
    pub printed: bool,
}

impl RunPlan {
    /// The run of that seed.
    pub fn of_seed(seed: u64) -> Self {
        RunPlan { seed, scenario: Scenario::of_seed(seed), bug: None, printed: false }
    }
}

/// A run in which no promise was broken.
#[derive(Clone, Debug)]
pub struct RunReport {
    pub counts: SimCounts,
    /// A hash of its trace, and how many lines it has.
    pub digest: (u64, u64),
}

pub fn run(plan: RunPlan) -> Result<RunReport, Box<BrokenPromise>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can always be made");
    runtime.block_on(play(plan))
}

async fn play(plan: RunPlan) -> Result<RunReport, Box<BrokenPromise>> {
    let context = set(plan);
    tokio::select! {
        biased;
        () = context.world.failed() => {}
        () = perform(&context) => {}
    }
    let sim = context.world.sim();
    let Some((at_ms, broken)) = sim.broken().cloned() else {
        return Ok(RunReport { counts: sim.counts.clone(), digest: sim.trace.digest() });
    };
    let (seed, scenario, tail) = (plan.seed, plan.scenario.name, sim.trace.tail());
    Err(Box::new(BrokenPromise { seed, scenario, at_ms, broken, tail }))
}

fn set(plan: RunPlan) -> Arc<RunContext> {
    let (time, random, planted) =
        (Time::begin(), SimRandom::new(plan.seed), PlantedBug::new(plan.bug));
    let host = ProcessTime::new("store", time, 0);
    let interval_ms = (EVERY_MS as f64 * (1.0 + JITTER)) as u64 + 1;
    let sim = SimSystem::new(SimSystemOptions {
        time,
        clock: planted.clock(SimClock::shared(&host, &random)),
        planted: planted.clone(),
        threshold_ms: THRESHOLD_MS,
        lag_max_ms: plan.scenario.strict_lag.then_some(interval_ms),
        printed: plan.printed,
    });
    let world = SimWorld::new(time, random, planted, sim);
    RunContext::new(world, plan.scenario, host)
}

async fn perform(context: &Arc<RunContext>) {
    let random = context.world.random.clone();
    context.world.set_faults(chaos::first_faults(context));
    let (from, to) = context.scenario.owners;
    for number in 1..=random.between(from, to) {
        owner::join(context, &Name::new(&format!("o{number}")).expect("it is a valid name"));
    }
    let (from, to) = context.scenario.sweepers;
    (0..random.between(from, to)).for_each(|_| sweeper::join(context));
    (0..context.scenario.clients).for_each(|_| client::join(context));
    context.world.spawn(audit(context.clone()));
    let chaos = context.world.spawn(chaos::run(context.clone()));
    tokio::time::sleep(Duration::from_millis(context.scenario.span_ms)).await;
    context.stop_activity();
    let _ = chaos.await;
    calm_down(context);
    tokio::time::sleep(Duration::from_millis(SETTLE_MS)).await;
    context.world.check(all_reclaimed(context));
    dismiss(context).await;
    context.world.check(all_counted(context));
    context.world.sim().audit(ReceiptAudit::Compared);
}

/// Compares everything, now and then.
async fn audit(context: Arc<RunContext>) {
    loop {
        context.wait(AUDIT_MS.0, AUDIT_MS.1).await;
        let _ = context.world.carry_out(&context.host, |sim| {
            sim.audit(ReceiptAudit::Skipped);
            Ok(())
        });
    }
}

/// From now on nothing goes wrong.
fn calm_down(context: &RunContext) {
    context.world.set_faults(NetworkFaults::CALM);
    chaos::open(context);
    context.world.sim().disk.set_sync_fault(None);
    let auto = |sim: &mut SimSystem| sim.set_brake("operator", BrakeSetting::Auto);
    let _ = context.world.carry_out(&context.host, auto);
    context.owners().iter().for_each(|member| member.process.set_cut(false));
    context.sweepers().values().for_each(|sweeper| sweeper.process.set_cut(false));
    context.world.sim().note("chaos", format_args!("nothing goes wrong any more"));
}

/// Nobody overdue, nothing left of the dead.
fn all_reclaimed(context: &RunContext) -> Checked {
    let sim = context.world.sim();
    let (model, now) = (&sim.model, context.world.time.now_ms());
    for (number, incarnation) in &model.incarnations {
        let left = model.held(*number).count();
        holds(incarnation.ended.is_none() || left == 0, Promise::P2, || {
            format!(
                "{} (incarnation {number}) ended, and {left} entries are left",
                incarnation.name
            )
        })?;
        holds(!model.is_overdue(incarnation, now), Promise::P2, || {
            let late = now - model.due(incarnation);
            format!(
                "{} (incarnation {number}) is {late} ms overdue, with {left} entries",
                incarnation.name
            )
        })?;
    }
    Ok(())
}

/// Sweepers finish what they are at.
async fn dismiss(context: &RunContext) {
    let sweepers: Vec<_> =
        context.sweepers().values_mut().map(|s| std::mem::take(&mut s.tasks)).collect();
    context.sweepers().values().for_each(|sweeper| sweeper.stopper.stop());
    for task in sweepers.into_iter().flatten() {
        let _ = task.await;
    }
}

/// What each sweeper reported is what it wrote receipts for. Where receipts are not kept for long, a
/// doubt may outlive them, and then cannot be settled.
fn all_counted(context: &RunContext) -> Checked {
    let sim = context.world.sim();
    for (name, sweeper) in context.sweepers().iter() {
        let (reported, written) =
            (sweeper.tally.reported(), sim.model.written.get(name).copied().unwrap_or(0));
        let unsettled = context.scenario.forgetful && reported < written;
        if reported != written && !unsettled {
            let what =
                format!("{name} reported {reported} reclaims, and {written} receipts are its");
            return Err(Broken::new(Promise::P3, what));
        }
    }
    Ok(())
}
