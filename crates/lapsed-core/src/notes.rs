//! What a system keeps besides its entries and receipts: books of notes (who did what by hand, what could
//! not be delivered), marks (how far somebody has come) and turns (whose job it is just now).
//!
//! Small things that must outlive a process and be seen by all of them. A book is bounded: it keeps its
//! newest [`NOTES_MAX`]. Deliberately absent: any promise about the order of two notes that are written at
//! the same moment, and a fence behind a turn. Whoever has a turn may be slow and lose it without
//! noticing; so a turn only spares work, and what is done in it must stand being done twice.

#[cfg(feature = "conformance")]
pub mod conformance;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::name::{Name, SystemId};

/// How many notes a book keeps: the newest, counted by their numbers.
pub const NOTES_MAX: u64 = 10_000;

/// The longest note, in bytes.
pub const NOTE_BYTES_MAX: usize = 256 << 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Grows within its book, with gaps; never given twice.
    pub seq: u64,
    /// When it was written, on the store's clock.
    pub at_ms: u64,
    pub text: String,
}

/// Which notes to read: the newest first, always bounded by `limit`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoteQuery {
    /// Only those before this number.
    pub before: Option<u64>,
    /// At most so many.
    pub limit: usize,
}

/// Books, marks and turns of the systems on one store.
///
/// **Effect of an error**: a write that was not answered may have been carried out. Repeating it is safe,
/// but for `note`, which may then be there twice.
#[async_trait]
pub trait NoteStore: Send + Sync {
    /// Writes `text` into `book`; its number. The oldest notes make room.
    async fn note(&self, system: &SystemId, series: &Name, text: &str) -> Result<u64>;

    async fn notes(&self, system: &SystemId, series: &Name, query: NoteQuery) -> Result<Vec<Note>>;

    /// Strikes one note out; whether it was there.
    async fn delete_note(&self, system: &SystemId, series: &Name, seq: u64) -> Result<bool>;

    /// Where a mark stands; `None`: it was never set.
    async fn mark(&self, system: &SystemId, name: &Name) -> Result<Option<u64>>;

    /// Moves a mark to `to`, never back; where it stands now.
    async fn advance_mark(&self, system: &SystemId, name: &Name, to: u64) -> Result<u64>;

    /// Takes or renews the turn `name` for `ttl_ms` of the store's clock; false while somebody else has it.
    async fn take_turn(
        &self,
        system: &SystemId,
        name: &Name,
        holder: &str,
        ttl_ms: u64,
    ) -> Result<bool>;

    /// Ends the turn, if it is still `holder`'s.
    async fn end_turn(&self, system: &SystemId, name: &Name, holder: &str) -> Result<()>;
}

/// Refuses a note that is too long.
pub fn check_note(text: &str) -> Result<()> {
    if text.len() <= NOTE_BYTES_MAX {
        return Ok(());
    }
    let length = text.len();
    Err(Error::Invalid(format!("a note has at most {NOTE_BYTES_MAX} bytes; this one has {length}")))
}

/// A store that keeps none: a simulation of what needs none.
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
