//! Who was seen in an adopted registry, and who was seen alive.
//!
//! The application writes the heartbeats, so a missing one means little by itself: its key may have another name
//! than the configuration says, or its owner has registered before its first heartbeat. What was seen is kept in
//! the store, one record for each owner that holds something, so that a daemon and a command that runs once from a
//! crontab judge by the same facts. The record belongs to one configuration: with another `heartbeat_key`
//! observing starts again.

use lapsed_core::registry::AdoptedOwnerState;
use lapsed_core::sweep::PassMode;
use lapsed_core::{Name, Result};

use super::adopt::AdoptedRegistry;
use super::survey::Survey;
use crate::script;
use crate::system_context::Args;

/// The most owners whose heartbeats one call reads.
const OWNERS_A_CALL: usize = 500;

/// The most names of dead owners that one call reads.
const DEATHS_A_CALL: usize = 1_000;

/// How long the record is kept if no pass runs any more, in seconds.
const KEEP_S: u64 = 30 * 24 * 3_600;

/// The observation of one owner, in milliseconds of the server's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedOwner {
    /// How long its heartbeat still lasts; `u64::MAX`: it does not expire. `None`: there is no heartbeat.
    pub left_ms: Option<u64>,
    first_ms: u64,
    /// When its last known heartbeat expires; 0: it was never seen alive.
    good_until_ms: u64,
}

impl ObservedOwner {
    pub fn was_seen_alive(&self) -> bool {
        self.left_ms.is_some() || self.good_until_ms > 0
    }

    /// When the owner is, or was, dead because of a missing heartbeat.
    pub fn deadline_ms(&self, now_ms: u64, ttl_ms: u64) -> u64 {
        match self.left_ms {
            Some(left_ms) => now_ms.saturating_add(left_ms),
            None if self.good_until_ms > 0 => self.good_until_ms.min(now_ms),
            None => self.first_ms + ttl_ms,
        }
    }

    pub fn is_dead(&self, now_ms: u64, ttl_ms: u64) -> bool {
        self.left_ms.is_none() && self.deadline_ms(now_ms, ttl_ms) <= now_ms
    }

    pub fn life(&self, now_ms: u64, ttl_ms: u64) -> AdoptedOwnerState {
        let deadline_ms = self.deadline_ms(now_ms, ttl_ms);
        if self.left_ms.is_some() {
            AdoptedOwnerState::Alive
        } else if self.good_until_ms > 0 {
            AdoptedOwnerState::HeartbeatGone { since_ms: now_ms.saturating_sub(deadline_ms) }
        } else if deadline_ms <= now_ms {
            AdoptedOwnerState::NeverBeat { known_for_ms: now_ms.saturating_sub(self.first_ms) }
        } else {
            AdoptedOwnerState::Newcomer { left_ms: deadline_ms - now_ms }
        }
    }
}

/// The observation of some owners in one call.
pub(super) struct ObservedOwners {
    pub now_ms: u64,
    pub confirmed_ms: Option<u64>,
    /// The owners, in the order of the request.
    pub owners: Vec<ObservedOwner>,
}

impl AdoptedRegistry {
    /// The key of the record that belongs to this configuration.
    pub(super) fn record_key(&self) -> String {
        self.context().shards[0].prefix.key(&format!("observed:{}", self.fingerprint))
    }

    /// The key of the owners that were found dead, each with the time of the last pass that found or took something of it.
    fn deaths_key(&self) -> String {
        self.context().shards[0].prefix.key("deaths")
    }

    /// Owners that died within the last TTL and hold nothing any more. They are read from the store, so that all
    /// processes count the same.
    pub(super) async fn died_recently(&self, now_ms: u64, survey: &Survey) -> Result<u64> {
        let (mut died, mut offset) = (0, 0);
        loop {
            let mut cmd = redis::cmd("ZRANGEBYSCORE");
            let since_ms = now_ms.saturating_sub(self.owners.ttl_ms);
            cmd.arg(self.deaths_key()).arg(format!("({since_ms}")).arg("+inf");
            cmd.arg("LIMIT").arg(offset).arg(DEATHS_A_CALL);
            let connection = &self.context().connection;
            let names: Vec<String> = connection.query("ZRANGEBYSCORE", &cmd).await?;
            let gone = names.iter().filter(|name| !survey.held.contains_key(name.as_str()));
            died += gone.count() as u64;
            if names.len() < DEATHS_A_CALL {
                return Ok(died);
            }
            offset += DEATHS_A_CALL;
        }
    }

    /// Reads the heartbeats of these owners. Stores the observation, unless it is for a dry run.
    pub(super) async fn observe(&self, owners: &[Name], act: PassMode) -> Result<ObservedOwners> {
        let mut all = ObservedOwners { now_ms: 0, confirmed_ms: None, owners: Vec::new() };
        let parts = owners.chunks(OWNERS_A_CALL);
        // Without owners the call still returns the time, and whether the configuration was confirmed.
        let none: &[Name] = &[];
        for part in parts.chain(owners.is_empty().then_some(none)) {
            let one = self.observe_some(part, act).await?;
            (all.now_ms, all.confirmed_ms) = (one.now_ms, one.confirmed_ms);
            all.owners.extend(one.owners);
        }
        Ok(all)
    }

    async fn observe_some(&self, owners: &[Name], act: PassMode) -> Result<ObservedOwners> {
        let context = self.context();
        let mut args = Args::default()
            .key(context.shards[0].prefix.key("meta"))
            .key(self.record_key())
            .key(self.deaths_key())
            .arg(self.owners.ttl_ms)
            .arg(if act == PassMode::Reclaim { "reclaim" } else { "dry" })
            .arg(&self.fingerprint)
            .arg(KEEP_S);
        for owner in owners {
            args = args.key(self.heartbeat.of(owner.as_str()));
        }
        let words: Vec<String> =
            context.run_with_keys(&script::REGISTRY_OBSERVE, args.names(owners)).await?;
        let unexpected_answer = || context.unexpected_answer(&script::REGISTRY_OBSERVE);
        let number = |word: &String| word.parse::<i64>().map_err(|_| unexpected_answer());
        let [now_ms, confirmed, answers @ ..] = &words[..] else { return Err(unexpected_answer()) };
        let read = |answer: &[String]| {
            let (left, first, good) =
                (number(&answer[0])?, number(&answer[1])?, number(&answer[2])?);
            Ok(ObservedOwner {
                // A heartbeat without an expiry never disappears by itself, so its owner counts as alive.
                left_ms: (left != -2).then_some(if left < 0 { u64::MAX } else { left as u64 }),
                first_ms: first as u64,
                good_until_ms: good as u64,
            })
        };
        Ok(ObservedOwners {
            now_ms: number(now_ms)? as u64,
            confirmed_ms: confirmed.parse().ok(),
            owners: answers.chunks_exact(3).map(read).collect::<Result<_>>()?,
        })
    }

    /// Removes the records of owners that hold nothing any more. In the usual case, with as many records as
    /// owners, it is one request.
    pub(super) async fn forget_others(&self, survey: &Survey) -> Result<()> {
        let connection = &self.context().connection;
        let key = self.record_key();
        let mut count = redis::cmd("HLEN");
        count.arg(&key);
        if connection.query::<u64>("HLEN", &count).await? <= survey.held.len() as u64 {
            return Ok(());
        }
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&key).arg(&cursor).arg("COUNT").arg(OWNERS_A_CALL);
            let (next, page): (String, Vec<Vec<u8>>) = connection.query("HSCAN", &scan).await?;
            let names = page.chunks_exact(2).filter_map(|pair| Name::from_bytes(&pair[0]).ok());
            let gone: Vec<Name> = names.filter(|name| !survey.held.contains_key(name)).collect();
            if !gone.is_empty() {
                let args = Args::default().key(&key).arg(survey.at_ms()).names(&gone);
                let _: u64 = self.context().run_with_keys(&script::REGISTRY_FORGET, args).await?;
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    pub(super) async fn confirm(&self) -> Result<u64> {
        let args =
            Args::default().key(self.context().shards[0].prefix.key("meta")).arg(&self.fingerprint);
        self.context().run_with_keys(&script::CONFIRM_ADOPTION, args).await
    }
}
