//! The location of every job, in memory, and what follows from it: the length of each queue, the
//! totals, and notifications for waiting tasks. It never contains anything that is not durable on
//! disk.
//!
//! Jobs of one batch see each other's changes through [`JobChanges`]; all others see them together
//! after the commit. Waiting tasks are notified after that.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::fast::RandomState;
use lapsed_core::Name;
use lapsed_core::inflight::JobCounts;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::holder_index::{Changes, HolderIndex};

/// With more notifications than this, those without a waiting task are removed.
const WAITERS_IDLE_MAX: usize = 1_024;

/// The location of a job's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobLocation {
    Queued { queue: Name, place: u64 },
    InFlight { incarnation: u64, token: u64 },
    Dead,
}

/// Totals that cannot be found by counting rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobTotals {
    pub entered: u64,
    pub completed: u64,
    pub dropped: u64,
    pub next_token: u64,
}

impl Default for JobTotals {
    fn default() -> Self {
        JobTotals { entered: 0, completed: 0, dropped: 0, next_token: 1 }
    }
}

/// Changes of a batch so far.
#[derive(Default)]
pub(crate) struct JobChanges {
    pub jobs: Changes<JobLocation>,
    pub account: Option<JobTotals>,
    /// No job of the queue lies before the first or behind the second of these positions.
    pub ends: HashMap<Name, (u64, u64), RandomState>,
    /// How many jobs have arrived on each queue.
    pub arrived: HashMap<Name, usize, RandomState>,
}

#[derive(Default)]
struct Totals {
    account: JobTotals,
    queues: BTreeMap<Name, u64>,
    /// No job of a queue lies before the first or behind the second of these positions. So taking a job does not begin
    /// to read where jobs were removed long ago.
    ends: HashMap<Name, (u64, u64), RandomState>,
    queued: u64,
    in_flight: u64,
    dead: u64,
}

impl Totals {
    fn leave(&mut self, place: &JobLocation) {
        match place {
            JobLocation::InFlight { .. } => self.in_flight = self.in_flight.saturating_sub(1),
            JobLocation::Dead => self.dead = self.dead.saturating_sub(1),
            JobLocation::Queued { queue, .. } => {
                self.queued = self.queued.saturating_sub(1);
                match self.queues.get_mut(queue) {
                    Some(length) if *length > 1 => *length -= 1,
                    _ => {
                        self.queues.remove(queue);
                        self.ends.remove(queue);
                    }
                }
            }
        }
    }

    /// Makes the ends of a queue include a position.
    fn reach(&mut self, queue: &Name, place: u64) {
        let ends = self.ends.entry(queue.clone()).or_insert((place, place));
        *ends = (ends.0.min(place), ends.1.max(place));
    }

    fn arrive(&mut self, place: &JobLocation) {
        match place {
            JobLocation::InFlight { .. } => self.in_flight += 1,
            JobLocation::Dead => self.dead += 1,
            JobLocation::Queued { queue, .. } => {
                self.queued += 1;
                match self.queues.get_mut(queue) {
                    Some(length) => *length += 1,
                    None => {
                        self.queues.insert(queue.clone(), 1);
                    }
                }
            }
        }
    }
}

pub(crate) struct JobIndex {
    jobs: HolderIndex<JobLocation>,
    totals: Mutex<Totals>,
    waiters: Mutex<HashMap<Name, Arc<Notify>, RandomState>>,
}

const LOCK: &str = "no holder of this lock panics";

impl JobIndex {
    pub fn new() -> Self {
        JobIndex { jobs: HolderIndex::new(), totals: Mutex::default(), waiters: Mutex::default() }
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.totals.lock().expect(LOCK)
    }

    pub fn get(&self, id: &Name) -> Option<JobLocation> {
        self.jobs.get(id)
    }

    pub fn account(&self) -> JobTotals {
        self.totals().account
    }

    /// Between which positions the jobs of a queue lie; `None`: it is empty.
    pub fn ends(&self, queue: &Name) -> Option<(u64, u64)> {
        self.totals().ends.get(queue).copied()
    }

    pub fn in_flight(&self) -> u64 {
        self.totals().in_flight
    }

    pub fn is_empty(&self, queue: &Name) -> bool {
        !self.totals().queues.contains_key(queue)
    }

    /// All totals at one instant.
    pub fn counts(&self) -> JobCounts {
        let Totals { account, queued, in_flight, dead, .. } = &*self.totals();
        JobCounts {
            entered: account.entered,
            completed: account.completed,
            dropped: account.dropped,
            queued: *queued,
            in_flight: *in_flight,
            dead: *dead,
        }
    }

    /// Queues that are not empty, ordered by name.
    pub fn queues(&self, after: Option<&Name>, limit: usize) -> Vec<(Name, u64)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let totals = self.totals();
        let queues = totals.queues.range::<Name, _>((from, Bound::Unbounded));
        queues.take(limit).map(|(queue, length)| (queue.clone(), *length)).collect()
    }

    pub fn waiter(&self, queue: &Name) -> Arc<Notify> {
        let mut waiters = self.waiters.lock().expect(LOCK);
        if let Some(waiter) = waiters.get(queue) {
            return waiter.clone();
        }
        if waiters.len() >= WAITERS_IDLE_MAX {
            waiters.retain(|_, waiter| Arc::strong_count(waiter) > 1);
        }
        waiters.entry(queue.clone()).or_default().clone()
    }

    /// Applies the changes of a durable batch, then notifies one waiting task per arrived job.
    pub fn apply(&self, changes: JobChanges) {
        {
            let mut totals = self.totals();
            for (id, change) in changes.jobs {
                change.iter().for_each(|place| totals.arrive(place));
                if let Some(before) = self.jobs.set(id, change) {
                    totals.leave(&before);
                }
            }
            for (queue, ends) in changes.ends {
                if totals.queues.contains_key(&queue) {
                    totals.ends.insert(queue, ends);
                }
            }
            totals.account = changes.account.unwrap_or(totals.account);
        }
        for (queue, count) in changes.arrived {
            self.ring(&queue, count);
        }
    }

    fn ring(&self, queue: &Name, count: usize) {
        let waiter = self.waiters.lock().expect(LOCK).get(queue).cloned();
        if let Some(waiter) = waiter {
            (0..count).for_each(|_| waiter.notify_one());
        }
    }

    /// Replaces everything by what was read from disk. Wakes all waiting tasks, because their jobs
    /// may have become durable with the batch that failed.
    pub fn replace(&self, all: HashMap<Name, JobLocation, RandomState>, account: JobTotals) {
        let mut totals = Totals { account, ..Totals::default() };
        for place in all.values() {
            totals.arrive(place);
            if let JobLocation::Queued { queue, place } = place {
                totals.reach(queue, *place);
            }
        }
        {
            let mut now = self.totals();
            self.jobs.replace(all.into_iter());
            *now = totals;
        }
        let waiters: Vec<_> = self.waiters.lock().expect(LOCK).values().cloned().collect();
        waiters.iter().for_each(|waiter| waiter.notify_waiters());
    }
}
