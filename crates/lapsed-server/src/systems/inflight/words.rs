//! The labels and sentences that people read about jobs in flight.

use std::time::Duration;

use lapsed_core::inflight::{RecoveredJob, RecoveryAction};
use lapsed_core::receipt::Receipt;

use crate::config::units::show_span;
use crate::node::shapes::SystemStatus;
use crate::print::count;
use crate::systems::words::{GENERAL, KindWords};

pub const WORDS: KindWords = KindWords {
    tag: "Jobs that workers hold, put back when their worker dies",
    entries: "in flight",
    entries_shown: "in flight",
    reclaimed: "recovered",
    columns: &["job", "worker", "incarnation"],
    next_step: "To see where one is: lapsed explain {system} JOB{again}. To list jobs that will not be \
                retried: lapsed dead list {system}{again}",
    restored: "{key} is back on its queue",
    promise: "Job {key} goes back on its queue in {system}, for the next worker to take.",
    dead_letters: true,
    ..GENERAL
};

/// What was done with a job whose worker died.
pub fn effect(receipt: &Receipt) -> Option<String> {
    let done: RecoveredJob = serde_json::from_value(receipt.removed.clone()).ok()?;
    let word = match done.did {
        RecoveryAction::PutBack => match (done.moved_to, done.due_ms) {
            (Some(queue), None) => return Some(format!("moved to {queue}")),
            (Some(queue), Some(due)) => {
                return Some(format!("moved to {queue}, delayed by {}", delay(receipt, due)));
            }
            (None, Some(due)) => return Some(format!("delayed by {}", delay(receipt, due))),
            (None, None) => "put back",
        },
        RecoveryAction::DeadLetter => "dead letter",
        other => other.as_str(),
    };
    Some(match done.how_sure {
        Some(how_sure) => format!("{word}, {how_sure}"),
        None => word.to_owned(),
    })
}

/// For how long a job waits before it may run again.
fn delay(receipt: &Receipt, due_ms: u64) -> String {
    show_span(Duration::from_millis(due_ms.saturating_sub(receipt.at_ms)))
}

/// The numbers of jobs by state, for the status.
pub fn facts(status: &SystemStatus) -> Vec<(&'static str, String)> {
    let Some(jobs) = &status.jobs else { return Vec::new() };
    let account = format!(
        "{} entered, {} completed, {} dropped",
        count(jobs.entered),
        count(jobs.completed),
        count(jobs.dropped)
    );
    vec![("queued", count(jobs.queued)), ("dead letters", count(jobs.dead)), ("account", account)]
}
