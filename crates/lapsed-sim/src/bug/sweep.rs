//! Wrong sweepers of planted bugs: a wrapper between the real sweeper and the store.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, Suspect, SuspectPage, Sweep,
    Tidied, TidyLimits,
};
use lapsed_core::{Error, Result, SystemId};

use crate::bug::Bug;

/// A `Sweep` that misreports or misuses the one that it wraps.
pub struct BuggySweep {
    inner: Arc<dyn Sweep>,
    bug: Bug,
    furthest: Mutex<Option<(u64, Cursor)>>,
}

impl BuggySweep {
    /// Wraps `inner` if `bug` is a bug of a sweeper; otherwise returns it unchanged.
    pub fn wrap(inner: Arc<dyn Sweep>, bug: Option<Bug>) -> Arc<dyn Sweep> {
        match bug {
            Some(
                bug @ (Bug::DoubtCountedAsDone
                | Bug::DoubtNeverSettled
                | Bug::RetryCountedTwice
                | Bug::TallyOfIntended
                | Bug::CursorJumps
                | Bug::BatchUnbounded),
            ) => Arc::new(BuggySweep { inner, bug, furthest: Mutex::default() }),
            _ => inner,
        }
    }

    /// `CursorJumps`: reads the page after the furthest cursor so far, and drops half of it.
    async fn jumped(&self, request: PageRequest) -> Result<SuspectPage> {
        let furthest = self.furthest.lock().expect("nobody panics here").clone();
        let after = furthest.map_or(request.after.clone(), |(_, cursor)| cursor);
        let mut page = self.inner.suspects(PageRequest { after, ..request }).await?;
        if let Some(last) = page.suspects.last() {
            let place = (last.deadline_ms, self.inner.after(last));
            *self.furthest.lock().expect("nobody panics here") = Some(place);
        }
        page.suspects.truncate(page.suspects.len().div_ceil(2));
        Ok(page)
    }
}

fn all_done(count: usize) -> BatchAnswer {
    BatchAnswer { outcomes: vec![Outcome::Reclaimed(None); count], ..BatchAnswer::default() }
}

#[async_trait]
impl Sweep for BuggySweep {
    fn system(&self) -> &SystemId {
        self.inner.system()
    }

    fn threshold(&self) -> Duration {
        self.inner.threshold()
    }

    async fn census(&self) -> Result<Census> {
        self.inner.census().await
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        match self.bug {
            Bug::CursorJumps => self.jumped(request).await,
            Bug::BatchUnbounded => {
                self.inner.suspects(PageRequest { limit: usize::MAX / 2, ..request }).await
            }
            _ => self.inner.suspects(request).await,
        }
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        self.inner.after(suspect)
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        let count = batch.suspects.len();
        match self.bug {
            Bug::DoubtCountedAsDone => match self.inner.reclaim(batch).await {
                Err(Error::Unavailable { .. }) => Ok(all_done(count)),
                answer => answer,
            },
            Bug::TallyOfIntended => self.inner.reclaim(batch).await.map(|_| all_done(count)),
            _ => self.inner.reclaim(batch).await,
        }
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        match self.bug {
            Bug::DoubtNeverSettled => Ok(Vec::new()),
            Bug::RetryCountedTwice => {
                let mut receipts = self.inner.settle(batch).await?;
                receipts.extend(self.inner.settle(batch).await?);
                Ok(receipts)
            }
            _ => self.inner.settle(batch).await,
        }
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.inner.tidy(limits).await
    }
}
