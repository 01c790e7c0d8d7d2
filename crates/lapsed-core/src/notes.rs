//! Small data that a system keeps besides its entries and receipts: books of notes (the audit
//! trail, undelivered messages), marks (how far a reader has come) and turns (which process does a
//! job now).
//!
//! The data outlives a process and all processes see it. A book is bounded: it keeps its newest
//! [`NOTES_MAX`] notes. Deliberately absent: an order of two notes that are written at the same
//! moment, and a fence for turns. A process that has a turn may be slow and lose it without
//! noticing, so a turn only saves work, and what is done in it must be safe to do twice.

#[cfg(feature = "conformance")]
pub mod conformance;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::name::{Name, SystemId};

/// How many notes a book keeps, by number.
pub const NOTES_MAX: u64 = 10_000;

/// The longest note, in bytes.
pub const NOTE_BYTES_MAX: usize = 256 << 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Grows within its book, with gaps; no number is used twice.
    pub seq: u64,
    /// When it was written, on the store's clock.
    pub at_ms: u64,
    pub text: String,
}

/// Which notes to read: the newest first, always bounded by `limit`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoteQuery {
    /// Return only notes with a smaller number.
    pub before: Option<u64>,
    /// Largest number of results.
    pub limit: usize,
}

/// Notes, marks and turns of the systems on one store.
///
/// **Effect of an error**: a write that was not answered may have been carried out. Repeating it is
/// safe, except for `note`, which may then write the note twice.
#[async_trait]
pub trait NoteStore: Send + Sync {
    /// Appends a note to `book` and returns its number. Removes the oldest notes beyond the limit.
    async fn note(&self, system: &SystemId, book: &Name, text: &str) -> Result<u64>;

    async fn notes(&self, system: &SystemId, book: &Name, query: NoteQuery) -> Result<Vec<Note>>;

    /// Deletes one note; whether it existed.
    async fn delete_note(&self, system: &SystemId, book: &Name, seq: u64) -> Result<bool>;

    /// The value of a mark; `None`: it was never set.
    async fn mark(&self, system: &SystemId, name: &Name) -> Result<Option<u64>>;

    /// Moves a mark forward to `to`, never back; returns its value.
    async fn advance_mark(&self, system: &SystemId, name: &Name, to: u64) -> Result<u64>;

    /// Takes or renews the turn `name` for `ttl_ms` of the store's clock; false while another holder
    /// has it.
    async fn take_turn(
        &self,
        system: &SystemId,
        name: &Name,
        holder: &str,
        ttl_ms: u64,
    ) -> Result<bool>;

    /// Ends the turn if `holder` still has it.
    async fn end_turn(&self, system: &SystemId, name: &Name, holder: &str) -> Result<()>;
}

/// Refuses a note longer than [`NOTE_BYTES_MAX`].
pub fn check_note(text: &str) -> Result<()> {
    if text.len() <= NOTE_BYTES_MAX {
        return Ok(());
    }
    let length = text.len();
    Err(Error::Invalid(format!("a note has at most {NOTE_BYTES_MAX} bytes; this one has {length}")))
}

/// A store without notes, for simulations that do not need them: every call is `Unsupported`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNotes;

impl NoNotes {
    fn refuse<T>(operation: &str) -> Result<T> {
        let store = "this store".to_owned();
        Err(Error::Unsupported { operation: operation.to_owned(), store })
    }
}

#[async_trait]
impl NoteStore for NoNotes {
    async fn note(&self, _: &SystemId, _: &Name, _: &str) -> Result<u64> {
        Self::refuse("notes")
    }
    async fn notes(&self, _: &SystemId, _: &Name, _: NoteQuery) -> Result<Vec<Note>> {
        Self::refuse("notes")
    }
    async fn delete_note(&self, _: &SystemId, _: &Name, _: u64) -> Result<bool> {
        Self::refuse("notes")
    }
    async fn mark(&self, _: &SystemId, _: &Name) -> Result<Option<u64>> {
        Self::refuse("marks")
    }
    async fn advance_mark(&self, _: &SystemId, _: &Name, _: u64) -> Result<u64> {
        Self::refuse("marks")
    }
    async fn take_turn(&self, _: &SystemId, _: &Name, _: &str, _: u64) -> Result<bool> {
        Self::refuse("turns")
    }
    async fn end_turn(&self, _: &SystemId, _: &Name, _: &str) -> Result<()> {
        Self::refuse("turns")
    }
}
