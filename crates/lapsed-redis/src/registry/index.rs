//! Reconciling a registry: from keys that the application wrote itself to the index, and back.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use lapsed_core::reconcile::{Healed, IndexChange, Reconcile, Reconciled};
use lapsed_core::sweep::{Cursor, PassMode};
use lapsed_core::{Error, Name, Result};

use super::entries::declare;
use super::native::NativeRegistry;
use crate::script;
use crate::system_context::{Args, Shard};

/// How many times a page is tried again because incarnations have begun in the meantime.
const TRIES: usize = 20;

/// The most keys that one step compares.
const STEP: usize = 100;

/// Where a reconciliation stands: first the entries (`e:shard:cursor`), then what incarnations hold
/// (`h:shard:incarnation:key`).
enum Position {
    Entries { shard: usize, cursor: String },
    Held { shard: usize, inc: u64, after: Option<String> },
}

fn parse_position(cursor: &Cursor) -> Result<Position> {
    let Some(text) = &cursor.0 else {
        return Ok(Position::Entries { shard: 0, cursor: "0".to_owned() });
    };
    let wrong =
        || Error::Invalid(format!("{text:?} is not a place in a reconciliation of a registry"));
    let mut parts = text.splitn(4, ':');
    let kind = parts.next().ok_or_else(wrong)?;
    let shard = parts.next().and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
    match kind {
        "e" => Ok(Position::Entries { shard, cursor: parts.next().ok_or_else(wrong)?.to_owned() }),
        "h" => {
            let inc = parts.next().and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
            Ok(Position::Held { shard, inc, after: parts.next().map(str::to_owned) })
        }
        _ => Err(wrong()),
    }
}

fn at(text: String) -> Option<Cursor> {
    Some(Cursor(Some(text)))
}

#[async_trait]
impl Reconcile for NativeRegistry {
    async fn reconcile(&self, after: Cursor, limit: usize, act: PassMode) -> Result<Reconciled> {
        match parse_position(&after)? {
            Position::Entries { shard, cursor } => {
                self.index_entries(shard, &cursor, limit, act).await
            }
            Position::Held { shard, inc, after } => {
                self.index_held(shard, inc, after.as_deref(), limit, act).await
            }
        }
    }

    async fn extent(&self) -> Result<u64> {
        Ok(2 * self.population().await?)
    }
}

impl NativeRegistry {
    /// Compares each entry with what the incarnations of its owner hold.
    async fn index_entries(
        &self,
        shard_index: usize,
        cursor: &str,
        limit: usize,
        act: PassMode,
    ) -> Result<Reconciled> {
        let mut done = Reconciled::default();
        let Some(shard) = self.context().shards.get(shard_index) else {
            done.next = at("h:0:0".to_owned());
            return Ok(done);
        };
        let mut cmd = redis::cmd("HSCAN");
        cmd.arg(&shard.anchor).arg(cursor).arg("COUNT").arg(limit);
        let (next, flat): (String, Vec<Vec<u8>>) =
            self.context().connection.query("HSCAN", &cmd).await?;
        let mut by_owner: BTreeMap<Name, Vec<Name>> = BTreeMap::new();
        for pair in flat.chunks_exact(2) {
            done.examined += 1;
            match (Name::from_bytes(&pair[0]), Name::from_bytes(&pair[1])) {
                (Ok(key), Ok(owner)) => by_owner.entry(owner).or_default().push(key),
                _ => *done.left.entry("unreadable".to_owned()).or_default() += 1,
            }
        }
        for (owner, keys) in by_owner {
            for keys in keys.chunks(STEP) {
                self.index_keys(shard, &owner, keys, act, &mut done).await?;
            }
        }
        done.next = match next.as_str() {
            "0" => at(format!("e:{}:0", shard_index + 1)),
            next => at(format!("e:{shard_index}:{next}")),
        };
        Ok(done)
    }

    /// Compares what each incarnation holds with the entries of its owner.
    async fn index_held(
        &self,
        shard_index: usize,
        inc: u64,
        after: Option<&str>,
        limit: usize,
        act: PassMode,
    ) -> Result<Reconciled> {
        let mut done = Reconciled::default();
        let Some(shard) = self.context().shards.get(shard_index) else { return Ok(done) };
        let from = inc.saturating_sub(u64::from(after.is_some()));
        let Some(next) = self.owners.incarnations_after(shard, from, 1).await?.pop() else {
            done.next = at(format!("h:{}:0", shard_index + 1));
            return Ok(done);
        };
        let args = Args::default().arg("some").arg(next);
        let words: Vec<String> = self.context().run(shard, &script::OWNERS, args).await?;
        let first_row = words.get(2).zip(words.get(3));
        let record = first_row.and_then(|(_, record)| crate::owners::OwnerRecord::read(record, 0));
        let Some(((found, _), record)) = first_row.zip(record) else {
            // Its record was removed meanwhile.
            done.next = at(format!("h:{shard_index}:{next}"));
            return Ok(done);
        };
        // The one that was being read may be forgotten by now: the next is read from its beginning.
        let after = after.filter(|_| *found == inc.to_string());
        let inc = found;
        let keys = self.owners.held_in(shard, inc, after, limit).await?;
        done.examined = keys.len() as u64;
        let owner = Name::new(&record.name)?;
        for keys in keys.chunks(STEP) {
            self.index_keys(shard, &owner, keys, act, &mut done).await?;
        }
        done.next = match keys.last().filter(|_| keys.len() == limit) {
            Some(last) => at(format!("h:{shard_index}:{inc}:{last}")),
            None => at(format!("h:{shard_index}:{inc}")),
        };
        Ok(done)
    }

    /// Compares truth and index for some keys of one owner, and heals them in one step.
    async fn index_keys(
        &self,
        shard: &Shard,
        owner: &Name,
        keys: &[Name],
        act: PassMode,
        done: &mut Reconciled,
    ) -> Result<()> {
        let mut declared = BTreeSet::new();
        for _ in 0..TRIES {
            let args = Args::default().key(&shard.anchor).arg(owner);
            let args =
                args.arg(if act == PassMode::Reclaim { "act" } else { "dry" }).arg(declared.len());
            let args = declare(args, shard, &declared).names(keys);
            let words: Vec<String> =
                self.context().run(shard, &script::REGISTRY_INDEX, args).await?;
            match words.first().map(String::as_str) {
                Some("again") => declared.extend(words[1..].iter().cloned()),
                Some("start") => match self.owners.heartbeat_read(shard, owner.as_str()) {
                    Some(heartbeat) => self.take_over(shard, owner, heartbeat).await?,
                    None => {
                        // The guard could not judge such an owner, because it cannot read its heartbeat.
                        let left = done.left.entry("heartbeat_in_another_slot".to_owned());
                        *left.or_default() += keys.len() as u64;
                        return Ok(());
                    }
                },
                Some(_) if words.len() == 2 => {
                    record_change(owner, keys, &words[1], done);
                    return Ok(());
                }
                _ => return Err(self.context().unexpected_answer(&script::REGISTRY_INDEX)),
            }
        }
        Err(self.retries_exhausted("reconcile"))
    }

    /// Takes over an owner that sends heartbeats without lapsed.
    async fn take_over(&self, shard: &Shard, owner: &Name, heartbeat: String) -> Result<()> {
        let args = Args::default().key(heartbeat).arg(owner).arg(self.owners.ttl_ms);
        let _: u64 = self.context().run(shard, &script::OWNER_ADOPT, args).await?;
        Ok(())
    }
}

fn record_change(owner: &Name, keys: &[Name], letters: &str, done: &mut Reconciled) {
    for (key, letter) in keys.iter().zip(letters.chars()) {
        let (what, why) = match letter {
            'a' => (Healed::Added, format!("no incarnation of `{owner}` listed the entry")),
            'r' => (
                Healed::Removed,
                format!("an incarnation of `{owner}` listed it, but does not hold it"),
            ),
            other => {
                let why = match other {
                    'i' => "indexed",
                    'm' => "moved",
                    _ => "gone",
                };
                *done.left.entry(why.to_owned()).or_default() += 1;
                continue;
            }
        };
        done.changes.push(IndexChange { key: key.to_string(), what, why });
    }
}
