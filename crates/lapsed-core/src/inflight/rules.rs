//! What happens to a job whose worker is dead. Pure functions, which a store calls inside its
//! atomic step.
//!
//! Whether the worker *is* dead is deliberately not decided here:
//! [`registry::rules`](crate::registry::rules) decides it for every system that has owners.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::name::Name;

/// Which end of its queue a job goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueEnd {
    /// The job is the next one to be taken.
    #[default]
    Front,
    /// The job waits behind all others.
    Back,
}

/// What happens to a job when its worker dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnDeath {
    /// The job goes back to the front of its queue, because it has waited before.
    #[default]
    Front,
    /// The job goes to the back of its queue.
    Back,
    /// The job becomes a dead letter, as if its worker had reported a failure.
    Fail,
    /// The job is removed; the receipt keeps its payload.
    Drop,
    DeadLetter,
}

impl OnDeath {
    /// Every value, in the order of the documentation.
    pub const ALL: &[OnDeath] =
        &[OnDeath::Front, OnDeath::Back, OnDeath::Fail, OnDeath::Drop, OnDeath::DeadLetter];

    /// The word used in configuration and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            OnDeath::Front => "front",
            OnDeath::Back => "back",
            OnDeath::Fail => "fail",
            OnDeath::Drop => "drop",
            OnDeath::DeadLetter => "dead_letter",
        }
    }

    /// The letter by which a record in a store says it.
    pub fn letter(self) -> &'static str {
        match self {
            OnDeath::Front => "f",
            OnDeath::Back => "b",
            OnDeath::Fail => "x",
            OnDeath::Drop => "r",
            OnDeath::DeadLetter => "l",
        }
    }

    /// What a sentence about the job of a dead worker ends with.
    pub fn outcome(self) -> &'static str {
        match self {
            OnDeath::Front => "is back at the front of its queue",
            OnDeath::Back => "is back at the end of its queue",
            OnDeath::Fail => "has failed, and is a dead letter",
            OnDeath::Drop => "is dropped",
            OnDeath::DeadLetter => "is a dead letter",
        }
    }
}

impl fmt::Display for OnDeath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for OnDeath {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|one| one.as_str() == text).copied();
        found.ok_or_else(|| {
            let words: Vec<&str> = Self::ALL.iter().map(|one| one.as_str()).collect();
            Error::Invalid(format!("{text:?} is none of {}", words.join(", ")))
        })
    }
}

/// Why a job is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// Its worker reported a failure, or its worker died and the policy treats that as a failure.
    Failed,
    /// More workers died with it than the policy allows.
    Crashes,
    /// Its worker had been dead for longer than the policy allows.
    TooOld,
    /// The policy is to make every job of a dead worker a dead letter.
    Asked,
    /// Jobs of its class are not put back when their worker dies.
    Quarantined,
}

impl DeadLetterReason {
    /// Every reason, in the order of the documentation.
    pub const ALL: &[DeadLetterReason] = &[
        DeadLetterReason::Failed,
        DeadLetterReason::Crashes,
        DeadLetterReason::TooOld,
        DeadLetterReason::Asked,
        DeadLetterReason::Quarantined,
    ];

    /// The word used in receipts, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            DeadLetterReason::Failed => "failed",
            DeadLetterReason::Crashes => "crashes",
            DeadLetterReason::TooOld => "too_old",
            DeadLetterReason::Asked => "asked",
            DeadLetterReason::Quarantined => "quarantined",
        }
    }
}

impl fmt::Display for DeadLetterReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How long a job of a foreign job system waits after the death of its worker before it may run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first crash within the window, in milliseconds; doubled with each further crash.
    pub first_ms: u64,
    /// It is never longer than this, in milliseconds.
    pub max_ms: u64,
}

impl Backoff {
    /// The delay after this many crashes, in milliseconds.
    pub fn delay_ms(&self, crashes: u32) -> u64 {
        let doublings = crashes.saturating_sub(1).min(40);
        self.first_ms.saturating_mul(1 << doublings).min(self.max_ms)
    }
}

/// How a system recovers jobs of dead workers. Independent of the application's own retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPolicy {
    /// What happens to a job that does not say otherwise itself.
    pub on_death: OnDeath,
    /// With this many crashes within the window a job becomes a dead letter. 0: no limit.
    pub crashes_max: u32,
    /// How long a crash is counted, in milliseconds.
    pub crash_window_ms: u64,
    /// A job whose worker has been dead for longer than this becomes a dead letter instead of going
    /// back. 0: no limit.
    pub age_max_ms: u64,
    /// A queue for systems whose own queues lapsed cannot write to. Jobs that would go back to
    /// their queues go to this one instead, from which the application delivers them. A job keeps
    /// the name of its own queue.
    pub outbox: Option<Name>,
    /// Jobs of dead workers that would go back to their queue go to the back of this one instead, and belong to it from
    /// then on. A job that says itself what happens to it is not moved.
    pub move_to: Option<Name>,
}

impl Default for RecoveryPolicy {
    fn default() -> Self {
        const HOUR_MS: u64 = 3_600_000;
        RecoveryPolicy {
            on_death: OnDeath::Front,
            crashes_max: 3,
            crash_window_ms: 72 * HOUR_MS,
            age_max_ms: 7 * 24 * HOUR_MS,
            outbox: None,
            move_to: None,
        }
    }
}

/// Facts about a job on which the decision is based.
#[derive(Clone, Copy, Debug)]
pub struct JobCase<'a> {
    pub recovery: &'a RecoveryPolicy,
    /// The job's own setting, if it has one.
    pub on_death: Option<OnDeath>,
    /// The job's own limit, if it has one.
    pub crashes_max: Option<u32>,
    /// Whether its worker died. A worker that retired is not a crash.
    pub crashed: bool,
    /// When earlier workers died with this job, in milliseconds of the store's clock.
    pub crashes: &'a [u64],
    /// When its worker's heartbeat ran out.
    pub deadline_ms: u64,
    /// The store's clock now.
    pub now_ms: u64,
}

/// What happens to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobDecision {
    /// It goes back to its queue.
    PutBack(QueueEnd),
    /// It goes to the back of [`RecoveryPolicy::move_to`].
    Move,
    DeadLetter(DeadLetterReason),
    Drop,
}

/// How many of `crashes` are within the window.
pub fn counting(crashes: &[u64], window_ms: u64, now_ms: u64) -> u32 {
    crashes.iter().filter(|at_ms| counts(**at_ms, window_ms, now_ms)).count() as u32
}

/// Whether a crash at `at_ms` is within the window.
pub fn counts(at_ms: u64, window_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(at_ms) < window_ms
}

/// Decides what happens to a job. A worker that retired gives its jobs back, whatever the policy
/// says. A worker that died raises the crash count, and the limits come before `on_death`.
pub fn decide(case: &JobCase<'_>) -> JobDecision {
    let recovery = case.recovery;
    let on_death = case.on_death.unwrap_or(recovery.on_death);
    let end = if on_death == OnDeath::Back { QueueEnd::Back } else { QueueEnd::Front };
    if !case.crashed {
        return JobDecision::PutBack(end);
    }
    match on_death {
        OnDeath::Drop => return JobDecision::Drop,
        OnDeath::Fail => return JobDecision::DeadLetter(DeadLetterReason::Failed),
        OnDeath::DeadLetter => return JobDecision::DeadLetter(DeadLetterReason::Asked),
        OnDeath::Front | OnDeath::Back => {}
    }
    let late_ms = case.now_ms.saturating_sub(case.deadline_ms);
    if recovery.age_max_ms > 0 && late_ms > recovery.age_max_ms {
        return JobDecision::DeadLetter(DeadLetterReason::TooOld);
    }
    let crashes = 1 + counting(case.crashes, recovery.crash_window_ms, case.now_ms);
    let crashes_max = case.crashes_max.unwrap_or(recovery.crashes_max);
    if crashes_max > 0 && crashes >= crashes_max {
        return JobDecision::DeadLetter(DeadLetterReason::Crashes);
    }
    match (&recovery.move_to, case.on_death) {
        (Some(_), None) => JobDecision::Move,
        _ => JobDecision::PutBack(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECOVERY: RecoveryPolicy = RecoveryPolicy {
        on_death: OnDeath::Front,
        crashes_max: 3,
        crash_window_ms: 1_000,
        age_max_ms: 500,
        outbox: None,
        move_to: None,
    };

    fn case(crashes: &[u64]) -> JobCase<'_> {
        JobCase {
            recovery: &RECOVERY,
            on_death: None,
            crashes_max: None,
            crashed: true,
            crashes,
            deadline_ms: 10_000,
            now_ms: 10_100,
        }
    }

    #[test]
    fn the_third_crash_within_the_window_is_the_last() {
        assert_eq!(decide(&case(&[])), JobDecision::PutBack(QueueEnd::Front));
        assert_eq!(decide(&case(&[9_500])), JobDecision::PutBack(QueueEnd::Front));
        assert_eq!(
            decide(&case(&[9_500, 9_600])),
            JobDecision::DeadLetter(DeadLetterReason::Crashes)
        );
        assert_eq!(
            decide(&case(&[9_100, 9_600])),
            JobDecision::PutBack(QueueEnd::Front),
            "one is too old"
        );
        let lenient = JobCase { crashes_max: Some(0), ..case(&[9_500, 9_600, 9_700]) };
        assert_eq!(decide(&lenient), JobDecision::PutBack(QueueEnd::Front));
    }

    #[test]
    fn a_job_of_a_long_dead_worker_is_not_put_back() {
        let long_ago = |now_ms| decide(&JobCase { now_ms, ..case(&[]) });
        assert_eq!(long_ago(10_500), JobDecision::PutBack(QueueEnd::Front));
        assert_eq!(long_ago(10_501), JobDecision::DeadLetter(DeadLetterReason::TooOld));
    }

    #[test]
    fn only_jobs_of_dead_workers_that_would_go_back_are_moved() {
        let moving = RecoveryPolicy { move_to: Name::new("slow").ok(), ..RECOVERY };
        let case = |crashes| JobCase { recovery: &moving, ..case(crashes) };
        assert_eq!(decide(&case(&[])), JobDecision::Move);
        let own = JobCase { on_death: Some(OnDeath::Back), ..case(&[]) };
        assert_eq!(decide(&own), JobDecision::PutBack(QueueEnd::Back));
        let retired = JobCase { crashed: false, ..case(&[]) };
        assert_eq!(decide(&retired), JobDecision::PutBack(QueueEnd::Front));
        let third = decide(&case(&[9_500, 9_600]));
        assert_eq!(third, JobDecision::DeadLetter(DeadLetterReason::Crashes));
    }

    #[test]
    fn a_delay_is_doubled_by_each_crash_up_to_its_maximum() {
        let backoff = Backoff { first_ms: 30, max_ms: 100 };
        let delays = [1, 2, 3, 4, u32::MAX].map(|crashes| backoff.delay_ms(crashes));
        assert_eq!(delays, [30, 60, 100, 100, 100]);
        let largest = Backoff { first_ms: u64::MAX / 2, max_ms: u64::MAX };
        assert_eq!(largest.delay_ms(9), u64::MAX);
    }

    #[test]
    fn a_jobs_own_settings_override_the_policy() {
        let own = |on_death| decide(&JobCase { on_death: Some(on_death), ..case(&[]) });
        assert_eq!(own(OnDeath::Back), JobDecision::PutBack(QueueEnd::Back));
        assert_eq!(own(OnDeath::Drop), JobDecision::Drop);
        assert_eq!(own(OnDeath::Fail), JobDecision::DeadLetter(DeadLetterReason::Failed));
        assert_eq!(own(OnDeath::DeadLetter), JobDecision::DeadLetter(DeadLetterReason::Asked));
    }

    #[test]
    fn retiring_is_not_a_crash() {
        let left = JobCase {
            crashed: false,
            on_death: Some(OnDeath::Drop),
            now_ms: 99_999,
            ..case(&[9_900, 9_901, 9_902])
        };
        assert_eq!(decide(&left), JobDecision::PutBack(QueueEnd::Front));
    }

    #[test]
    fn letters_and_sentences_tell_the_rules_apart() {
        for words in [OnDeath::letter, OnDeath::outcome] {
            let all: std::collections::BTreeSet<&str> =
                OnDeath::ALL.iter().copied().map(words).collect();
            assert_eq!(all.len(), OnDeath::ALL.len(), "{all:?}");
            assert!(!all.contains(""));
        }
    }

    #[test]
    fn words_parse_as_they_are_displayed() {
        for one in OnDeath::ALL {
            assert_eq!(one.as_str().parse::<OnDeath>().unwrap(), *one);
        }
        let error = "frnt".parse::<OnDeath>().unwrap_err().to_string();
        assert!(error.contains("front, back, fail, drop, dead_letter"), "{error}");
    }
}
