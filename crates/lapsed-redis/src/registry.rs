//! `registry` on Redis and Valkey.

mod adopt;
mod entries;
mod index;
mod native;
mod observe;
mod reclaim;
mod survey;
mod suspects;

use std::time::Duration;

use lapsed_core::{Error, Result, SystemId};

use crate::Redis;
use crate::names::{Template, hash_tag};

pub use adopt::AdoptedRegistry;
pub(crate) use entries::KEYS_A_CALL;
pub use native::NativeRegistry;

/// The keys of a registry, as the application names them.
#[derive(Clone, Debug)]
pub struct RegistryLayout {
    /// The hash: entry → owner.
    pub registry_key: String,
    /// The key that exists until its owner's last heartbeat expires.
    pub heartbeat_key: Template,
    /// How long a heartbeat lasts.
    pub heartbeat_ttl: Duration,
    /// The number of hashes over which the entries are spread (native only).
    pub shards: usize,
}

impl RegistryLayout {
    /// The key names that the configuration file has by default, in one shard.
    pub fn new(heartbeat_ttl: Duration) -> RegistryLayout {
        let heartbeat_key = Template::new("instance:heartbeat:{owner}", "owner");
        RegistryLayout {
            registry_key: "connections:registry".to_owned(),
            heartbeat_key: heartbeat_key.expect("the place is in the text"),
            heartbeat_ttl,
            shards: 1,
        }
    }

    /// The hash of each shard: the key itself while there is only one.
    fn anchors(&self) -> Vec<String> {
        match self.shards {
            0 | 1 => vec![self.registry_key.clone()],
            many => (0..many).map(|shard| format!("{}/{shard}", self.registry_key)).collect(),
        }
    }

    /// Refuses what cannot work on a cluster where the application writes the keys: the guard needs
    /// the hash and the heartbeats in one slot.
    fn check_adopted(&self, is_cluster: bool) -> Result<()> {
        if self.shards > 1 {
            return Err(Error::Invalid(
                "`shards` is for mode = \"native\": what the application writes is one hash".into(),
            ));
        }
        if !is_cluster || self.heartbeat_key.shared_tag() == Some(hash_tag(&self.registry_key)) {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "on a cluster, `registry_key` ({}) and `heartbeat_key` ({}) must lie in one slot, so that \
             an entry and its owner's heartbeat can be judged in one step. Give both the same hash \
             tag, for example `{{devices}}:registry` and `{{devices}}:heartbeat:{{owner}}`, or use \
             mode = \"native\"",
            self.registry_key,
            self.heartbeat_key.of("{owner}"),
        )))
    }
}

impl Redis {
    /// Opens a registry that is written through lapsed.
    pub fn registry(&self, id: SystemId, layout: RegistryLayout) -> Result<NativeRegistry> {
        NativeRegistry::open(self, id, layout)
    }

    /// A registry whose keys the application writes itself.
    pub fn adopted_registry(
        &self,
        id: SystemId,
        layout: RegistryLayout,
    ) -> Result<AdoptedRegistry> {
        layout.check_adopted(self.is_cluster())?;
        Ok(AdoptedRegistry::open(self, id, layout))
    }
}
