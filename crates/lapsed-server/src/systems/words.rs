//! What people read about one kind of system: labels, table headings and sentences, as data.
//! Commands, dashboard and OpenAPI document use them and name no kind themselves.
//!
//! A text may contain placeholders in braces; the documentation of each field lists them.

use serde::Serialize;

/// The labels and sentences of one kind of system.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct KindWords {
    /// What the kind is for: the description of its tag in the OpenAPI document.
    #[serde(skip)]
    pub tag: &'static str,
    /// What `lapsed status` calls the number of entries.
    #[serde(skip)]
    pub entries: &'static str,
    /// What the dashboard calls the number of entries.
    #[serde(rename = "entries")]
    pub entries_shown: &'static str,
    /// What the owners of entries are called; `None` for a kind whose entries expire at deadlines
    /// of their own.
    pub owners: Option<&'static str>,
    /// The verb for an owner that was declared dead.
    #[serde(skip)]
    pub died: &'static str,
    /// What a pass does with an entry, as a participle.
    #[serde(skip)]
    pub reclaimed: &'static str,
    /// Headings of the columns that identify an entry: the entry, its owner, the owner's
    /// incarnation. A kind that shows fewer of them has fewer headings.
    #[serde(skip)]
    pub columns: &'static [&'static str],
    /// The text after the number of references that a pass released.
    #[serde(skip)]
    pub released: &'static str,
    /// What the user can do after a pass that reclaimed something. Placeholders: `{system}`, and
    /// `{again}` for the options with which a command reaches the same daemon or store.
    #[serde(skip)]
    pub next_step: &'static str,
    /// When something counts as dead. Placeholders: `{threshold}`, `{grace}`.
    #[serde(skip)]
    pub dead_after: &'static str,
    /// What `lapsed restore` prints when it is done. Placeholders: `{key}`, `{owner}`,
    /// `{incarnation}`.
    #[serde(skip)]
    pub restored: &'static str,
    /// What the dashboard announces before it restores an entry. Placeholders: `{key}`, `{system}`,
    /// `{owner}`.
    pub promise: &'static str,
    /// Whether entries are kept for a grace period, which the status then shows.
    #[serde(skip)]
    pub has_grace: bool,
    /// Whether the kind has dead letters, which the dashboard lists.
    pub dead_letters: bool,
}

/// The default words, also used for a kind that this version does not know.
pub const GENERAL: KindWords = KindWords {
    tag: "",
    entries: "entries",
    entries_shown: "entries",
    owners: Some("owners"),
    died: "died",
    reclaimed: "reclaimed",
    columns: &["key", "owner", "incarnation"],
    released: "",
    next_step: "To put one back: lapsed restore RECEIPT{again}",
    dead_after: "dead after {threshold}",
    restored: "{key} is back, held by {owner} (incarnation {incarnation})",
    promise: "{key} goes back into {system}, held by {owner} again.",
    has_grace: false,
    dead_letters: false,
};

/// Replaces the placeholders in `text` by the values in `places`.
pub fn fill(text: &str, places: &[(&str, &str)]) -> String {
    places
        .iter()
        .fold(text.to_owned(), |text, (place, value)| text.replace(&format!("{{{place}}}"), value))
}
