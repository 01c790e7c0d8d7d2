//! The recent history of each system in this process: how many entries were reclaimed and how late,
//! in slices of ten seconds over one hour, and the last passes. It answers the question since when
//! something has been going wrong.
//!
//! Memory is bounded: a slice is a few numbers, only slices in which something was reclaimed are
//! kept, and consecutive passes that found nothing to do are kept as one. No pass reads this
//! history; the durable record is the receipts in the store.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use lapsed_core::SystemId;
use lapsed_core::clock::Clock;
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::{PassReport, Stopped};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schemas;

/// The length of one slice, in milliseconds.
pub const SLICE_MS: u64 = 10_000;

/// How many slices are kept: one hour of them.
const SLICES: u64 = 360;

/// How many passes of each system are kept.
const PASSES: usize = 50;

/// The recent history of one system in the process that answers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = History)]
pub struct HistoryResponse {
    /// The name of the system.
    pub system: String,
    /// The kind of the system.
    pub kind: String,
    /// The length of the time slice that one sample covers, in milliseconds.
    pub slice_ms: u64,
    /// The start of the time that the samples cover, in milliseconds on this process's wall clock.
    pub since_ms: u64,
    /// The time of the answer, in milliseconds on this process's wall clock.
    pub now_ms: u64,
    /// The samples, oldest first. Slices in which nothing was reclaimed have no sample.
    pub samples: Vec<HistorySample>,
    /// The last passes, newest first.
    pub passes: Vec<Passed>,
}

/// What was reclaimed in one slice of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Sample)]
pub struct HistorySample {
    /// The start of the slice, in milliseconds on this process's wall clock.
    pub at_ms: u64,
    /// How many entries were reclaimed in the slice.
    pub reclaimed: u64,
    /// The median lag: the time from an entry's deadline to its reclaim. Absent if all of the
    /// entries' owners had left gracefully.
    pub lag_p50_ms: Option<u64>,
    /// The 99th percentile of the lag.
    pub lag_p99_ms: Option<u64>,
    /// The largest lag in the slice.
    pub lag_max_ms: Option<u64>,
}

/// One pass, and how many idle passes before it are not listed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Passed {
    /// The report of the pass.
    #[serde(flatten)]
    #[schema(inline, value_type = schemas::PassReport)]
    pub report: PassReport,
    /// How many consecutive passes immediately before this one found nothing to do either; they are
    /// not listed.
    pub repeated: u64,
}

/// The histories of all systems.
pub struct StatusHistory {
    clock: Arc<dyn Clock>,
    systems: Mutex<HashMap<SystemId, SystemHistory>>,
}

impl StatusHistory {
    /// A history in which nothing has been recorded yet.
    pub fn new(clock: Arc<dyn Clock>) -> StatusHistory {
        StatusHistory { clock, systems: Mutex::default() }
    }

    /// Records that an entry was reclaimed `late_ms` after its deadline. The lag of an entry whose
    /// owner left gracefully is not recorded.
    pub fn reclaimed(&self, system: &SystemId, reason: Reason, late_ms: u64) {
        let late_ms = (reason != Reason::OwnerRetired).then_some(late_ms);
        let slice = self.mono_ms() / SLICE_MS;
        self.with(system, |history| history.count(slice, late_ms));
    }

    /// Records the report of a pass that ended.
    pub fn passed(&self, report: PassReport) {
        let Ok(system) = SystemId::new(report.kind, &report.system) else { return };
        self.with(&system, |history| history.pass(report));
    }

    /// The report of the last pass of a system, if there was one.
    pub fn last_pass(&self, system: &SystemId) -> Option<PassReport> {
        self.lock().get(system)?.passes.back().map(|passed| passed.report.clone())
    }

    /// The recent history of one system; empty if nothing was recorded of it.
    pub fn history(&self, system: &SystemId) -> HistoryResponse {
        let (mono_ms, now_ms) = (self.mono_ms(), self.clock.wall_ms());
        let slice = mono_ms / SLICE_MS;
        let (samples, passes) = match self.lock().get(system) {
            Some(history) => {
                (history.samples(slice), history.passes.iter().rev().cloned().collect())
            }
            None => (Vec::new(), Vec::new()),
        };
        let at = |past: u64| now_ms.saturating_sub(past * SLICE_MS + mono_ms % SLICE_MS);
        HistoryResponse {
            system: system.name.to_string(),
            kind: system.kind.to_string(),
            slice_ms: SLICE_MS,
            since_ms: at(slice.min(SLICES - 1)),
            now_ms,
            samples: samples.into_iter().map(|(past, tally)| tally.sample(at(past))).collect(),
            passes,
        }
    }

    /// Milliseconds on the monotonic clock: slices must not be mixed up when somebody sets the wall
    /// clock.
    fn mono_ms(&self) -> u64 {
        self.clock.mono().as_millis() as u64
    }

    fn with(&self, system: &SystemId, change: impl FnOnce(&mut SystemHistory)) {
        let mut systems = self.lock();
        match systems.get_mut(system) {
            Some(history) => change(history),
            None => change(systems.entry(system.clone()).or_default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SystemId, SystemHistory>> {
        self.systems.lock().expect("no holder of the history's lock panics")
    }
}

/// The recent history of one system.
#[derive(Default)]
struct SystemHistory {
    /// The current slice: its number and what was recorded in it so far.
    open: Option<(u64, Lags)>,
    closed: VecDeque<(u64, Tally)>,
    passes: VecDeque<Passed>,
}

impl SystemHistory {
    fn count(&mut self, slice: u64, late_ms: Option<u64>) {
        if self.open.as_ref().is_none_or(|(open, _)| *open != slice) {
            if let Some((past, lags)) = self.open.take() {
                self.closed.push_back((past, lags.tally()));
            }
            while self.closed.front().is_some_and(|(past, _)| past + SLICES <= slice) {
                self.closed.pop_front();
            }
            self.open = Some((slice, Lags::default()));
        }
        if let Some((_, lags)) = &mut self.open {
            lags.count(late_ms);
        }
    }

    fn pass(&mut self, report: PassReport) {
        let mut repeated = 0;
        if let Some(last) = self.passes.back().filter(|last| is_idle(&last.report))
            && is_idle(&report)
        {
            repeated = last.repeated + 1;
            self.passes.pop_back();
        }
        self.passes.push_back(Passed { report, repeated });
        if self.passes.len() > PASSES {
            self.passes.pop_front();
        }
    }

    /// The slices of the last hour, oldest first: how many slices ago each was, and its numbers.
    fn samples(&self, now: u64) -> Vec<(u64, Tally)> {
        let open = self.open.iter().map(|(slice, lags)| (*slice, lags.tally()));
        let all = self.closed.iter().cloned().chain(open);
        all.map(|(slice, tally)| (now.saturating_sub(slice), tally))
            .filter(|(past, _)| *past < SLICES)
            .collect()
    }
}

/// Whether a pass found nothing to do and has nothing to report.
fn is_idle(report: &PassReport) -> bool {
    report.stopped == Stopped::Done
        && report.suspects == 0
        && report.reclaimed == 0
        && report.released == 0
        && report.errors == 0
        && report.detail.is_none()
}

/// The numbers that are kept of a finished slice.
#[derive(Clone, Copy)]
struct Tally {
    reclaimed: u64,
    lag: Option<[u64; 3]>,
}

impl Tally {
    fn sample(self, at_ms: u64) -> HistorySample {
        let lag = |which: usize| self.lag.map(|lag| lag[which]);
        HistorySample {
            at_ms,
            reclaimed: self.reclaimed,
            lag_p50_ms: lag(0),
            lag_p99_ms: lag(1),
            lag_max_ms: lag(2),
        }
    }
}

/// A histogram of lags with a fixed size for any number of reclaims. Each doubling of the lag is
/// divided into eight steps, so that a percentile is wrong by at most an eighth.
struct Lags {
    steps: Box<[u32; STEPS]>,
    reclaimed: u64,
    late: u64,
    max_ms: u64,
}

const STEPS: usize = 8 + 61 * 8;

impl Default for Lags {
    fn default() -> Self {
        Lags { steps: Box::new([0; STEPS]), reclaimed: 0, late: 0, max_ms: 0 }
    }
}

impl Lags {
    fn count(&mut self, late_ms: Option<u64>) {
        self.reclaimed += 1;
        if let Some(late_ms) = late_ms {
            self.late += 1;
            self.max_ms = self.max_ms.max(late_ms);
            let step = &mut self.steps[step_of(late_ms)];
            *step = step.saturating_add(1);
        }
    }

    fn tally(&self) -> Tally {
        let lag = [self.percentile(50), self.percentile(99), self.max_ms];
        Tally { reclaimed: self.reclaimed, lag: (self.late > 0).then_some(lag) }
    }

    /// The percentile `share` (0 to 100) of the lags: the largest lag of the step in which it lies.
    fn percentile(&self, share: u64) -> u64 {
        let wanted = (self.late * share).div_ceil(100);
        let mut seen = 0;
        for (step, count) in self.steps.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted {
                return last_of(step).min(self.max_ms);
            }
        }
        self.max_ms
    }
}

fn step_of(ms: u64) -> usize {
    if ms < 8 {
        return ms as usize;
    }
    let doubling = ms.ilog2() as usize - 3;
    8 + doubling * 8 + ((ms >> doubling) & 7) as usize
}

/// The largest lag that belongs to a step, in milliseconds.
fn last_of(step: usize) -> u64 {
    if step < 8 {
        return step as u64;
    }
    let (doubling, eighth) = ((step - 8) / 8, (step - 8) % 8);
    ((8 + eighth as u64) << doubling) + ((1 << doubling) - 1)
}

#[cfg(test)]
mod tests;
