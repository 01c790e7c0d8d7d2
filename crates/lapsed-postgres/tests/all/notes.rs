//! Notes, marks and turns on PostgreSQL.

use lapsed_core::Name;
use lapsed_core::conformance::TestStore;
use lapsed_core::notes::conformance::NotesFixture;
use lapsed_core::notes::{NOTES_MAX, NoteQuery};

use crate::fixture::{Bench, system};

async fn fixture() -> NotesFixture {
    let bench = Bench::new().await;
    let on = TestStore::waiting(bench.postgres.clone()).keeping(bench);
    NotesFixture { system: system(), on }
}

lapsed_core::notes_conformance!(on_postgresql, fixture().await);

/// The oldest make room.
#[tokio::test]
async fn a_book_keeps_its_newest() {
    let bench = Bench::new().await;
    bench.sql(&format!(
        "INSERT INTO lapsed_notes (system, book, seq, text) SELECT '{}', 'audit', n, 'old' \
         FROM generate_series(1, {NOTES_MAX}) n",
        system()
    ));
    let book = Name::new("audit").unwrap();
    let notes = lapsed_core::store::Store::notes(&bench.postgres);
    notes.note(&system(), &book, "new").await.unwrap();
    let query = NoteQuery { before: None, limit: 20_000 };
    let kept = notes.notes(&system(), &book, query).await.unwrap();
    assert_eq!(kept.len() as u64, NOTES_MAX);
    assert_eq!((kept[0].text.as_str(), kept.last().unwrap().seq), ("new", 2));
}
