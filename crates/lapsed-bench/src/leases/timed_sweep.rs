//! A sweep that notes where the time of a pass goes.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, PageRequest, Suspect, SuspectPage, Sweep, Tidied,
    TidyLimits,
};
use lapsed_core::{Result, SystemId};

#[derive(Debug, Clone, Copy, Default)]
pub struct PassTimes {
    pub batches: u32,
    /// The time spent reading pages of suspects.
    pub listing: Duration,
    /// Working in the store's only transaction.
    pub held: Duration,
    /// From handing a batch over to its answer, without that: waiting for a turn, and for the disk.
    pub committing: Duration,
}

pub struct TimedSweep {
    sweep: Arc<dyn Sweep>,
    spent: Mutex<PassTimes>,
}

impl TimedSweep {
    pub fn new(sweep: Arc<dyn Sweep>) -> Self {
        TimedSweep { sweep, spent: Mutex::default() }
    }

    /// Since the last time it was asked.
    pub fn take(&self) -> PassTimes {
        std::mem::take(&mut *self.spent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, change: impl FnOnce(&mut PassTimes)) {
        change(&mut self.spent.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[async_trait]
impl Sweep for TimedSweep {
    fn system(&self) -> &SystemId {
        self.sweep.system()
    }

    fn threshold(&self) -> Duration {
        self.sweep.threshold()
    }

    async fn census(&self) -> Result<Census> {
        self.sweep.census().await
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        let began = Instant::now();
        let page = self.sweep.suspects(request).await;
        self.note(|spent| spent.listing += began.elapsed());
        page
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        self.sweep.after(suspect)
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        let began = Instant::now();
        let answer = self.sweep.reclaim(batch).await?;
        self.note(|spent| {
            spent.batches += 1;
            spent.held += answer.held;
            spent.committing += began.elapsed().saturating_sub(answer.held);
        });
        Ok(answer)
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.sweep.settle(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.sweep.tidy(limits).await
    }
}
