//! A whole run: things go wrong for a while, then nothing does, and everything must come right.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::sweep::brake::BrakeSetting;

use crate::actors::{chaos, client, owner, sweeper};
use crate::bug::{Bug, Plant};
use crate::chance::SimRandom;
use crate::clock::{ProcessTime, SimClock, Time};
use crate::ground::{ReceiptAudit, SimCounts, SimSystem, SimSystemParts};
use crate::promise::{Broken, BrokenPromise, Checked, Promise, holds};
use crate::scenario::Scenario;
use crate::scene::{EVERY_MS, JITTER, Scene, THRESHOLD_MS};
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
    let scene = set(plan);
    tokio::select! {
        biased;
        () = scene.world.failed() => {}
        () = perform(&scene) => {}
    }
    let ground = scene.world.ground();
    let Some((at_ms, broken)) = ground.broken().cloned() else {
        return Ok(RunReport { counts: ground.counts.clone(), digest: ground.trace.digest() });
    };
    let (seed, scenario, tail) = (plan.seed, plan.scenario.name, ground.trace.tail());
    Err(Box::new(BrokenPromise { seed, scenario, at_ms, broken, tail }))
}

fn set(plan: RunPlan) -> Arc<Scene> {
    let (time, chance, plant) = (Time::begin(), SimRandom::new(plan.seed), Plant::new(plan.bug));
    let host = ProcessTime::new("store", time, 0);
    let interval_ms = (EVERY_MS as f64 * (1.0 + JITTER)) as u64 + 1;
    let ground = SimSystem::new(SimSystemParts {
        time,
        clock: plant.clock(SimClock::shared(&host, &chance)),
        plant: plant.clone(),
        threshold_ms: THRESHOLD_MS,
        lag_max_ms: plan.scenario.strict_lag.then_some(interval_ms),
        printed: plan.printed,
    });
    let world = SimWorld::new(time, chance, plant, ground);
    Scene::new(world, plan.scenario, host)
}

async fn perform(scene: &Arc<Scene>) {
    let chance = scene.world.chance.clone();
    scene.world.set_weather(chaos::first_weather(scene));
    let (from, to) = scene.scenario.owners;
    for number in 1..=chance.between(from, to) {
        owner::join(scene, &Name::new(&format!("o{number}")).expect("it is a valid name"));
    }
    let (from, to) = scene.scenario.sweepers;
    (0..chance.between(from, to)).for_each(|_| sweeper::join(scene));
    (0..scene.scenario.clients).for_each(|_| client::join(scene));
    scene.world.spawn(audit(scene.clone()));
    let chaos = scene.world.spawn(chaos::run(scene.clone()));
    tokio::time::sleep(Duration::from_millis(scene.scenario.span_ms)).await;
    scene.hush();
    let _ = chaos.await;
    calm_down(scene);
    tokio::time::sleep(Duration::from_millis(SETTLE_MS)).await;
    scene.world.check(all_reclaimed(scene));
    dismiss(scene).await;
    scene.world.check(all_counted(scene));
    scene.world.ground().audit(ReceiptAudit::Compared);
}

/// Compares everything, now and then.
async fn audit(scene: Arc<Scene>) {
    loop {
        scene.wait(AUDIT_MS.0, AUDIT_MS.1).await;
        let _ = scene.world.carry_out(&scene.host, |ground| {
            ground.audit(ReceiptAudit::Skipped);
            Ok(())
        });
    }
}

/// From now on nothing goes wrong.
fn calm_down(scene: &Scene) {
    scene.world.set_weather(NetworkFaults::CALM);
    chaos::open(scene);
    scene.world.ground().disk.set_fuse(None);
    let auto = |ground: &mut SimSystem| ground.set_brake("operator", BrakeSetting::Auto);
    let _ = scene.world.carry_out(&scene.host, auto);
    scene.owners().iter().for_each(|member| member.process.set_cut(false));
    scene.sweepers().values().for_each(|sweeper| sweeper.process.set_cut(false));
    scene.world.ground().note("chaos", format_args!("nothing goes wrong any more"));
}

/// Nobody overdue, nothing left of the dead.
fn all_reclaimed(scene: &Scene) -> Checked {
    let ground = scene.world.ground();
    let (model, now) = (&ground.model, scene.world.time.now_ms());
    for (number, life) in &model.lives {
        let left = model.held(*number).count();
        holds(life.ended.is_none() || left == 0, Promise::P2, || {
            format!("{} (incarnation {number}) ended, and {left} entries are left", life.name)
        })?;
        holds(!model.is_overdue(life, now), Promise::P2, || {
            let late = now - model.due(life);
            format!(
                "{} (incarnation {number}) is {late} ms overdue, with {left} entries",
                life.name
            )
        })?;
    }
    Ok(())
}

/// Sweepers finish what they are at.
async fn dismiss(scene: &Scene) {
    let sweepers: Vec<_> =
        scene.sweepers().values_mut().map(|s| std::mem::take(&mut s.tasks)).collect();
    scene.sweepers().values().for_each(|sweeper| sweeper.stopper.stop());
    for task in sweepers.into_iter().flatten() {
        let _ = task.await;
    }
}

/// What each sweeper reported is what it wrote receipts for. Where receipts are not kept for long, a
/// doubt may outlive them, and then cannot be settled.
fn all_counted(scene: &Scene) -> Checked {
    let ground = scene.world.ground();
    for (name, sweeper) in scene.sweepers().iter() {
        let (reported, written) =
            (sweeper.tally.reported(), ground.model.written.get(name).copied().unwrap_or(0));
        let unsettled = scene.scenario.forgetful && reported < written;
        if reported != written && !unsettled {
            let what =
                format!("{name} reported {reported} reclaims, and {written} receipts are its");
            return Err(Broken::new(Promise::P3, what));
        }
    }
    Ok(())
}
