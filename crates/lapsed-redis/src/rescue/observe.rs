//! Whether the signs of life are where the configuration says.
//!
//! Most systems have one place for them, and nothing can be misspelt. Where the configuration names the key
//! (`heartbeat_key`), a wrong name makes every worker look dead. So nothing is put back before half of the workers that hold
//! something were seen alive, or an operator has confirmed the name. Who was seen is kept in the store, so that daemons and
//! single commands judge by the same facts, and belongs to one configuration: with another name observing begins anew.

use std::collections::BTreeSet;

use lapsed_core::sweep::{AdoptObservation, PassMode};
use lapsed_core::{Error, Name, Result};

use super::RescuedInflight;
use super::profile::Seen;
use crate::names::fingerprint;
use crate::script;
use crate::system_context::Args;

/// How long the record is kept if no pass runs any more, in seconds.
const KEEP_S: u64 = 30 * 24 * 3_600;

impl RescuedInflight {
    /// Of the streams and the key that the configuration names.
    fn fingerprint(&self) -> Option<String> {
        let key = self.layout.heartbeat_key.as_deref()?;
        let queues = self.layout.queues.iter().map(Name::as_str);
        Some(fingerprint(&[key].into_iter().chain(queues).collect::<Vec<_>>()))
    }

    /// Counts who was ever seen alive. Remembers who is alive now, unless it is for a dry run. `None`: the place of the signs
    /// of life is not a matter of configuration.
    pub(super) async fn observe(
        &self,
        seen: &Seen,
        act: PassMode,
    ) -> Result<Option<AdoptObservation>> {
        let Some(fingerprint) = self.fingerprint() else { return Ok(None) };
        let (connection, key) =
            (&self.context().connection, self.own(&format!("observed:{fingerprint}")));
        let mut cmd = redis::cmd("SMEMBERS");
        cmd.arg(&key);
        let known: BTreeSet<String> = connection.query("SMEMBERS", &cmd).await?;
        let is_alive = |name: &Name| !seen.workers[name].is_silent;
        let holders = || seen.workers.iter().filter(|(_, one)| one.held > 0).map(|(name, _)| name);
        let was_alive = |name: &&Name| is_alive(name) || known.contains(name.as_str());
        if act == PassMode::Reclaim {
            let alive = seen.workers.keys().filter(|name| is_alive(name)).map(Name::as_str);
            let new: Vec<&str> = alive.filter(|name| !known.contains(*name)).collect();
            let gone = known.iter().map(String::as_str);
            let gone: Vec<&str> = gone.filter(|name| !seen.workers.contains_key(*name)).collect();
            let (mut pipeline, mut count) = (redis::pipe(), 0);
            for (command, names) in [("SADD", new), ("SREM", gone)] {
                for names in names.chunks(500) {
                    pipeline.cmd(command).arg(&key).arg(names);
                    count += 1;
                }
            }
            pipeline.cmd("EXPIRE").arg(&key).arg(KEEP_S);
            let _: Vec<Option<u64>> = connection.query_each("SADD", &pipeline, count + 1).await?;
        }
        Ok(Some(AdoptObservation {
            of: "consumers that hold entries".to_owned(),
            signs: format!("`{}`", self.layout.heartbeat_key.as_deref().unwrap_or_default()),
            sign: String::new(),
            total: holders().count() as u64,
            alive: holders().filter(|name| is_alive(name)).count() as u64,
            seen_alive: holders().filter(was_alive).count() as u64,
            confirmed_ms: None,
        }))
    }

    pub(super) async fn confirmed_ms(&self) -> Result<Option<u64>> {
        let Some(fingerprint) = self.fingerprint() else { return Ok(None) };
        let mut cmd = redis::cmd("HGET");
        cmd.arg(self.own("meta")).arg(format!("adopted:{fingerprint}"));
        let confirmed: Option<String> = self.context().connection.query("HGET", &cmd).await?;
        Ok(confirmed.and_then(|text| text.parse().ok()))
    }

    pub(super) async fn confirm(&self) -> Result<u64> {
        let Some(fingerprint) = self.fingerprint() else {
            return Err(Error::Unsupported {
                operation: "confirming an adopted configuration: this system has its signs of life in one place, \
                            so there is nothing to confirm"
                    .to_owned(),
                store: self.context().place(),
            });
        };
        let args = Args::default().key(self.own("meta")).arg(fingerprint);
        self.context().run_with_keys(&script::CONFIRM_ADOPTION, args).await
    }
}
