//! What people read about one kind of system: labels, table headings and sentences, as data. Commands,
//! dashboard and OpenAPI document take them from here and know no kind by its name.
//!
//! A text may hold places in braces; each field says which.

use serde::Serialize;

/// The words of one kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct KindWords {
    /// What the kind is for, as the OpenAPI document says it of its tag.
    #[serde(skip)]
    pub tag: &'static str,
    /// What `lapsed status` calls the number of entries.
    #[serde(skip)]
    pub entries: &'static str,
    /// What the dashboard calls the number of entries.
    #[serde(rename = "entries")]
    pub entries_shown: &'static str,
    /// What those are called whose silence means death; none where an entry ends at its own deadline.
    pub owners: Option<&'static str>,
    /// What happened to an owner that was declared dead.
    #[serde(skip)]
    pub died: &'static str,
    /// What a pass does with an entry, as a participle.
    #[serde(skip)]
    pub reclaimed: &'static str,
    /// Headings of the columns that say which entry it is: the entry, its owner, the owner's incarnation.
    /// A kind that shows fewer of them has fewer headings.
    #[serde(skip)]
    pub columns: &'static [&'static str],
    /// What is added to the number of references that a pass released.
    #[serde(skip)]
    pub released: &'static str,
    /// What can be done after a pass that reclaimed something: `{system}`, and in `{again}` the options that
    /// lead a command to the same place.
    #[serde(skip)]
    pub next_step: &'static str,
    /// When something counts as dead: `{threshold}`, `{grace}`.
    #[serde(skip)]
    pub dead_after: &'static str,
    /// What `lapsed restore` says when it is done: `{key}`, `{owner}`, `{incarnation}`.
    #[serde(skip)]
    pub restored: &'static str,
    /// What the dashboard says before it restores: `{key}`, `{system}`, `{owner}`.
    pub promise: &'static str,
    /// Whether entries are kept for a grace that the status tells.
    #[serde(skip)]
    pub has_grace: bool,
    /// Whether it has dead letters, which the dashboard lists.
    pub dead_letters: bool,
}

/// The words of a kind that says nothing else, and of one that this version does not know.
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

/// `text` with every place of `places` filled in.
pub fn fill(text: &str, places: &[(&str, &str)]) -> String {
    places
        .iter()
        .fold(text.to_owned(), |text, (place, value)| text.replace(&format!("{{{place}}}"), value))
}
