//! One incarnation in memory. A heartbeat changes nothing else.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lapsed_core::Name;
use lapsed_core::owner::{BeatHandle, Ending, Incarnation, OwnerInfo};
use lapsed_core::registry::rules::{IncarnationState, due_ms};

use crate::store_clock::StoreClock;
use crate::tables::{EndRow, OwnerRow};

/// The deadline of an ended incarnation: no heartbeat replaces it.
const ENDED: u64 = 0;
/// The deadline of an incarnation whose start is not durable yet: no caller may learn of it.
const PENDING: u64 = 1;

/// In [`Slot::held`]: the incarnation is in one of the lists of reclaimable ones.
const WATCHED: u64 = 1 << 63;
/// In [`Slot::held`]: a change was reported and not yet looked at.
const REPORTED: u64 = 1 << 62;
/// In [`Slot::held`]: the number of entries.
const COUNT: u64 = REPORTED - 1;

/// What all incarnations of one system share.
pub(crate) struct SlotContext {
    store_clock: Arc<StoreClock>,
    /// The number of entries of all watched incarnations.
    suspects: AtomicU64,
    /// Watched incarnations whose deadline or first or last entry has changed.
    changed: Mutex<Vec<u64>>,
}

impl SlotContext {
    pub fn new(store_clock: Arc<StoreClock>) -> Arc<Self> {
        let (suspects, changed) = (AtomicU64::new(0), Mutex::default());
        Arc::new(SlotContext { store_clock, suspects, changed })
    }

    pub fn suspects(&self) -> u64 {
        // A change that is under way in another thread may be counted in two steps.
        self.suspects.load(Ordering::Acquire).cast_signed().max(0).cast_unsigned()
    }

    /// The incarnations that have reported a change since the last call.
    pub fn take_changed(&self) -> Vec<u64> {
        std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Result of a heartbeat in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touched {
    Until(u64),
    Ended,
    /// The start is not durable yet: try again after the current commit.
    Pending,
}

/// The order of the fields keeps those that a heartbeat needs in one cache line.
#[repr(C)]
pub(crate) struct Slot {
    deadline: AtomicU64,
    pub ttl_ms: u64,
    context: Arc<SlotContext>,
    pub incarnation: u64,
    /// The number of entries, with [`WATCHED`] and [`REPORTED`].
    held: AtomicU64,
    pub started_ms: u64,
    pub name: Name,
    mirrored: AtomicU64,
    end: OnceLock<EndRow>,
    end_durable: AtomicBool,
    end_noted: AtomicBool,
}

impl Slot {
    /// An incarnation that is about to start. It has no effect until [`Slot::begin`].
    pub fn pending(
        context: Arc<SlotContext>,
        name: Name,
        incarnation: u64,
        ttl_ms: u64,
        started_ms: u64,
    ) -> Self {
        Slot {
            context,
            name,
            incarnation,
            ttl_ms,
            started_ms,
            deadline: AtomicU64::new(PENDING),
            mirrored: AtomicU64::new(0),
            held: AtomicU64::new(0),
            end: OnceLock::new(),
            end_durable: AtomicBool::new(false),
            end_noted: AtomicBool::new(false),
        }
    }

    pub fn from_row(context: Arc<SlotContext>, incarnation: u64, row: &OwnerRow) -> Self {
        let slot =
            Slot::pending(context, row.name.clone(), incarnation, row.ttl_ms, row.started_ms);
        match row.end {
            Some(end) => {
                slot.deadline.store(ENDED, Ordering::Release);
                let _ = slot.end.set(end);
                slot.end_is_durable();
            }
            None => slot.deadline.store(row.deadline_ms, Ordering::Release),
        }
        slot.mirrored.store(row.deadline_ms, Ordering::Release);
        slot
    }

    pub fn row(&self) -> OwnerRow {
        OwnerRow {
            name: self.name.clone(),
            ttl_ms: self.ttl_ms,
            started_ms: self.started_ms,
            deadline_ms: self.deadline_ms(),
            end: self.end(),
        }
    }

    /// Records that the start is durable.
    pub fn begin(&self, deadline_ms: u64) {
        let began = self.deadline.compare_exchange(
            PENDING,
            deadline_ms,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if began.is_ok() {
            self.mirrored.store(deadline_ms, Ordering::Release);
        }
    }

    /// Sends a heartbeat at `now_ms`. The deadline only grows.
    pub fn beat(&self, now_ms: u64) -> Touched {
        let until = now_ms + self.ttl_ms;
        let mut seen = self.deadline.load(Ordering::Acquire);
        loop {
            match seen {
                ENDED => return Touched::Ended,
                PENDING => return Touched::Pending,
                _ if seen >= until => return Touched::Until(seen),
                _ => {}
            }
            // Before `held` is read, in the one order that all threads see: see `watch`.
            let swap = self.deadline.compare_exchange_weak(
                seen,
                until,
                Ordering::SeqCst,
                Ordering::Acquire,
            );
            match swap {
                Ok(_) => {
                    if self.held.load(Ordering::SeqCst) & WATCHED != 0 {
                        self.report();
                    }
                    return Touched::Until(until);
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Ends this incarnation if `may_end` agrees, judging by the very deadline that is swapped out:
    /// a heartbeat comes either before and is judged, or after and is refused. It is durable only
    /// with the following commit. `None`: it had ended before.
    pub fn end_if<E>(
        &self,
        ending: Ending,
        now_ms: u64,
        may_end: impl Fn(&IncarnationState) -> Result<(), E>,
    ) -> Option<Result<EndRow, E>> {
        let mut seen = self.deadline.load(Ordering::Acquire);
        loop {
            if seen == ENDED {
                return None;
            }
            let state = IncarnationState { deadline_ms: seen, ended: None, ..self.state() };
            if let Err(why) = may_end(&state) {
                return Some(Err(why));
            }
            let swap = self.deadline.compare_exchange_weak(
                seen,
                ENDED,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match swap {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        let deadline_ms = if ending == Ending::Retired { now_ms } else { seen };
        let end = EndRow { ending, at_ms: now_ms, deadline_ms, held: self.held() };
        let _ = self.end.set(end);
        Some(Ok(end))
    }

    pub fn end(&self) -> Option<EndRow> {
        if self.deadline.load(Ordering::Acquire) != ENDED {
            return None;
        }
        Some(*self.end.wait())
    }

    /// The end that is not on disk yet: memory is changed first, the disk follows.
    pub fn unwritten_end(&self) -> Option<OwnerRow> {
        let unwritten = self.end().is_some() && !self.end_durable.load(Ordering::Acquire);
        unwritten.then(|| self.row())
    }

    pub fn end_is_durable(&self) {
        self.end_durable.store(true, Ordering::Release);
    }

    /// True exactly once, so that an end is indexed once even if its commit must be repeated.
    pub fn note_end(&self) -> bool {
        !self.end_noted.swap(true, Ordering::AcqRel)
    }

    pub fn is_pending(&self) -> bool {
        self.deadline.load(Ordering::Acquire) == PENDING
    }

    /// The current deadline; for an ended incarnation, the one that it had when it ended.
    pub fn deadline_ms(&self) -> u64 {
        match self.deadline.load(Ordering::SeqCst) {
            ENDED => self.end.wait().deadline_ms,
            deadline => deadline,
        }
    }

    pub fn state(&self) -> IncarnationState {
        let ended = self.end().map(|end| end.ending);
        let (started_ms, ttl_ms) = (self.started_ms, self.ttl_ms);
        IncarnationState { started_ms, deadline_ms: self.deadline_ms(), ttl_ms, ended }
    }

    /// When it is overdue, including the store-away grace.
    pub fn due_ms(&self, back_ms: u64) -> u64 {
        due_ms(&self.state(), back_ms)
    }

    /// The deadline, if it has changed since it was last written to disk.
    pub fn to_mirror(&self) -> Option<u64> {
        let deadline = self.deadline.load(Ordering::Acquire);
        let moved = deadline > PENDING && deadline != self.mirrored.load(Ordering::Acquire);
        moved.then_some(deadline)
    }

    pub fn mirrored(&self, deadline_ms: u64) {
        self.mirrored.store(deadline_ms, Ordering::Release);
    }

    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Acquire) & COUNT
    }

    pub fn set_held(&self, count: u64) {
        self.change_held(|_| Some(count));
    }

    pub fn hold_one(&self) {
        self.change_held(|held| Some(held + 1));
    }

    pub fn drop_one(&self) {
        self.change_held(|held| held.checked_sub(1));
    }

    fn change_held(&self, change: impl Fn(u64) -> Option<u64>) {
        let changed = self.held.fetch_update(Ordering::SeqCst, Ordering::Acquire, |held| {
            Some(change(held & COUNT)? | (held & !COUNT))
        });
        let Ok(before) = changed else { return };
        let Some(after) = change(before & COUNT) else { return };
        if before & WATCHED != 0 {
            let before = before & COUNT;
            self.context.suspects.fetch_add(after.wrapping_sub(before), Ordering::AcqRel);
            if (before == 0) != (after == 0) {
                self.report();
            }
        }
    }

    /// Marks an incarnation that is about to be listed as reclaimable. The race: a heartbeat between
    /// judging the deadline and listing. A heartbeat changes the deadline and then looks for the
    /// mark; the list sets the mark and then judges the deadline again. So either the heartbeat is
    /// reported, or the list sees it.
    pub fn watch(&self) {
        // A change that was reported before and not taken yet is seen now, and one after this is
        // reported again.
        let before = self.held.fetch_update(Ordering::SeqCst, Ordering::Acquire, |held| {
            Some((held | WATCHED) & !REPORTED)
        });
        let before = before.unwrap_or_else(|held| held);
        if before & WATCHED == 0 {
            self.context.suspects.fetch_add(before & COUNT, Ordering::AcqRel);
        }
    }

    /// Takes back the mark of an incarnation that is not listed any more.
    pub fn unwatch(&self) {
        let before = self.held.fetch_and(COUNT, Ordering::SeqCst);
        if before & WATCHED != 0 {
            self.context.suspects.fetch_sub(before & COUNT, Ordering::AcqRel);
        }
    }

    /// Reports a change, once until it was looked at.
    fn report(&self) {
        if self.held.fetch_or(REPORTED, Ordering::SeqCst) & REPORTED == 0 {
            let mut changed = self.context.changed.lock().unwrap_or_else(PoisonError::into_inner);
            changed.push(self.incarnation);
        }
    }

    pub fn info(&self, back_ms: u64) -> OwnerInfo {
        OwnerInfo {
            owner: self.name.clone(),
            incarnation: Incarnation(self.incarnation),
            ttl_ms: self.ttl_ms,
            started_ms: self.started_ms,
            due_ms: self.due_ms(back_ms),
            held: self.held(),
            ended: self.end().map(|end| (end.ending, end.at_ms)),
        }
    }
}

/// Sends heartbeats without a lookup.
impl BeatHandle for Slot {
    fn beat(&self) -> Option<u64> {
        match self.beat(self.context.store_clock.granting_ms()) {
            Touched::Until(deadline_ms) => Some(deadline_ms),
            Touched::Ended | Touched::Pending => None,
        }
    }
}
