//! The operations of a registry, the same on every store.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::Claim;
use crate::registry::{FoundEntry, KEYS_MAX, RegisterAnswer, RegistryStore, TakePolicy};
use crate::store_caller::StoreCaller;
use crate::system::{OwnerService, SystemParts, system_with_owners};

/// What a registry needs.
pub type RegistryParts = SystemParts<dyn RegistryStore>;

pub struct Registry {
    pub(super) parts: RegistryParts,
    pub(super) calls: StoreCaller,
    owners: OwnerService,
}

impl Registry {
    pub fn new(parts: RegistryParts) -> Self {
        let (calls, entries) = (parts.calls(), &parts.entries);
        let owners = OwnerService::new(&parts, entries.clone(), entries.clone(), KEYS_MAX);
        Registry { parts, calls, owners }
    }

    /// The store of this system, for callers that send heartbeats through a
    /// [`BeatHandle`](crate::owner::BeatHandle).
    pub fn store(&self) -> &Arc<dyn RegistryStore> {
        &self.parts.entries
    }

    pub async fn register(&self, claim: &Claim, key: &Name) -> Result<RegisterAnswer> {
        self.register_many(claim, std::slice::from_ref(key), TakePolicy::Always).await
    }

    /// Registers many keys, up to [`RegistryStore::atomic_keys`] of them in one atomic step.
    pub async fn register_many(
        &self,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
    ) -> Result<RegisterAnswer> {
        bounded(keys)?;
        self.calls.call("register", self.parts.entries.register(claim, keys, take)).await
    }

    /// Removes those of the keys that this owner still holds; the answer says for each key whether
    /// it did.
    pub async fn unregister(&self, claim: &Claim, keys: &[Name]) -> Result<Vec<bool>> {
        bounded(keys)?;
        self.calls.call("unregister", self.parts.entries.unregister(claim, keys)).await
    }

    /// The entry of `key`, if its owner is alive.
    pub async fn lookup(&self, key: &Name) -> Result<Option<FoundEntry>> {
        let found = self.lookup_many(std::slice::from_ref(key)).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// The entries of many keys. An overdue owner counts as dead unless the brake would spare it:
    /// in a mass death a fault of the network is likelier, so its entries are still found.
    pub async fn lookup_many(&self, keys: &[Name]) -> Result<Vec<Option<FoundEntry>>> {
        bounded(keys)?;
        let mut found = self.calls.call("lookup", self.parts.entries.find(keys)).await?;
        let is_overdue = |f: &FoundEntry| f.ended.is_none() && f.due_ms <= f.now_ms;
        let spare = match found.iter().flatten().any(is_overdue) {
            true => self.parts.brake.would_spare(&self.words().census().await?),
            false => false,
        };
        for slot in &mut found {
            let dead = |f: &FoundEntry| f.ended.is_some() || (is_overdue(f) && !spare);
            if slot.as_ref().is_some_and(dead) {
                *slot = None;
            }
        }
        Ok(found)
    }

    /// What one incarnation holds, ordered by key.
    pub async fn entries(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.calls
            .call("entries", self.parts.entries.entries(claim, after, limit.min(KEYS_MAX)))
            .await
    }
}

system_with_owners!(Registry);

fn bounded(keys: &[Name]) -> Result<()> {
    if keys.len() <= KEYS_MAX {
        return Ok(());
    }
    let count = keys.len();
    Err(Error::Invalid(format!("at most {KEYS_MAX} keys in one call; this one has {count}")))
}
