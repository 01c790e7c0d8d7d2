//! A mirror in the memory of this process: for a truth that only this process uses (the embedded
//! store), and for tests and simulations of the protocol.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;

use crate::rules::{AvailabilitySettings, MirrorRow, PendingOffline};
use crate::{
    Available, AvailablePage, BeatPage, Mirror, MirrorBeat, MirrorEntry, MirrorUpdate, MirrorView,
    OnlineBeat, Presence, ProviderBeat, SeenBeat, Snapshot, SnapshotTurn,
};
use lapsed_core::clock::Clock;
use lapsed_core::error::Result;
use lapsed_core::name::Name;
use lapsed_core::sweep::{Batch, Cursor, PassMode, Refusal, Suspect};

/// A mirror in memory.
pub struct MemoryMirror {
    clock: Arc<dyn Clock>,
    /// A longer pause of this process counts as an absence, because it may have been frozen.
    /// `None`: never.
    gap: Option<Duration>,
    /// The mirror's clock at its creation; it advances with the monotonic clock.
    origin_ms: u64,
    began: Duration,
    kept: Mutex<Kept>,
}

/// Largest number of seeding attempts that may be under way.
const ATTEMPTS_MAX: usize = 100;

#[derive(Default)]
struct Kept {
    rows: BTreeMap<Name, MirrorRow>,
    /// Number of this incarnation of the mirror; it grows with every loss of data.
    incarnation: u64,
    seeded: bool,
    attempts: u64,
    /// Seeding attempts that are under way.
    seeding: Vec<u64>,
    back_ms: u64,
    waived_ms: u64,
    /// When how many were decided to be silent, for a threshold.
    deaths: VecDeque<(u64, u64)>,
    looked: Duration,
    snapshot: Option<(Snapshot, u64)>,
    turns: u64,
    turn: Option<(u64, u64)>,
}

impl MemoryMirror {
    /// An empty mirror that is not seeded. `gap` is how long this process may pause before that
    /// counts as an absence; with a gap, [`Mirror::presence`] must be called more often than that.
    /// `None`: the mirror is never away.
    pub fn new(clock: Arc<dyn Clock>, gap: Option<Duration>) -> Self {
        let (origin_ms, began) = (clock.wall_ms(), clock.mono());
        let kept = Kept { incarnation: 1, looked: began, ..Kept::default() };
        MemoryMirror { clock, gap, origin_ms, began, kept: Mutex::new(kept) }
    }

    /// Loses everything, like a server that comes back empty.
    pub fn lose(&self) {
        let now_ms = self.time_ms();
        let mut kept = self.lock();
        let (incarnation, attempts, turns) = (kept.incarnation + 1, kept.attempts, kept.turns);
        let looked = kept.looked;
        *kept = Kept { incarnation, attempts, turns, looked, back_ms: now_ms, ..Kept::default() };
    }

    /// Changes one row directly, as an application or an accident would.
    pub fn tamper(&self, id: &Name, change: impl FnOnce(&mut MirrorRow)) {
        change(self.lock().rows.entry(id.clone()).or_default());
    }

    fn time_ms(&self) -> u64 {
        self.origin_ms + (self.clock.mono() - self.began).as_millis() as u64
    }

    /// Locks the data, and first checks whether this process was frozen.
    fn kept(&self) -> (MutexGuard<'_, Kept>, u64) {
        let mut kept = self.lock();
        let (now, now_ms) = (self.clock.mono(), self.time_ms());
        if self.gap.is_some_and(|gap| now.saturating_sub(kept.looked) > gap) {
            kept.back_ms = now_ms;
        }
        kept.looked = now;
        (kept, now_ms)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no holder of this lock panics")
    }
}

impl Kept {
    /// Rows after a cursor that `wanted` accepts, at most `limit`.
    fn after<'k>(
        &'k self,
        after: &Cursor,
        limit: usize,
        wanted: impl Fn(&MirrorRow) -> bool,
    ) -> (Vec<(&'k Name, &'k MirrorRow)>, Option<Cursor>) {
        let from = after.0.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.rows.range::<str, _>((from, Bound::Unbounded));
        let found: Vec<_> = range.filter(|(_, row)| wanted(row)).take(limit).collect();
        let next = found.last().filter(|_| found.len() == limit);
        let next = next.map(|(id, _)| Cursor(Some(id.to_string())));
        (found, next)
    }

    /// When the mirror was back after an absence that is not waived, if that was less than
    /// `stale_ms` ago; otherwise 0.
    fn back_ms(&self, now_ms: u64, stale_ms: u64) -> u64 {
        let recent = self.back_ms > 0 && now_ms < self.back_ms.saturating_add(stale_ms);
        if recent && self.waived_ms < now_ms { self.back_ms } else { 0 }
    }

    /// How many were decided to be silent after `since_ms`.
    fn died_since(&self, since_ms: u64) -> u64 {
        self.deaths.iter().filter(|(at_ms, _)| *at_ms > since_ms).map(|(_, count)| count).sum()
    }

    fn note_death(&mut self, now_ms: u64, stale_ms: u64) {
        while self.deaths.front().is_some_and(|(at_ms, _)| at_ms + stale_ms <= now_ms) {
            self.deaths.pop_front();
        }
        match self.deaths.back_mut().filter(|(at_ms, _)| *at_ms == now_ms) {
            Some((_, count)) => *count += 1,
            None => self.deaths.push_back((now_ms, 1)),
        }
    }

    fn decide(
        &mut self,
        suspect: &Suspect,
        now_ms: u64,
        stale_ms: u64,
        act: PassMode,
    ) -> std::result::Result<PendingOffline, Refusal> {
        // While the mirror is not seeded, heartbeats go to the truth, so those in the mirror are
        // old.
        let away = self.back_ms(now_ms, stale_ms) > 0 || !self.seeded;
        let Some(row) = self.rows.get_mut(&suspect.key) else { return Err(Refusal::Moved) };
        if let Some(pending) = row.pending_offline {
            return Ok(pending);
        }
        if !row.online || row.epoch != suspect.incarnation.0 {
            return Err(Refusal::Moved);
        }
        let beat_ms = row.beat_ms.unwrap_or(0);
        if now_ms < beat_ms.saturating_add(stale_ms) {
            return Err(Refusal::Alive);
        }
        if away {
            return Err(Refusal::StoreAway);
        }
        let pending = PendingOffline { epoch: row.epoch, beat_ms, decided_ms: now_ms };
        if act == PassMode::Reclaim {
            (row.online, row.beat_ms, row.pending_offline) = (false, None, Some(pending));
            self.note_death(now_ms, stale_ms);
            self.drop_snapshot();
        }
        Ok(pending)
    }

    fn drop_snapshot(&mut self) {
        (self.snapshot, self.turn) = (None, None);
    }
}

fn seen(id: &Name, row: Option<&MirrorRow>) -> MirrorEntry {
    let row = row.cloned().unwrap_or_default();
    MirrorEntry {
        id: id.clone(),
        version: row.version,
        epoch: row.epoch,
        online: row.online,
        deactivated: row.deactivated,
        sessions: Some(row.sessions),
        beat: row.beat_ms.map_or(SeenBeat::Missing(None), SeenBeat::At),
        pending_offline: row.pending_offline,
    }
}

#[async_trait]
impl Mirror for MemoryMirror {
    async fn now_ms(&self) -> Result<u64> {
        Ok(self.time_ms())
    }

    async fn presence(&self, stale_ms: u64) -> Result<Presence> {
        let (kept, now_ms) = self.kept();
        Ok(Presence {
            now_ms,
            incarnation: kept.incarnation.to_string(),
            back_ms: kept.back_ms(now_ms, stale_ms),
            seeded: kept.seeded,
            online: kept.rows.values().filter(|row| row.online).count() as u64,
            pending_offline: kept.rows.values().filter(|row| row.pending_offline.is_some()).count()
                as u64,
            died_recently: kept.died_since(now_ms.saturating_sub(stale_ms)),
            mass_beats: None,
            mass_beats_seen: 0,
        })
    }

    async fn waive(&self, until_ms: u64) -> Result<()> {
        self.lock().waived_ms = until_ms;
        Ok(())
    }

    async fn begin_seed(&self) -> Result<String> {
        let mut kept = self.lock();
        kept.attempts += 1;
        let attempt = kept.attempts;
        kept.seeding.push(attempt);
        // Attempts that are older than these will never be ended.
        let over = kept.seeding.len().saturating_sub(ATTEMPTS_MAX);
        kept.seeding.drain(..over);
        Ok(attempt.to_string())
    }

    async fn end_seed(&self, attempt: &str) -> Result<bool> {
        let now_ms = self.time_ms();
        let mut kept = self.lock();
        let before = kept.seeding.len();
        kept.seeding.retain(|one| one.to_string() != attempt);
        let valid = kept.seeding.len() < before;
        if valid && !kept.seeded {
            (kept.seeded, kept.back_ms) = (true, now_ms);
        }
        Ok(valid)
    }

    async fn apply(&self, told: &[MirrorUpdate], attempt: Option<&str>) -> Result<Option<u64>> {
        let (mut kept, now_ms) = self.kept();
        let is_void = |attempt: &str| !kept.seeding.iter().any(|one| one.to_string() == attempt);
        if attempt.is_some_and(is_void) {
            return Ok(None);
        }
        let (mut newer, mut moved) = (0, false);
        for MirrorUpdate { state, beat_ms } in told {
            let row = kept.rows.entry(state.id.clone()).or_default();
            let before = (row.online, row.deactivated);
            newer += u64::from(row.apply(state, *beat_ms, now_ms));
            moved |= before != (row.online, row.deactivated);
        }
        if moved {
            kept.drop_snapshot();
        }
        Ok(Some(newer))
    }

    async fn forget(&self, ids: &[(Name, Option<u64>)]) -> Result<u64> {
        let mut kept = self.lock();
        let mut gone = 0;
        for (id, version) in ids {
            if kept.rows.get(id).is_some_and(|row| row.version == *version) {
                kept.rows.remove(id);
                gone += 1;
            }
        }
        Ok(gone)
    }

    async fn beat(&self, ids: &[Name]) -> Result<Option<Vec<MirrorBeat>>> {
        let (mut kept, now_ms) = self.kept();
        if !kept.seeded {
            return Ok(None);
        }
        let beat = |id: &Name| match kept.rows.get_mut(id) {
            Some(row) if row.deactivated => MirrorBeat::Told(ProviderBeat::Deactivated),
            Some(row) if row.online => {
                row.beat_ms = row.beat_ms.max(Some(now_ms));
                MirrorBeat::Told(ProviderBeat::Noted)
            }
            Some(row) if row.pending_offline.is_some() => MirrorBeat::PendingOffline,
            _ => MirrorBeat::Told(ProviderBeat::Offline),
        };
        Ok(Some(ids.iter().map(beat).collect()))
    }

    async fn look(&self, ids: &[Name]) -> Result<MirrorView> {
        let (kept, now_ms) = self.kept();
        let seen = ids.iter().map(|id| seen(id, kept.rows.get(id))).collect();
        Ok(MirrorView { seen, now_ms, seeded: kept.seeded })
    }

    async fn beats(&self, after: &Cursor, limit: usize, older_ms: u64) -> Result<Option<BeatPage>> {
        let (kept, now_ms) = self.kept();
        if !kept.seeded {
            return Ok(None);
        }
        let (rows, next) = kept.after(after, limit, |row| row.online);
        let examined = rows.len() as u64;
        let is_old = |row: &MirrorRow| now_ms >= row.beat_ms.unwrap_or(0).saturating_add(older_ms);
        let beats = rows.iter().filter(|(_, row)| is_old(row)).map(|(id, row)| OnlineBeat {
            id: (*id).clone(),
            epoch: row.epoch,
            beat: row.beat_ms.map_or(SeenBeat::Missing(None), SeenBeat::At),
        });
        // Nobody else writes to this process's memory.
        let (beats, ahead, mass_beats) = (beats.collect(), Vec::new(), None);
        Ok(Some(BeatPage { beats, ahead, examined, now_ms, next, mass_beats }))
    }

    async fn pending_offline(&self, limit: usize) -> Result<Vec<(Name, PendingOffline)>> {
        let kept = self.lock();
        let pending_offline =
            kept.rows.iter().filter_map(|(id, row)| Some((id.clone(), row.pending_offline?)));
        let mut pending_offline: Vec<_> = pending_offline.collect();
        pending_offline.sort_by_key(|(_, pending)| pending.decided_ms);
        pending_offline.truncate(limit);
        Ok(pending_offline)
    }

    async fn traces(&self, after: &Cursor, limit: usize) -> Result<(Vec<Name>, Option<Cursor>)> {
        let kept = self.lock();
        let (rows, next) = kept.after(after, limit, |_| true);
        Ok((rows.into_iter().map(|(id, _)| id.clone()).collect(), next))
    }

    async fn decide(
        &self,
        batch: &Batch,
        stale_ms: u64,
    ) -> Result<Vec<std::result::Result<PendingOffline, Refusal>>> {
        let (mut kept, now_ms) = self.kept();
        let suspects = batch.suspects.iter();
        Ok(suspects.map(|suspect| kept.decide(suspect, now_ms, stale_ms, batch.act)).collect())
    }

    async fn available(
        &self,
        settings: &AvailabilitySettings,
        after: &Cursor,
        limit: usize,
        only_count: bool,
    ) -> Result<Option<AvailablePage>> {
        let (kept, now_ms) = self.kept();
        if !kept.seeded {
            return Ok(None);
        }
        let (rows, next) = kept.after(after, limit, |row| row.online);
        let fits = |row: &MirrorRow| {
            let age_ms = row.beat_ms.map(|beat_ms| now_ms.saturating_sub(beat_ms));
            !row.deactivated && settings.is_fresh(age_ms) && settings.has_room(row.sessions)
        };
        let found: Vec<Available> = rows
            .into_iter()
            .filter(|(_, row)| fits(row))
            .map(|(id, row)| Available { id: id.clone(), active_session_count: row.sessions })
            .collect();
        let count = found.len() as u64;
        let available = if only_count { Vec::new() } else { found };
        Ok(Some(AvailablePage { available, count, next }))
    }

    async fn count_online(&self) -> Result<Option<u64>> {
        let kept = self.lock();
        let online = kept.rows.values().filter(|row| row.online && !row.deactivated).count();
        Ok(kept.seeded.then_some(online as u64))
    }

    async fn snapshot(&self, lease_ms: u64) -> Result<Option<SnapshotTurn>> {
        let (mut kept, now_ms) = self.kept();
        if !kept.seeded {
            return Ok(None);
        }
        match (kept.snapshot, kept.turn) {
            (Some((snapshot, until_ms)), _) if now_ms < until_ms => {
                return Ok(Some(SnapshotTurn::There(snapshot)));
            }
            (_, Some((_, until_ms))) if now_ms < until_ms => return Ok(Some(SnapshotTurn::Theirs)),
            _ => {}
        }
        kept.turns += 1;
        kept.turn = Some((kept.turns, now_ms + lease_ms));
        Ok(Some(SnapshotTurn::Yours(kept.turns.to_string())))
    }

    async fn put_snapshot(&self, turn: &str, snapshot: &Snapshot, ttl_ms: u64) -> Result<bool> {
        let (mut kept, now_ms) = self.kept();
        let is_theirs = kept.turn.is_some_and(|(number, _)| number.to_string() == turn);
        if is_theirs {
            (kept.snapshot, kept.turn) = (Some((*snapshot, now_ms + ttl_ms)), None);
        }
        Ok(is_theirs)
    }

    async fn drop_snapshot(&self) -> Result<()> {
        self.lock().drop_snapshot();
        Ok(())
    }

    async fn announce(&self, _setting: &str) -> Result<()> {
        Ok(())
    }
}
