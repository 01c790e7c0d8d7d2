//! Whether the sessions of an application are where the configuration says.
//!
//! An adopted session shows no heartbeat. What its layout does show: a member of the application's set of the disconnected
//! has a hash under `session_key`. With a wrong name none has, and a pass would take every member whose grace is over out of that
//! set, which is the only trace of these sessions. So nothing is reclaimed, and nothing is healed, before half of the members that
//! were looked at had a hash at the same time, or an operator has confirmed the names. What was found is recorded in the store.
//!
//! A wrong `ref_count_key` is not noticed: whether a disconnected session has a count at all is the application's choice. The hash
//! and the set tell of a connection, too.

use lapsed_core::sweep::{AdoptObservation, Census, PassMode};
use lapsed_core::{Error, Name, Result};

use super::RedisSessions;
use crate::names::fingerprint;
use crate::script;
use crate::system_context::Args;

/// How many members one look asks for.
const SAMPLE: usize = 100;

impl RedisSessions {
    fn fingerprint(&self) -> String {
        let layout = &self.inner.layout;
        fingerprint(&[&layout.disconnected_key, &layout.session_key.of("{session}")])
    }

    /// Counts as for a pass: remembers that the sessions were found, unless it is for a dry run. `None`: everything is
    /// written through lapsed.
    pub(super) async fn count_and_observe(&self, act: PassMode) -> Result<Option<Census>> {
        if self.is_native() {
            return Ok(None);
        }
        let mut census = self.count().await?;
        if let Some(observation) = &mut census.observation
            && act == PassMode::Reclaim
            && observation.confirmed_ms.is_none()
            && observation.total > 0
            && !observation.is_observing()
        {
            observation.confirmed_ms = Some(self.confirm().await?);
        }
        Ok(Some(census))
    }

    /// Looks at some members of the set, chosen at random: how many of them have a hash.
    pub(super) async fn observation(&self) -> Result<AdoptObservation> {
        let (connection, shard) = (&self.context().connection, &self.context().shards[0]);
        let mut cmd = redis::cmd("HGET");
        cmd.arg(shard.prefix.key("meta")).arg(format!("adopted:{}", self.fingerprint()));
        let confirmed: Option<String> = connection.query("HGET", &cmd).await?;
        let mut cmd = redis::cmd("ZRANDMEMBER");
        cmd.arg(&shard.anchor).arg(SAMPLE);
        let members: Vec<Vec<u8>> = connection.query("ZRANDMEMBER", &cmd).await?;
        // What has no name is no session of ours, and stays.
        let names: Vec<Name> =
            members.iter().filter_map(|member| Name::from_bytes(member).ok()).collect();
        let mut pipeline = redis::pipe();
        for name in &names {
            pipeline.cmd("EXISTS").arg(self.session(shard, name.as_str()));
        }
        let found: Vec<Option<u64>> =
            connection.query_each("EXISTS", &pipeline, names.len()).await?;
        let alive = found.iter().filter(|found| **found == Some(1)).count() as u64;
        Ok(AdoptObservation {
            of: "disconnected sessions".to_owned(),
            signs: format!("`{}`", self.inner.layout.session_key.of("{session}")),
            sign: "a hash".to_owned(),
            total: names.len() as u64,
            alive,
            seen_alive: alive,
            confirmed_ms: confirmed.and_then(|text| text.parse().ok()),
        })
    }

    pub(super) async fn confirm(&self) -> Result<u64> {
        if self.is_native() {
            return Err(Error::Unsupported {
                operation: "confirming sessions that are written through lapsed".to_owned(),
                store: self.context().place(),
            });
        }
        let args = Args::default()
            .key(self.context().shards[0].prefix.key("meta"))
            .arg(self.fingerprint());
        self.context().run_with_keys(&script::CONFIRM_ADOPTION, args).await
    }
}
