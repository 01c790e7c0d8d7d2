//! `sessions` on the embedded store.
//!
//! A session is one row. A reference is a row whose key begins with its incarnation, so that all
//! references of a dead owner are adjacent. Every operation is one job, and a job is all or
//! nothing: the count, the references and the broadcaster's pointer can never disagree. Sessions
//! whose grace period runs are indexed in memory ([`grace_index`]), so that a pass reads no others.

mod grace_index;
mod load;
mod operations;
mod reclaim;
mod rows;
mod suspects;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::sessions::rules::{SessionGuard, StrictSessionGuard};
use lapsed_core::{Result, SystemId};

use crate::owners::{OwnerService, OwnerTable};
use crate::sessions::grace_index::GraceIndex;
use crate::{Inner, StoredSystem};

/// A system of sessions on an embedded store.
pub struct EmbeddedSessions {
    owner_service: OwnerService,
    core: Arc<Core>,
}

/// State that jobs on the writer's thread work with: the owners and their sessions.
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
        // A gap of half a grace period also counts as an absence, because nobody could connect
        // during it.
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
}

crate::owners::impl_system_with_owners!(EmbeddedSessions);
