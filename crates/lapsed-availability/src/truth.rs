//! What a store implements as the durable half, which has every fact.

use std::sync::Arc;

use async_trait::async_trait;

use crate::rules::{AvailabilitySettings, SettingsPatch};
use crate::{
    Available, ListedProvider, OnlineToggle, ProviderBeat, ProviderChange, ProviderProfile,
    ProviderQuery, ProviderState, SessionChange, SessionOutcome, WorkSession,
};
use lapsed_core::error::Result;
use lapsed_core::name::Name;
use lapsed_core::receipt::Receipt;
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, BatchId, Refusal, Tidied, TidyLimits};
use lapsed_core::system::Restored;

/// A provider that the mirror decided to set offline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    pub id: Name,
    /// The epoch in which that was decided.
    pub epoch: u64,
    /// How long it had been silent at the decision, by the mirror's clock; `None`: it never sent a
    /// heartbeat.
    pub silent_ms: Option<u64>,
    /// How long ago that was decided, in milliseconds.
    pub decided_ago_ms: u64,
}

/// Result of carrying out a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flipped {
    /// The provider is offline; log row and receipt were written in the same transaction.
    Offline(Box<Receipt>, ProviderState),
    /// The provider was not set offline: there was a newer toggle, a heartbeat reached the truth
    /// (then a new epoch has begun), or it was offline already. Contains the provider's state, if
    /// it exists.
    Left(Refusal, Option<ProviderState>),
}

/// The durable store of every fact.
///
/// Every change of a provider is one transaction. It first takes the provider's next version
/// ([`next_version`](crate::rules::next_version); for several providers in the order of their ids,
/// which avoids deadlocks), then changes the row, then reads the state. So a later transaction has
/// a higher version and has seen all earlier changes. `None` in an answer: the provider does not
/// exist.
#[async_trait]
pub trait Truth: Send + Sync {
    /// Receipts, brake settings, and terms if the mirror keeps none.
    fn services(&self) -> Arc<dyn Store>;

    /// Creates a provider (active, offline) or changes its name.
    async fn put_provider(&self, profile: &ProviderProfile) -> Result<ProviderChange>;

    /// Sets a provider online or offline. Online always starts a new epoch and counts as a
    /// heartbeat. Writes a log row if the value was different before.
    async fn set_online(&self, id: &Name, online: bool) -> Result<Option<ProviderChange>>;

    /// Activates or deactivates a provider. Deactivating revokes its logins in the same
    /// transaction.
    async fn set_active(&self, id: &Name, active: bool) -> Result<Option<ProviderChange>>;

    /// Changes a session by [`step`](crate::rules::step). The provider that should get it must be
    /// active and have room.
    async fn change_session(&self, change: &SessionChange, max: u64) -> Result<SessionOutcome>;

    async fn session(&self, id: &Name) -> Result<Option<WorkSession>>;

    /// The current state of each provider with a new version above the given number. Detects a
    /// toggle that the application made itself, and starts an epoch for it. Providers that do not
    /// exist are left out.
    async fn refresh(&self, ids: &[(Name, u64)]) -> Result<Vec<ProviderState>>;

    /// The state of each provider in one snapshot, without new versions. Providers that do not
    /// exist are left out.
    async fn read(&self, ids: &[Name]) -> Result<Vec<ProviderState>>;

    /// States of providers after `after`, ordered by id, at most `limit`.
    async fn page(&self, after: Option<&Name>, limit: usize) -> Result<Vec<ProviderState>>;

    /// About how many providers there are.
    async fn extent(&self) -> Result<u64>;

    /// Records heartbeats that the mirror could not accept, in one statement, with the same checks
    /// as in the mirror.
    async fn beat(&self, ids: &[Name]) -> Result<Vec<ProviderBeat>>;

    /// Records heartbeats given by their age in milliseconds at `at_ms` of the truth's clock (or at
    /// its current time, if that is earlier), in one statement, only forward in time (C9) and only
    /// for online providers. Returns how many moved.
    async fn note_beats(&self, beats: &[(Name, u64)], at_ms: u64) -> Result<u64>;

    /// Sets each heartbeat of these providers that is dated after the truth's present to its present, in the step
    /// that finds it so. Returns how many were changed. A truth whose heartbeats only lapsed writes has none.
    async fn clamp_beats(&self, _ids: &[Name]) -> Result<u64> {
        Ok(0)
    }

    /// Available providers after `after`, ordered by id, at most `limit`.
    async fn available(
        &self,
        settings: &AvailabilitySettings,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Available>>;

    /// How many providers are available.
    async fn count_available(&self, settings: &AvailabilitySettings) -> Result<u64>;

    /// How many are online and active.
    async fn count_online(&self) -> Result<u64>;

    /// Providers with their names, in the order of `listing`.
    async fn list(&self, listing: &ProviderQuery) -> Result<Vec<ListedProvider>>;

    async fn describe(&self, id: &Name) -> Result<Option<ListedProvider>>;

    /// The log of one provider, newest first, at most `limit` rows.
    async fn log(&self, id: &Name, limit: usize) -> Result<Vec<OnlineToggle>>;

    /// The settings in the configuration table; missing ones have their defaults.
    async fn settings(&self) -> Result<AvailabilitySettings>;

    /// Writes settings to the configuration table, if the result is valid.
    async fn set_settings(&self, patch: &SettingsPatch) -> Result<AvailabilitySettings>;

    /// Carries out the mirror's decisions: sets each provider offline only if it is online, still
    /// in that epoch, and no heartbeat younger than `stale_ms` reached the truth. All in one
    /// transaction, which also records the batch. Refuses a batch that was settled as not carried
    /// out.
    async fn flip(&self, batch: &Batch, flips: &[Flip], stale_ms: u64) -> Result<Vec<Flipped>>;

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>>;

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied>;

    /// Sets the provider of receipt `seq` online again, if it was not toggled since, and marks the
    /// receipt. Returns the provider's state.
    async fn restore(&self, seq: u64) -> Result<(Restored, Option<ProviderState>)>;
}
