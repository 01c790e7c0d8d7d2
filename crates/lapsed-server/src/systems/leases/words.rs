//! The labels and sentences that people read about leases.

use lapsed_core::leases::RemovedLease;
use lapsed_core::receipt::Receipt;

use crate::systems::words::{GENERAL, KindWords};

pub const WORDS: KindWords = KindWords {
    tag: "The right to a key for a time, with a token that only grows; and decisions, each made once",
    entries: "leases",
    entries_shown: "leases",
    owners: None,
    reclaimed: "cleared",
    columns: &["key", "owner", "token"],
    dead_after: "a lease lasts {threshold} from each renewal unless a request sets another TTL",
    promise: "{key} in {system} is granted to {owner} again, with the next token; its old token stays \
              dead.",
    ..GENERAL
};

/// Whether the state that was staged with the lease was committed or rolled back.
pub fn effect(receipt: &Receipt) -> Option<String> {
    match serde_json::from_value(receipt.removed.clone()).ok()? {
        RemovedLease::Lease(cleared) => {
            let (txn, decision) = cleared.staged?;
            Some(format!("{txn}: {decision}"))
        }
        RemovedLease::Decision(_) => None,
    }
}

/// The sentence for a lease or a decision that was put back. A decision has no token.
pub fn restored(key: &str, owner: &str, token: u64) -> String {
    match token {
        0 => format!("{key} is decided again: {owner}"),
        token => format!(
            "{key} is held by {owner} again, by the new token {token} and for a whole TTL; the old \
             token stays dead"
        ),
    }
}
