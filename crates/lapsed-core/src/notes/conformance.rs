//! Conformance suite for notes, marks and turns. Runs on the real clock.

#![allow(clippy::unwrap_used)] // a suite of tests: a panic is a failing test

pub mod books;

use std::ops::Deref;

use super::{NoteQuery, NoteStore};
use crate::conformance::TestStore;
use crate::name::{Name, SystemId};

/// A fresh store, and a system on it that no other test uses.
pub struct NotesFixture {
    pub system: SystemId,
    pub on: TestStore,
}

impl Deref for NotesFixture {
    type Target = TestStore;
    fn deref(&self) -> &TestStore {
        &self.on
    }
}

impl NotesFixture {
    pub async fn settled(self) -> Self {
        self
    }

    fn notes(&self) -> &dyn NoteStore {
        self.store.notes()
    }

    async fn texts(&self, book: &Name, query: NoteQuery) -> Vec<String> {
        let notes = self.notes().notes(&self.system, book, query).await.unwrap();
        notes.into_iter().map(|note| note.text).collect()
    }
}

/// Every case as a test of a store: see [`conformance_suite!`](crate::conformance_suite). The expression makes a
/// [`NotesFixture`].
#[macro_export]
macro_rules! notes_conformance {
    ($($store:tt)*) => {
        $crate::conformance_suite! {
            ($($store)*) $crate::notes::conformance as NotesFixture,
            books: [
                notes_are_read_newest_first,
                a_deleted_note_is_gone_and_its_number_is_not_reused,
                a_note_that_is_too_long_is_refused,
                a_mark_never_goes_back,
                a_turn_has_one_holder_at_a_time,
                concurrent_notes_are_all_kept,
            ],
        }
    };
}
