//! `inflight` on the embedded store.
//!
//! A job is one row, and where the row lies is where the job is: on a queue, in the hands of a life
//! (filed under it, so that what a dead owner leaves lies together), among the dead letters. Moving it
//! is a removal and an insertion in one transaction, so there is no moment at which it is nowhere or
//! in two places. The way from an id to its row is in memory ([`places`]), never ahead of the disk.
//!
//! Taking and completing a job touches three rows: off its queue, into the holder's hands, gone. What
//! the account says of it is written once for all jobs of a batch.

mod job_index;
mod letters;
mod load;
mod moves;
mod operations;
mod read;
mod reclaim;
mod rows;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::owner::{Beat, BeatHandle, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::{Name, Result, SystemId};

use crate::fault::Tried;
use crate::owners::{OwnerService, OwnerTable};
use crate::tx::Tx;
use crate::{Inner, StoredSystem};

pub(crate) use crate::inflight::job_index::JobChanges;
use crate::inflight::job_index::JobIndex;

/// One system of jobs on an embedded store.
pub struct EmbeddedInflight {
    owner_service: OwnerService,
    core: Arc<Core>,
}

/// What the jobs on the writer's thread work with: the lives, and where every job is.
pub(crate) struct Core {
    owners: Arc<OwnerTable>,
    jobs: JobIndex,
    recovery: RecoveryPolicy,
}

impl Deref for Core {
    type Target = OwnerTable;
    fn deref(&self) -> &OwnerTable {
        &self.owners
    }
}

impl EmbeddedInflight {
    pub(crate) fn open(
        inner: Arc<Inner>,
        id: SystemId,
        ttl: Duration,
        recovery: RecoveryPolicy,
    ) -> Result<Self> {
        let owners = Arc::new(OwnerTable::new(&inner, id, ttl));
        let core = Core { owners: owners.clone(), jobs: JobIndex::new(), recovery };
        core.read(&inner.disk)?;
        Ok(EmbeddedInflight { owner_service: OwnerService { inner, owners }, core: Arc::new(core) })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// A beat that is answered at once, if it can be: by a life that is in memory, which is every
    /// one that lives. `None`: ask [`OwnerStore::beat`].
    pub fn beat_now(&self, claim: &Claim) -> Option<Beat> {
        self.owner_service.beat_now(claim)
    }

    /// Runs a job that needs nothing but the core.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core, &mut Tx<'_>) -> Tried<T> + Send + 'static,
        done: impl FnOnce(&T) + Send + 'static,
    ) -> Result<T> {
        let core = self.core.clone();
        self.owner_service.inner.writer.write(move |tx| work(&core, tx), done).await
    }
}

crate::owners::impl_owner_store!(EmbeddedInflight);
