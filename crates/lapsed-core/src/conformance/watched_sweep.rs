//! A sweep that records what a pass asks of the store, and lets a case act between two of its steps.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;

use crate::error::Result;
use crate::name::{Name, SystemId};
use crate::owner::Claim;
use crate::receipt::Receipt;
use crate::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, PassMode, Refusal, Suspect,
    SuspectPage, Sweep, Tidied, TidyLimits,
};

/// A moment of a pass at which a case can act. The pass waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepMoment {
    /// The store has answered with this page, the first one being 1, and the pass has not seen it.
    PageRead(usize),
    /// The pass has sent this batch, the first one being 1, and the store has not received it.
    BatchSent(usize),
}

/// What a case does at a moment of a pass.
type Interruption = Box<dyn Fn(SweepMoment) -> BoxFuture<'static, ()> + Send + Sync>;

/// One batch as the pass sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentBatch {
    pub keys: Vec<Name>,
    /// The leader's term in it.
    pub term: Option<u64>,
}

#[derive(Default)]
struct Watched {
    pages: Vec<Vec<Name>>,
    batches: Vec<SentBatch>,
}

/// A real sweep under observation.
pub struct WatchedSweep {
    inner: Arc<dyn Sweep>,
    watched: Mutex<Watched>,
    interruption: Interruption,
    is_refused: Box<dyn Fn(&Name) -> bool + Send + Sync>,
}

impl WatchedSweep {
    /// Watches `inner`; `interruption` is called, and waited for, at each [`SweepMoment`].
    pub fn new(
        inner: Arc<dyn Sweep>,
        interruption: impl Fn(SweepMoment) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let is_refused = Box::new(|_: &Name| false);
        let interruption = Box::new(interruption);
        Arc::new(WatchedSweep { inner, watched: Mutex::default(), interruption, is_refused })
    }

    /// Watches `inner`, which finds some suspects unreadable: they are refused in every batch.
    pub fn refusing(
        inner: Arc<dyn Sweep>,
        is_refused: impl Fn(&Name) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        let interruption: Interruption = Box::new(|_| Box::pin(async {}));
        let is_refused = Box::new(is_refused);
        Arc::new(WatchedSweep { inner, watched: Mutex::default(), interruption, is_refused })
    }

    /// The keys of every page that the store has answered with.
    pub fn pages(&self) -> Vec<Vec<Name>> {
        self.watched().pages.clone()
    }

    /// Every batch that a pass has sent.
    pub fn batches(&self) -> Vec<SentBatch> {
        self.watched().batches.clone()
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().expect("nothing panics under this lock")
    }
}

fn keys(suspects: &[Suspect]) -> Vec<Name> {
    suspects.iter().map(|suspect| suspect.key.clone()).collect()
}

#[async_trait]
impl Sweep for WatchedSweep {
    fn system(&self) -> &SystemId {
        self.inner.system()
    }
    fn threshold(&self) -> Duration {
        self.inner.threshold()
    }
    async fn census(&self) -> Result<Census> {
        self.inner.census().await
    }
    async fn survey(&self, act: PassMode) -> Result<Option<Census>> {
        self.inner.survey(act).await
    }
    async fn confirm_adoption(&self) -> Result<u64> {
        self.inner.confirm_adoption().await
    }
    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        let page = self.inner.suspects(request).await?;
        let number = {
            let mut watched = self.watched();
            watched.pages.push(keys(&page.suspects));
            watched.pages.len()
        };
        (self.interruption)(SweepMoment::PageRead(number)).await;
        Ok(page)
    }
    fn after(&self, suspect: &Suspect) -> Cursor {
        self.inner.after(suspect)
    }
    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        self.inner.held_by(claim, limit).await
    }
    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        let number = {
            let mut watched = self.watched();
            watched.batches.push(SentBatch { keys: keys(&batch.suspects), term: batch.term });
            watched.batches.len()
        };
        (self.interruption)(SweepMoment::BatchSent(number)).await;
        let refused: Vec<bool> =
            batch.suspects.iter().map(|suspect| (self.is_refused)(&suspect.key)).collect();
        let mut kept = refused.iter();
        let mut batch = batch;
        batch.suspects.retain(|_| !kept.next().expect("one for each suspect"));
        if batch.suspects.is_empty() {
            let outcomes = vec![Outcome::Refused(Refusal::Unreadable); refused.len()];
            return Ok(BatchAnswer { outcomes, ..BatchAnswer::default() });
        }
        let mut answer = self.inner.reclaim(batch).await?;
        let mut judged = std::mem::take(&mut answer.outcomes).into_iter();
        answer.outcomes = refused
            .into_iter()
            .filter_map(|refused| match refused {
                true => Some(Outcome::Refused(Refusal::Unreadable)),
                false => judged.next(),
            })
            .collect();
        Ok(answer)
    }
    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.inner.settle(batch).await
    }
    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.inner.tidy(limits).await
    }
}
