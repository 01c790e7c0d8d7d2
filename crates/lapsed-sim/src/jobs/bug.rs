//! Deliberate bugs of a store of jobs: the simulation must find each of them. None is in production
//! code; they are broken rules given to the real store, or something done in front of it.

use std::sync::Arc;

use lapsed_core::inflight::rules::{OnDeath, RecoveryPolicy};
use lapsed_core::receipt::Reason;
use lapsed_core::registry::rules::{IncarnationState, OwnerCase, OwnerGuard, StrictOwnerGuard};
use lapsed_core::sweep::Refusal;

use crate::promise::Promise;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobBug {
    /// A job is removed from the in-flight set in one step and pushed to its queue in another (E1).
    RemoveThenPush,
    /// A completion goes by the job's id; whose claim it is, is not asked (E9).
    TokenNotChecked,
    /// An ended incarnation takes and completes as if it lived (E9).
    TheDeadMayAct,
    /// A suspected job is put back even if its worker has sent a beat or another one holds it.
    PutBackWithoutGuard,
    /// The crash is not written down with the putting back (E7).
    CrashNotCounted,
    /// However many workers die of it, a job is put back (E7).
    NoCrashLimit,
    /// Tokens begin anew when the store does (D5).
    TokensBeginAnew,
    /// A beat of an ended incarnation is answered as if it lived (E2).
    BeatRevivesTheDead,
    /// An enqueue that is repeated because its answer was lost puts the job there twice.
    EnqueuedTwice,
    /// A take whose answer did not reach the worker is not given back: its jobs stay with a worker that
    /// sends heartbeats and does not know of them.
    UndeliveredTakeKept,
    /// The store acknowledges before its commit is durable: the disk lies about syncs.
    AcknowledgedBeforeDurable,
}

impl JobBug {
    pub const ALL: &[JobBug] = &[
        JobBug::RemoveThenPush,
        JobBug::TokenNotChecked,
        JobBug::TheDeadMayAct,
        JobBug::PutBackWithoutGuard,
        JobBug::CrashNotCounted,
        JobBug::NoCrashLimit,
        JobBug::TokensBeginAnew,
        JobBug::BeatRevivesTheDead,
        JobBug::EnqueuedTwice,
        JobBug::UndeliveredTakeKept,
        JobBug::AcknowledgedBeforeDurable,
    ];

    /// The promise that the bug breaks; the simulation must report this one.
    pub fn breaks(self) -> Promise {
        match self {
            JobBug::PutBackWithoutGuard => Promise::P1,
            JobBug::CrashNotCounted | JobBug::NoCrashLimit | JobBug::EnqueuedTwice => Promise::P3,
            JobBug::RemoveThenPush
            | JobBug::UndeliveredTakeKept
            | JobBug::AcknowledgedBeforeDurable => Promise::P4,
            JobBug::TokenNotChecked
            | JobBug::TheDeadMayAct
            | JobBug::TokensBeginAnew
            | JobBug::BeatRevivesTheDead => Promise::P5,
        }
    }
}

/// The rules that the model goes by.
pub fn true_rules(bug: Option<JobBug>) -> RecoveryPolicy {
    let usual =
        RecoveryPolicy { crashes_max: 3, crash_window_ms: 60_000, ..RecoveryPolicy::default() };
    match bug {
        // What is brought back in a second step has forgotten its crashes; that is not what is to be
        // found here, so nobody counts them.
        Some(JobBug::RemoveThenPush) => RecoveryPolicy { crash_window_ms: 0, ..usual },
        _ => usual,
    }
}

/// The rules that the store is given.
pub fn rules(bug: Option<JobBug>) -> RecoveryPolicy {
    let usual = true_rules(bug);
    match bug {
        Some(JobBug::RemoveThenPush) => RecoveryPolicy { on_death: OnDeath::Drop, ..usual },
        Some(JobBug::CrashNotCounted) => RecoveryPolicy { crash_window_ms: 0, ..usual },
        Some(JobBug::NoCrashLimit) => RecoveryPolicy { crashes_max: 0, ..usual },
        _ => usual,
    }
}

/// The rules of death that the store is given.
pub fn guard(bug: Option<JobBug>) -> Arc<dyn OwnerGuard> {
    match bug {
        Some(JobBug::TheDeadMayAct) => Arc::new(EndedMayActGuard),
        Some(JobBug::PutBackWithoutGuard) => Arc::new(AlwaysDeadGuard),
        _ => Arc::new(StrictOwnerGuard),
    }
}

/// Lets ended incarnations take and complete jobs.
struct EndedMayActGuard;

impl OwnerGuard for EndedMayActGuard {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        StrictOwnerGuard.judge(case)
    }

    fn may_register(&self, _: &IncarnationState) -> bool {
        true
    }
}

/// Calls every suspect dead.
struct AlwaysDeadGuard;

impl OwnerGuard for AlwaysDeadGuard {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        StrictOwnerGuard.judge(case).or(Ok(Reason::OwnerDead))
    }
}
