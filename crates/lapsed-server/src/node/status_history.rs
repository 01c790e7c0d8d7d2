//! What each system did lately, in this process: how much was reclaimed and how late in slices of ten
//! seconds over an hour, and the last passes. For whoever comes in the middle of the night and asks
//! since when.
//!
//! Bounded whatever happens: a slice is a few numbers, only slices in which something happened are
//! kept, and passes that found nothing to do count as one. Nothing here is read back by a pass; what
//! matters is in the store's receipts.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use lapsed_core::SystemId;
use lapsed_core::clock::Clock;
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::{PassReport, Stopped};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::schemas;

/// How long a slice is.
pub const SLICE_MS: u64 = 10_000;

/// How many slices make an hour.
const SLICES: u64 = 360;

/// How many passes are kept.
const PASSES: usize = 50;

/// What one system did lately.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = History)]
pub struct HistoryResponse {
    /// Its name.
    pub system: String,
    /// Its kind.
    pub kind: String,
    /// How long a sample is.
    pub slice_ms: u64,
    /// How far back the samples reach, on this process's wall clock.
    pub since_ms: u64,
    /// Now, on the same clock.
    pub now_ms: u64,
    /// Oldest first; none for a time in which nothing was reclaimed.
    pub samples: Vec<HistorySample>,
    /// The newest first.
    pub passes: Vec<Passed>,
}

/// What was reclaimed in one slice of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Sample)]
pub struct HistorySample {
    /// When it began, on this process's wall clock.
    pub at_ms: u64,
    /// How many were reclaimed.
    pub reclaimed: u64,
    /// Half of the dead were at most so late; none when all of them had left gracefully.
    pub lag_p50_ms: Option<u64>,
    /// 99 % of them were at most so late.
    pub lag_p99_ms: Option<u64>,
    /// None was later.
    pub lag_max_ms: Option<u64>,
}

/// One pass, and how many like it went before.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Passed {
    /// Its account.
    #[serde(flatten)]
    #[schema(inline, value_type = schemas::PassReport)]
    pub report: PassReport,
    /// How many passes in a row before it found nothing to do either, and are not listed.
    pub repeated: u64,
}

/// The histories of all systems.
pub struct StatusHistory {
    clock: Arc<dyn Clock>,
    systems: Mutex<HashMap<SystemId, Strand>>,
}

impl StatusHistory {
    /// Nothing has happened yet.
    pub fn new(clock: Arc<dyn Clock>) -> StatusHistory {
        StatusHistory { clock, systems: Mutex::default() }
    }

    /// Something was reclaimed. Those who left gracefully are not late.
    pub fn reclaimed(&self, system: &SystemId, reason: Reason, late_ms: u64) {
        let late_ms = (reason != Reason::OwnerRetired).then_some(late_ms);
        let slice = self.mono_ms() / SLICE_MS;
        self.with(system, |strand| strand.count(slice, late_ms));
    }

    /// A pass ended.
    pub fn passed(&self, report: PassReport) {
        let Ok(system) = SystemId::new(report.kind, &report.system) else { return };
        self.with(&system, |strand| strand.pass(report));
    }

    /// The last pass.
    pub fn last_pass(&self, system: &SystemId) -> Option<PassReport> {
        self.lock().get(system)?.passes.back().map(|passed| passed.report.clone())
    }

    /// What is known of one system; nothing happened, if nothing is.
    pub fn history(&self, system: &SystemId) -> HistoryResponse {
        let (mono_ms, now_ms) = (self.mono_ms(), self.clock.wall_ms());
        let slice = mono_ms / SLICE_MS;
        let (samples, passes) = match self.lock().get(system) {
            Some(strand) => (strand.samples(slice), strand.passes.iter().rev().cloned().collect()),
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

    /// By the clock that never goes back: a wall clock that is set must not mix up the slices.
    fn mono_ms(&self) -> u64 {
        self.clock.mono().as_millis() as u64
    }

    fn with(&self, system: &SystemId, change: impl FnOnce(&mut Strand)) {
        let mut systems = self.lock();
        match systems.get_mut(system) {
            Some(strand) => change(strand),
            None => change(systems.entry(system.clone()).or_default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SystemId, Strand>> {
        self.systems.lock().expect("no holder of the chronicle's lock panics")
    }
}

/// One system's.
#[derive(Default)]
struct Strand {
    /// The slice that is being counted, and what it has so far.
    open: Option<(u64, Lags)>,
    closed: VecDeque<(u64, Tally)>,
    passes: VecDeque<Passed>,
}

impl Strand {
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

    /// How many slices ago, and what; oldest first.
    fn samples(&self, now: u64) -> Vec<(u64, Tally)> {
        let open = self.open.iter().map(|(slice, lags)| (*slice, lags.tally()));
        let all = self.closed.iter().cloned().chain(open);
        all.map(|(slice, tally)| (now.saturating_sub(slice), tally))
            .filter(|(past, _)| *past < SLICES)
            .collect()
    }
}

/// Nothing to do, and nothing to tell.
fn is_idle(report: &PassReport) -> bool {
    report.stopped == Stopped::Done
        && report.suspects == 0
        && report.reclaimed == 0
        && report.released == 0
        && report.errors == 0
        && report.detail.is_none()
}

/// What is kept of a slice.
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

/// Lags of any number of reclaims in the room of a few hundred: eight steps to each doubling, so that
/// a percentile is off by an eighth at the most.
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

    /// The end of the step in which so many of a hundred lie.
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

/// The largest lag of a step.
fn last_of(step: usize) -> u64 {
    if step < 8 {
        return step as u64;
    }
    let (doubling, eighth) = ((step - 8) / 8, (step - 8) % 8);
    ((8 + eighth as u64) << doubling) + ((1 << doubling) - 1)
}

#[cfg(test)]
mod tests;
