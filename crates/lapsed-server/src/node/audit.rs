//! The audit log: actions that people took by hand, kept in the system's own store.
//!
//! An action is written down before it is carried out, and is not carried out if that fails.
//! Afterwards a second note with the outcome is written, and only then is the first one deleted. A
//! process that dies in between therefore leaves a note without an outcome, which tells the reader
//! that somebody should look. What the daemon does automatically is not in the audit log: receipts
//! record that.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::join_all;
use lapsed_core::notes::{Note, NoteQuery};
use lapsed_core::{Error, Name, Result, SystemId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::live::LiveSystem;
use super::missing::{self, MissingSystem};
use super::page::ReceiptCursor;

/// The most entries in one page.
pub const AUDIT_PAGE_MAX: usize = 1_000;

/// The longest outcome that is stored, in characters; longer ones are cut.
const OUTCOME_MAX: usize = 500;

fn book() -> Name {
    Name::new("audit").expect("it is a name")
}

/// An action that a person is about to take.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditAction {
    /// Who takes the action: the name of a token, `local` without tokens, or `cli:USER@HOST`.
    pub who: String,
    /// The client's address, if the action was requested over HTTP.
    pub from: Option<String>,
    /// The action: `brake hold`, `sweep`, `restore`, ...
    pub what: String,
    /// What the action is applied to: a system, a receipt or a job.
    pub target: String,
    /// The `X-Request-Id` of the HTTP request, if it had one.
    pub request: Option<String>,
}

/// The JSON text of a note in the store.
#[derive(Serialize, Deserialize)]
struct Written {
    #[serde(flatten)]
    action: AuditAction,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    /// The number of the note without an outcome that this note replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<u64>,
}

/// One action in the audit log.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// The kind of the system that the action was applied to.
    pub kind: String,
    /// The name of the system that the action was applied to.
    pub system: String,
    /// The number of the entry in the audit log of its system.
    pub seq: u64,
    /// When the entry was written, in milliseconds on the store's clock.
    pub at_ms: u64,
    /// Who took the action: the name of a token, `local` without tokens, or `cli:USER@HOST`.
    pub who: String,
    /// The client's address, if the action was requested over HTTP.
    pub from: Option<String>,
    /// What was done: `brake hold`, `sweep`, `restore`, ...
    pub what: String,
    /// What the action is applied to: a system, a receipt or a job.
    pub target: String,
    /// The `X-Request-Id` of the request, if it had one.
    pub request: Option<String>,
    /// The result of the action. Absent while the action is under way, or if the process that
    /// carried it out died before it could record the result.
    pub outcome: Option<String>,
}

/// One page of the audit log, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// The entries of this page, newest first.
    pub entries: Vec<AuditEntry>,
    /// The cursor of the next page; absent if there are no older entries.
    pub next: Option<String>,
    /// The systems whose entries are not on the page, because their stores do not answer. `next`
    /// keeps the place of these systems.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingSystem>,
}

impl LiveSystem {
    /// Carries out `work` between two notes: one that announces it, and one with its outcome, which
    /// `tell` puts into words. If the first note cannot be written, `work` is not carried out.
    pub async fn audited<T>(
        &self,
        action: AuditAction,
        work: impl Future<Output = Result<T>>,
        tell: impl FnOnce(&T) -> String,
    ) -> Result<T> {
        let mut written = Written { action, outcome: None, of: None };
        let first = self.note(&book(), &text(&written)).await.map_err(|e| self.unwritten(&e))?;
        let done = work.await;
        let outcome = match &done {
            Ok(answer) => tell(answer),
            Err(error) => format!("failed: {error}"),
        };
        written.outcome = Some(outcome.chars().take(OUTCOME_MAX).collect());
        written.of = Some(first);
        self.tell_audit(&written);
        match self.note(&book(), &text(&written)).await {
            // If the deletion fails, readers skip the first note, because the second one names it.
            Ok(_) => drop(self.strike(&book(), first).await),
            Err(error) => {
                let id = self.id();
                tracing::error!(target: "audit", system = %id, "outcome not written into the audit: {error}");
            }
        }
        done
    }

    fn unwritten(&self, error: &Error) -> Error {
        let what =
            format!("nothing was done, because it could not be written into the audit: {error}");
        Error::Unavailable { store: self.store_name().to_owned(), what }
    }

    fn tell_audit(&self, written: &Written) {
        let AuditAction { who, from, what, target, request } = &written.action;
        let (from, request) = (from.as_deref(), request.as_deref());
        let outcome = written.outcome.as_deref().unwrap_or_default();
        tracing::info!(
            target: "audit", system = %self.id(), who, from, what, on = target, request, outcome,
            "done by hand"
        );
    }
}

fn text(written: &Written) -> String {
    serde_json::to_string(written).expect("an action is plain data")
}

/// One page of the audit of `systems`, newest first. An error only if none of their stores answers.
pub async fn read(
    systems: &[Arc<LiveSystem>],
    before: Option<&ReceiptCursor>,
    limit: usize,
) -> Result<AuditPage> {
    let limit = limit.clamp(1, AUDIT_PAGE_MAX);
    let place = |system: &str| before.and_then(|cursor| cursor.get(system));
    let reads = systems.iter().map(|live| async move {
        let from = place(&live.id().to_string());
        let notes = live.notes(&book(), NoteQuery { before: from, limit: limit + 1 }).await?;
        Ok((live.id(), notes))
    });
    let (found, missing) = missing::split(systems, join_all(reads).await)?;
    let mut cursor = ReceiptCursor::default();
    let mut all = Vec::new();
    let mut more = false;
    for (id, notes) in found {
        let system = id.to_string();
        // If nothing of this system is on the page, reading resumes above its newest note.
        let newest = notes.first().map(|newest| newest.seq.saturating_add(1));
        if let Some(start) = place(&system).or(newest) {
            cursor.set(&system, start);
        }
        more |= notes.len() > limit;
        all.extend(entries(id, notes));
    }
    for MissingSystem { system, .. } in &missing {
        if let Some(start) = place(system) {
            cursor.set(system, start);
        }
    }
    all.sort_by_key(|entry: &AuditEntry| std::cmp::Reverse((entry.at_ms, entry.seq)));
    more |= all.len() > limit;
    all.truncate(limit);
    for entry in &all {
        cursor.set(&format!("{}/{}", entry.kind, entry.system), entry.seq);
    }
    Ok(AuditPage { entries: all, next: more.then(|| cursor.to_string()), missing })
}

/// The entries that the notes hold. Notes that another note replaces, and notes that cannot be
/// read, are left out.
fn entries(id: &SystemId, notes: Vec<Note>) -> Vec<AuditEntry> {
    let read: Vec<(Note, Written)> = notes
        .into_iter()
        .filter_map(|note| serde_json::from_str(&note.text).ok().map(|written| (note, written)))
        .collect();
    let replaced: HashSet<u64> = read.iter().filter_map(|(_, written)| written.of).collect();
    let kept = read.into_iter().filter(|(note, _)| !replaced.contains(&note.seq));
    kept.map(|(note, Written { action, outcome, .. })| AuditEntry {
        kind: id.kind.to_string(),
        system: id.name.to_string(),
        seq: note.seq,
        at_ms: note.at_ms,
        who: action.who,
        from: action.from,
        what: action.what,
        target: action.target,
        request: action.request,
        outcome,
    })
    .collect()
}

/// The outcome of an action on a single thing: `done`, unless the thing did not exist.
pub fn outcome(found: bool, done: &str) -> String {
    if found { done.to_owned() } else { "there was none".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapsed_core::Kind;

    fn note(seq: u64, outcome: Option<&str>, of: Option<u64>) -> Note {
        let action = AuditAction {
            who: "ops".to_owned(),
            from: None,
            what: "sweep".to_owned(),
            target: "registry/a".to_owned(),
            request: None,
        };
        let written = Written { action, outcome: outcome.map(str::to_owned), of };
        Note { seq, at_ms: seq, text: text(&written) }
    }

    #[test]
    fn replaced_notes_are_hidden_and_notes_without_an_outcome_are_shown() {
        let id = SystemId::new(Kind::Registry, "a").unwrap();
        let rubbish = Note { seq: 9, at_ms: 9, text: "{".to_owned() };
        let notes =
            vec![rubbish, note(8, None, None), note(7, Some("done"), Some(5)), note(5, None, None)];
        let read = entries(&id, notes);
        let seen: Vec<_> = read.iter().map(|e| (e.seq, e.outcome.as_deref())).collect();
        assert_eq!(seen, [(8, None), (7, Some("done"))]);
    }
}
