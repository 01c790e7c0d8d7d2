//! What is kept in the store for a system besides its entries: notes, marks, turns. Each call has the
//! time limit of all others.

use lapsed_core::notes::{Note, NoteQuery};
use lapsed_core::{Name, Result};

use super::live::LiveSystem;

impl LiveSystem {
    /// Writes into a book; the number of the note.
    pub async fn note(&self, book: &Name, text: &str) -> Result<u64> {
        self.call("note", self.store.notes().note(self.id(), book, text)).await
    }

    /// Reads a book, the newest first.
    pub async fn notes(&self, book: &Name, query: NoteQuery) -> Result<Vec<Note>> {
        self.call("notes", self.store.notes().notes(self.id(), book, query)).await
    }

    /// Strikes a note out; whether it was there.
    pub async fn strike(&self, book: &Name, seq: u64) -> Result<bool> {
        self.call("strike", self.store.notes().delete_note(self.id(), book, seq)).await
    }

    /// Where a mark stands.
    pub async fn mark(&self, name: &Name) -> Result<Option<u64>> {
        self.call("mark", self.store.notes().mark(self.id(), name)).await
    }

    /// Moves a mark, never back; where it stands now.
    pub async fn advance_mark(&self, name: &Name, to: u64) -> Result<u64> {
        self.call("advance_mark", self.store.notes().advance_mark(self.id(), name, to)).await
    }

    /// Takes or renews a turn; false while somebody else has it.
    pub async fn take_turn(&self, name: &Name, holder: &str, ttl_ms: u64) -> Result<bool> {
        self.call("take_turn", self.store.notes().take_turn(self.id(), name, holder, ttl_ms)).await
    }

    /// Ends a turn, if it is still `holder`'s.
    pub async fn end_turn(&self, name: &Name, holder: &str) -> Result<()> {
        self.call("end_turn", self.store.notes().end_turn(self.id(), name, holder)).await
    }
}
