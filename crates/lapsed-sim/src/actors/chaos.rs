//! Whoever makes things go wrong.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::sweep::brake::BrakeSetting;

use crate::actors::{client, owner, sweeper};
use crate::clock::{ProcessPause, ProcessTime};
use crate::disk::{Fuse, Keep};
use crate::scenario::WireFaults;
use crate::scene::{Scene, THRESHOLD_MS};
use crate::world::NetworkFaults;

/// One thing that goes wrong, or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChaosAction {
    /// An owner stops for good, without a word.
    CrashOwner,
    /// An owner misses some of its TTLs, then goes on.
    FreezeOwner,
    /// An owner's host sleeps: its monotonic clock stands still.
    SleepOwner,
    /// A process starts under a name that was used before, whether or not that one still lives.
    RestartOwner,
    RetireOwner,
    /// A process's wall clock is set.
    JumpWall,
    /// Nothing that an owner sends arrives, for a while.
    CutOwner,
    /// The same for most of them.
    CutMany,
    /// Most owners stop for good.
    CrashMany,
    /// A sweeper stops for good; another one starts.
    CrashSweeper,
    FreezeSweeper,
    /// A sweeper's host sleeps.
    SleepSweeper,
    /// Nothing that a sweeper sends arrives, for a while.
    CutSweeper,
    /// Calls fare otherwise from now on.
    ChangeWeather,
    /// The store's power fails between two calls.
    CrashStore,
    /// The store's power fails in the middle of a commit.
    CrashInCommit,
    /// The store's disk answers an error to a sync, once.
    DiskError,
    /// The store is closed as it should be, and opened again.
    CloseStore,
    /// The same, and its wall clock is set in between.
    SetStoreClock,
    /// The operator holds the brake, then lets go.
    HoldBrake,
    /// The operator puts something back.
    Restore,
}

/// Makes things go wrong until it is quiet.
pub async fn run(scene: Arc<Scene>) {
    let (from_ms, to_ms) = scene.scenario.deeds_every_ms;
    loop {
        scene.wait(from_ms, to_ms).await;
        if scene.is_quiet() {
            return;
        }
        if let Some(deed) = draw(&scene) {
            scene.world.ground().note("chaos", format_args!("{deed:?}"));
            do_it(&scene, deed).await;
        }
    }
}

fn draw(scene: &Scene) -> Option<ChaosAction> {
    let all: u64 = scene.scenario.deeds.iter().map(|(_, weight)| weight).sum();
    let mut left = scene.world.chance.between(1, all.max(1));
    for (deed, weight) in scene.scenario.deeds {
        if left <= *weight {
            return Some(*deed);
        }
        left -= weight;
    }
    None
}

async fn do_it(scene: &Arc<Scene>, deed: ChaosAction) {
    let chance = scene.world.chance.clone();
    match deed {
        ChaosAction::CrashOwner => drop(crash_owner(scene)),
        ChaosAction::FreezeOwner => pause(scene, some_owner(scene), ProcessPause::Frozen),
        ChaosAction::SleepOwner => pause(scene, some_owner(scene), ProcessPause::Asleep),
        ChaosAction::RestartOwner => restart_owner(scene),
        ChaosAction::RetireOwner => retire_owner(scene),
        ChaosAction::JumpWall => {
            if let Some(process) = some_owner(scene) {
                process.jump_wall(chance.between(0, 40_000) as i64 - 20_000);
            }
        }
        ChaosAction::CutOwner => cut(scene, some_owner(scene).into_iter().collect()),
        ChaosAction::CutMany => cut(scene, most(scene)),
        ChaosAction::CrashMany => {
            let count = scene.owners().len() * 7 / 10;
            for _ in 0..count {
                crash_owner(scene);
            }
        }
        ChaosAction::CrashSweeper => crash_sweeper(scene),
        ChaosAction::FreezeSweeper => pause(scene, some_sweeper(scene), ProcessPause::Frozen),
        ChaosAction::SleepSweeper => pause(scene, some_sweeper(scene), ProcessPause::Asleep),
        ChaosAction::CutSweeper => cut(scene, some_sweeper(scene).into_iter().collect()),
        ChaosAction::ChangeWeather => scene.world.set_weather(weather(scene)),
        ChaosAction::CrashStore => {
            scene.world.ground().crash(Keep::Everything);
            reopen_later(scene).await;
        }
        ChaosAction::CrashInCommit => blow(scene, Fuse::Power(keep(scene))).await,
        ChaosAction::DiskError => blow(scene, Fuse::Error(keep(scene))).await,
        ChaosAction::CloseStore => {
            scene.world.ground().close();
            reopen_later(scene).await;
        }
        ChaosAction::SetStoreClock => {
            scene.world.ground().close();
            scene.world.ground().note_clock_set();
            scene.host.jump_wall(chance.between(0, 60_000) as i64 - 30_000);
            reopen_later(scene).await;
        }
        ChaosAction::HoldBrake => hold_brake(scene).await,
        ChaosAction::Restore => restore(scene).await,
    }
}

fn some_owner(scene: &Scene) -> Option<Arc<ProcessTime>> {
    let owners = scene.owners();
    scene.world.chance.pick(&owners).map(|member| member.process.clone())
}

fn some_sweeper(scene: &Scene) -> Option<Arc<ProcessTime>> {
    let sweepers: Vec<_> = scene.sweepers().values().map(|s| s.process.clone()).collect();
    scene.world.chance.pick(&sweepers).cloned()
}

fn most(scene: &Scene) -> Vec<Arc<ProcessTime>> {
    let owners = scene.owners();
    owners.iter().take(owners.len() * 7 / 10).map(|member| member.process.clone()).collect()
}

fn crash_owner(scene: &Scene) -> Option<Name> {
    let mut owners = scene.owners();
    let place = match owners.len() {
        0 => return None,
        n => scene.world.chance.any() as usize % n,
    };
    let member = owners.remove(place);
    member.task.abort();
    scene.world.ground().count_fault("owner crash");
    Some(member.name)
}

fn pause(scene: &Scene, process: Option<Arc<ProcessTime>>, how: ProcessPause) {
    let Some(process) = process else { return };
    let span_ms = scene.world.chance.between(1_000, 4 * THRESHOLD_MS);
    process.pause(how, span_ms);
    let mut ground = scene.world.ground();
    ground.count_fault("freeze");
    ground.note(&process.name, format_args!("is {how:?} for {span_ms} ms"));
}

fn restart_owner(scene: &Arc<Scene>) {
    if scene.owners().len() as u64 >= scene.scenario.owners.1 {
        return;
    }
    let number = scene.world.chance.between(1, scene.scenario.owners.1);
    let name = Name::new(&format!("o{number}")).expect("it is a valid name");
    owner::join(scene, &name);
}

fn retire_owner(scene: &Arc<Scene>) {
    let mut owners = scene.owners();
    if owners.is_empty() {
        return;
    }
    let place = scene.world.chance.any() as usize % owners.len();
    let member = owners.remove(place);
    drop(owners);
    if scene.world.chance.odds(0.5) {
        member.leaving.store(true, Ordering::Relaxed);
        return;
    }
    // Somebody else retires it, by the library's own operation, removals included.
    member.task.abort();
    let registry = client::registry(scene, &scene.fresh("retirer"));
    scene.world.spawn(async move {
        let _ = registry.retire(&lapsed_core::owner::Claim::newest(member.name)).await;
    });
}

fn cut(scene: &Arc<Scene>, processes: Vec<Arc<ProcessTime>>) {
    let span_ms = scene.world.chance.between(2_000, 3 * THRESHOLD_MS);
    for process in &processes {
        process.set_cut(true);
        scene.world.ground().note(&process.name, format_args!("is cut off for {span_ms} ms"));
    }
    scene.world.spawn(async move {
        tokio::time::sleep(Duration::from_millis(span_ms)).await;
        processes.iter().for_each(|process| process.set_cut(false));
    });
}

fn crash_sweeper(scene: &Arc<Scene>) {
    let mut sweepers = scene.sweepers();
    let names: Vec<String> = sweepers.keys().cloned().collect();
    let crashed = scene.world.chance.pick(&names).and_then(|name| sweepers.remove(name));
    drop(sweepers);
    if let Some(crashed) = crashed {
        crashed.tasks.iter().for_each(|task| task.abort());
        scene.world.ground().count_fault("sweeper crash");
        sweeper::join(scene);
    }
}

fn weather(scene: &Scene) -> NetworkFaults {
    let chance = &scene.world.chance;
    if chance.odds(0.3) {
        return NetworkFaults::CALM;
    }
    let odds = |max: f64| chance.between(0, 1_000) as f64 / 1_000.0 * max;
    // Mostly mild: in a gale every sweeper keeps holding back, and nothing is reclaimed.
    let worst = if chance.odds(0.3) { 0.2 } else { 0.05 };
    NetworkFaults {
        request_lost: odds(worst),
        answer_lost: odds(worst),
        request_late: odds(0.4),
        answer_late: odds(0.4),
        late_max_ms: *chance.pick(&[50, 500, 1_500, 4_000, 9_000]).unwrap_or(&50),
        silence: odds(1.0),
    }
}

/// The weather that a run begins with.
pub fn first_weather(scene: &Scene) -> NetworkFaults {
    match scene.scenario.wire {
        WireFaults::None => NetworkFaults::CALM,
        WireFaults::All => weather(scene),
        WireFaults::Late => NetworkFaults {
            request_late: 0.7,
            answer_late: 0.7,
            late_max_ms: scene.world.chance.between(300, 900),
            ..NetworkFaults::CALM
        },
    }
}

fn keep(scene: &Scene) -> Keep {
    match scene.world.chance.between(0, 3) {
        0 => Keep::Nothing,
        1 => Keep::Everything,
        _ => Keep::Some(scene.world.chance.any()),
    }
}

/// Waits for the next commit to meet the fuse; brings the store back if it crashed.
async fn blow(scene: &Arc<Scene>, fuse: Fuse) {
    scene.world.ground().disk.set_fuse(Some(fuse));
    for _ in 0..20 {
        scene.wait(50, 200).await;
        let mut ground = scene.world.ground();
        if !ground.is_up() || !ground.disk.is_armed() {
            break;
        }
        ground.note("chaos", format_args!("waits for a commit"));
    }
    scene.world.ground().disk.set_fuse(None);
    if !scene.world.ground().is_up() {
        reopen_later(scene).await;
    }
}

async fn reopen_later(scene: &Arc<Scene>) {
    let down_ms = match scene.world.chance.odds(0.5) {
        true => scene.world.chance.between(0, 300),
        false => scene.world.chance.between(300, 2 * THRESHOLD_MS),
    };
    tokio::time::sleep(Duration::from_millis(down_ms)).await;
    open(scene);
}

/// Opens the store if it is not open.
pub fn open(scene: &Scene) {
    let _ = scene.world.carry_out(&scene.host, |ground| {
        ground.open();
        Ok(())
    });
}

async fn hold_brake(scene: &Arc<Scene>) {
    let say = |setting: BrakeSetting| {
        scene.world.carry_out(&scene.host, move |ground| ground.set_brake("operator", setting))
    };
    let _ = say(BrakeSetting::Hold);
    scene.wait(2_000, 2 * THRESHOLD_MS).await;
    let _ = say(BrakeSetting::Auto);
}

async fn restore(scene: &Arc<Scene>) {
    let newest = scene.world.ground().model.receipts.keys().next_back().copied();
    if let Some(newest) = newest {
        let seq = scene.world.chance.between(newest.saturating_sub(10).max(1), newest);
        let _ = scene.world.carry_out(&scene.host, move |ground| ground.restore("operator", seq));
    }
}
