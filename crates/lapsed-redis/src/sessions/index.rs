//! Reconciling sessions with their indexes: what the migration of the original does, while traffic
//! continues, and without a second set that is renamed over the first.

use std::collections::BTreeSet;

use async_trait::async_trait;
use lapsed_core::reconcile::{Healed, IndexChange, Reconcile, Reconciled};
use lapsed_core::sweep::{Cursor, PassMode};
use lapsed_core::{Error, Name, Result};

use super::{RedisSessions, refs};
use crate::held_entries::held_key;
use crate::names::hash_tag;
use crate::script;
use crate::system_context::{Args, Shard};

/// The most sessions that one step compares.
const STEP: usize = 100;

/// Where it stands: first all sessions (`k:node:cursor:counted`), then the indexes
/// (`i:shard:which:cursor`), then what incarnations refer to (`h:shard:cursor:lives:after`).
enum Position {
    Keys { node: usize, cursor: String, counted: Vec<PopulationCount> },
    Index { shard: usize, which: usize, cursor: String },
    Held { shard: usize, cursor: String, incarnations: Vec<String>, after: String },
}

/// The number of sessions of one shard that were met so far, and its counter at the beginning.
#[derive(Clone, Copy)]
struct PopulationCount {
    met: i64,
    said: i64,
}

/// Why drift is left: the names in the configuration are not confirmed.
const ONLY_OBSERVED: &str = "lapsed only observes";

/// The value in place of a cursor after all incarnations of the shard were listed.
const LISTED: &str = "all";

fn parse_position(text: &str) -> Result<Position> {
    let wrong =
        || Error::Invalid(format!("{text:?} is not a place in a reconciliation of sessions"));
    let parts: Vec<&str> = text.splitn(5, ':').collect();
    let number = |word: &str| word.parse().map_err(|_| wrong());
    match parts[..] {
        ["k", node, cursor, counted] => {
            let (node, cursor) = (number(node)?, cursor.to_owned());
            Ok(Position::Keys { node, cursor, counted: counts(counted).ok_or_else(wrong)? })
        }
        ["i", shard, which, cursor] => {
            let (shard, which) = (number(shard)?, number(which)?);
            Ok(Position::Index { shard, which, cursor: cursor.to_owned() })
        }
        ["h", shard, cursor, incarnations, after] => Ok(Position::Held {
            shard: number(shard)?,
            cursor: cursor.to_owned(),
            incarnations: incarnations
                .split('.')
                .filter(|inc| !inc.is_empty())
                .map(str::to_owned)
                .collect(),
            after: after.to_owned(),
        }),
        _ => Err(wrong()),
    }
}

fn counts(text: &str) -> Option<Vec<PopulationCount>> {
    let count = |pair: &str| {
        let (met, said) = pair.split_once('/')?;
        Some(PopulationCount { met: met.parse().ok()?, said: said.parse().ok()? })
    };
    text.split(',').filter(|pair| !pair.is_empty()).map(count).collect()
}

fn keys_at(node: usize, cursor: &str, counted: &[PopulationCount]) -> Option<Cursor> {
    let pairs: Vec<String> = counted.iter().map(|c| format!("{}/{}", c.met, c.said)).collect();
    at(format!("k:{node}:{cursor}:{}", pairs.join(",")))
}

fn at(text: String) -> Option<Cursor> {
    Some(Cursor(Some(text)))
}

#[async_trait]
impl Reconcile for RedisSessions {
    async fn reconcile(&self, after: Cursor, limit: usize, act: PassMode) -> Result<Reconciled> {
        let from = match &after.0 {
            Some(text) => parse_position(text)?,
            None => Position::Keys {
                node: 0,
                cursor: "0".to_owned(),
                counted: self.counted(act).await?,
            },
        };
        // While it is not known whether the names are right, a hash that is not found says nothing about the session.
        let observes = !self.is_native() && self.observation().await?.is_observing();
        let act = if observes { PassMode::DryRun } else { act };
        let mut done = match from {
            Position::Keys { node, cursor, counted } => {
                self.scan_keys(node, &cursor, counted, limit, act).await
            }
            Position::Held { shard, cursor, incarnations, after } => {
                self.scan_held(shard, (cursor, incarnations, after), limit, act).await
            }
            Position::Index { shard, which, cursor } => {
                self.scan_index(shard, which, &cursor, limit, act).await
            }
        }?;
        if observes && !done.changes.is_empty() {
            let left = done.left.entry(ONLY_OBSERVED.to_owned()).or_default();
            *left += std::mem::take(&mut done.changes).len() as u64;
        }
        Ok(done)
    }

    /// The number of all keys of the database, because a scan reads every one of them.
    async fn extent(&self) -> Result<u64> {
        let sizes =
            self.context().connection.on_every_node::<u64>("DBSIZE", &redis::cmd("DBSIZE")).await?;
        Ok(sizes.into_iter().sum::<u64>() + self.count_disconnected().await?)
    }
}

impl RedisSessions {
    async fn scan_keys(
        &self,
        node: usize,
        cursor: &str,
        mut counted: Vec<PopulationCount>,
        limit: usize,
        act: PassMode,
    ) -> Result<Reconciled> {
        let mut done = Reconciled::default();
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(cursor).arg("MATCH").arg(self.pattern()).arg("COUNT").arg(limit);
        cmd.arg("TYPE").arg("hash");
        let page =
            self.context().connection.on_node::<(String, Vec<Vec<u8>>)>(node, "SCAN", &cmd).await?;
        let Some((next, keys)) = page else {
            self.correct_population(&counted).await?;
            done.next = at("i:0:0:0".to_owned());
            return Ok(done);
        };
        for shard in &self.context().shards {
            let ids: BTreeSet<String> = keys
                .iter()
                .filter_map(|key| self.id_in(shard, std::str::from_utf8(key).ok()?))
                .collect();
            done.examined += ids.len() as u64;
            if let Some(counted) = counted.get_mut(shard.index) {
                counted.met += ids.len() as i64;
            }
            self.compare_all(shard, ids.into_iter().collect(), act, "", &mut done).await?;
        }
        done.next = match next.as_str() {
            "0" => keys_at(node + 1, "0", &counted),
            next => keys_at(node, next, &counted),
        };
        Ok(done)
    }

    /// What each shard's counter of sessions says before all are counted; nothing where there is no
    /// such counter, or where it would not be set right.
    async fn counted(&self, act: PassMode) -> Result<Vec<PopulationCount>> {
        let mut counted = Vec::new();
        if !self.is_native() || act == PassMode::DryRun {
            return Ok(counted);
        }
        for shard in &self.context().shards {
            let mut cmd = redis::cmd("HGET");
            cmd.arg(shard.prefix.key("meta")).arg("population");
            let said: Option<i64> = self.context().connection.query("HGET", &cmd).await?;
            counted.push(PopulationCount { met: 0, said: said.unwrap_or(0) });
        }
        Ok(counted)
    }

    /// Moves each counter by what it was off at the beginning: what came and went meanwhile it has
    /// counted itself. A gauge, not a truth: a session made while the scan ran may be counted twice.
    async fn correct_population(&self, counted: &[PopulationCount]) -> Result<()> {
        for (shard, PopulationCount { met, said }) in self.context().shards.iter().zip(counted) {
            if met != said {
                let mut cmd = redis::cmd("HINCRBY");
                cmd.arg(shard.prefix.key("meta")).arg("population").arg(met - said);
                let _: i64 = self.context().connection.query("HINCRBY", &cmd).await?;
            }
        }
        Ok(())
    }

    /// One step over what incarnations refer to: the next incarnations, or a page of what the first of them has.
    async fn scan_held(
        &self,
        shard_index: usize,
        (mut cursor, mut incarnations, mut after): (String, Vec<String>, String),
        limit: usize,
        act: PassMode,
    ) -> Result<Reconciled> {
        let mut done = Reconciled::default();
        let Some(shard) = self.context().shards.get(shard_index) else { return Ok(done) };
        match incarnations.first().cloned() {
            None if cursor == LISTED => {
                done.next = at(format!("h:{}:0::", shard_index + 1));
                return Ok(done);
            }
            None => {
                let mut cmd = redis::cmd("HSCAN");
                cmd.arg(shard.prefix.key("counts")).arg(&cursor).arg("COUNT").arg(10);
                let (next, flat): (String, Vec<String>) =
                    self.context().connection.query("HSCAN", &cmd).await?;
                incarnations = flat.chunks_exact(2).map(|pair| pair[0].clone()).collect();
                cursor = if next == "0" { LISTED.to_owned() } else { next };
            }
            Some(inc) => {
                let from = (!after.is_empty()).then_some(after.as_str());
                let ids = self.owners().held_in(shard, &inc, from, limit.min(STEP)).await?;
                done.examined += ids.len() as u64;
                let letters = self.compare_held(shard, &inc, &ids, act).await?;
                ids.iter().zip(letters.chars()).for_each(|(id, letter)| {
                    record_change(id.as_str(), letter, &mut done);
                });
                match ids.last().filter(|_| ids.len() == limit.min(STEP)) {
                    Some(last) => after = last.to_string(),
                    None => {
                        incarnations.remove(0);
                        after.clear();
                    }
                }
            }
        }
        done.next = at(format!("h:{shard_index}:{cursor}:{}:{after}", incarnations.join(".")));
        Ok(done)
    }

    async fn compare_held(
        &self,
        shard: &Shard,
        inc: &str,
        ids: &[Name],
        act: PassMode,
    ) -> Result<String> {
        if ids.is_empty() {
            return Ok(String::new());
        }
        let mut args = Args::default().key(held_key(shard, inc));
        args = args.arg(if act == PassMode::Reclaim { "act" } else { "dry" }).arg(inc);
        for id in ids {
            args = self.session_args(args, shard, id.as_str());
        }
        self.context().run(shard, &script::SESSION_REFERENCE_INDEX, args).await
    }

    fn session_args(&self, args: Args, shard: &Shard, id: &str) -> Args {
        let args = args.key(self.session(shard, id)).key(self.ref_count(shard, id));
        args.key(refs(shard, id)).arg(id)
    }

    /// The pattern for SCAN.
    fn pattern(&self) -> String {
        let pattern = self.inner.layout.session_key.pattern();
        if self.inner.tagged { format!("{{*}}:{pattern}") } else { pattern }
    }

    /// The session that a key of this shard holds. Ids that are not valid names are skipped.
    fn id_in(&self, shard: &Shard, key: &str) -> Option<String> {
        let template = &self.inner.layout.session_key;
        let id = match self.inner.tagged {
            true => {
                let prefix = format!("{{{}}}:", hash_tag(&shard.anchor));
                template.name_in(key.strip_prefix(&prefix)?)?
            }
            false => template.name_in(key)?,
        };
        lapsed_core::Name::new(id).is_ok().then(|| id.to_owned())
    }

    async fn scan_index(
        &self,
        shard_index: usize,
        which: usize,
        cursor: &str,
        limit: usize,
        act: PassMode,
    ) -> Result<Reconciled> {
        let mut done = Reconciled::default();
        let Some(shard) = self.context().shards.get(shard_index) else {
            done.next = self.is_native().then(|| Cursor(Some("h:0:0::".to_owned())));
            return Ok(done);
        };
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
        let (next, flat): (String, Vec<Vec<u8>>) =
            self.context().connection.query("ZSCAN", &cmd).await?;
        let ids: BTreeSet<String> = flat
            .chunks_exact(2)
            .filter_map(|pair| String::from_utf8(pair[0].clone()).ok())
            .collect();
        done.examined += ids.len() as u64;
        // A dry run has reported those that are sessions when it read them as sessions, and those that
        // are in both indexes when it read them in the first.
        let reported = match (act.reclaims(), which) {
            (true, _) => "",
            (false, 0) => "achr",
            (false, _) => "achrx",
        };
        self.compare_all(shard, ids.into_iter().collect(), act, reported, &mut done).await?;
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
        act: PassMode,
        reported: &str,
        done: &mut Reconciled,
    ) -> Result<()> {
        for ids in ids.chunks(STEP) {
            let letters = self.compare(shard, ids, act).await?;
            let news =
                ids.iter().zip(letters.chars()).filter(|(_, letter)| !reported.contains(*letter));
            news.for_each(|(id, letter)| record_change(id, letter, done));
        }
        Ok(())
    }

    async fn compare(&self, shard: &Shard, ids: &[String], act: PassMode) -> Result<String> {
        let mut args = Args::default().key(&shard.anchor).key(self.idle(shard));
        args = args.arg(if act == PassMode::Reclaim { "act" } else { "dry" });
        for id in ids {
            args = self.session_args(args, shard, id);
        }
        self.context().run(shard, &script::SESSION_INDEX, args).await
    }
}

fn record_change(id: &str, letter: char, done: &mut Reconciled) {
    let (what, why) = match letter {
        'a' => (Healed::Added, "it is disconnected, and was not in the index"),
        'c' => (Healed::Corrected, "it was in the index with another time"),
        'h' => {
            (Healed::Corrected, "its count was lower than the references that owners have to it")
        }
        'r' => (Healed::Removed, "it is active"),
        'x' | 'y' => (Healed::Removed, "there is no such session any more"),
        'd' => (Healed::Removed, "an owner referred to it, and there is no such session any more"),
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
    done.changes.push(IndexChange { key: id.to_owned(), what, why: why.to_owned() });
}
