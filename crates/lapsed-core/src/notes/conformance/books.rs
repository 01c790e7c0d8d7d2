//! Cases about notes, marks and turns.

use std::time::{Duration, Instant};

use super::NotesFixture;
use crate::conformance::name;
use crate::notes::{NOTE_BYTES_MAX, NoteQuery};

fn all() -> NoteQuery {
    NoteQuery { before: None, limit: 100 }
}

/// Pages are newest first, and two books do not mix.
pub async fn notes_are_read_newest_first(f: NotesFixture) {
    let (audit, other) = (name("audit"), name("audit/é 2"));
    assert!(f.texts(&audit, all()).await.is_empty());
    let mut numbers = Vec::new();
    for n in 0..5 {
        numbers.push(f.notes().note(&f.system, &audit, &format!("n{n} \"é\"\n")).await.unwrap());
    }
    f.notes().note(&f.system, &other, "elsewhere").await.unwrap();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let page = f.texts(&audit, NoteQuery { before: None, limit: 2 }).await;
    assert_eq!(page, ["n4 \"é\"\n", "n3 \"é\"\n"]);
    let rest = f.texts(&audit, NoteQuery { before: Some(numbers[3]), limit: 100 }).await;
    assert_eq!(rest, ["n2 \"é\"\n", "n1 \"é\"\n", "n0 \"é\"\n"]);
    assert_eq!(f.texts(&other, all()).await, ["elsewhere"]);
    let notes = f.notes().notes(&f.system, &audit, all()).await.unwrap();
    assert!(notes.iter().all(|note| note.at_ms > 1_600_000_000_000), "{notes:?}");
}

/// What was struck is gone, and its number is not given again.
pub async fn a_deleted_note_is_gone_and_its_number_is_not_reused(f: NotesFixture) {
    let book = name("dead");
    let first = f.notes().note(&f.system, &book, "a").await.unwrap();
    let second = f.notes().note(&f.system, &book, "b").await.unwrap();
    assert!(f.notes().delete_note(&f.system, &book, second).await.unwrap());
    assert!(!f.notes().delete_note(&f.system, &book, second).await.unwrap());
    assert_eq!(f.texts(&book, all()).await, ["a"]);
    let third = f.notes().note(&f.system, &book, "c").await.unwrap();
    assert!(third > second && second > first);
}

pub async fn a_note_that_is_too_long_is_refused(f: NotesFixture) {
    let book = name("audit");
    let long = "x".repeat(NOTE_BYTES_MAX);
    f.notes().note(&f.system, &book, &long).await.unwrap();
    let error = f.notes().note(&f.system, &book, &format!("{long}x")).await.unwrap_err();
    assert_eq!(error.kind(), "invalid");
    assert_eq!(f.texts(&book, all()).await, [long]);
}

/// An older value does not move a mark; values above 2^53 are kept exactly.
pub async fn a_mark_never_goes_back(f: NotesFixture) {
    let at = name("webhook/ops");
    assert_eq!(f.notes().mark(&f.system, &at).await.unwrap(), None);
    let big = (1 << 60) + 1;
    for (to, stands) in [(7, 7), (3, 7), (10, 10), (big, big), (big - 1, big)] {
        assert_eq!(f.notes().advance_mark(&f.system, &at, to).await.unwrap(), stands);
        assert_eq!(f.notes().mark(&f.system, &at).await.unwrap(), Some(stands));
    }
    assert_eq!(f.notes().mark(&f.system, &name("webhook/other")).await.unwrap(), None);
}

/// Renewed by who has it, refused to others until it ends.
pub async fn a_turn_has_one_holder_at_a_time(f: NotesFixture) {
    let turn = name("webhook/ops");
    let take =
        async |who: &str, ttl_ms| f.notes().take_turn(&f.system, &turn, who, ttl_ms).await.unwrap();
    assert!(take("one two", 60_000).await && take("one two", 60_000).await);
    assert!(!take("other", 60_000).await);
    f.notes().end_turn(&f.system, &turn, "other").await.unwrap();
    assert!(!take("other", 60_000).await, "only its holder ends it");
    f.notes().end_turn(&f.system, &turn, "one two").await.unwrap();
    assert!(take("other", 300).await);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !take("one two", 60_000).await {
        assert!(Instant::now() < deadline, "the turn does not end by itself");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!take("other", 300).await);
}

/// Eight at a time: everybody's note is there once, each under a number of its own.
pub async fn concurrent_notes_are_all_kept(f: NotesFixture) {
    let book = name("audit");
    let writes = (0..8).map(|n| {
        let (store, system, book) = (f.store.clone(), f.system.clone(), book.clone());
        tokio::spawn(async move { store.notes().note(&system, &book, &n.to_string()).await })
    });
    let writes: Vec<_> = writes.collect();
    let mut numbers = Vec::new();
    for write in writes {
        numbers.push(write.await.unwrap().unwrap());
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 8);
    let mut texts = f.texts(&book, all()).await;
    texts.sort();
    assert_eq!(texts, ["0", "1", "2", "3", "4", "5", "6", "7"]);
}
