//! Books, marks and turns in an object store: a note is an object of its own, named so that the newest is
//! listed first; its number comes from a small object that is replaced under a condition.
//!
//! Who dies between taking a number and writing the note leaves a gap. A note that was pruned or struck
//! is deleted; numbers are never given twice, because the counter stays.

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use lapsed_core::notes::{NOTES_MAX, Note, NoteQuery, NoteStore, check_note};
use lapsed_core::{Error, Name, Result, SystemId};

use crate::names::escape;
use crate::objects::{ListRequest, WriteCondition};
use crate::store::{ObjectStore, StoredTerm};

/// The last part of a note's name, so that listings return the newest note first.
fn place(seq: u64) -> String {
    format!("{:020}", u64::MAX - seq)
}

impl ObjectStore {
    fn folder(&self, system: &SystemId, book: &Name) -> String {
        self.context.paths.system(system, &format!("notes/{}/", escape(book.as_str())))
    }

    fn small(&self, system: &SystemId, what: &str, name: &Name) -> String {
        self.context.paths.system(system, &format!("{what}/{}", escape(name.as_str())))
    }

    async fn read_note(&self, path: &str) -> Result<Option<Note>> {
        let Some(read) = self.context.objects.get(path).await? else { return Ok(None) };
        let wrong = |error: serde_json::Error| Error::Corrupt {
            store: self.context.name().to_owned(),
            what: format!("{path}: {error}"),
        };
        serde_json::from_slice(&read.body).map(Some).map_err(wrong)
    }

    /// The names of a folder from the newest on, after the name `after`.
    async fn newest(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut token = None;
        while names.len() < limit {
            let left = limit - names.len();
            let request = ListRequest { prefix, flat: true, after, token, limit: left };
            let page = self.context.objects.list(request).await?;
            names.extend(page.names);
            token = page.token;
            if token.is_none() {
                break;
            }
        }
        names.truncate(limit);
        Ok(names)
    }
}

#[async_trait]
impl NoteStore for ObjectStore {
    async fn note(&self, system: &SystemId, book: &Name, text: &str) -> Result<u64> {
        check_note(text)?;
        let counter = self.small(system, "books", book);
        let seq = self.replace(&counter, |last: u64| Some(last + 1)).await?;
        let at_ms = self.context.clock_reading().await?.judging_ms;
        let note = Note { seq, at_ms, text: text.to_owned() };
        let body: Bytes = serde_json::to_vec(&note).expect("a note is JSON").into();
        let folder = self.folder(system, book);
        // No other process has this number, so the write needs no condition.
        self.context
            .objects
            .put(&format!("{folder}{}", place(seq)), body, WriteCondition::Always)
            .await?;
        if let Some(old) = seq.checked_sub(NOTES_MAX).filter(|old| *old > 0) {
            self.context.objects.delete(&format!("{folder}{}", place(old))).await?;
        }
        Ok(seq)
    }

    async fn notes(&self, system: &SystemId, book: &Name, query: NoteQuery) -> Result<Vec<Note>> {
        let folder = self.folder(system, book);
        let after = query.before.map(place);
        let names = self.newest(&folder, after.as_deref(), query.limit).await?;
        let paths: Vec<String> = names.iter().map(|name| format!("{folder}{name}")).collect();
        let read = try_join_all(paths.iter().map(|path| self.read_note(path))).await?;
        Ok(read.into_iter().flatten().collect())
    }

    async fn delete_note(&self, system: &SystemId, book: &Name, seq: u64) -> Result<bool> {
        let path = format!("{}{}", self.folder(system, book), place(seq));
        let was_there = self.context.objects.get(&path).await?.is_some();
        self.context.objects.delete(&path).await?;
        Ok(was_there)
    }

    async fn mark(&self, system: &SystemId, name: &Name) -> Result<Option<u64>> {
        Ok(self.context.stored::<u64>(&self.small(system, "marks", name)).await?.0)
    }

    async fn advance_mark(&self, system: &SystemId, name: &Name, to: u64) -> Result<u64> {
        let path = self.small(system, "marks", name);
        self.replace(&path, |stood: u64| (to > stood).then_some(to)).await
    }

    async fn take_turn(
        &self,
        system: &SystemId,
        name: &Name,
        holder: &str,
        ttl_ms: u64,
    ) -> Result<bool> {
        Ok(self.take_term(&self.small(system, "turns", name), holder, ttl_ms).await?.is_some())
    }

    async fn end_turn(&self, system: &SystemId, name: &Name, holder: &str) -> Result<()> {
        let path = self.small(system, "turns", name);
        let ended = |turn: StoredTerm| {
            (turn.holder == holder).then_some(StoredTerm { until_ms: 0, ..turn })
        };
        self.replace(&path, ended).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_note_is_listed_first() {
        assert!(place(2) < place(1));
        assert!(place(10) < place(9));
    }
}
