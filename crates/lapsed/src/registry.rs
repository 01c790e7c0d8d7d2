//! The registry: which instance holds a connection.

mod assembly;

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::owner::Owner;
use lapsed_core::registry::{FoundEntry, HEARTBEAT_TTL_MS, Registered, Registry, TakePolicy};
use lapsed_core::{Kind, Name, Result};

use crate::assembly::Assembly;
use crate::common::{
    Running, Settings, common_operations, common_settings, member_operations, names,
};
use crate::open::Lapsed;

#[cfg(feature = "redis")]
pub use assembly::RedisRegistry;
pub use assembly::RegistrySpec;

impl Lapsed {
    /// A registry: which instance holds a connection.
    pub fn registry(&self, name: &str) -> RegistryBuilder {
        RegistryBuilder::new(Settings::new(self, Kind::Registry, name))
    }
}

/// A builder for a registry.
#[must_use]
pub struct RegistryBuilder {
    settings: Settings,
    ttl: Duration,
}

impl RegistryBuilder {
    pub(crate) fn new(settings: Settings) -> Self {
        RegistryBuilder { settings, ttl: Duration::from_millis(HEARTBEAT_TTL_MS) }
    }

    /// How long an owner may be silent before it is dead; by default 90 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    common_settings!();

    /// What [`start`](Self::start) assembles the system from. The daemon's tests compare its own defaults with this.
    #[doc(hidden)]
    pub fn assembly(&self) -> Result<(Assembly, RegistrySpec)> {
        Ok((self.settings.assembly(self.ttl)?, RegistrySpec::new(self.ttl)))
    }

    /// Starts the registry: from now on passes run, unless the schedule is manual.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a name or a duration is wrong,
    /// [`Error::Unsupported`](crate::Error::Unsupported) when the store cannot keep a registry.
    pub async fn start(self) -> Result<RegistrySystem> {
        let (assembly, spec) = self.assembly()?;
        let store = self.settings.lapsed.store();
        let registry = assembly.registry(store, self.settings.id()?, spec)?;
        let running = self.settings.run(&assembly, registry.clone(), store.store());
        Ok(RegistrySystem { registry, running })
    }
}

/// A started registry; it is swept until the last clone is dropped.
#[derive(Clone)]
pub struct RegistrySystem {
    registry: Arc<Registry>,
    running: Arc<Running>,
}

impl RegistrySystem {
    /// Starts a new incarnation of the owner `name`, which sends heartbeats until it is dropped.
    pub async fn join(&self, name: &str) -> Result<RegistryMember> {
        let owner = self.registry.owner(name).await?;
        Ok(RegistryMember { registry: self.registry.clone(), owner })
    }

    /// The entry of `key`, if its owner is alive.
    pub async fn lookup(&self, key: &str) -> Result<Option<RegistryEntry>> {
        let found = self.registry.lookup(&Name::new(key)?).await?;
        Ok(found.map(|found| RegistryEntry { found }))
    }

    /// The entries of up to 10,000 keys at once: one answer for each key, in the same order.
    pub async fn lookup_many(&self, keys: &[&str]) -> Result<Vec<Option<RegistryEntry>>> {
        let found = self.registry.lookup_many(&names(keys)?).await?;
        let entry = |found: Option<FoundEntry>| found.map(|found| RegistryEntry { found });
        Ok(found.into_iter().map(entry).collect())
    }

    common_operations!();
}

/// An entry whose owner is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryEntry {
    found: FoundEntry,
}

impl RegistryEntry {
    /// The name of the owner that holds it.
    pub fn owner(&self) -> &str {
        self.found.holder.owner.as_str()
    }

    /// The incarnation of the owner that holds it.
    pub fn incarnation(&self) -> u64 {
        self.found.holder.incarnation.0
    }
}

/// One incarnation of an owner. Sends heartbeats until it is dropped, leaves or is lost.
pub struct RegistryMember {
    registry: Arc<Registry>,
    owner: Owner,
}

impl RegistryMember {
    /// Registers `key` for this owner, even if another owner holds it.
    pub async fn register(&self, key: &str) -> Result<()> {
        self.register_many(&[key]).await
    }

    /// Registers up to 10,000 keys at once, as [`register`](Self::register) does.
    pub async fn register_many(&self, keys: &[&str]) -> Result<()> {
        let (claim, keys) = (self.owner.claim(), names(keys)?);
        self.registry.register_many(claim, &keys, TakePolicy::Always).await.map(drop)
    }

    /// Registers `key` unless another owner that has not ended holds it; true if this owner holds it now.
    pub async fn register_if_free(&self, key: &str) -> Result<bool> {
        let (claim, keys) = (self.owner.claim(), names(&[key])?);
        let answer = self.registry.register_many(claim, &keys, TakePolicy::IfFree).await?;
        Ok(!matches!(answer.keys.first(), Some(Registered::Taken { .. }) | None))
    }

    /// Removes `key` if this owner still holds it; false if it does not, and nothing changed.
    pub async fn unregister(&self, key: &str) -> Result<bool> {
        let removed = self.registry.unregister(self.owner.claim(), &names(&[key])?).await?;
        Ok(removed.first().copied().unwrap_or(false))
    }

    member_operations!();
}
