//! Implementation of `Truth`: changes are jobs, reads are answered from memory.

use std::sync::Arc;

use async_trait::async_trait;
use lapsed_availability::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_availability::{
    Available, Flip, Flipped, ListedProvider, OnlineToggle, PAGE_MAX, ProviderBeat, ProviderChange,
    ProviderProfile, ProviderQuery, ProviderState, SessionChange, SessionOutcome, Truth,
    WorkSession,
};
use lapsed_core::receipt::Receipt;
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, BatchId, Tidied, TidyLimits};
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result};

use crate::Embedded;
use crate::availability::EmbeddedTruth;
use crate::availability::rows::ProviderRow;
use crate::fault::Tried;
use crate::owners::load::open;

impl EmbeddedTruth {
    fn now_ms(&self) -> u64 {
        self.core.store_clock.now_ms()
    }
}

/// Whether a provider can take work now.
fn fits(settings: &AvailabilitySettings, id: &Name, row: &ProviderRow, now_ms: u64) -> bool {
    settings.is_available(&row.state(id, now_ms))
}

#[async_trait]
impl Truth for EmbeddedTruth {
    fn services(&self) -> Arc<dyn Store> {
        Arc::new(Embedded { inner: self.owner_service.inner.clone() })
    }

    async fn put_provider(&self, profile: &ProviderProfile) -> Result<ProviderChange> {
        let profile = profile.clone();
        self.write(move |core, tx| core.put_provider(tx, profile)).await
    }

    async fn set_online(&self, id: &Name, online: bool) -> Result<Option<ProviderChange>> {
        let id = id.clone();
        self.write(move |core, tx| core.set_online(tx, &id, online)).await
    }

    async fn set_active(&self, id: &Name, active: bool) -> Result<Option<ProviderChange>> {
        let id = id.clone();
        self.write(move |core, tx| core.set_active(tx, &id, active)).await
    }

    async fn change_session(&self, change: &SessionChange, max: u64) -> Result<SessionOutcome> {
        let change = change.clone();
        self.write(move |core, tx| core.change_session(tx, &change, max)).await
    }

    async fn session(&self, id: &Name) -> Result<Option<WorkSession>> {
        let disk = &self.owner_service.inner.disk;
        let read = || -> Tried<Option<WorkSession>> {
            let txn = disk.read()?;
            let Some(chats) = open(&txn, &self.core.tables.chats)? else { return Ok(None) };
            let row = chats.get(id.as_str().as_bytes())?;
            Ok(row.map(|row| serde_json::from_slice(row.value())).transpose()?)
        };
        read().map_err(|fault| fault.told(&disk.name))
    }

    /// No other program writes here, so there are no foreign toggles to detect.
    async fn refresh(&self, ids: &[(Name, u64)]) -> Result<Vec<ProviderState>> {
        let ids = ids.to_vec();
        self.write(move |core, tx| core.refresh(tx, &ids)).await
    }

    async fn read(&self, ids: &[Name]) -> Result<Vec<ProviderState>> {
        let (index, now_ms) = (self.core.index(), self.now_ms());
        Ok(ids.iter().filter_map(|id| Some(index.get(id)?.state(id, now_ms))).collect())
    }

    async fn page(&self, after: Option<&Name>, limit: usize) -> Result<Vec<ProviderState>> {
        let (index, now_ms) = (self.core.index(), self.now_ms());
        Ok(index.after(after).take(limit).map(|(id, row)| row.state(id, now_ms)).collect())
    }

    async fn extent(&self) -> Result<u64> {
        Ok(self.core.index().len() as u64)
    }

    async fn beat(&self, ids: &[Name]) -> Result<Vec<ProviderBeat>> {
        let ids = ids.to_vec();
        self.write(move |core, tx| core.beat(tx, &ids)).await
    }

    /// Records heartbeats in bounded parts, so that other jobs run in between.
    async fn note_beats(&self, beats: &[(Name, u64)], at_ms: u64) -> Result<u64> {
        // Dated now, because waiting for the writer must not make a heartbeat newer.
        let (at_ms, mut moved) = (self.now_ms().min(at_ms), 0);
        for part in beats.chunks(PAGE_MAX) {
            let part = part.to_vec();
            moved += self.write(move |core, tx| core.note_beats(tx, &part, at_ms)).await?;
        }
        Ok(moved)
    }

    async fn available(
        &self,
        settings: &AvailabilitySettings,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Available>> {
        let (index, now_ms) = (self.core.index(), self.now_ms());
        let found = index.online(after).filter(|(id, row)| fits(settings, id, row, now_ms));
        Ok(found.take(limit).map(|(id, row)| row.available(id)).collect())
    }

    async fn count_available(&self, settings: &AvailabilitySettings) -> Result<u64> {
        let (index, now_ms) = (self.core.index(), self.now_ms());
        let found = index.online(None).filter(|(id, row)| fits(settings, id, row, now_ms));
        Ok(found.count() as u64)
    }

    async fn count_online(&self) -> Result<u64> {
        let index = self.core.index();
        Ok(index.online(None).filter(|(_, row)| row.is_active).count() as u64)
    }

    async fn list(&self, listing: &ProviderQuery) -> Result<Vec<ListedProvider>> {
        let (index, after) = (self.core.index(), listing.after.as_ref());
        let listed = |(id, row): (&Name, &ProviderRow)| row.listed(id);
        Ok(match listing.online_only {
            true => index.online(after).take(listing.limit).map(listed).collect(),
            false => index.after(after).take(listing.limit).map(listed).collect(),
        })
    }

    async fn describe(&self, id: &Name) -> Result<Option<ListedProvider>> {
        Ok(self.core.index().get(id).map(|row| row.listed(id)))
    }

    async fn log(&self, id: &Name, limit: usize) -> Result<Vec<OnlineToggle>> {
        self.log_of(id, limit)
    }

    async fn settings(&self) -> Result<AvailabilitySettings> {
        Ok(self.core.index().settings())
    }

    async fn set_settings(&self, patch: &SettingsPatch) -> Result<AvailabilitySettings> {
        let patch = *patch;
        self.write(move |core, tx| core.set_settings(tx, &patch)).await
    }

    async fn flip(&self, batch: &Batch, flips: &[Flip], stale_ms: u64) -> Result<Vec<Flipped>> {
        let (batch, flips) = (batch.clone(), flips.to_vec());
        let clock = self.owner_service.inner.clock.clone();
        self.write(move |core, tx| core.flip(tx, &batch, &flips, stale_ms, &*clock)).await
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.owner_service.settle_batch(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.write(move |core, tx| core.tidy_all(tx, &limits)).await
    }

    async fn restore(&self, seq: u64) -> Result<(Restored, Option<ProviderState>)> {
        self.write(move |core, tx| core.restore(tx, seq)).await
    }
}
