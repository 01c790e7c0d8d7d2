//! The beacon: whether any provider is available, and how many. Every customer asks every few
//! seconds, so all daemons share one snapshot. A daemon that finds none either takes the turn to
//! compute it or waits for the daemon that has the turn.

use std::time::Duration;

use crate::counters::ReadKind;
use crate::counters::Source;
use crate::operations::{Availability, Sourced};
use crate::{PAGE_MAX, Snapshot, SnapshotTurn};
use lapsed_core::error::Result;
use lapsed_core::sweep::Cursor;

/// How long a turn to compute the snapshot lasts before another daemon may take it.
const TURN: Duration = Duration::from_secs(10);

/// How long a daemon waits for another one's turn before it reads the truth.
const WAIT_MAX: Duration = Duration::from_secs(4);

/// How often a waiting daemon polls for the snapshot.
const LOOK: Duration = Duration::from_millis(10);

impl Availability {
    /// Whether any provider is available, and how many; at most as old as a snapshot may be.
    pub async fn beacon(&self) -> Result<Sourced<Snapshot>> {
        // Read before the turn is taken, so that the holder of the turn does not wait for the
        // truth.
        let _ = self.settings().await;
        let began = self.parts.clock.mono();
        while self.parts.clock.mono() < began + WAIT_MAX {
            let turn = self.parts.mirror.snapshot(TURN.as_millis() as u64);
            let turn = self.gated("snapshot", turn).await;
            match self.seeded(turn) {
                Some(SnapshotTurn::There(snapshot)) => {
                    return Ok(self.from(ReadKind::Beacon, Source::Mirror, snapshot));
                }
                Some(SnapshotTurn::Yours(turn)) => match self.make_snapshot(&turn).await {
                    Some(snapshot) => {
                        return Ok(self.from(ReadKind::Beacon, Source::Mirror, snapshot));
                    }
                    None => break,
                },
                Some(SnapshotTurn::Theirs) => self.parts.clock.sleep(LOOK).await,
                None => break,
            }
        }
        let (snapshot, source) = self.ask_truth().await?;
        Ok(self.from(ReadKind::Beacon, source, snapshot))
    }

    /// How many providers are available now.
    pub async fn count_available(&self) -> Result<Sourced<u64>> {
        if let Some(count) = self.count_mirrored().await {
            return Ok(self.from(ReadKind::Count, Source::Mirror, count));
        }
        let settings = self.settings().await?;
        let count = self.parts.truth.count_available(&settings);
        let count = self.calls.quiet("count", count).await?;
        Ok(self.from(ReadKind::Count, Source::Truth, count))
    }

    async fn make_snapshot(&self, turn: &str) -> Option<Snapshot> {
        let count = self.count_mirrored().await?;
        let snapshot = Snapshot { available: count > 0, count };
        self.counters.snapshots.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let ttl_ms = self.parts.snapshot_ttl.as_millis() as u64;
        let put = self.parts.mirror.put_snapshot(turn, &snapshot, ttl_ms);
        // The snapshot may have been dropped meanwhile; the answer is still correct as of now.
        let _ = self.gated("put_snapshot", put).await;
        Some(snapshot)
    }

    /// How many providers are available by the mirror; `None`: it does not answer or is not seeded.
    pub(super) async fn count_mirrored(&self) -> Option<u64> {
        let settings = self.settings().await.ok()?;
        let (mut count, mut after) = (0, Cursor::default());
        loop {
            let page = self.parts.mirror.available(&settings, &after, PAGE_MAX, true);
            let page = self.seeded(self.gated("available", page).await)?;
            count += page.count;
            match page.next {
                Some(next) => after = next,
                None => return Some(count),
            }
        }
    }

    pub(super) async fn ask_truth(&self) -> Result<(Snapshot, Source)> {
        let mut last = self.last_count.0.lock().await;
        let now = self.parts.clock.mono();
        if let Some((snapshot, at)) = *last
            && now < at + self.parts.snapshot_ttl
        {
            return Ok((snapshot, Source::Cache));
        }
        let settings = self.settings().await?;
        let count = self.parts.truth.count_available(&settings);
        let count = self.calls.quiet("count", count).await?;
        let snapshot = Snapshot { available: count > 0, count };
        *last = Some((snapshot, now));
        Ok((snapshot, Source::Truth))
    }
}
