//! Reconciling sessions with their indexes: what the migration of the original does, while traffic
//! goes on and without a second set that is renamed over the first.

use std::collections::BTreeSet;

use async_trait::async_trait;
use lapsed::reconcile::{Change, Healed, Reconcile, Reconciled};
use lapsed::sweep::{Act, Cursor};
use lapsed::{Error, Result};

use super::RedisSessions;
use crate::ground::{Args, Shard};
use crate::names::hash_tag;
use crate::script;

/// How many sessions one step looks at.
const STEP: usize = 100;

/// Where it stands: first all sessions (`k:node:cursor`), then the indexes (`i:shard:which:cursor`).
enum Place {
    Keys { node: usize, cursor: String },
    Index { shard: usize, which: usize, cursor: String },
}

fn place(cursor: &Cursor) -> Result<Place> {
    let Some(text) = &cursor.0 else { return Ok(Place::Keys { node: 0, cursor: "0".to_owned() }) };
    let wrong =
        || Error::Invalid(format!("{text:?} is not a place in a reconciliation of sessions"));
    let parts: Vec<&str> = text.split(':').collect();
    let number = |word: &str| word.parse().map_err(|_| wrong());
    match parts[..] {
        ["k", node, cursor] => Ok(Place::Keys { node: number(node)?, cursor: cursor.to_owned() }),
        ["i", shard, which, cursor] => {
            let (shard, which) = (number(shard)?, number(which)?);
            Ok(Place::Index { shard, which, cursor: cursor.to_owned() })
        }
        _ => Err(wrong()),
    }
}

fn at(text: String) -> Option<Cursor> {
    Some(Cursor(Some(text)))
}

#[async_trait]
impl Reconcile for RedisSessions {
    async fn reconcile(&self, after: Cursor, limit: usize, act: Act) -> Result<Reconciled> {
        match place(&after)? {
            Place::Keys { node, cursor } => self.scan_keys(node, &cursor, limit, act).await,
            Place::Index { shard, which, cursor } => {
                self.scan_index(shard, which, &cursor, limit, act).await
            }
        }
    }

    /// All keys there are: a scan goes over every one of them.
    async fn extent(&self) -> Result<u64> {
        let sizes =
            self.ground().link.on_every_node::<u64>("DBSIZE", &redis::cmd("DBSIZE")).await?;
        Ok(sizes.into_iter().sum::<u64>() + self.count_disconnected().await?)
    }
}

impl RedisSessions {
    async fn scan_keys(
        &self,
        node: usize,
        cursor: &str,
        limit: usize,
        act: Act,
    ) -> Result<Reconciled> {
        let mut done = Reconciled::default();
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(cursor).arg("MATCH").arg(self.pattern()).arg("COUNT").arg(limit);
        cmd.arg("TYPE").arg("hash");
        let page = self.ground().link.on_node::<(String, Vec<Vec<u8>>)>(node, "SCAN", &cmd).await?;
        let Some((next, keys)) = page else {
            done.next = at("i:0:0:0".to_owned());
            return Ok(done);
        };
        for shard in &self.ground().shards {
            let ids: BTreeSet<String> = keys
                .iter()
                .filter_map(|key| self.id_in(shard, std::str::from_utf8(key).ok()?))
                .collect();
            done.examined += ids.len() as u64;
            self.compare_all(shard, ids.into_iter().collect(), act, &mut done).await?;
        }
        done.next = match next.as_str() {
            "0" => at(format!("k:{}:0", node + 1)),
            next => at(format!("k:{node}:{next}")),
        };
        Ok(done)
    }

    /// What a SCAN looks for.
    fn pattern(&self) -> String {
        let pattern = self.inner.layout.session_key.pattern();
        if self.inner.tagged { format!("{{*}}:{pattern}") } else { pattern }
    }

    /// The session that a key of this shard holds. Ids of another shape than names are not ours.
    fn id_in(&self, shard: &Shard, key: &str) -> Option<String> {
        let template = &self.inner.layout.session_key;
        let id = match self.inner.tagged {
            true => {
                let prefix = format!("{{{}}}:", hash_tag(&shard.anchor));
                template.name_in(key.strip_prefix(&prefix)?)?
            }
            false => template.name_in(key)?,
        };
        lapsed::Name::new(id).is_ok().then(|| id.to_owned())
    }

    async fn scan_index(
        &self,
        shard_index: usize,
        which: usize,
        cursor: &str,
        limit: usize,
        act: Act,
    ) -> Result<Reconciled> {
        let mut done = Reconciled::default();
        let Some(shard) = self.ground().shards.get(shard_index) else { return Ok(done) };
        let index = match which {
            0 => shard.anchor.clone(),
            1 if self.is_native() => shard.prefix.key("idle"),
            _ => {
                done.next = at(format!("i:{}:0:0", shard_index + 1));
                return Ok(done);
            }
        };
        let mut cmd = redis::cmd("ZSCAN");
        cmd.arg(index).arg(cursor).arg("COUNT").arg(limit);
        let (next, flat): (String, Vec<Vec<u8>>) = self.ground().link.query("ZSCAN", &cmd).await?;
        let ids: BTreeSet<String> = flat
            .chunks_exact(2)
            .filter_map(|pair| String::from_utf8(pair[0].clone()).ok())
            .collect();
        done.examined += ids.len() as u64;
        self.compare_all(shard, ids.into_iter().collect(), act, &mut done).await?;
        done.next = match next.as_str() {
            "0" => at(format!("i:{shard_index}:{}:0", which + 1)),
            next => at(format!("i:{shard_index}:{which}:{next}")),
        };
        Ok(done)
    }

    async fn compare_all(
        &self,
        shard: &Shard,
        ids: Vec<String>,
        act: Act,
        done: &mut Reconciled,
    ) -> Result<()> {
        for ids in ids.chunks(STEP) {
            let letters = self.compare(shard, ids, act).await?;
            ids.iter().zip(letters.chars()).for_each(|(id, letter)| tell(id, letter, done));
        }
        Ok(())
    }

    async fn compare(&self, shard: &Shard, ids: &[String], act: Act) -> Result<String> {
        let mut args = Args::default().key(&shard.anchor).key(self.idle(shard));
        args = args.arg(if act == Act::Reclaim { "act" } else { "dry" });
        for id in ids {
            args = args.key(self.session(shard, id)).key(self.ref_count(shard, id)).arg(id);
        }
        self.ground().run(shard, &script::SESSION_INDEX, args).await
    }
}

fn tell(id: &str, letter: char, done: &mut Reconciled) {
    let (what, why) = match letter {
        'a' => (Healed::Added, "it is disconnected, and was not in the index"),
        'c' => (Healed::Corrected, "it was in the index with another time"),
        'r' => (Healed::Removed, "it is active, or there is no such session any more"),
        other => {
            let why = match other {
                'i' => "indexed",
                't' => "active",
                'u' => "unreadable",
                _ => "gone",
            };
            *done.left.entry(why.to_owned()).or_default() += 1;
            return;
        }
    };
    done.changes.push(Change { key: id.to_owned(), what, why: why.to_owned() });
}
