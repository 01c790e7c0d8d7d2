//! The mirror of `availability` on Redis and Valkey: the application's keys, and lapsed's own beside them.
//!
//! The heartbeat strings are the truth of beats: there is no index of deadlines beside them, because each
//! beat would have to keep it, while a pass looks at everybody online in any case, in bounded pages. What
//! decides (which of two states is newer, who is silent, whether the mirror knows anything at all) are
//! scripts, by the server's clock and by which run of the server it is.

mod available;
mod available_batching;
mod beat;
mod decide;
mod layout;
mod listen;
mod pages;
mod provider_batch;
mod seed;
mod snapshot;
mod times;
mod update;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_availability::rules::{AvailabilitySettings, PendingOffline};
use lapsed_availability::{
    AvailablePage, BeatPage, Mirror, MirrorBeat, MirrorUpdate, MirrorView, Presence, Snapshot,
    SnapshotTurn,
};
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, Cursor, Refusal};
use lapsed_core::{Name, Result, SystemId};

use crate::Redis;
use crate::call_batcher::CallBatcher;
use crate::script;
use crate::system_context::{Args, Shard, SystemContext};
use crate::write_probe::PROBE;

use available::ReadHints;
use available_batching::AvailabilityQuery;
use beat::BeatCall;
pub use layout::MirrorLayout;
pub use listen::MirrorEvent;

/// The most providers that one script call works on.
const NAMES_A_CALL: usize = 500;

/// The mirror of one system.
pub struct RedisMirror {
    redis: Redis,
    inner: Arc<Inner>,
    beats: Arc<CallBatcher<BeatCall, Option<Vec<MirrorBeat>>>>,
    availability_queries: Arc<CallBatcher<AvailabilityQuery, Option<AvailablePage>>>,
}

struct Inner {
    context: Arc<SystemContext>,
    layout: MirrorLayout,
    /// The keys in the scripts' order: meta, online, deactivated, versions, doomed (pending offline),
    /// doomed_at, missing, snapshot.
    keys: [String; 8],
    /// The prefix of alive keys; empty without instant detection.
    alive: String,
    /// How long a provider may be silent, by the newest known settings.
    stale_ms: AtomicU64,
    read_hints: ReadHints,
}

impl Redis {
    /// Opens a mirror of availability. `threshold`: how long a provider may be silent until the settings are
    /// known.
    pub fn mirror(
        &self,
        id: SystemId,
        layout: MirrorLayout,
        threshold: Duration,
    ) -> Result<Arc<RedisMirror>> {
        layout.check(self.is_cluster())?;
        let anchors = vec![layout.online_key.clone()];
        let (connection, clock) = (self.connection().clone(), self.clock().clone());
        let context = SystemContext::new(connection, clock, id, threshold, anchors);
        let written = vec![
            layout.online_key.clone(),
            layout.deactivated_key.clone(),
            layout.snapshot_key.clone(),
            layout.capacity_key.of(PROBE),
            layout.heartbeat_key.of(PROBE),
        ];
        self.register_context(&context, written);
        let own = |what: &str| context.shards[0].prefix.key(what);
        let keys = [
            own("meta"),
            layout.online_key.clone(),
            layout.deactivated_key.clone(),
            own("versions"),
            own("doomed"),
            own("doomed_at"),
            own("missing"),
            layout.snapshot_key.clone(),
        ];
        let alive = if layout.instant { own("alive:") } else { String::new() };
        let stale_ms = AtomicU64::new(context.threshold_ms());
        let inner = Arc::new(Inner {
            context,
            layout,
            keys,
            alive,
            stale_ms,
            read_hints: ReadHints::default(),
        });
        let (beats, availability_queries) = Default::default();
        Ok(Arc::new(RedisMirror { redis: self.clone(), inner, beats, availability_queries }))
    }
}

impl Inner {
    fn shard(&self) -> &Shard {
        &self.context.shards[0]
    }

    /// The first `keys` keys as arguments of a script.
    fn args(&self, keys: usize) -> Args {
        self.keys[..keys].iter().fold(Args::default(), |args, key| args.key(key))
    }

    fn heartbeats(&self, args: Args) -> Args {
        let (before, after) = self.layout.heartbeat_key.parts();
        args.arg(before).arg(after)
    }

    fn capacities(&self, args: Args) -> Args {
        let (before, after) = self.layout.capacity_key.parts();
        args.arg(before).arg(after)
    }

    fn stale_ms(&self) -> u64 {
        self.stale_ms.load(Ordering::Relaxed)
    }

    /// Stores the threshold of the current settings.
    fn note_stale(&self, stale_ms: u64) {
        self.stale_ms.store(stale_ms.max(1), Ordering::Relaxed);
    }
}

#[async_trait]
impl Mirror for RedisMirror {
    fn terms(&self) -> Option<Arc<dyn Store>> {
        Some(Arc::new(self.redis.clone()))
    }

    async fn now_ms(&self) -> Result<u64> {
        self.inner.context.run_with_keys(&script::SERVER_TIME, self.inner.args(1)).await
    }

    async fn presence(&self, stale_ms: u64) -> Result<Presence> {
        self.inner.presence(stale_ms).await
    }

    async fn waive(&self, until_ms: u64) -> Result<()> {
        let mut cmd = redis::cmd("HSET");
        cmd.arg(&self.inner.keys[0]).arg("waive").arg(until_ms);
        let _: u64 = self.inner.context.connection.query("HSET", &cmd).await?;
        Ok(())
    }

    async fn begin_seed(&self) -> Result<String> {
        self.inner.begin_seed().await
    }

    async fn end_seed(&self, attempt: &str) -> Result<bool> {
        self.inner.end_seed(attempt).await
    }

    async fn apply(&self, updates: &[MirrorUpdate], attempt: Option<&str>) -> Result<Option<u64>> {
        self.inner.apply(updates, attempt).await
    }

    async fn forget(&self, ids: &[(Name, Option<u64>)]) -> Result<u64> {
        self.inner.forget(ids).await
    }

    async fn beat(&self, ids: &[Name]) -> Result<Option<Vec<MirrorBeat>>> {
        self.beat_together(ids).await
    }

    async fn look(&self, ids: &[Name]) -> Result<MirrorView> {
        self.inner.look(ids).await
    }

    async fn beats(&self, after: &Cursor, limit: usize, older_ms: u64) -> Result<Option<BeatPage>> {
        self.inner.beats(after, limit, older_ms).await
    }

    async fn clamp_beats(&self, ids: &[Name]) -> Result<u64> {
        self.inner.clamp_beats(ids).await
    }

    async fn pending_offline(&self, limit: usize) -> Result<Vec<(Name, PendingOffline)>> {
        self.inner.pending_offline(limit).await
    }

    async fn traces(&self, after: &Cursor, limit: usize) -> Result<(Vec<Name>, Option<Cursor>)> {
        self.inner.traces(after, limit).await
    }

    async fn decide(
        &self,
        batch: &Batch,
        stale_ms: u64,
    ) -> Result<Vec<std::result::Result<PendingOffline, Refusal>>> {
        self.inner.decide(batch, stale_ms).await
    }

    async fn available(
        &self,
        settings: &AvailabilitySettings,
        after: &Cursor,
        limit: usize,
        only_count: bool,
    ) -> Result<Option<AvailablePage>> {
        let after = after.clone();
        self.query_available(AvailabilityQuery { settings: *settings, after, limit, only_count })
            .await
    }

    async fn count_online(&self) -> Result<Option<u64>> {
        self.inner.count_online().await
    }

    async fn snapshot(&self, lease_ms: u64) -> Result<Option<SnapshotTurn>> {
        self.inner.snapshot(lease_ms).await
    }

    async fn put_snapshot(&self, turn: &str, snapshot: &Snapshot, ttl_ms: u64) -> Result<bool> {
        self.inner.put_snapshot(turn, snapshot, ttl_ms).await
    }

    async fn drop_snapshot(&self) -> Result<()> {
        self.inner.drop_snapshot().await
    }

    async fn announce(&self, setting: &str) -> Result<()> {
        let mut cmd = redis::cmd("PUBLISH");
        cmd.arg(&self.inner.layout.invalidate_channel).arg(setting);
        let _: u64 = self.inner.context.connection.query("PUBLISH", &cmd).await?;
        Ok(())
    }
}
