//! The connection of a process to the truth.

use std::sync::Arc;

use async_trait::async_trait;
use lapsed_availability::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_availability::{
    Available, Flip, Flipped, ListedProvider, OnlineToggle, ProviderBeat, ProviderChange,
    ProviderProfile, ProviderQuery, ProviderState, SessionChange, SessionOutcome, Truth,
    WorkSession,
};
use lapsed_core::receipt::Receipt;
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, BatchId, Tidied, TidyLimits};
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result};
use lapsed_embedded::EmbeddedTruth;

use crate::availability::bug::AvailabilityBug;
use crate::availability::event_log::{AvailabilityLog, ProviderPlace};
use crate::availability::exchange::Exchange;

/// A connection to the truth, which also logs what happens and applies the planted bug.
pub struct TruthConnection {
    pub(super) exchange: Arc<Exchange>,
    pub(super) truth: Arc<EmbeddedTruth>,
    pub(super) log: Arc<AvailabilityLog>,
    pub(super) bug: Option<AvailabilityBug>,
}

macro_rules! pass {
    ($self:ident, $truth:ident, $call:expr) => {{
        let $truth = $self.truth.clone();
        $self.exchange.call(Box::pin(async move { $call.await })).await
    }};
}

#[async_trait]
impl Truth for TruthConnection {
    /// The brake setting and the receipts go to the store directly; faults on that path are not
    /// simulated.
    fn services(&self) -> Arc<dyn Store> {
        self.truth.services()
    }

    async fn put_provider(&self, profile: &ProviderProfile) -> Result<ProviderChange> {
        let profile = profile.clone();
        pass!(self, truth, truth.put_provider(&profile))
    }

    async fn set_online(&self, id: &Name, online: bool) -> Result<Option<ProviderChange>> {
        let (id, truth, log) = (id.clone(), self.truth.clone(), self.log.clone());
        let work = async move {
            let changed = truth.set_online(&id, online).await?;
            if online && changed.is_some() {
                log.sign(&id, ProviderPlace::Truth);
            }
            Ok(changed)
        };
        self.exchange.call(Box::pin(work)).await
    }

    async fn set_active(&self, id: &Name, active: bool) -> Result<Option<ProviderChange>> {
        let id = id.clone();
        pass!(self, truth, truth.set_active(&id, active))
    }

    async fn change_session(&self, change: &SessionChange, max: u64) -> Result<SessionOutcome> {
        let change = change.clone();
        pass!(self, truth, truth.change_session(&change, max))
    }

    async fn session(&self, id: &Name) -> Result<Option<WorkSession>> {
        let id = id.clone();
        pass!(self, truth, truth.session(&id))
    }

    async fn refresh(&self, ids: &[(Name, u64)]) -> Result<Vec<ProviderState>> {
        let ids = ids.to_vec();
        pass!(self, truth, truth.refresh(&ids))
    }

    async fn read(&self, ids: &[Name]) -> Result<Vec<ProviderState>> {
        let (ids, truth) = (ids.to_vec(), self.truth.clone());
        let is_blind = self.bug == Some(AvailabilityBug::TruthBeatsIgnored);
        let work = async move {
            let mut states = truth.read(&ids).await?;
            if is_blind {
                states.iter_mut().for_each(|state| state.beat_age_ms = None);
            }
            Ok(states)
        };
        self.exchange.call(Box::pin(work)).await
    }

    async fn page(&self, after: Option<&Name>, limit: usize) -> Result<Vec<ProviderState>> {
        let after = after.cloned();
        pass!(self, truth, truth.page(after.as_ref(), limit))
    }

    async fn extent(&self) -> Result<u64> {
        pass!(self, truth, truth.extent())
    }

    async fn beat(&self, ids: &[Name]) -> Result<Vec<ProviderBeat>> {
        let (ids, truth, log) = (ids.to_vec(), self.truth.clone(), self.log.clone());
        let work = async move {
            let beats = truth.beat(&ids).await?;
            log.beats(&ids, &beats, ProviderPlace::Truth);
            log.count("beats that went to the truth");
            Ok(beats)
        };
        self.exchange.call(Box::pin(work)).await
    }

    async fn note_beats(&self, beats: &[(Name, u64)], at_ms: u64) -> Result<u64> {
        let beats = beats.to_vec();
        pass!(self, truth, truth.note_beats(&beats, at_ms))
    }

    async fn available(
        &self,
        settings: &AvailabilitySettings,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Available>> {
        let (settings, after) = (*settings, after.cloned());
        let (truth, log) = (self.truth.clone(), self.log.clone());
        let work = async move {
            let available = truth.available(&settings, after.as_ref(), limit).await?;
            log.listed(&available, ProviderPlace::Truth);
            Ok(available)
        };
        self.exchange.call(Box::pin(work)).await
    }

    async fn count_available(&self, settings: &AvailabilitySettings) -> Result<u64> {
        let settings = *settings;
        pass!(self, truth, truth.count_available(&settings))
    }

    async fn count_online(&self) -> Result<u64> {
        pass!(self, truth, truth.count_online())
    }

    async fn list(&self, listing: &ProviderQuery) -> Result<Vec<ListedProvider>> {
        let listing = listing.clone();
        pass!(self, truth, truth.list(&listing))
    }

    async fn describe(&self, id: &Name) -> Result<Option<ListedProvider>> {
        let id = id.clone();
        pass!(self, truth, truth.describe(&id))
    }

    async fn log(&self, id: &Name, limit: usize) -> Result<Vec<OnlineToggle>> {
        let id = id.clone();
        pass!(self, truth, truth.log(&id, limit))
    }

    async fn settings(&self) -> Result<AvailabilitySettings> {
        pass!(self, truth, truth.settings())
    }

    async fn set_settings(&self, patch: &SettingsPatch) -> Result<AvailabilitySettings> {
        let patch = *patch;
        pass!(self, truth, truth.set_settings(&patch))
    }

    async fn flip(&self, batch: &Batch, flips: &[Flip], stale_ms: u64) -> Result<Vec<Flipped>> {
        let (batch, mut flips) = (batch.clone(), flips.to_vec());
        let (truth, log, bug) = (self.truth.clone(), self.log.clone(), self.bug);
        let work = async move {
            let asked = flips.clone();
            if bug == Some(AvailabilityBug::EpochIgnored) {
                for flip in &mut flips {
                    let now = truth.read(std::slice::from_ref(&flip.id)).await?;
                    flip.epoch = now.first().map_or(flip.epoch, |state| state.epoch);
                }
            }
            let blind = [AvailabilityBug::TruthBeatsIgnored, AvailabilityBug::EpochIgnored];
            let is_blind = bug.is_some_and(|bug| blind.contains(&bug));
            let stale_ms = if is_blind { 0 } else { stale_ms };
            let flipped = truth.flip(&batch, &flips, stale_ms).await?;
            log.flipped(&asked, &flipped);
            Ok(flipped)
        };
        self.exchange.call(Box::pin(work)).await
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        let batch = batch.clone();
        pass!(self, truth, truth.settle(&batch))
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        pass!(self, truth, truth.tidy(limits))
    }

    async fn restore(&self, seq: u64) -> Result<(Restored, Option<ProviderState>)> {
        pass!(self, truth, truth.restore(seq))
    }
}
