//! The account: what must be true of the stores, given the answers that the load got.

use serde_json::Value;

use super::ledger::{GrantRecord, JobRecord, Ledger};

/// The `Date` of an object store's answers is in whole seconds.
const DATE_RESOLUTION_MS: u64 = 1_000;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// An acknowledged job is nowhere, and no worker has tried to complete it.
    JobLost(String),
    JobCompletedTwice(String),
    /// Its completion was acknowledged, and it is still there, or was handed out again.
    JobRunAfterCompletion(String),
    CountsDoNotBalance(String),
    /// Two receipts for one entry of one incarnation.
    ReclaimedTwice(String),
    ReclaimedFromTheLiving(String),
    RegistrationLost(String),
    SessionLost(String),
    /// Two holders of one key at a time, or a token that does not grow.
    LeaseShared(String),
    /// Something that faults have left behind although there was time to clear it.
    Unsettled(String),
}

impl Complaint {
    /// Whether the loss of acknowledged writes explains it: an asynchronous replica was promoted.
    pub fn is_documented_loss(&self) -> bool {
        matches!(
            self,
            Complaint::JobLost(_)
                | Complaint::JobRunAfterCompletion(_)
                | Complaint::JobCompletedTwice(_)
                | Complaint::RegistrationLost(_)
                | Complaint::SessionLost(_)
        )
    }
}

/// Compares the answers that one job's workers got with where the job is: `None` if there is no such job.
pub fn check_job(id: &str, job: &JobRecord, state: Option<&str>) -> Option<Complaint> {
    let what = || format!("{id} ({state:?}): {job:?}");
    if job.completed.len() > 1 {
        return Some(Complaint::JobCompletedTwice(what()));
    }
    let completed = job.completed.first();
    let taken_again = completed.is_some_and(|token| job.taken.iter().any(|taken| taken > token));
    if taken_again || (completed.is_some() && state.is_some()) {
        return Some(Complaint::JobRunAfterCompletion(what()));
    }
    let is_lost = state.is_none() && job.entered && job.completing.is_empty();
    is_lost.then(|| Complaint::JobLost(what()))
}

/// Checks the counts of the jobs, also against how many were enqueued. `is_whole`: no write was lost.
pub fn check_counts(counts: &Value, ledger: &Ledger, is_whole: bool) -> Option<Complaint> {
    let of = |what: &str| counts[what].as_u64().unwrap_or(u64::MAX);
    let parts = ["completed", "queued", "in_flight", "dead", "dropped"].map(of);
    let sum = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(*part));
    let entered = of("entered");
    let is_known = !is_whole || (entered >= ledger.entered && entered <= ledger.tried);
    let what = format!("{counts}, and {} to {} were enqueued", ledger.entered, ledger.tried);
    (entered != sum || !is_known).then_some(Complaint::CountsDoNotBalance(what))
}

/// Checks receipts that were not seen before, and remembers them.
pub fn check_receipts(receipts: &[Value], ledger: &mut Ledger) -> Vec<Complaint> {
    receipts.iter().filter_map(|receipt| check_receipt(receipt, ledger)).collect()
}

fn check_receipt(receipt: &Value, ledger: &mut Ledger) -> Option<Complaint> {
    let text = |name: &str| receipt[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str| receipt[name].as_u64().unwrap_or_default();
    let (id, key, at_ms, incarnation) =
        (text("id"), text("key"), number("at_ms"), number("incarnation"));
    let kind = id.split(['-', '/']).next().unwrap_or_default().to_owned();
    let known = ledger.reclaims.insert((kind.clone(), key.clone(), incarnation), id.clone());
    if let Some(known) = known {
        return Some(Complaint::ReclaimedTwice(format!("{known} and {receipt}")));
    }
    let owner = match kind.as_str() {
        "availability" => ledger.providers.get(&key),
        // A session is orphaned while its last owner lives, and a lease ends by its own deadline.
        "sessions" | "leases" => None,
        _ => ledger.owners.get(&(kind, incarnation)),
    };
    let alive = owner.and_then(|owner| owner.alive_at(at_ms));
    alive.map(|sign| Complaint::ReclaimedFromTheLiving(format!("{receipt}, and {sign:?}")))
}

/// Checks the grants of one key, by their tokens.
pub fn check_grants(
    key: &str,
    grants: &std::collections::BTreeMap<u64, GrantRecord>,
) -> Option<Complaint> {
    let all: Vec<(&u64, &GrantRecord)> = grants.iter().collect();
    for pair in all.windows(2) {
        let ((token, before), (next, after)) = (pair[0], pair[1]);
        let Some(granted) = after.held.first() else { continue };
        let overlaps = before.held.iter().find(|held| {
            let until_ms = held.sent_ms + before.ttl_ms.saturating_sub(DATE_RESOLUTION_MS);
            let is_released = before.released_ms.is_some_and(|at_ms| at_ms <= granted.done_ms);
            let is_late = held.sent_ms > granted.done_ms;
            is_late
                || (!is_released && held.done_ms <= granted.sent_ms && until_ms > granted.done_ms)
        });
        if let Some(held) = overlaps {
            let what =
                format!("{key}: token {next} was granted in {granted:?}, and {token} had {held:?}");
            return Some(Complaint::LeaseShared(what));
        }
    }
    None
}
