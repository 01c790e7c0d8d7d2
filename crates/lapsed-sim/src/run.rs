//! A whole run: first a phase with faults, then one without. At its end everything must be
//! reclaimed and counted.

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

/// How long the phase without faults lasts. Owners that stopped at its beginning are due one
/// threshold later; a sweeper that saw the store away holds back for another, and for a third if it
/// sees a mass death, after which the brake opens over a few passes.
const SETTLE_MS: u64 = 3 * THRESHOLD_MS + 12 * EVERY_MS;
/// The time between two audits, from and to, in milliseconds.
const AUDIT_MS: (u64, u64) = (2_000, 6_000);

#[derive(Clone, Copy, Debug)]
pub struct RunPlan {
    /// The seed, which determines the whole run.
    pub seed: u64,
    /// The scenario to run.
    pub scenario: &'static Scenario,
    pub bug: Option<Bug>,
    /// Whether to print every line of the trace.
    pub printed: bool,
}

impl RunPlan {
    /// The run of this seed in the scenario that the seed chooses.
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
    runtime.block_on(run_to_end(plan))
}

async fn run_to_end(plan: RunPlan) -> Result<RunReport, Box<BrokenPromise>> {
    let context = new_context(plan);
    tokio::select! {
        biased;
        () = context.world.failed() => {}
        () = run_phases(&context) => {}
    }
    let sim = context.world.sim();
    let Some((at_ms, broken)) = sim.broken().cloned() else {
        return Ok(RunReport { counts: sim.counts.clone(), digest: sim.trace.digest() });
    };
    let (seed, scenario, tail) = (plan.seed, plan.scenario.name, sim.trace.tail());
    Err(Box::new(BrokenPromise { seed, scenario, at_ms, broken, tail }))
}

fn new_context(plan: RunPlan) -> Arc<RunContext> {
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

async fn run_phases(context: &Arc<RunContext>) {
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
    end_faults(context);
    tokio::time::sleep(Duration::from_millis(SETTLE_MS)).await;
    context.world.check(all_reclaimed(context));
    stop_sweepers(context).await;
    context.world.check(all_counted(context));
    context.world.sim().audit(ReceiptAudit::Compared);
}

/// Audits the store every few seconds.
async fn audit(context: Arc<RunContext>) {
    loop {
        context.wait(AUDIT_MS.0, AUDIT_MS.1).await;
        let _ = context.world.carry_out(&context.host, |sim| {
            sim.audit(ReceiptAudit::Skipped);
            Ok(())
        });
    }
}

/// Ends all faults: mends connections, opens the store, releases the brake.
fn end_faults(context: &RunContext) {
    context.world.set_faults(NetworkFaults::CALM);
    chaos::open(context);
    context.world.sim().disk.set_sync_fault(None);
    let auto = |sim: &mut SimSystem| sim.set_brake("operator", BrakeSetting::Auto);
    let _ = context.world.carry_out(&context.host, auto);
    context.owners().iter().for_each(|member| member.process.set_cut(false));
    context.sweepers().values().for_each(|sweeper| sweeper.process.set_cut(false));
    context.world.sim().note("chaos", format_args!("nothing goes wrong any more"));
}

/// P2: at the end nobody is overdue, and ended incarnations hold nothing.
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

/// Stops the sweepers and waits until each has finished its pass.
async fn stop_sweepers(context: &RunContext) {
    let sweepers: Vec<_> =
        context.sweepers().values_mut().map(|s| std::mem::take(&mut s.tasks)).collect();
    context.sweepers().values().for_each(|sweeper| sweeper.stopper.stop());
    for task in sweepers.into_iter().flatten() {
        let _ = task.await;
    }
}

/// P3: each sweeper reported as many reclaims as there are receipts with its name. Where receipts
/// are kept only briefly, a lost answer may outlive them; the sweeper may then report fewer.
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
