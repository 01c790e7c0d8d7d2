//! `inflight` on the embedded store.
//!
//! A job is one row, and the table of the row says where the job is: on a queue, in flight (its key
//! begins with the incarnation, so that all jobs of a dead owner are adjacent), or a dead letter.
//! Moving a job removes one row and inserts another in one transaction, so a job is never missing
//! or in two places. The index from an id to its row is in memory ([`job_index`]) and never
//! contains anything that is not durable.
//!
//! Taking and completing a job changes three rows: removed from its queue, inserted for its holder,
//! removed. The totals are written once per batch.

mod job_index;
mod letters;
mod load;
mod moves;
mod operations;
mod read;
mod reclaim;
mod rows;
mod taking;

use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::request::RequestId;
use lapsed_core::{Result, SystemId};

use crate::owners::{OwnerService, OwnerTable};
use crate::{Inner, StoredSystem};

pub(crate) use crate::inflight::job_index::JobChanges;
use crate::inflight::job_index::JobIndex;

/// A system of jobs on an embedded store.
pub struct EmbeddedInflight {
    owner_service: OwnerService,
    core: Arc<Core>,
}

/// State that jobs on the writer's thread work with: the owners and the location of every job.
pub(crate) struct Core {
    owners: Arc<OwnerTable>,
    jobs: JobIndex,
    recovery: RecoveryPolicy,
    /// Takes whose answers were delivered, to be forgotten with the next one.
    delivered: Mutex<Vec<RequestId>>,
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
        let core = Core {
            owners: owners.clone(),
            jobs: JobIndex::new(),
            recovery,
            delivered: Mutex::default(),
        };
        core.read(&inner.disk)?;
        Ok(EmbeddedInflight { owner_service: OwnerService { inner, owners }, core: Arc::new(core) })
    }
}

crate::owners::impl_system_with_owners!(EmbeddedInflight);
