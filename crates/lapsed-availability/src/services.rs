//! The engine's services, provided by two stores: receipts and brake settings by the truth,
//! leaders' terms by the mirror, where renewing them costs the truth nothing.
//!
//! Here a term only saves work. Every step has its own guard, so a mirror that forgets the leader
//! does no harm.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use crate::operations::LOCK;
use crate::{Mirror, Truth};
use lapsed_core::clock::Clock;
use lapsed_core::error::Result;
use lapsed_core::leader::Term;
use lapsed_core::name::SystemId;
use lapsed_core::notes::NoteStore;
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::BrakeSetting;

/// How long it is cached that the operator has no brake setting, unless a change is announced.
/// Passes are frequent, and each reads it.
const UNSAID_FOR: Duration = Duration::from_secs(60);

/// Announced when the operator has changed the brake setting.
const BRAKE: &str = "brake";

/// The services of both stores.
pub(super) struct Services {
    truth: Arc<dyn Store>,
    terms: Arc<dyn Store>,
    mirror: Arc<dyn Mirror>,
    clock: Arc<dyn Clock>,
    unsaid: Mutex<CachedBrakeSetting>,
}

/// The cached fact that the operator has no brake setting.
#[derive(Default)]
struct CachedBrakeSetting {
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

    /// Reads the setting from the truth, unless it is cached that there is none.
    async fn said(&self, system: &SystemId) -> Result<BrakeSetting> {
        let (now, heard) = {
            let unsaid = self.unsaid.lock().expect(LOCK);
            let now = self.clock.mono();
            if now < unsaid.until {
                return Ok(BrakeSetting::Auto);
            }
            (now, unsaid.heard)
        };
        let setting = self.truth.brake_setting(system).await?;
        let mut unsaid = self.unsaid.lock().expect(LOCK);
        if setting == BrakeSetting::Auto && unsaid.heard == heard {
            unsaid.until = now + UNSAID_FOR;
        }
        Ok(setting)
    }

    async fn tell_mirror(&self, setting: BrakeSetting) -> Result<()> {
        let until_ms = match setting {
            BrakeSetting::Release { until_ms } => self.on_mirror_clock(until_ms).await?,
            _ => 0,
        };
        self.mirror.waive(until_ms).await?;
        self.mirror.announce(BRAKE).await
    }

    /// Converts the end of a release from the truth's clock to the mirror's, by which the brake
    /// judges.
    async fn on_mirror_clock(&self, until_ms: u64) -> Result<u64> {
        let truth_ms = self.truth.info().await?.now_ms;
        let left_ms = until_ms.saturating_sub(truth_ms);
        Ok(self.mirror.now_ms().await?.saturating_add(left_ms))
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

    async fn brake_setting(&self, system: &SystemId) -> Result<BrakeSetting> {
        match self.said(system).await? {
            BrakeSetting::Release { until_ms } => {
                let left_ms = until_ms.saturating_sub(self.truth.info().await?.now_ms);
                let until_ms = self.mirror.now_ms().await?.saturating_add(left_ms);
                if left_ms > 0 {
                    // The mirror may have come back while the release is still valid. An expired
                    // release waives nothing.
                    self.mirror.waive(until_ms).await?;
                }
                Ok(BrakeSetting::Release { until_ms })
            }
            setting => Ok(setting),
        }
    }

    async fn set_brake(&self, system: &SystemId, setting: BrakeSetting) -> Result<()> {
        let set = self.truth.set_brake(system, setting).await;
        // After an error the change may have been carried out.
        self.heard();
        set?;
        // The setting is stored. A mirror that does not answer is updated when it is back, and
        // other daemons read the setting within a minute.
        if let Err(error) = self.tell_mirror(setting).await {
            tracing::warn!(%system, %error, "the operator's brake setting could not be announced through the mirror");
        }
        Ok(())
    }

    fn notes(&self) -> &dyn NoteStore {
        self.truth.notes()
    }
}
