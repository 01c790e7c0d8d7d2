//! The chaos process: injects faults until the run is quiet.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::sweep::brake::BrakeSetting;

use crate::actors::{client, owner, sweeper};
use crate::clock::{ProcessPause, ProcessTime};
use crate::disk::{Keep, SyncFault};
use crate::run_context::{RunContext, THRESHOLD_MS};
use crate::scenario::CallFaults;
use crate::world::NetworkFaults;

/// One fault or change that the chaos process can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChaosAction {
    /// An owner stops for good without ending its incarnation.
    CrashOwner,
    /// An owner is stopped for a while, possibly longer than its TTL, and continues.
    FreezeOwner,
    /// An owner's host is suspended: its monotonic clock stands still.
    SleepOwner,
    /// A process starts under a name that was used before, whether or not that one is still live.
    RestartOwner,
    RetireOwner,
    /// A process's wall clock is set.
    JumpWall,
    /// Nothing that an owner sends arrives, for a while.
    CutOwner,
    /// Nothing that most of the owners send arrives, for a while.
    CutMany,
    /// Most owners stop for good.
    CrashMany,
    /// A sweeper stops for good and another one starts.
    CrashSweeper,
    FreezeSweeper,
    /// A sweeper's host is suspended.
    SleepSweeper,
    /// Nothing that a sweeper sends arrives, for a while.
    CutSweeper,
    /// The network faults change.
    ChangeFaults,
    /// The store's power fails between two calls.
    CrashStore,
    /// The store's power fails in the middle of a commit.
    CrashInCommit,
    /// The store's disk answers an error to a sync, once.
    DiskError,
    /// The store is closed in order and opened again.
    CloseStore,
    /// The store is closed and opened again, and its wall clock is set in between.
    SetStoreClock,
    /// The operator holds the brake for a while.
    HoldBrake,
    /// The operator puts something back.
    Restore,
}

/// Injects faults at random intervals until the run is quiet.
pub async fn run(context: Arc<RunContext>) {
    let (from_ms, to_ms) = context.scenario.actions_every_ms;
    loop {
        context.wait(from_ms, to_ms).await;
        if context.is_quiet() {
            return;
        }
        if let Some(action) = draw(&context) {
            context.world.sim().note("chaos", format_args!("{action:?}"));
            perform_action(&context, action).await;
        }
    }
}

fn draw(context: &RunContext) -> Option<ChaosAction> {
    let all: u64 = context.scenario.actions.iter().map(|(_, weight)| weight).sum();
    let mut left = context.world.random.between(1, all.max(1));
    for (action, weight) in context.scenario.actions {
        if left <= *weight {
            return Some(*action);
        }
        left -= weight;
    }
    None
}

async fn perform_action(context: &Arc<RunContext>, action: ChaosAction) {
    let random = context.world.random.clone();
    match action {
        ChaosAction::CrashOwner => drop(crash_owner(context)),
        ChaosAction::FreezeOwner => pause(context, some_owner(context), ProcessPause::Frozen),
        ChaosAction::SleepOwner => pause(context, some_owner(context), ProcessPause::Asleep),
        ChaosAction::RestartOwner => restart_owner(context),
        ChaosAction::RetireOwner => retire_owner(context),
        ChaosAction::JumpWall => {
            if let Some(process) = some_owner(context) {
                process.jump_wall(random.between(0, 40_000) as i64 - 20_000);
            }
        }
        ChaosAction::CutOwner => cut(context, some_owner(context).into_iter().collect()),
        ChaosAction::CutMany => cut(context, most(context)),
        ChaosAction::CrashMany => {
            let count = context.owners().len() * 7 / 10;
            for _ in 0..count {
                crash_owner(context);
            }
        }
        ChaosAction::CrashSweeper => crash_sweeper(context),
        ChaosAction::FreezeSweeper => pause(context, some_sweeper(context), ProcessPause::Frozen),
        ChaosAction::SleepSweeper => pause(context, some_sweeper(context), ProcessPause::Asleep),
        ChaosAction::CutSweeper => cut(context, some_sweeper(context).into_iter().collect()),
        ChaosAction::ChangeFaults => context.world.set_faults(faults(context)),
        ChaosAction::CrashStore => {
            context.world.sim().crash(Keep::Everything);
            reopen_later(context).await;
        }
        ChaosAction::CrashInCommit => {
            fail_next_sync(context, SyncFault::Power(keep(context))).await
        }
        ChaosAction::DiskError => fail_next_sync(context, SyncFault::Error(keep(context))).await,
        ChaosAction::CloseStore => {
            context.world.sim().close();
            reopen_later(context).await;
        }
        ChaosAction::SetStoreClock => {
            context.world.sim().close();
            context.world.sim().note_clock_set();
            context.host.jump_wall(random.between(0, 60_000) as i64 - 30_000);
            reopen_later(context).await;
        }
        ChaosAction::HoldBrake => hold_brake(context).await,
        ChaosAction::Restore => restore(context).await,
    }
}

fn some_owner(context: &RunContext) -> Option<Arc<ProcessTime>> {
    let owners = context.owners();
    context.world.random.pick(&owners).map(|member| member.process.clone())
}

fn some_sweeper(context: &RunContext) -> Option<Arc<ProcessTime>> {
    let sweepers: Vec<_> = context.sweepers().values().map(|s| s.process.clone()).collect();
    context.world.random.pick(&sweepers).cloned()
}

fn most(context: &RunContext) -> Vec<Arc<ProcessTime>> {
    let owners = context.owners();
    owners.iter().take(owners.len() * 7 / 10).map(|member| member.process.clone()).collect()
}

fn crash_owner(context: &RunContext) -> Option<Name> {
    let mut owners = context.owners();
    let place = match owners.len() {
        0 => return None,
        n => context.world.random.any() as usize % n,
    };
    let member = owners.remove(place);
    member.task.abort();
    context.world.sim().count_fault("owner crash");
    Some(member.name)
}

fn pause(context: &RunContext, process: Option<Arc<ProcessTime>>, how: ProcessPause) {
    let Some(process) = process else { return };
    let span_ms = context.world.random.between(1_000, 4 * THRESHOLD_MS);
    process.pause(how, span_ms);
    let mut sim = context.world.sim();
    sim.count_fault("freeze");
    sim.note(&process.name, format_args!("is {how:?} for {span_ms} ms"));
}

fn restart_owner(context: &Arc<RunContext>) {
    if context.owners().len() as u64 >= context.scenario.owners.1 {
        return;
    }
    let number = context.world.random.between(1, context.scenario.owners.1);
    let name = Name::new(&format!("o{number}")).expect("it is a valid name");
    owner::join(context, &name);
}

fn retire_owner(context: &Arc<RunContext>) {
    let mut owners = context.owners();
    if owners.is_empty() {
        return;
    }
    let place = context.world.random.any() as usize % owners.len();
    let member = owners.remove(place);
    drop(owners);
    if context.world.random.odds(0.5) {
        member.leaving.store(true, Ordering::Relaxed);
        return;
    }
    // Another process retires it with the library's own operation, which also releases its entries.
    member.task.abort();
    let registry = client::registry(context, &context.new_name("retirer"));
    context.world.spawn(async move {
        let _ = registry.retire(&lapsed_core::owner::Claim::newest(member.name)).await;
    });
}

fn cut(context: &Arc<RunContext>, processes: Vec<Arc<ProcessTime>>) {
    let span_ms = context.world.random.between(2_000, 3 * THRESHOLD_MS);
    for process in &processes {
        process.set_cut(true);
        context.world.sim().note(&process.name, format_args!("is cut off for {span_ms} ms"));
    }
    context.world.spawn(async move {
        tokio::time::sleep(Duration::from_millis(span_ms)).await;
        processes.iter().for_each(|process| process.set_cut(false));
    });
}

fn crash_sweeper(context: &Arc<RunContext>) {
    let mut sweepers = context.sweepers();
    let names: Vec<String> = sweepers.keys().cloned().collect();
    let crashed = context.world.random.pick(&names).and_then(|name| sweepers.remove(name));
    drop(sweepers);
    if let Some(crashed) = crashed {
        crashed.tasks.iter().for_each(|task| task.abort());
        context.world.sim().count_fault("sweeper crash");
        sweeper::join(context);
    }
}

fn faults(context: &RunContext) -> NetworkFaults {
    let random = &context.world.random;
    if random.odds(0.3) {
        return NetworkFaults::CALM;
    }
    let odds = |max: f64| random.between(0, 1_000) as f64 / 1_000.0 * max;
    // Mostly few faults: with many, every sweeper holds back and nothing is reclaimed.
    let worst = if random.odds(0.3) { 0.2 } else { 0.05 };
    NetworkFaults {
        request_lost: odds(worst),
        answer_lost: odds(worst),
        request_late: odds(0.4),
        answer_late: odds(0.4),
        late_max_ms: *random.pick(&[50, 500, 1_500, 4_000, 9_000]).unwrap_or(&50),
        silence: odds(1.0),
    }
}

/// The network faults at the beginning of a run.
pub fn first_faults(context: &RunContext) -> NetworkFaults {
    match context.scenario.connection {
        CallFaults::None => NetworkFaults::CALM,
        CallFaults::All => faults(context),
        CallFaults::Late => NetworkFaults {
            request_late: 0.7,
            answer_late: 0.7,
            late_max_ms: context.world.random.between(300, 900),
            ..NetworkFaults::CALM
        },
    }
}

fn keep(context: &RunContext) -> Keep {
    match context.world.random.between(0, 3) {
        0 => Keep::Nothing,
        1 => Keep::Everything,
        _ => Keep::Some(context.world.random.any()),
    }
}

/// Lets the next sync fail and waits for a commit that meets it; reopens the store if it crashed.
async fn fail_next_sync(context: &Arc<RunContext>, sync_fault: SyncFault) {
    context.world.sim().disk.set_sync_fault(Some(sync_fault));
    for _ in 0..20 {
        context.wait(50, 200).await;
        let mut sim = context.world.sim();
        if !sim.is_up() || !sim.disk.is_armed() {
            break;
        }
        sim.note("chaos", format_args!("waits for a commit"));
    }
    context.world.sim().disk.set_sync_fault(None);
    if !context.world.sim().is_up() {
        reopen_later(context).await;
    }
}

async fn reopen_later(context: &Arc<RunContext>) {
    let down_ms = match context.world.random.odds(0.5) {
        true => context.world.random.between(0, 300),
        false => context.world.random.between(300, 2 * THRESHOLD_MS),
    };
    tokio::time::sleep(Duration::from_millis(down_ms)).await;
    open(context);
}

/// Opens the store if it is not open.
pub fn open(context: &RunContext) {
    let _ = context.world.carry_out(&context.host, |sim| {
        sim.open();
        Ok(())
    });
}

async fn hold_brake(context: &Arc<RunContext>) {
    let say = |setting: BrakeSetting| {
        context.world.carry_out(&context.host, move |sim| sim.set_brake("operator", setting))
    };
    let _ = say(BrakeSetting::Hold);
    context.wait(2_000, 2 * THRESHOLD_MS).await;
    let _ = say(BrakeSetting::Auto);
}

async fn restore(context: &Arc<RunContext>) {
    let newest = context.world.sim().model.receipts.keys().next_back().copied();
    if let Some(newest) = newest {
        let seq = context.world.random.between(newest.saturating_sub(10).max(1), newest);
        let _ = context.world.carry_out(&context.host, move |sim| sim.restore("operator", seq));
    }
}
