//! Notes, marks and turns on the embedded store.

use lapsed_core::notes::conformance::NotesFixture;
use lapsed_core::notes::{NOTES_MAX, NoteQuery};
use lapsed_core::store::Store;
use lapsed_core::{Kind, Name, SystemId};
use lapsed_embedded::{Embedded, Options};

fn system() -> SystemId {
    SystemId::new(Kind::Leases, "default").unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn in_folder() -> NotesFixture {
    NotesFixture { system: system(), on: crate::fixture::folder().1 }
}

lapsed_core::notes_conformance!(in_a_folder, in_folder());

/// The oldest notes are removed, and only those of the same series.
#[tokio::test]
async fn a_series_keeps_its_newest_notes() {
    let f = in_folder();
    f.store.notes().note(&f.system, &name("a"), "kept").await.unwrap();
    let book = name("b");
    // Sent at the same time, so that they share commits.
    let all = (0..NOTES_MAX + 3).map(|_| f.store.notes().note(&f.system, &book, "b"));
    futures::future::try_join_all(all).await.unwrap();
    let query = NoteQuery { before: Some(6), limit: 9 };
    let oldest = f.store.notes().notes(&f.system, &book, query).await.unwrap();
    assert_eq!(oldest.iter().map(|note| note.seq).collect::<Vec<_>>(), [5, 4]);
    let query = NoteQuery { before: None, limit: 9 };
    assert_eq!(f.store.notes().notes(&f.system, &name("a"), query).await.unwrap().len(), 1);
}

#[tokio::test]
async fn notes_marks_and_turns_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Embedded::open(folder.path(), Options::default()).unwrap();
    let store = open();
    store.notes().note(&system(), &name("audit"), "held").await.unwrap();
    store.notes().advance_mark(&system(), &name("m"), 9).await.unwrap();
    assert!(store.notes().take_turn(&system(), &name("t"), "one", 60_000).await.unwrap());
    store.close().unwrap();
    let store = open();
    let query = NoteQuery { before: None, limit: 9 };
    let notes = store.notes().notes(&system(), &name("audit"), query).await.unwrap();
    assert_eq!((notes.len(), notes[0].text.as_str()), (1, "held"));
    assert_eq!(store.notes().mark(&system(), &name("m")).await.unwrap(), Some(9));
    assert!(!store.notes().take_turn(&system(), &name("t"), "two", 60_000).await.unwrap());
}
