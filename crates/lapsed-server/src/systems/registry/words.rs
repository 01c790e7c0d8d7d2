//! The labels and sentences that people read about a registry.

use crate::systems::words::{GENERAL, KindWords};

pub const WORDS: KindWords = KindWords {
    tag: "Connections, and the instance that holds each",
    entries_shown: "connections",
    ..GENERAL
};
