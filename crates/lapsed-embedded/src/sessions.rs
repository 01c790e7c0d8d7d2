//! `sessions` on the embedded store.
//!
//! A session is one row; a reference is a row filed under the life that it belongs to, so that what a
//! dead owner leaves lies together. Every operation is one job, and a job is all or nothing: there is
//! no moment at which the count, the references and the broadcaster's pointer could disagree. Who
//! waits for its grace to end is kept in memory ([`waiting`]), so that a pass looks at nobody else.

mod grace_index;
mod load;
mod operations;
mod reclaim;
mod rows;
mod suspects;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::owner::{Beat, BeatHandle, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::sessions::rules::{SessionGuard, StrictSessionGuard};
use lapsed_core::{Name, Result, SystemId};

use crate::fault::Tried;
use crate::owners::{OwnerService, OwnerTable};
use crate::sessions::grace_index::GraceIndex;
use crate::tx::Tx;
use crate::{Inner, StoredSystem};

/// One system of sessions on an embedded store.
pub struct EmbeddedSessions {
    owner_service: OwnerService,
    core: Arc<Core>,
}

/// What the jobs on the writer's thread work with: the lives, and the sessions they refer to.
pub(crate) struct Core {
    owners: Arc<OwnerTable>,
    waiting: Arc<GraceIndex>,
    grace_ms: u64,
    rules: Arc<dyn SessionGuard>,
}

impl Deref for Core {
    type Target = OwnerTable;
    fn deref(&self) -> &OwnerTable {
        &self.owners
    }
}

impl EmbeddedSessions {
    pub(crate) fn open(
        inner: Arc<Inner>,
        id: SystemId,
        ttl: Duration,
        grace: Duration,
    ) -> Result<Self> {
        let owners = Arc::new(OwnerTable::new(&inner, id, ttl));
        let grace_ms = grace.as_millis() as u64;
        // Whoever could not connect for half of a grace was cut off.
        owners.store_clock.mind_ttl(grace_ms);
        let core = Core {
            owners: owners.clone(),
            waiting: Arc::default(),
            grace_ms,
            rules: Arc::new(StrictSessionGuard),
        };
        core.read(&inner.disk)?;
        Ok(EmbeddedSessions { owner_service: OwnerService { inner, owners }, core: Arc::new(core) })
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

crate::owners::impl_owner_store!(EmbeddedSessions);
