//! The seam of the durable store, which has every fact.

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

/// Somebody whom the mirror declared silent, for the truth to set offline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    pub id: Name,
    /// In which epoch it was declared silent.
    pub epoch: u64,
    /// How long it had been silent when that was decided, on the mirror's clock; `None`: it never beat.
    pub silent_ms: Option<u64>,
    /// How long ago that was.
    pub decided_ago_ms: u64,
}

/// What the truth made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flipped {
    /// It is offline now; log row and receipt were written in the same transaction.
    Offline(Box<Receipt>, ProviderState),
    /// It is not: a newer toggle, a beat that reached the truth (then a new epoch has begun), or it was
    /// offline already. The provider as it is, if there is one.
    Left(Refusal, Option<ProviderState>),
}

/// The durable store of every fact.
///
/// Every change of a provider is one transaction that first takes the next version of the provider
/// ([`next_version`](crate::rules::next_version); of several in the order of their ids, so
/// that two never wait for each other), then changes, then reads the state: whoever comes later has the
/// higher version and has seen what came before. `None` in an answer: there is no such provider.
#[async_trait]
pub trait Truth: Send + Sync {
    /// Receipts, the operator's settings, and terms where the mirror has none.
    fn services(&self) -> Arc<dyn Store>;

    /// Makes a provider (active, offline), or changes its name.
    async fn put_provider(&self, profile: &ProviderProfile) -> Result<ProviderChange>;

    /// Sets it online or offline. Online always begins a new epoch, and is a beat. A log row if it was
    /// otherwise before.
    async fn set_online(&self, id: &Name, online: bool) -> Result<Option<ProviderChange>>;

    /// Activates or deactivates; deactivating revokes its logins in the same transaction.
    async fn set_active(&self, id: &Name, active: bool) -> Result<Option<ProviderChange>>;

    /// Changes a session by [`step`](crate::rules::step); whoever is to have it must be active
    /// and have room.
    async fn change_session(&self, change: &SessionChange, max: u64) -> Result<SessionOutcome>;

    async fn session(&self, id: &Name) -> Result<Option<WorkSession>>;

    /// The newest state of each, with a new version that is above the number beside its id. Notices a
    /// toggle that the application made itself, and begins an epoch for it. Those that are not there
    /// are left out.
    async fn refresh(&self, ids: &[(Name, u64)]) -> Result<Vec<ProviderState>>;

    /// The state of each as it is, in one snapshot. Those that are not there are left out.
    async fn read(&self, ids: &[Name]) -> Result<Vec<ProviderState>>;

    /// The states of all, by id, those after `after`, at most `limit`.
    async fn page(&self, after: Option<&Name>, limit: usize) -> Result<Vec<ProviderState>>;

    /// About how many providers there are.
    async fn extent(&self) -> Result<u64>;

    /// Beats that the mirror could not take, in one statement: guarded like there.
    async fn beat(&self, ids: &[Name]) -> Result<Vec<ProviderBeat>>;

    /// Writes beats down that were so many milliseconds old at `at_ms` of the truth's clock (or are now, if
    /// that is earlier), in one statement and only forward in time (C9); only of those online. How many
    /// moved.
    async fn note_beats(&self, beats: &[(Name, u64)], at_ms: u64) -> Result<u64>;

    /// Those available, by id, those after `after`, at most `limit`.
    async fn available(
        &self,
        settings: &AvailabilitySettings,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Available>>;

    /// How many are available.
    async fn count_available(&self, settings: &AvailabilitySettings) -> Result<u64>;

    /// How many are online and active.
    async fn count_online(&self) -> Result<u64>;

    /// Providers with their names.
    async fn list(&self, listing: &ProviderQuery) -> Result<Vec<ListedProvider>>;

    async fn describe(&self, id: &Name) -> Result<Option<ListedProvider>>;

    /// The log of one provider, newest first, at most `limit` rows of it.
    async fn log(&self, id: &Name, limit: usize) -> Result<Vec<OnlineToggle>>;

    /// What the configuration table says; what it does not say is as usual.
    async fn settings(&self) -> Result<AvailabilitySettings>;

    /// Writes what is asked for into the configuration table, if the whole makes sense then.
    async fn set_settings(&self, patch: &SettingsPatch) -> Result<AvailabilitySettings>;

    /// Sets offline whom the mirror declared silent, each only if it is online, still in that epoch, and
    /// no beat younger than `stale_ms` reached the truth; all in one transaction, that notes the batch.
    /// A batch that was settled as not carried out is refused.
    async fn flip(&self, batch: &Batch, flips: &[Flip], stale_ms: u64) -> Result<Vec<Flipped>>;

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>>;

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied>;

    /// Sets online again whom receipt `seq` set offline, if nobody has toggled it since, and marks the
    /// receipt. The provider as it is then.
    async fn restore(&self, seq: u64) -> Result<(Restored, Option<ProviderState>)>;
}
