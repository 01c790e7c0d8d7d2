//! The engine's services, provided by two stores: receipts and the brake's record by the truth,
//! leaders' terms by the mirror, where renewing them costs the truth nothing.
//!
//! Here a term only saves work. Every step has its own guard, so a mirror that forgets the leader
//! does no harm.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use crate::LOCK;
use crate::{Mirror, Truth};
use lapsed_core::clock::Clock;
use lapsed_core::error::Result;
use lapsed_core::leader::Term;
use lapsed_core::name::SystemId;
use lapsed_core::notes::NoteStore;
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::request::{KeptRequest, RequestId};
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::BrakeRecord;

/// How long it is cached that the operator has no brake setting, unless a change is announced.
/// Passes are frequent, and each reads it.
const UNSAID_FOR: Duration = Duration::from_secs(60);

/// Announced when the record of the brake has changed.
const BRAKE: &str = "brake";

/// The services of both stores.
pub(super) struct Services {
    truth: Arc<dyn Store>,
    terms: Arc<dyn Store>,
    mirror: Arc<dyn Mirror>,
    clock: Arc<dyn Clock>,
    unsaid: Mutex<CachedBrakeRecord>,
}

/// The cached fact that the operator has no brake setting and that no hold is running.
#[derive(Default)]
struct CachedBrakeRecord {
    /// What was read: nothing but its version differs from the default.
    record: BrakeRecord,
    /// Until when it is used, on the monotonic clock.
    until: Duration,
    /// Number of announced changes. What was read before the last one is not used.
    heard: u64,
}

impl Services {
    pub fn new(truth: &dyn Truth, mirror: Arc<dyn Mirror>, clock: Arc<dyn Clock>) -> Self {
        let truth = truth.services();
        let terms = mirror.terms().unwrap_or_else(|| truth.clone());
        Services { truth, terms, mirror, clock, unsaid: Mutex::default() }
    }

    /// Records that the operator may have changed the setting.
    pub fn heard(&self) {
        let mut unsaid = self.unsaid.lock().expect(LOCK);
        (unsaid.until, unsaid.heard) = (Duration::ZERO, unsaid.heard + 1);
    }

    /// Reads the record from the truth, unless it is cached that the operator has no setting. A
    /// stale record does no harm: nothing that was decided by it is accepted by
    /// [`Store::swap_brake`].
    async fn said(&self, system: &SystemId) -> Result<BrakeRecord> {
        let (now, heard) = {
            let unsaid = self.unsaid.lock().expect(LOCK);
            let now = self.clock.mono();
            if now < unsaid.until {
                return Ok(unsaid.record.clone());
            }
            (now, unsaid.heard)
        };
        let record = self.truth.brake(system).await?;
        let mut unsaid = self.unsaid.lock().expect(LOCK);
        let (version, requests) = (record.version, record.requests.clone());
        let is_idle = BrakeRecord { version, requests, ..BrakeRecord::default() } == record;
        if is_idle && unsaid.heard == heard {
            unsaid.until = now + UNSAID_FOR;
            unsaid.record = record.clone();
        }
        Ok(record)
    }

    /// Applies the waiver of the store-away grace, whose end is on the mirror's clock as all times of
    /// the brake are, and announces that the record has changed.
    async fn tell_mirror(&self, record: &BrakeRecord) -> Result<()> {
        self.mirror.waive(record.waived_until_ms()).await?;
        self.mirror.announce(BRAKE).await
    }
}

#[async_trait]
impl Store for Services {
    async fn info(&self) -> Result<StoreInfo> {
        self.truth.info().await
    }

    async fn receipts(&self, system: &SystemId, query: ReceiptQuery) -> Result<Vec<Receipt>> {
        self.truth.receipts(system, query).await
    }

    async fn receipt(&self, system: &SystemId, seq: u64) -> Result<Option<Receipt>> {
        self.truth.receipt(system, seq).await
    }

    async fn campaign(
        &self,
        system: &SystemId,
        candidate: &str,
        ttl_ms: u64,
    ) -> Result<Option<Term>> {
        self.terms.campaign(system, candidate, ttl_ms).await
    }

    async fn term(&self, system: &SystemId) -> Result<Option<Term>> {
        self.terms.term(system).await
    }

    async fn resign(&self, system: &SystemId, term: u64) -> Result<()> {
        self.terms.resign(system, term).await
    }

    async fn brake(&self, system: &SystemId) -> Result<BrakeRecord> {
        self.said(system).await
    }

    async fn swap_brake(&self, system: &SystemId, next: &BrakeRecord) -> Result<bool> {
        let swapped = self.truth.swap_brake(system, next).await;
        // If it was refused, what is cached is old. After an error it may have been carried out.
        self.heard();
        if !swapped? {
            return Ok(false);
        }
        // The record is stored. A mirror that does not answer keeps its grace, and other daemons
        // read the record within a minute.
        if let Err(error) = self.tell_mirror(next).await {
            tracing::warn!(%system, %error, "the change of the brake could not be announced through the mirror");
        }
        Ok(true)
    }

    async fn kept_request(&self, system: &SystemId, request: &RequestId) -> Result<KeptRequest> {
        self.truth.kept_request(system, request).await
    }

    async fn keep_answer(
        &self,
        system: &SystemId,
        request: &RequestId,
        answer: &str,
    ) -> Result<()> {
        self.truth.keep_answer(system, request, answer).await
    }

    async fn forget_request(&self, system: &SystemId, request: &RequestId) -> Result<()> {
        self.truth.forget_request(system, request).await
    }

    fn notes(&self) -> &dyn NoteStore {
        self.truth.notes()
    }
}
