//! The labels and sentences that people read about sessions.

use crate::systems::words::{GENERAL, KindWords};

pub const WORDS: KindWords = KindWords {
    tag: "Sessions with connected clients, deleted after a grace period without any",
    entries: "sessions",
    entries_shown: "sessions",
    columns: &["session", "broadcaster"],
    released: " (a dead owner's references to a session; its grace begins if no reference is left)",
    dead_after: "a session is deleted when no client was connected for {grace}",
    restored: "{key} is back, disconnected, with a whole grace before it",
    promise: "Session {key} goes back into {system}, without a connected client and with a whole grace \
              before it.",
    has_grace: true,
    ..GENERAL
};
