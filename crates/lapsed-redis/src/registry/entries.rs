//! Registers, removes, finds, lists and restores entries.
//!
//! Which incarnation holds an entry is stored in one Redis key for each incarnation (the keys that it holds). A
//! script may only use keys that it was given, so a call passes those of the incarnations that it expects to
//! need. If the script needs another one, it changes nothing and answers which, and the call is repeated.

use std::collections::BTreeSet;

use lapsed_core::owner::{Claim, Incarnation};
use lapsed_core::registry::rules::due_ms;
use lapsed_core::registry::{FoundEntry, Holder, RegisterAnswer, Registered, TakePolicy};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result};

use super::native::NativeRegistry;
use crate::held_entries::held_key;
use crate::owners::{OwnerRecord, ResolvedClaim, incarnation_arg, unknown_incarnation};
use crate::script;
use crate::system_context::{Args, Shard};

/// The most keys in one call, so that no call keeps the server busy for long.
pub(crate) const KEYS_A_CALL: usize = 100;

/// How many times a call is repeated because the incarnations of its keys have changed.
const TRIES: usize = 20;

/// The entry of a key, and its owner's TTL if the heartbeat still has to be read.
type Row = Option<(FoundEntry, Option<u64>)>;

impl NativeRegistry {
    pub(super) async fn register_keys(
        &self,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
    ) -> Result<RegisterAnswer> {
        let mut started = None;
        let mut claim = claim.clone();
        let mut results: Vec<Option<Registered>> = vec![None; keys.len()];
        for (shard, places) in self.context().group_by_shard(keys) {
            for places in places.chunks(KEYS_A_CALL) {
                let part: Vec<Name> = places.iter().map(|at| keys[*at].clone()).collect();
                let words = loop {
                    match self.register_in(shard, &claim, &part, take).await? {
                        ResolvedClaim::Current(words) => break words,
                        ResolvedClaim::Unknown => {
                            let ttl_ms = self.owners.ttl_ms;
                            started =
                                self.owners.begin(&claim.owner, ttl_ms, "unless_known").await?;
                        }
                        ResolvedClaim::Ended(inc) => {
                            return Err(self.owners.lost(&claim.owner, inc).await?);
                        }
                        ResolvedClaim::UnknownIncarnation | ResolvedClaim::NeedsKeys(_) => {
                            return Err(unknown_incarnation(&claim));
                        }
                    }
                };
                let (inc, answers) = self.read_registered(&words, part.len())?;
                // The following calls mean the same incarnation, even if the name gets a new one.
                claim.incarnation = Some(inc);
                places.iter().zip(answers).for_each(|(at, one)| results[*at] = Some(one));
            }
        }
        if keys.is_empty() {
            let owner =
                self.owners.owner(&claim).await?.ok_or_else(|| unknown_incarnation(&claim))?;
            claim.incarnation = Some(owner.incarnation);
        }
        let incarnation = claim.incarnation.unwrap_or(Incarnation(0));
        Ok(RegisterAnswer { incarnation, started, keys: results.into_iter().flatten().collect() })
    }

    async fn register_in(
        &self,
        shard: &Shard,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
    ) -> Result<ResolvedClaim> {
        let mut declared: BTreeSet<String> =
            claim.incarnation.iter().map(ToString::to_string).collect();
        for _ in 0..TRIES {
            let mut args = Args::default();
            for what in ["lives", "names", "counts"] {
                args = args.key(shard.prefix.key(what));
            }
            args = args.key(&shard.anchor).arg(&claim.owner).arg(incarnation_arg(claim));
            args = args.arg(if take == TakePolicy::IfFree { "free" } else { "always" });
            args = declare(args.arg(declared.len()), shard, &declared).names(keys);
            let words = self.context().change(shard, &script::REGISTRY_REGISTER, args).await?;
            match ResolvedClaim::read(self.context(), &script::REGISTRY_REGISTER, words)? {
                ResolvedClaim::NeedsKeys(more) => declared.extend(more),
                resolved => return Ok(resolved),
            }
        }
        Err(self.retries_exhausted("register"))
    }

    fn read_registered(
        &self,
        words: &[String],
        count: usize,
    ) -> Result<(Incarnation, Vec<Registered>)> {
        let unexpected_answer = || self.context().unexpected_answer(&script::REGISTRY_REGISTER);
        let mut words = words.iter();
        let mut next = || words.next().ok_or_else(unexpected_answer);
        let inc = next()?.parse().map_err(|_| unexpected_answer())?;
        let mut results = Vec::with_capacity(count);
        for _ in 0..count {
            let word = next()?.as_str();
            let mut holder = || -> Result<Holder> {
                let owner = Name::new(next()?)?;
                let incarnation = Incarnation(next()?.parse().map_err(|_| unexpected_answer())?);
                Ok(Holder { owner, incarnation })
            };
            results.push(match word {
                "n" => Registered::New,
                "k" => Registered::Kept,
                "m" => Registered::Moved { from: holder()? },
                "t" => Registered::Taken { by: holder()? },
                _ => return Err(unexpected_answer()),
            });
        }
        Ok((Incarnation(inc), results))
    }

    pub(super) async fn unregister_keys(&self, claim: &Claim, keys: &[Name]) -> Result<Vec<bool>> {
        let mut removed = vec![false; keys.len()];
        for (shard, places) in self.context().group_by_shard(keys) {
            for places in places.chunks(KEYS_A_CALL) {
                let part: Vec<Name> = places.iter().map(|at| keys[*at].clone()).collect();
                let words = match self.unregister_in(shard, claim, &part).await? {
                    ResolvedClaim::Current(words) => words,
                    ResolvedClaim::Ended(inc) => {
                        return Err(self.owners.lost(&claim.owner, inc).await?);
                    }
                    _ => return Err(unknown_incarnation(claim)),
                };
                for (at, word) in places.iter().zip(&words[1..]) {
                    removed[*at] = word == "1";
                }
            }
        }
        Ok(removed)
    }

    async fn unregister_in(
        &self,
        shard: &Shard,
        claim: &Claim,
        keys: &[Name],
    ) -> Result<ResolvedClaim> {
        let mut inc = incarnation_arg(claim);
        for _ in 0..TRIES {
            let mut args = Args::default();
            for what in ["lives", "names", "counts"] {
                args = args.key(shard.prefix.key(what));
            }
            args = args.key(&shard.anchor).key(held_key(shard, &inc));
            args = args.arg(&claim.owner).arg(incarnation_arg(claim)).arg(&inc).names(keys);
            let words = self.context().change(shard, &script::REGISTRY_UNREGISTER, args).await?;
            match ResolvedClaim::read(self.context(), &script::REGISTRY_UNREGISTER, words)? {
                ResolvedClaim::NeedsKeys(more) => inc = more.into_iter().next().unwrap_or_default(),
                resolved => return Ok(resolved),
            }
        }
        Err(self.retries_exhausted("unregister"))
    }

    pub(super) async fn find_keys(&self, keys: &[Name]) -> Result<Vec<Option<FoundEntry>>> {
        let mut found = vec![None; keys.len()];
        for (shard, places) in self.context().group_by_shard(keys) {
            for places in places.chunks(KEYS_A_CALL) {
                let part: Vec<Name> = places.iter().map(|at| keys[*at].clone()).collect();
                let words = self.find_in(shard, &part).await?;
                let rows = self.read_found(&words)?;
                for (at, one) in places.iter().zip(self.with_heartbeats(shard, rows).await?) {
                    found[*at] = one;
                }
            }
        }
        Ok(found)
    }

    async fn find_in(&self, shard: &Shard, keys: &[Name]) -> Result<Vec<String>> {
        let mut declared = BTreeSet::new();
        for _ in 0..TRIES {
            let args = Args::default().key(&shard.anchor).arg(declared.len());
            let args = declare(args, shard, &declared).names(keys);
            let words: Vec<String> =
                self.context().run(shard, &script::REGISTRY_FIND, args).await?;
            match words.first().map(String::as_str) {
                Some("again") => declared.extend(words[1..].iter().cloned()),
                _ => return Ok(words),
            }
        }
        Err(self.retries_exhausted("find"))
    }

    /// An owner that sends heartbeats without lapsed is alive as long as its heartbeat key exists, whatever
    /// the last pass has read.
    async fn with_heartbeats(
        &self,
        shard: &Shard,
        rows: Vec<Row>,
    ) -> Result<Vec<Option<FoundEntry>>> {
        let owner = |found: &FoundEntry| found.holder.owner.to_string();
        let unread_ttl =
            rows.iter().flatten().filter_map(|(found, ttl)| Some((owner(found), (*ttl)?)));
        let now_ms = rows.iter().flatten().next().map_or(0, |(found, _)| found.now_ms);
        let good = self.owners.heartbeat_deadlines(shard, unread_ttl.collect(), now_ms).await?;
        let alive = |(mut found, unread_ttl): (FoundEntry, Option<u64>)| {
            let until_ms = unread_ttl.and(good.get(found.holder.owner.as_str()));
            found.due_ms = until_ms.copied().unwrap_or(found.due_ms);
            found
        };
        Ok(rows.into_iter().map(|row| row.map(alive)).collect())
    }

    fn read_found(&self, words: &[String]) -> Result<Vec<Row>> {
        let unexpected_answer = || self.context().unexpected_answer(&script::REGISTRY_FIND);
        let number = |at: usize| {
            words.get(at).and_then(|n| n.parse::<u64>().ok()).ok_or_else(unexpected_answer)
        };
        let (now_ms, back_ms) = (number(0)?, number(1)?);
        let read = |row: &[String]| {
            if row[0].is_empty() {
                return Ok(None);
            }
            let incarnation = Incarnation(row[1].parse().map_err(|_| unexpected_answer())?);
            let holder = Holder { owner: Name::new(&row[0])?, incarnation };
            let deadline_ms = row[3].parse::<f64>().unwrap_or(0.0) as u64;
            // An owner that was not started through lapsed has no incarnation here: the application's own
            // entry is taken as it is until it is reconciled.
            let record = OwnerRecord::read(&row[2], deadline_ms);
            let (due_ms, ended) = match &record {
                Some(record) => (due_ms(&record.state, back_ms), record.ended()),
                None => (u64::MAX, None),
            };
            let unread_ttl = record.and_then(|record| record.unread_ttl(due_ms, now_ms));
            Ok(Some((
                FoundEntry { holder, registered_ms: None, due_ms, ended, now_ms },
                unread_ttl,
            )))
        };
        words[2..].chunks_exact(4).map(read).collect()
    }

    pub(super) async fn restore_entry(&self, seq: u64) -> Result<Restored> {
        let context = self.context();
        let shard = context.shard_of_receipt(seq);
        let Some(receipt) = context.one_receipt(seq).await? else {
            return Ok(Restored::Refused { why: context.no_receipt(seq) });
        };
        let mut inc = receipt.incarnation.to_string();
        for _ in 0..TRIES {
            let args = Args::default()
                .key(&shard.anchor)
                .key(shard.prefix.key("restored"))
                .key(held_key(shard, &inc))
                .key(shard.prefix.key("meta"))
                .arg(seq)
                .arg(&receipt.owner)
                .arg(&inc)
                .arg(&receipt.key);
            let args = context.with_base(shard, args);
            let words: Vec<String> = context.change(shard, &script::REGISTRY_RESTORE, args).await?;
            match restored(&words, &receipt) {
                Some(answer) => return Ok(answer),
                None => inc = words.get(1).cloned().unwrap_or_default(),
            }
        }
        Err(self.retries_exhausted("restore"))
    }

    pub(super) fn retries_exhausted(&self, call: &str) -> Error {
        Error::Unavailable {
            store: self.context().place(),
            what: format!(
                "`{call}` found other owners at each of {TRIES} tries; nothing was changed"
            ),
        }
    }
}

/// Reads the answer of `registry_restore`; `None`: the script must be called again.
pub(super) fn restored(
    words: &[String],
    receipt: &lapsed_core::receipt::Receipt,
) -> Option<Restored> {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let why = match word(0) {
        "again" => return None,
        "restored" => {
            return Some(Restored::Restored {
                key: receipt.key.to_string(),
                owner: receipt.owner.to_string(),
                incarnation: word(1).parse().unwrap_or(0),
            });
        }
        "before" => "it was put back before".to_owned(),
        "taken" => format!("its place is taken: `{}` holds it now", word(1)),
        _ => format!("its owner `{}` is not alive", receipt.owner),
    };
    Some(Restored::Refused { why })
}

/// Adds, for each of these incarnations, the Redis key with the entries that it holds.
pub(super) fn declare(args: Args, shard: &Shard, incarnations: &BTreeSet<String>) -> Args {
    incarnations.iter().fold(args, |args, inc| args.key(held_key(shard, inc)).arg(inc))
}
