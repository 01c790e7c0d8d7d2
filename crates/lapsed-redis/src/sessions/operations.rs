//! The operations on sessions: activate, connect, disconnect, delete, restore.

use futures::future::try_join_all;
use lapsed_core::owner::{Claim, Incarnation};
use lapsed_core::request::RequestId;
use lapsed_core::sessions::rules::due_ms;
use lapsed_core::sessions::{Deleted, ReferenceChange, Session, SessionProfile};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result};
use serde_json::Value as Json;

use super::{RedisSessions, none, refs};
use crate::held_entries::held_key;
use crate::owners::{ResolvedClaim, incarnation_arg, unknown_incarnation};
use crate::script;
use crate::system_context::{Args, Shard};

/// How many times a call is repeated because the session has changed its owner in the meantime.
const TRIES: usize = 20;

impl RedisSessions {
    fn args(&self, shard: &Shard) -> Args {
        Args::default().key(&shard.anchor).key(self.idle(shard))
    }

    /// Creates, changes or shows a session. `None`: there is no such session.
    pub(super) async fn write(
        &self,
        op: &str,
        id: &Name,
        profile: &SessionProfile,
    ) -> Result<Option<(bool, Session)>> {
        let shard = self.context().shard(id.as_str());
        let wanted = profile.broadcaster_user_id.as_ref().map(Name::as_str);
        let mut before = String::new();
        for _ in 0..TRIES {
            let from_now_on = wanted.unwrap_or(&before);
            let mut args = self
                .args(shard)
                .key(self.session(shard, id.as_str()))
                .key(self.ref_count(shard, id.as_str()))
                .key(shard.prefix.key("pointers"))
                .key(self.pointer(shard, from_now_on))
                .key(self.pointer(shard, &before))
                .arg(op)
                .arg(id)
                .arg(from_now_on)
                .arg(&before);
            for (field, value) in [
                ("value", profile.value.as_deref()),
                ("broadcaster_user_id", wanted),
                ("config_json", profile.config_json.as_deref()),
            ] {
                if let Some(value) = value {
                    args = args.arg(field).arg(value);
                }
            }
            let (context, script) = (self.context(), &script::SESSION_WRITE);
            let words: Vec<Vec<u8>> =
                context.change(shard, script, context.with_base(shard, args)).await?;
            // The application's values may be any bytes; they are only shown here.
            let words: Vec<String> =
                words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            match words.first().map(String::as_str) {
                Some("missing") => return Ok(None),
                Some("again") => before = words.get(1).cloned().unwrap_or_default(),
                Some(created) => {
                    let session = self.read(id, &words[1..]);
                    let session = session
                        .ok_or_else(|| self.context().unexpected_answer(&script::SESSION_WRITE))?;
                    return Ok(Some((created == "1", session)));
                }
                None => return Err(self.context().unexpected_answer(&script::SESSION_WRITE)),
            }
        }
        Err(self.retries_exhausted(op))
    }

    /// Reads the answer of `show`.
    fn read(&self, id: &Name, words: &[String]) -> Option<Session> {
        let number = |at: usize| words.get(at)?.parse::<f64>().ok().map(|n| n as u64);
        let maybe = |at: usize| words.get(at).and_then(|word| word.strip_prefix('='));
        let (now_ms, back_ms, references, gone_ms) =
            (number(0)?, number(1)?, number(2)?, number(7)?);
        let since_ms = maybe(3).and_then(|n| n.parse::<f64>().ok()).map(|n| n as u64);
        let broadcaster = maybe(5).map(Name::new).transpose().ok()?;
        Some(Session {
            id: id.clone(),
            profile: SessionProfile {
                value: maybe(4).map(str::to_owned),
                broadcaster_user_id: broadcaster,
                config_json: maybe(6).map(str::to_owned),
            },
            references,
            disconnected_ms: (references == 0 && gone_ms > 0).then_some(gone_ms),
            updated_ms: maybe(8).and_then(|n| n.parse().ok()).map(milliseconds),
            due_ms: since_ms
                .filter(|_| references == 0)
                .map(|since_ms| due_ms(since_ms, self.grace_ms(), back_ms)),
            now_ms,
        })
    }

    /// Adds or removes one reference.
    pub(super) async fn change_references(
        &self,
        request: Option<&RequestId>,
        op: &str,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        let claim = claim.filter(|_| self.is_native());
        if self.is_native() && claim.is_none() && op != "resume" {
            return Err(Error::Invalid(format!(
                "`{op}` needs an owner: a reference belongs to the server that the client is connected to"
            )));
        }
        let mut started = None;
        loop {
            let words = match self.change_references_now(request, op, claim, id).await? {
                ResolvedClaim::Current(words) if words[0] == "missing" => return Ok(None),
                ResolvedClaim::Current(words) => words,
                resolved => {
                    let claim = claim.ok_or_else(|| {
                        self.context().unexpected_answer(&script::SESSION_REFERENCE)
                    })?;
                    match resolved {
                        ResolvedClaim::Unknown if op == "connect" => {
                            let ttl_ms = self.owners().ttl_ms;
                            started =
                                self.owners().begin(&claim.owner, ttl_ms, "unless_known").await?;
                            continue;
                        }
                        ResolvedClaim::Ended(inc) => {
                            return Err(self.owners().lost(&claim.owner, inc).await?);
                        }
                        _ => return Err(unknown_incarnation(claim)),
                    }
                }
            };
            let numbers: Option<Vec<u64>> =
                words.iter().map(|w| w.parse::<f64>().ok().map(|n| n as u64)).collect();
            let numbers = numbers
                .ok_or_else(|| self.context().unexpected_answer(&script::SESSION_REFERENCE))?;
            let [inc, references, yours, changed, gone_ms] = numbers[..] else {
                return Err(self.context().unexpected_answer(&script::SESSION_REFERENCE));
            };
            return Ok(Some(ReferenceChange {
                references,
                yours,
                changed: changed == 1,
                disconnected_ms: (gone_ms > 0).then_some(gone_ms),
                incarnation: (inc > 0).then_some(Incarnation(inc)),
                started,
            }));
        }
    }

    async fn change_references_now(
        &self,
        request: Option<&RequestId>,
        op: &str,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<ResolvedClaim> {
        let shard = self.context().shard(id.as_str());
        let mut declared = claim.map(incarnation_arg).unwrap_or_default();
        for _ in 0..TRIES {
            let held_set = match declared.is_empty() {
                true => none(shard),
                false => held_key(shard, &declared),
            };
            let args = self
                .args(shard)
                .key(self.session(shard, id.as_str()))
                .key(self.ref_count(shard, id.as_str()))
                .key(refs(shard, id.as_str()))
                .key(held_set)
                .arg(op)
                .arg(id)
                .arg(claim.map_or("", |claim| claim.owner.as_str()))
                .arg(claim.map(incarnation_arg).unwrap_or_default())
                .arg(&declared);
            let (context, script) = (self.context(), &script::SESSION_REFERENCE_ONCE);
            let args = context.with_base(shard, args);
            let words = match request {
                None => context.change(shard, &script::SESSION_REFERENCE, args).await?,
                Some(request) => context.run_once(shard, script, request, args).await?,
            };
            match ResolvedClaim::read(self.context(), &script::SESSION_REFERENCE, words)? {
                ResolvedClaim::NeedsKeys(more) => {
                    declared = more.into_iter().next().unwrap_or_default()
                }
                resolved => return Ok(resolved),
            }
        }
        Err(self.retries_exhausted(op))
    }

    pub(super) async fn remove(&self, id: &Name) -> Result<Deleted> {
        let shard = self.context().shard(id.as_str());
        let mut broadcaster = String::new();
        for _ in 0..TRIES {
            let args = self
                .args(shard)
                .key(self.session(shard, id.as_str()))
                .key(self.ref_count(shard, id.as_str()))
                .key(shard.prefix.key("pointers"))
                .key(self.pointer(shard, &broadcaster))
                .key(refs(shard, id.as_str()))
                .arg(id)
                .arg(&broadcaster);
            let (context, script) = (self.context(), &script::SESSION_DELETE);
            let words: Vec<String> =
                context.change(shard, script, context.with_base(shard, args)).await?;
            let word = |at: usize| words.get(at).map_or("", String::as_str);
            match word(0) {
                "missing" => return Ok(Deleted::Missing),
                "active" => {
                    return Ok(Deleted::Active { references: word(1).parse().unwrap_or(1) });
                }
                "deleted" => return Ok(Deleted::Deleted),
                "again" => broadcaster = word(1).to_owned(),
                _ => return Err(self.context().unexpected_answer(&script::SESSION_DELETE)),
            }
        }
        Err(self.retries_exhausted("delete"))
    }

    /// With several shards a broadcaster may have a session in each: the newest activation counts.
    pub(super) async fn current_of(&self, broadcaster: &Name) -> Result<Option<Name>> {
        let look = |shard| self.current_in(shard, broadcaster.as_str());
        let found = try_join_all(self.context().shards.iter().map(look)).await?;
        let newest = found.into_iter().flatten().max_by_key(|(at_ms, _)| *at_ms);
        newest.map(|(_, id)| Name::new(&id)).transpose()
    }

    async fn current_in(&self, shard: &Shard, broadcaster: &str) -> Result<Option<(u64, String)>> {
        let connection = &self.context().connection;
        let mut cmd = redis::cmd("GET");
        cmd.arg(self.pointer(shard, broadcaster));
        let id: Option<String> = connection.query("GET", &cmd).await?;
        let Some(id) = id else { return Ok(None) };
        let mut cmd = redis::cmd("HGET");
        cmd.arg(shard.prefix.key("pointers")).arg(broadcaster);
        let at_ms: Option<u64> = connection.query("HGET", &cmd).await?;
        Ok(Some((at_ms.unwrap_or(0), id)))
    }

    pub(super) async fn restore_session(&self, seq: u64) -> Result<Restored> {
        let context = self.context();
        let shard = context.shard_of_receipt(seq);
        let refused = |why: String| Ok(Restored::Refused { why });
        let Some(receipt) = context.one_receipt(seq).await? else {
            return refused(context.no_receipt(seq));
        };
        let Some(fields) = context.fields_of(shard, seq).await? else {
            return refused("its receipt does not say what it carried".to_owned());
        };
        let broadcaster = fields.iter().find(|(field, _)| field == b"broadcaster_user_id");
        let broadcaster = broadcaster.and_then(|(_, name)| std::str::from_utf8(name).ok());
        let broadcaster = broadcaster.unwrap_or_default();
        let pointed = receipt.removed.get("pointer") == Some(&Json::Bool(true));
        let mut args = self
            .args(shard)
            .key(self.session(shard, receipt.key.as_str()))
            .key(shard.prefix.key("pointers"))
            .key(self.pointer(shard, broadcaster))
            .key(shard.prefix.key("restored"))
            .arg(seq)
            .arg(&receipt.key)
            .arg(broadcaster)
            .arg(u8::from(pointed));
        args.args.extend(fields.into_iter().flat_map(|(field, value)| [field, value]));
        let args = context.with_base(shard, args);
        let words: Vec<String> = context.change(shard, &script::SESSION_RESTORE, args).await?;
        match words.first().map(String::as_str) {
            Some("restored") => Ok(Restored::Restored {
                key: receipt.key.to_string(),
                owner: receipt.owner.to_string(),
                incarnation: 0,
            }),
            Some("before") => refused("it was put back before".to_owned()),
            Some("taken") => {
                refused("its place is taken: there is a session of that id".to_owned())
            }
            _ => Err(context.unexpected_answer(&script::SESSION_RESTORE)),
        }
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

/// A time that the application wrote, in seconds or in milliseconds.
fn milliseconds(time: f64) -> u64 {
    if time >= 1e11 { time as u64 } else { (time * 1_000.0) as u64 }
}
