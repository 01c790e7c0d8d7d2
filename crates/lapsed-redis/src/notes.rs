//! Books, marks and turns on Redis and Valkey: a stream a book, all else in one hash, beside the first
//! shard's keys. Numbers follow the clock, so that a failover that lost writes gives none twice.

use async_trait::async_trait;
use lapsed_core::notes::{NOTES_MAX, Note, NoteQuery, NoteStore, check_note};
use lapsed_core::{Name, Result, SystemId};

use crate::Redis;
use crate::ground::{Args, SystemContext};
use crate::script;

/// One item of a stream: its id, and fields and values in turn.
type Item = (String, Vec<String>);

fn hash(ground: &SystemContext) -> String {
    ground.shards[0].prefix.key("notes")
}

fn stream(ground: &SystemContext, book: &Name) -> String {
    ground.shards[0].prefix.key(&format!("book:{book}"))
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
        let ground = self.ground(system)?;
        let args = Args::default().key(hash(&ground)).key(stream(&ground, book));
        ground.run_bare(&script::NOTE, args.arg(book).arg(text).arg(NOTES_MAX)).await
    }

    async fn notes(&self, system: &SystemId, book: &Name, query: NoteQuery) -> Result<Vec<Note>> {
        let ground = self.ground(system)?;
        let from = query.before.map_or("+".to_owned(), |before| format!("({before}-0"));
        let mut cmd = redis::cmd("XREVRANGE");
        cmd.arg(stream(&ground, book)).arg(from).arg("-").arg("COUNT").arg(query.limit);
        let items: Vec<Item> = self.link().query("XREVRANGE", &cmd).await?;
        let notes: Option<Vec<Note>> = items.into_iter().map(read).collect();
        notes.ok_or_else(|| ground.link.nonsense("notes"))
    }

    async fn delete_note(&self, system: &SystemId, book: &Name, seq: u64) -> Result<bool> {
        let ground = self.ground(system)?;
        let mut cmd = redis::cmd("XDEL");
        cmd.arg(stream(&ground, book)).arg(format!("{seq}-0"));
        let struck: u64 = self.link().query("XDEL", &cmd).await?;
        Ok(struck > 0)
    }

    async fn mark(&self, system: &SystemId, name: &Name) -> Result<Option<u64>> {
        let ground = self.ground(system)?;
        let mut cmd = redis::cmd("HGET");
        cmd.arg(hash(&ground)).arg(format!("mark:{name}"));
        self.link().query("HGET", &cmd).await
    }

    async fn advance_mark(&self, system: &SystemId, name: &Name, to: u64) -> Result<u64> {
        let ground = self.ground(system)?;
        let args = Args::default().key(hash(&ground)).arg(name).arg(to);
        ground.run_bare(&script::MARK, args).await
    }

    async fn take_turn(
        &self,
        system: &SystemId,
        name: &Name,
        holder: &str,
        ttl_ms: u64,
    ) -> Result<bool> {
        let ground = self.ground(system)?;
        let args = Args::default().key(hash(&ground)).arg(name).arg(holder).arg(ttl_ms);
        ground.run_bare(&script::TURN, args).await
    }

    async fn end_turn(&self, system: &SystemId, name: &Name, holder: &str) -> Result<()> {
        self.take_turn(system, name, holder, 0).await.map(|_| ())
    }
}
