//! Layout of a job's row: the *mark* says where it is, the *head* what is known of it, and the
//! payload follows. Moving a job changes the mark only.
//!
//! `length of the mark, length of the head (4 bytes each, big-endian), mark, head, payload`. The mark
//! of a queued job is its id; of one in flight its claim, token and since when (8 bytes each); of a
//! dead letter a [`Death`] as JSON. The head is a [`Head`] as JSON.

use lapsed_core::Name;
use lapsed_core::inflight::NewJob;
use lapsed_core::inflight::rules::{DeadLetterReason, OnDeath};
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, Tried};
use crate::tables::{pair, split_pair};

/// What is known of a job, wherever it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// Its own queue, also while the job is on the outbox.
    pub queue: Name,
    pub entered_ms: u64,
    /// When workers died with this job, as far as they were within the window at the last death.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crashes: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_death: Option<OnDeath>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crashes_max: Option<u32>,
}

impl Head {
    pub fn of(job: &NewJob, entered_ms: u64) -> Head {
        Head {
            queue: job.queue.clone(),
            entered_ms,
            crashes: Vec::new(),
            on_death: job.on_death,
            crashes_max: job.crashes_max,
        }
    }

    pub fn bytes(&self) -> Tried<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }
}

/// Why a job is a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Death {
    pub why: DeadLetterReason,
    pub at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The part of a row that stays the same when the job moves.
#[derive(Clone, Copy)]
pub(super) struct Body<'a> {
    pub head: &'a [u8],
    pub payload: &'a [u8],
}

impl<'a> Body<'a> {
    pub fn head(&self) -> Tried<Head> {
        Ok(serde_json::from_slice(self.head)?)
    }

    pub fn payload(&self) -> Tried<String> {
        let text = std::str::from_utf8(self.payload);
        Ok(text.map_err(|_| Fault::row("a job's payload is not text"))?.to_owned())
    }

    /// The row with that mark.
    pub fn marked(&self, mark: &[u8]) -> Vec<u8> {
        let mut row = Vec::with_capacity(8 + mark.len() + self.head.len() + self.payload.len());
        row.extend_from_slice(&(mark.len() as u32).to_be_bytes());
        row.extend_from_slice(&(self.head.len() as u32).to_be_bytes());
        row.extend_from_slice(mark);
        row.extend_from_slice(self.head);
        row.extend_from_slice(self.payload);
        row
    }
}

/// Splits a row into mark and body.
pub(super) fn split(row: &[u8]) -> Tried<(&[u8], Body<'_>)> {
    let apart = || {
        let length = |at: usize| {
            let bytes = row.get(at..at + 4)?.try_into().ok()?;
            usize::try_from(u32::from_be_bytes(bytes)).ok()
        };
        let (mark, rest) = row.get(8..)?.split_at_checked(length(0)?)?;
        let (head, payload) = rest.split_at_checked(length(4)?)?;
        Some((mark, Body { head, payload }))
    };
    apart().ok_or_else(|| Fault::row("a row is not a job"))
}

/// Reads a name that was written by this store.
pub(super) fn name(bytes: &[u8]) -> Tried<Name> {
    Name::from_bytes(bytes).map_err(|error| Fault::row(format!("a row has no name: {error}")))
}

/// The mark of a job in flight.
pub(super) fn claim_mark(token: u64, since_ms: u64) -> [u8; 16] {
    pair(token, since_ms)
}

pub(super) fn split_claim(mark: &[u8]) -> Tried<(u64, u64)> {
    split_pair(mark).ok_or_else(|| Fault::row("a job in flight has no claim"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_row_is_split_into_what_it_was_built_from(
            mark in proptest::collection::vec(any::<u8>(), 0..40),
            head in proptest::collection::vec(any::<u8>(), 0..40),
            payload in proptest::collection::vec(any::<u8>(), 0..40)) {
            let row = Body { head: &head, payload: &payload }.marked(&mark);
            let (own_mark, body) = split(&row).unwrap();
            prop_assert_eq!((own_mark, body.head, body.payload), (&*mark, &*head, &*payload));
        }

        #[test]
        fn any_bytes_are_split_or_refused(
            row in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = split(&row);
        }
    }
}
