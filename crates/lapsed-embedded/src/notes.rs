//! Notes, marks and turns on the embedded store. Notes are rows of one table per system; marks and
//! turns are in `meta`. Each operation is one job of the writer, so that no other write happens
//! between its reading and its writing.

use std::sync::Arc;

use async_trait::async_trait;
use lapsed_core::leader::Term;
use lapsed_core::notes::{NOTES_MAX, Note, NoteQuery, NoteStore, check_note};
use lapsed_core::{Name, Result, SystemId};

use crate::Embedded;
use crate::fault::{Fault, Tried};
use crate::owners::load::open;
use crate::tables::{META, batch_key, number, to_number};
use crate::tx::Tx;

/// How many old notes are removed when one is added.
const PRUNE_MAX: usize = 64;

fn table(system: &SystemId) -> Arc<str> {
    Arc::from(format!("{system}/notes"))
}

fn meta_key(what: &str, system: &SystemId, name: &Name) -> Vec<u8> {
    format!("{what}/{system}/{name}").into_bytes()
}

fn note_key(book: &Name, seq: u64) -> Vec<u8> {
    batch_key(book.as_str(), seq)
}

/// Removes the notes that are too old once note `seq` exists.
fn prune(tx: &mut Tx, table: &Arc<str>, book: &Name, seq: u64) -> Tried<()> {
    let Some(last) = seq.checked_sub(NOTES_MAX) else { return Ok(()) };
    let (from, to) = (note_key(book, 0), note_key(book, last));
    let mut old = Vec::new();
    for row in tx.range(table, &from[..]..=&to[..])?.take(PRUNE_MAX) {
        old.push(row?.0.value().to_vec());
    }
    old.iter().try_for_each(|key| tx.remove(table, key))
}

/// Takes or renews the turn; whether `holder` has it now.
fn stand(tx: &mut Tx, key: &[u8], holder: String, now_ms: u64, ttl_ms: u64) -> Tried<bool> {
    let held: Option<Term> = match tx.meta_get(key)? {
        Some(bytes) => Some(serde_json::from_slice(&bytes)?),
        None => None,
    };
    if held.is_some_and(|turn| now_ms < turn.until_ms && turn.holder != holder) {
        return Ok(false);
    }
    let turn = Term { number: 0, holder, until_ms: now_ms + ttl_ms };
    tx.meta_put(key, &serde_json::to_vec(&turn)?)?;
    Ok(true)
}

#[async_trait]
impl NoteStore for Embedded {
    async fn note(&self, system: &SystemId, book: &Name, text: &str) -> Result<u64> {
        check_note(text)?;
        let (table, book, text) = (table(system), book.clone(), text.to_owned());
        let counter = meta_key("next_note", system, &book);
        let store_clock = self.inner.store_clock.clone();
        let job = move |tx: &mut Tx| {
            let seq = tx.take_numbers(&counter, 1)?;
            let note = Note { seq, at_ms: store_clock.now_ms(), text };
            tx.put(&table, &note_key(&book, seq), &serde_json::to_vec(&note)?)?;
            prune(tx, &table, &book, seq)?;
            Ok(seq)
        };
        self.inner.writer.write(job, |_| {}).await
    }

    async fn notes(&self, system: &SystemId, book: &Name, query: NoteQuery) -> Result<Vec<Note>> {
        let read = || -> Tried<Vec<Note>> {
            let txn = self.inner.disk.read()?;
            let Some(rows) = open(&txn, &table(system))? else { return Ok(Vec::new()) };
            let (from, to) = (note_key(book, 0), note_key(book, query.before.unwrap_or(u64::MAX)));
            let found = rows.range(&from[..]..&to[..])?.rev().take(query.limit);
            found.map(|row| Ok(serde_json::from_slice(row?.1.value())?)).collect()
        };
        read().map_err(|fault| fault.told(&self.inner.disk.name))
    }

    async fn delete_note(&self, system: &SystemId, book: &Name, seq: u64) -> Result<bool> {
        let (table, key) = (table(system), note_key(book, seq));
        let job = move |tx: &mut Tx| Ok(tx.take(&table, &key)?.is_some());
        self.inner.writer.write(job, |_| {}).await
    }

    async fn mark(&self, system: &SystemId, name: &Name) -> Result<Option<u64>> {
        let read = || -> Tried<Option<u64>> {
            let txn = self.inner.disk.read()?;
            let Some(meta) = open(&txn, META)? else { return Ok(None) };
            let found = meta.get(&meta_key("mark", system, name))?;
            let readable =
                |bytes: &[u8]| to_number(bytes).ok_or_else(|| Fault::row("a mark is not a number"));
            found.map(|value| readable(value.value())).transpose()
        };
        read().map_err(|fault| fault.told(&self.inner.disk.name))
    }

    async fn advance_mark(&self, system: &SystemId, name: &Name, to: u64) -> Result<u64> {
        let key = meta_key("mark", system, name);
        let job = move |tx: &mut Tx| {
            let stood = tx.meta_get(&key)?.and_then(|bytes| to_number(&bytes));
            match stood {
                Some(stood) if stood >= to => Ok(stood),
                _ => tx.meta_put(&key, &number(to)).map(|()| to),
            }
        };
        self.inner.writer.write(job, |_| {}).await
    }

    async fn take_turn(
        &self,
        system: &SystemId,
        name: &Name,
        holder: &str,
        ttl_ms: u64,
    ) -> Result<bool> {
        let (key, holder) = (meta_key("turn", system, name), holder.to_owned());
        let store_clock = self.inner.store_clock.clone();
        let job = move |tx: &mut Tx| stand(tx, &key, holder, store_clock.now_ms(), ttl_ms);
        self.inner.writer.write(job, |_| {}).await
    }

    async fn end_turn(&self, system: &SystemId, name: &Name, holder: &str) -> Result<()> {
        let (key, holder) = (meta_key("turn", system, name), holder.to_owned());
        let store_clock = self.inner.store_clock.clone();
        // A turn of length 0: the next one to ask gets it.
        let job = move |tx: &mut Tx| stand(tx, &key, holder, store_clock.now_ms(), 0).map(|_| ());
        self.inner.writer.write(job, |()| {}).await
    }
}
