//! The dead letters of a webhook: deliveries that were not accepted within the allowed number of
//! attempts.
//!
//! A dead letter names its receipts by number and does not contain them, so it stays small. The
//! receipts themselves are in the store for as long as the store keeps receipts.

use lapsed_core::notes::{Note, NoteQuery};
use lapsed_core::receipt::ReceiptId;
use lapsed_core::{Error, Result, SystemId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Hook;
use crate::node::LiveSystem;

/// The most dead letters of one system in one answer.
pub const LETTERS_MAX: usize = 1_000;

/// A delivery that was given up.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Undelivered {
    /// The id of the delivery.
    pub delivery: String,
    /// The number of its first receipt.
    pub first: u64,
    /// The number of its last receipt.
    pub last: u64,
    /// How many receipts were read for it, including those that the webhook does not want.
    pub looked_at: usize,
    /// How many attempts were made.
    pub attempts: u32,
    /// Why the last attempt failed.
    pub why: String,
}

/// A delivery that was given up, with its id and its system.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    /// The id of the dead letter, `KIND-NAME-NUMBER`.
    pub id: String,
    /// `KIND/NAME` of the system whose receipts it is about.
    pub system: String,
    /// When it became a dead letter, in milliseconds of the store's clock.
    pub at_ms: u64,
    /// The delivery that was given up.
    #[serde(flatten)]
    pub what: Undelivered,
}

impl DeadLetter {
    /// Reads a dead letter from the store; `None` if it cannot be parsed.
    fn read(system: &SystemId, note: &Note) -> Option<DeadLetter> {
        let what = serde_json::from_str(&note.text).ok()?;
        let id = ReceiptId { system: system.clone(), seq: note.seq }.to_string();
        Some(DeadLetter { id, system: system.to_string(), at_ms: note.at_ms, what })
    }
}

/// What an operator decides about a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterDecision {
    /// The delivery is tried again.
    PutBack,
    /// The dead letter is deleted.
    Deleted,
}

impl Hook {
    /// The newest dead letters of one system, before the given number.
    pub async fn letters(
        &self,
        live: &LiveSystem,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        let query = NoteQuery { before, limit };
        let notes = live.notes(&self.book.dead, query).await?;
        Ok(notes.iter().filter_map(|note| DeadLetter::read(live.id(), note)).collect())
    }

    /// Queues or deletes a dead letter; returns whether it existed. To queue it, it is first
    /// written to the other list and then removed from this one: a crash in between leaves it in
    /// both, and it is not lost.
    pub async fn settle(&self, id: &str, decision: LetterDecision) -> Result<bool> {
        let ReceiptId { system, seq } = id.parse().map_err(|_| no_letter_id(id))?;
        let Some(live) = self.lives().iter().find(|live| *live.id() == system) else {
            return Ok(false);
        };
        if decision == LetterDecision::PutBack {
            let query = NoteQuery { before: seq.checked_add(1), limit: 1 };
            let found = live.notes(&self.book.dead, query).await?;
            let Some(note) = found.iter().find(|note| note.seq == seq) else { return Ok(false) };
            live.note(&self.book.again, &note.text).await?;
        }
        live.strike(&self.book.dead, seq).await
    }

    /// The next dead letter that is to be delivered again, with its number.
    pub(super) async fn next_again(&self, live: &LiveSystem) -> Result<Option<(u64, Undelivered)>> {
        let found = live.notes(&self.book.again, NoteQuery { before: None, limit: 1 }).await?;
        let Some(note) = found.first() else { return Ok(None) };
        match serde_json::from_str(&note.text) {
            Ok(letter) => Ok(Some((note.seq, letter))),
            Err(error) => {
                tracing::error!(webhook = %self.name(), %error, "a dead letter cannot be read and is removed");
                live.strike(&self.book.again, note.seq).await?;
                Ok(None)
            }
        }
    }

    pub(super) async fn tried_again(&self, live: &LiveSystem, seq: u64) -> Result<()> {
        live.strike(&self.book.again, seq).await.map(drop)
    }

    pub(super) async fn keep_dead_letter(
        &self,
        live: &LiveSystem,
        letter: &Undelivered,
    ) -> Result<()> {
        let text = serde_json::to_string(letter).unwrap_or_default();
        live.note(&self.book.dead, &text).await?;
        self.series.count("dead");
        let (webhook, system, why) = (self.name(), live.id(), &letter.why);
        tracing::error!(%webhook, %system, delivery = letter.delivery, why, "delivery given up");
        Ok(())
    }
}

fn no_letter_id(id: &str) -> Error {
    Error::Invalid(format!(
        "{id:?} is not the id of a dead letter; they look like `registry-default-42` (see `lapsed webhook dead`)"
    ))
}
