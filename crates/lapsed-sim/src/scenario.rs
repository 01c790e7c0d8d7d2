//! Scenarios: who takes part in a run, which faults there are, and how often.

use lapsed_core::sweep::policy::SweepMode;

use crate::actors::chaos::ChaosAction;
use crate::actors::chaos::ChaosAction::*;

/// A kind of run: its processes, faults and durations.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// One line for `--scenario list`.
    pub about: &'static str,
    /// The number of owners, from and to.
    pub owners: (u64, u64),
    /// The number of sweepers, from and to.
    pub sweepers: (u64, u64),
    pub clients: u64,
    /// The number of keys that owners and clients compete for.
    pub keys: u64,
    pub mode: SweepMode,
    /// Which network faults calls meet.
    pub connection: CallFaults,
    /// Whether dead owners must be reclaimed within one interval throughout the run.
    pub strict_lag: bool,
    /// Whether receipts and ended incarnations are kept only briefly.
    pub forgetful: bool,
    /// The chaos actions with their weights.
    pub actions: &'static [(ChaosAction, u64)],
    /// The time between two chaos actions, from and to, in milliseconds.
    pub actions_every_ms: (u64, u64),
    /// How long the phase with faults lasts, in milliseconds.
    pub span_ms: u64,
}

/// Which network faults calls meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFaults {
    /// Nothing, unless it is a action.
    None,
    /// Calls are late and never lost, so that much happens between a page of suspects and its
    /// batch.
    Late,
    /// Calls are lost, late, or both.
    All,
}

pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "calm",
        about: "nothing but single deaths: the dead are gone within one interval, always",
        owners: (8, 14),
        sweepers: (1, 3),
        clients: 3,
        keys: 60,
        mode: SweepMode::Idempotent,
        connection: CallFaults::None,
        strict_lag: true,
        forgetful: false,
        actions: &[
            (CrashOwner, 3),
            (FreezeOwner, 2),
            (RestartOwner, 3),
            (RetireOwner, 3),
            (SleepOwner, 1),
        ],
        actions_every_ms: (4_000, 7_000),
        span_ms: 120_000,
    },
    Scenario {
        name: "storm",
        about: "calls are lost and late, owners and sweepers crash, freeze and come back",
        owners: (5, 9),
        sweepers: (2, 4),
        clients: 3,
        keys: 50,
        mode: SweepMode::Idempotent,
        connection: CallFaults::All,
        strict_lag: false,
        forgetful: false,
        actions: &[
            (CrashOwner, 4),
            (FreezeOwner, 6),
            (SleepOwner, 3),
            (RestartOwner, 5),
            (RetireOwner, 3),
            (JumpWall, 2),
            (CutOwner, 3),
            (CrashSweeper, 1),
            (FreezeSweeper, 2),
            (ChangeFaults, 6),
            (Restore, 2),
        ],
        actions_every_ms: (800, 4_000),
        span_ms: 120_000,
    },
    Scenario {
        name: "races",
        about: "every call is late: beats, moves and other sweepers come between a page and its batch",
        owners: (6, 9),
        sweepers: (3, 4),
        clients: 4,
        keys: 40,
        mode: SweepMode::Idempotent,
        connection: CallFaults::Late,
        strict_lag: false,
        forgetful: false,
        actions: &[
            (CrashOwner, 1),
            (FreezeOwner, 3),
            (RestartOwner, 6),
            (RetireOwner, 4),
            (Restore, 1),
        ],
        actions_every_ms: (600, 2_500),
        span_ms: 120_000,
    },
    Scenario {
        name: "restarts",
        about: "the store crashes, in the middle of commits too; its disk fails; its clock is set",
        owners: (5, 9),
        sweepers: (2, 3),
        clients: 2,
        keys: 40,
        mode: SweepMode::Idempotent,
        connection: CallFaults::None,
        strict_lag: false,
        forgetful: false,
        actions: &[
            (CrashOwner, 4),
            (FreezeOwner, 3),
            (RestartOwner, 5),
            (RetireOwner, 3),
            (CrashStore, 2),
            (CrashInCommit, 4),
            (DiskError, 5),
            (CloseStore, 1),
            (SetStoreClock, 1),
            (Restore, 1),
        ],
        actions_every_ms: (1_000, 5_000),
        span_ms: 150_000,
    },
    Scenario {
        name: "mass",
        about: "most owners die, or are cut off, at once: the brake holds, and opens by itself",
        owners: (12, 18),
        sweepers: (1, 3),
        clients: 2,
        keys: 60,
        mode: SweepMode::Idempotent,
        connection: CallFaults::None,
        strict_lag: false,
        forgetful: false,
        actions: &[
            (CutMany, 3),
            (CrashMany, 2),
            (RestartOwner, 6),
            (CrashOwner, 1),
            (HoldBrake, 1),
            (ChangeFaults, 1),
        ],
        actions_every_ms: (2_000, 9_000),
        span_ms: 150_000,
    },
    Scenario {
        name: "leader",
        about: "one sweeper of several leads; leaders stall, sleep, lose answers",
        owners: (5, 8),
        sweepers: (3, 4),
        clients: 2,
        keys: 60,
        mode: SweepMode::Leader,
        connection: CallFaults::All,
        strict_lag: false,
        forgetful: false,
        actions: &[
            (CrashOwner, 8),
            (RestartOwner, 8),
            (RetireOwner, 3),
            (FreezeSweeper, 6),
            (SleepSweeper, 3),
            (CutSweeper, 6),
            (CrashSweeper, 2),
            (ChangeFaults, 4),
        ],
        actions_every_ms: (500, 2_500),
        span_ms: 120_000,
    },
    Scenario {
        name: "churn",
        about: "keys move all the time, names are used again, little is remembered for long",
        owners: (5, 8),
        sweepers: (2, 3),
        clients: 4,
        keys: 25,
        mode: SweepMode::Idempotent,
        connection: CallFaults::All,
        strict_lag: false,
        forgetful: true,
        actions: &[
            (CrashOwner, 3),
            (FreezeOwner, 3),
            (RestartOwner, 8),
            (RetireOwner, 6),
            (Restore, 4),
            (CrashStore, 1),
            (CrashInCommit, 1),
        ],
        actions_every_ms: (500, 2_500),
        span_ms: 100_000,
    },
    Scenario {
        name: "everything",
        about: "all of it",
        owners: (6, 14),
        sweepers: (2, 4),
        clients: 3,
        keys: 60,
        mode: SweepMode::Idempotent,
        connection: CallFaults::All,
        strict_lag: false,
        forgetful: false,
        actions: &[
            (CrashOwner, 4),
            (FreezeOwner, 4),
            (SleepOwner, 2),
            (RestartOwner, 6),
            (RetireOwner, 3),
            (JumpWall, 2),
            (CutOwner, 2),
            (CutMany, 1),
            (CrashMany, 1),
            (CrashSweeper, 1),
            (FreezeSweeper, 1),
            (SleepSweeper, 1),
            (ChangeFaults, 4),
            (CrashStore, 1),
            (CrashInCommit, 2),
            (DiskError, 3),
            (CloseStore, 1),
            (SetStoreClock, 1),
            (HoldBrake, 1),
            (Restore, 2),
        ],
        actions_every_ms: (800, 4_000),
        span_ms: 150_000,
    },
];

impl Scenario {
    /// The scenario of this name.
    pub fn named(name: &str) -> Option<&'static Scenario> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// The scenario that a seed runs unless one is named.
    pub fn of_seed(seed: u64) -> &'static Scenario {
        &SCENARIOS[(seed % SCENARIOS.len() as u64) as usize]
    }
}
