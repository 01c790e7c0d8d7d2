//! The connection of a process to the mirror.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_availability::memory::MemoryMirror;
use lapsed_availability::rules::{AvailabilitySettings, PendingOffline};
use lapsed_availability::{
    AvailablePage, BeatPage, Mirror, MirrorBeat, MirrorUpdate, MirrorView, Presence, ProviderBeat,
    Snapshot, SnapshotTurn,
};
use lapsed_core::sweep::{Batch, Cursor, PassMode, Refusal};
use lapsed_core::{Name, Result};

use crate::availability::bug::AvailabilityBug;
use crate::availability::event_log::{AvailabilityLog, ProviderPlace};
use crate::availability::exchange::Exchange;
use crate::executor::World;

/// A connection to the mirror, which also logs what happens and applies the planted bug.
pub struct MirrorConnection {
    pub(super) world: Arc<World>,
    pub(super) exchange: Arc<Exchange>,
    pub(super) mirror: Arc<MemoryMirror>,
    pub(super) log: Arc<AvailabilityLog>,
    pub(super) bug: Option<AvailabilityBug>,
}

type Decided = Vec<std::result::Result<PendingOffline, Refusal>>;

/// Forwards a call unchanged over the exchange: `pass!(self, mirror, call)`.
macro_rules! pass {
    ($self:ident, $mirror:ident, $call:expr) => {{
        let $mirror = $self.mirror.clone();
        $self.exchange.call(Box::pin(async move { $call.await })).await
    }};
}

impl MirrorConnection {
    fn has(&self, bug: AvailabilityBug) -> bool {
        self.bug == Some(bug)
    }

    /// C5: checks who is silent, waits, and acts on the old result.
    async fn check_then_act(&self, batch: Batch, stale_ms: u64) -> Result<Decided> {
        let (mirror, world) = (self.mirror.clone(), self.world.clone());
        let work = async move {
            let look = Batch { act: PassMode::DryRun, ..batch.clone() };
            let seen = mirror.decide(&look, stale_ms).await?;
            world.sleep(Duration::from_secs(2)).await;
            for (suspect, seen) in batch.suspects.iter().zip(&seen) {
                let Ok(pending) = seen else { continue };
                mirror.tamper(&suspect.key, |row| {
                    (row.online, row.beat_ms, row.pending_offline) = (false, None, Some(*pending));
                });
            }
            Ok(seen)
        };
        self.exchange.call(Box::pin(work)).await
    }
}

#[async_trait]
impl Mirror for MirrorConnection {
    async fn now_ms(&self) -> Result<u64> {
        pass!(self, mirror, mirror.now_ms())
    }

    async fn presence(&self, stale_ms: u64) -> Result<Presence> {
        if self.has(AvailabilityBug::NoGrace) {
            self.mirror.waive(u64::MAX).await?;
        }
        pass!(self, mirror, mirror.presence(stale_ms))
    }

    async fn waive(&self, until_ms: u64) -> Result<()> {
        pass!(self, mirror, mirror.waive(until_ms))
    }

    async fn begin_seed(&self) -> Result<String> {
        pass!(self, mirror, mirror.begin_seed())
    }

    async fn end_seed(&self, attempt: &str) -> Result<bool> {
        let attempt = attempt.to_owned();
        pass!(self, mirror, mirror.end_seed(&attempt))
    }

    async fn apply(&self, told: &[MirrorUpdate], attempt: Option<&str>) -> Result<Option<u64>> {
        let (mut told, attempt) = (told.to_vec(), attempt.map(str::to_owned));
        let (mirror, log) = (self.mirror.clone(), self.log.clone());
        let any = self.has(AvailabilityBug::AnyVersionTaken);
        let revives = self.has(AvailabilityBug::SeedingRevives) && attempt.is_some();
        let work = async move {
            let now_ms = mirror.now_ms().await?;
            for one in &mut told {
                if any {
                    mirror.tamper(&one.state.id, |row| row.version = None);
                }
                if revives {
                    one.beat_ms = Some(now_ms);
                }
            }
            let taken = mirror.apply(&told, attempt.as_deref()).await?;
            let ids: Vec<Name> = told.into_iter().map(|one| one.state.id).collect();
            let incarnation = mirror.presence(0).await?.incarnation;
            log.taken_over(&incarnation, &mirror.look(&ids).await?);
            Ok(taken)
        };
        self.exchange.call(Box::pin(work)).await
    }

    async fn forget(&self, ids: &[(Name, Option<u64>)]) -> Result<u64> {
        let ids = ids.to_vec();
        pass!(self, mirror, mirror.forget(&ids))
    }

    async fn beat(&self, ids: &[Name]) -> Result<Option<Vec<MirrorBeat>>> {
        let (ids, mirror, log) = (ids.to_vec(), self.mirror.clone(), self.log.clone());
        let is_hasty = self.has(AvailabilityBug::PendingToldOffline);
        let work = async move {
            let mut beats = mirror.beat(&ids).await?;
            for beat in
                beats.iter_mut().flatten().filter(|beat| **beat == MirrorBeat::PendingOffline)
            {
                log.count("beats of providers pending offline");
                if is_hasty {
                    *beat = MirrorBeat::Told(ProviderBeat::Offline);
                }
            }
            if let Some(beats) = &beats {
                log.beats(&ids, &told(beats), ProviderPlace::Mirror);
                // All providers are created at the beginning and never removed, so the mirror must
                // know them.
                log.known(&mirror.look(&ids).await?);
            }
            Ok(beats)
        };
        self.exchange.call(Box::pin(work)).await
    }

    async fn look(&self, ids: &[Name]) -> Result<MirrorView> {
        let ids = ids.to_vec();
        pass!(self, mirror, mirror.look(&ids))
    }

    async fn beats(&self, after: &Cursor, limit: usize, older_ms: u64) -> Result<Option<BeatPage>> {
        let after = after.clone();
        pass!(self, mirror, mirror.beats(&after, limit, older_ms))
    }

    async fn pending_offline(&self, limit: usize) -> Result<Vec<(Name, PendingOffline)>> {
        pass!(self, mirror, mirror.pending_offline(limit))
    }

    async fn traces(&self, after: &Cursor, limit: usize) -> Result<(Vec<Name>, Option<Cursor>)> {
        let after = after.clone();
        pass!(self, mirror, mirror.traces(&after, limit))
    }

    async fn decide(&self, batch: &Batch, stale_ms: u64) -> Result<Decided> {
        let batch = batch.clone();
        if self.has(AvailabilityBug::CheckedThenActed) {
            let ids: Vec<Name> = batch.suspects.iter().map(|one| one.key.clone()).collect();
            let decided = self.check_then_act(batch, stale_ms).await?;
            for (id, decided) in ids.iter().zip(&decided) {
                let Ok(pending) = decided else { continue };
                self.log.decided(id, pending);
            }
            return Ok(decided);
        }
        let (mirror, log) = (self.mirror.clone(), self.log.clone());
        let work = async move {
            let decided = mirror.decide(&batch, stale_ms).await?;
            for (suspect, decided) in batch.suspects.iter().zip(&decided) {
                if let (Ok(pending), PassMode::Reclaim) = (decided, batch.act) {
                    log.decided(&suspect.key, pending);
                }
            }
            Ok(decided)
        };
        self.exchange.call(Box::pin(work)).await
    }

    async fn available(
        &self,
        settings: &AvailabilitySettings,
        after: &Cursor,
        limit: usize,
        only_count: bool,
    ) -> Result<Option<AvailablePage>> {
        let (settings, after) = (*settings, after.clone());
        let (mirror, log) = (self.mirror.clone(), self.log.clone());
        let work = async move {
            let page = mirror.available(&settings, &after, limit, only_count).await?;
            if let Some(page) = &page {
                log.listed(&page.available, ProviderPlace::Mirror);
            }
            Ok(page)
        };
        self.exchange.call(Box::pin(work)).await
    }

    async fn count_online(&self) -> Result<Option<u64>> {
        pass!(self, mirror, mirror.count_online())
    }

    async fn snapshot(&self, lease_ms: u64) -> Result<Option<SnapshotTurn>> {
        pass!(self, mirror, mirror.snapshot(lease_ms))
    }

    async fn put_snapshot(&self, turn: &str, snapshot: &Snapshot, ttl_ms: u64) -> Result<bool> {
        let (turn, snapshot) = (turn.to_owned(), *snapshot);
        pass!(self, mirror, mirror.put_snapshot(&turn, &snapshot, ttl_ms))
    }

    async fn drop_snapshot(&self) -> Result<()> {
        pass!(self, mirror, mirror.drop_snapshot())
    }

    async fn announce(&self, setting: &str) -> Result<()> {
        let setting = setting.to_owned();
        pass!(self, mirror, mirror.announce(&setting))
    }
}

/// The answers as a caller sees them that does not ask the truth.
fn told(beats: &[MirrorBeat]) -> Vec<ProviderBeat> {
    let told = |beat: &MirrorBeat| match beat {
        MirrorBeat::Told(beat) => *beat,
        MirrorBeat::PendingOffline => ProviderBeat::Offline,
    };
    beats.iter().map(told).collect()
}
