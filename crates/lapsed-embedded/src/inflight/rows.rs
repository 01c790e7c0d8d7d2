//! Layout of a job's row: the *mark* says where it is, the *head* what is known of it, and the
//! payload follows. Moving a job changes the mark only.
//!
//! `length of the mark, length of the head (4 bytes each, big-endian), mark, head, payload`. The mark
//! of a queued job is its id; of one in flight its claim, token and since when (8 bytes each); of a
//! dead letter a [`Death`] as JSON. The head is a [`Head`].

use lapsed_core::Name;
use lapsed_core::inflight::NewJob;
use lapsed_core::inflight::rules::{DeadLetterReason, OnDeath};
use serde::{Deserialize, Serialize};

use crate::compact::{RowReader, RowWriter};
use crate::fault::{Fault, Tried};
use crate::tables::{pair, split_pair};

/// What is known of a job, wherever it is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(Serialize))]
pub(super) struct Head {
    /// Its own queue, also while the job is on the outbox.
    pub queue: Name,
    pub entered_ms: u64,
    /// When workers died with this job, as far as they were within the window at the last death.
    #[serde(default)]
    pub crashes: Vec<u64>,
    #[serde(default)]
    pub on_death: Option<OnDeath>,
    #[serde(default)]
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

    pub fn bytes(&self) -> Vec<u8> {
        let Head { queue, entered_ms, crashes, on_death, crashes_max } = self;
        let row = RowWriter::new()
            .text(queue.as_str())
            .number(*entered_ms)
            .option(*on_death, |row, on_death| row.text(on_death.as_str()))
            .option(*crashes_max, |row, max| row.number(max.into()))
            .number(crashes.len() as u64);
        crashes.iter().fold(row, |row, at_ms| row.number(*at_ms)).finish()
    }

    fn read(head: &[u8]) -> Tried<Head> {
        let Some(mut row) = RowReader::new(head)? else { return Ok(serde_json::from_slice(head)?) };
        let (queue, entered_ms) = (row.name()?, row.number()?);
        let on_death = row.option(read_on_death)?;
        let crashes_max = row.option(RowReader::number)?.map(u32::try_from).transpose();
        let crashes_max = crashes_max.map_err(|_| Fault::row("a job has too high a limit"))?;
        let count = row.number()?;
        let crashes = (0..count).map(|_| row.number()).collect::<Tried<_>>()?;
        row.finish(Head { queue, entered_ms, crashes, on_death, crashes_max })
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
        Head::read(self.head)
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

fn read_on_death(row: &mut RowReader<'_>) -> Tried<OnDeath> {
    let word = row.text()?;
    let known = OnDeath::ALL.iter().find(|known| known.as_str() == word);
    known.copied().ok_or_else(|| Fault::row("a job has an end that is not known"))
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

    #[test]
    fn a_head_is_read_as_this_and_older_versions_wrote_it() {
        let queue = Name::new("mail").unwrap();
        let plain = Head::of(&NewJob::new(queue.clone(), queue, "p"), 1_700_000_000_000);
        let full = OnDeath::ALL.iter().map(|on_death| Head {
            crashes: vec![1, 1_700_000_000_000],
            on_death: Some(*on_death),
            crashes_max: Some(u32::MAX),
            ..plain.clone()
        });
        for head in full.chain([plain.clone()]) {
            let row = head.bytes();
            assert_eq!(Head::read(&row).unwrap(), head);
            assert!(Head::read(&row[..row.len() - 1]).is_err());
            assert_eq!(Head::read(&serde_json::to_vec(&head).unwrap()).unwrap(), head);
        }
    }

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
