//! How long each batch of a sweep holds the server, by the server's own processor time.
//!
//! Time on a wall clock counts a server that waits for a processor as held. What the script measured (wall time) and what the
//! server's main thread worked from before the batch until its answer (processor time, with whatever else it did meanwhile) are
//! both upper bounds of what the batch itself worked. The smaller one is taken.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use lapsed_core::owner::Claim;
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, PageRequest, PassMode, Suspect, SuspectPage,
    Sweep, Tidied, TidyLimits,
};
use lapsed_core::{Result as StoreResult, SystemId};

use super::BenchRedis;
use crate::table::{Figure, FigureTable, FigureTarget};

/// What one call may take.
const LIMIT: Duration = Duration::from_millis(2);

/// The file in which the kernel counts what the server's main thread has worked.
#[derive(Clone)]
pub struct MainThread(Arc<str>);

impl MainThread {
    pub async fn of(place: &BenchRedis) -> Result<MainThread> {
        let info: String = place.ask(redis::cmd("INFO").arg("server")).await?;
        let pid = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        let pid = pid.context("INFO has process_id")?.trim();
        let file = MainThread(format!("/proc/{pid}/task/{pid}/schedstat").into());
        ensure!(file.worked().is_some(), "{} cannot be read", file.0);
        Ok(file)
    }

    fn worked(&self) -> Option<Duration> {
        let text = std::fs::read_to_string(&*self.0).ok()?;
        Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
    }
}

/// A sweep whose batches are timed.
pub struct MeasuredSweep<S> {
    sweep: Arc<S>,
    server: MainThread,
    batches: Mutex<Vec<Duration>>,
}

impl<S> MeasuredSweep<S> {
    pub fn new(sweep: Arc<S>, server: MainThread) -> Arc<MeasuredSweep<S>> {
        Arc::new(MeasuredSweep { sweep, server, batches: Mutex::default() })
    }

    /// The batches since the last call of this.
    pub fn batches(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.batches.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Adds the row of the longest of these batches.
pub fn tell_longest(table: &mut FigureTable, name: &'static str, batches: &[Duration]) {
    let over = batches.iter().filter(|took| **took > LIMIT).count();
    let longest = batches.iter().max().copied().unwrap_or_default();
    let us = |took: Duration| took.as_secs_f64() * 1e6;
    let what = format!("longest of {} batches, processor time ({over} over 2 ms)", batches.len());
    let limit = ("the limit", Figure::us(us(LIMIT)));
    let target = Some(FigureTarget::AtMost(1.0));
    table.compare(name, what, Figure::us(us(longest)), limit, us(longest) / us(LIMIT), target);
}

#[async_trait]
impl<S: Sweep> Sweep for MeasuredSweep<S> {
    fn system(&self) -> &SystemId {
        self.sweep.system()
    }

    fn threshold(&self) -> Duration {
        self.sweep.threshold()
    }

    async fn census(&self) -> StoreResult<Census> {
        self.sweep.census().await
    }

    async fn survey(&self, act: PassMode) -> StoreResult<Option<Census>> {
        self.sweep.survey(act).await
    }

    async fn suspects(&self, request: PageRequest) -> StoreResult<SuspectPage> {
        self.sweep.suspects(request).await
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        self.sweep.after(suspect)
    }

    async fn held_by(&self, claim: &Claim, limit: usize) -> StoreResult<Vec<Suspect>> {
        self.sweep.held_by(claim, limit).await
    }

    async fn reclaim(&self, batch: Batch) -> StoreResult<BatchAnswer> {
        let before = self.server.worked();
        let answer = self.sweep.reclaim(batch).await?;
        let worked = self.server.worked().zip(before).map(|(after, before)| after - before);
        let took = worked.map_or(answer.held, |worked| match answer.held {
            Duration::ZERO => worked,
            held => worked.min(held),
        });
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        Ok(answer)
    }

    async fn settle(&self, batch: &BatchId) -> StoreResult<Vec<Receipt>> {
        self.sweep.settle(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> StoreResult<Tidied> {
        self.sweep.tidy(limits).await
    }
}
