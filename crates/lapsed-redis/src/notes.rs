//! Books, marks and turns on Redis and Valkey: a stream a book, all else in one hash, beside the first
//! shard's keys. Numbers follow the clock, so that a failover that lost writes gives none twice.

use async_trait::async_trait;
use lapsed_core::notes::{NOTES_MAX, Note, NoteQuery, NoteStore, check_note};
use lapsed_core::{Name, Result, SystemId};

use crate::Redis;
use crate::script;
use crate::system_context::{Args, SystemContext};

/// One item of a stream: its id, and fields and values in turn.
type Item = (String, Vec<String>);

fn hash(context: &SystemContext) -> String {
    context.shards[0].prefix.key("notes")
}

fn stream(context: &SystemContext, book: &Name) -> String {
    context.shards[0].prefix.key(&format!("book:{book}"))
}

fn read(item: Item) -> Option<Note> {
    let seq = item.0.split('-').next()?.parse().ok()?;
    let [_, at, _, text] = <[String; 4]>::try_from(item.1).ok()?;
    Some(Note { seq, at_ms: at.parse().ok()?, text })
}

#[async_trait]
impl NoteStore for Redis {
    async fn note(&self, system: &SystemId, book: &Name, text: &str) -> Result<u64> {
        check_note(text)?;
        let context = self.context(system)?;
        let args = Args::default().key(hash(&context)).key(stream(&context, book));
        context.run_with_keys(&script::APPEND_NOTE, args.arg(book).arg(text).arg(NOTES_MAX)).await
    }

    async fn notes(&self, system: &SystemId, book: &Name, query: NoteQuery) -> Result<Vec<Note>> {
        let context = self.context(system)?;
        let from = query.before.map_or("+".to_owned(), |before| format!("({before}-0"));
        let mut cmd = redis::cmd("XREVRANGE");
        cmd.arg(stream(&context, book)).arg(from).arg("-").arg("COUNT").arg(query.limit);
        let items: Vec<Item> = self.connection().query("XREVRANGE", &cmd).await?;
        let notes: Option<Vec<Note>> = items.into_iter().map(read).collect();
        notes.ok_or_else(|| context.connection.unexpected_answer("notes"))
    }

    async fn delete_note(&self, system: &SystemId, book: &Name, seq: u64) -> Result<bool> {
        let context = self.context(system)?;
        let mut cmd = redis::cmd("XDEL");
        cmd.arg(stream(&context, book)).arg(format!("{seq}-0"));
        let struck: u64 = self.connection().query("XDEL", &cmd).await?;
        Ok(struck > 0)
    }

    async fn mark(&self, system: &SystemId, name: &Name) -> Result<Option<u64>> {
        let context = self.context(system)?;
        let mut cmd = redis::cmd("HGET");
        cmd.arg(hash(&context)).arg(format!("mark:{name}"));
        self.connection().query("HGET", &cmd).await
    }

    async fn advance_mark(&self, system: &SystemId, name: &Name, to: u64) -> Result<u64> {
        let context = self.context(system)?;
        let args = Args::default().key(hash(&context)).arg(name).arg(to);
        context.run_with_keys(&script::ADVANCE_MARK, args).await
    }

    async fn take_turn(
        &self,
        system: &SystemId,
        name: &Name,
        holder: &str,
        ttl_ms: u64,
    ) -> Result<bool> {
        let context = self.context(system)?;
        let args = Args::default().key(hash(&context)).arg(name).arg(holder).arg(ttl_ms);
        context.run_with_keys(&script::TAKE_TURN, args).await
    }

    async fn end_turn(&self, system: &SystemId, name: &Name, holder: &str) -> Result<()> {
        self.take_turn(system, name, holder, 0).await.map(|_| ())
    }
}
