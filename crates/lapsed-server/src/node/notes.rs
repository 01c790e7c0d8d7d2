//! What the store keeps for a system besides its entries: notes (numbered texts in named books),
//! marks (named numbers that only grow) and turns (named locks that expire). Every call has the
//! time limit of a store call.

use lapsed_core::notes::{Note, NoteQuery};
use lapsed_core::{Name, Result};

use super::live::LiveSystem;

impl LiveSystem {
    /// Appends a note to a book. Returns the number of the note.
    pub async fn note(&self, book: &Name, text: &str) -> Result<u64> {
        self.call("note", self.store.notes().note(self.id(), book, text)).await
    }

    /// Reads one page of a book, newest notes first.
    pub async fn notes(&self, book: &Name, query: NoteQuery) -> Result<Vec<Note>> {
        self.call("notes", self.store.notes().notes(self.id(), book, query)).await
    }

    /// Deletes a note. Returns whether it existed.
    pub async fn strike(&self, book: &Name, seq: u64) -> Result<bool> {
        self.call("strike", self.store.notes().delete_note(self.id(), book, seq)).await
    }

    /// The value of a mark; `None` if it was never set.
    pub async fn mark(&self, name: &Name) -> Result<Option<u64>> {
        self.call("mark", self.store.notes().mark(self.id(), name)).await
    }

    /// Raises a mark to `to`; a mark never goes back. Returns its value afterwards.
    pub async fn advance_mark(&self, name: &Name, to: u64) -> Result<u64> {
        self.call("advance_mark", self.store.notes().advance_mark(self.id(), name, to)).await
    }

    /// Takes or renews a turn for `ttl_ms`. Returns false while another holder has it.
    pub async fn take_turn(&self, name: &Name, holder: &str, ttl_ms: u64) -> Result<bool> {
        self.call("take_turn", self.store.notes().take_turn(self.id(), name, holder, ttl_ms)).await
    }

    /// Ends a turn, if `holder` still has it.
    pub async fn end_turn(&self, name: &Name, holder: &str) -> Result<()> {
        self.call("end_turn", self.store.notes().end_turn(self.id(), name, holder)).await
    }
}
