//! The labels and sentences that people read about sessions.

use crate::systems::words::{GENERAL, KindWords};

pub const WORDS: KindWords = KindWords {
    tag: "Sessions that many connect to, deleted when nobody has been for a while",
    entries: "sessions",
    entries_shown: "sessions",
    columns: &["session", "broadcaster"],
    released: " (a dead owner's references to a session; without any other its grace begins)",
    dead_after: "a session is deleted when nobody was connected for {grace}",
    restored: "{key} is back, disconnected, with a whole grace before it",
    promise: "Session {key} goes back into {system}. It comes back with nobody connected and a whole \
              grace before it.",
    has_grace: true,
    ..GENERAL
};
