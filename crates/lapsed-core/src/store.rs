//! What every store implements once, independent of the systems that run on it: receipts, terms,
//! the operator's brake setting, and notes.

#[cfg(feature = "conformance")]
pub mod conformance;

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::name::SystemId;
use crate::notes::NoteStore;
use crate::receipt::{Receipt, ReceiptQuery};
use crate::request::{KeptRequest, RequestId, current};
use crate::sweep::brake::{BrakeRecord, BrakeSetting};

/// How often a change of the brake's record is tried again when others change it at the same time.
pub(crate) const BRAKE_TRIES: usize = 16;

/// Identity and clock of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreInfo {
    pub engine: String,
    /// Address of the store, without secrets.
    pub place: String,
    /// Changes each time the store is opened or restarted.
    pub incarnation: String,
    pub now_ms: u64,
    /// Since when the store has been serving without a gap, in milliseconds of its clock.
    pub back_ms: u64,
}

/// One term of leadership. `number` grows with every change of holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    pub number: u64,
    pub holder: String,
    /// When the term ends, in milliseconds of the store's clock.
    pub until_ms: u64,
}

/// The services that the engine needs from a store.
#[async_trait]
pub trait Store: Send + Sync {
    /// Identity of the store. Cheap, so that it also serves as a health check.
    async fn info(&self) -> Result<StoreInfo>;

    /// Reads receipts of one system, at most `query.limit`.
    async fn receipts(&self, system: &SystemId, query: ReceiptQuery) -> Result<Vec<Receipt>>;

    async fn receipt(&self, system: &SystemId, seq: u64) -> Result<Option<Receipt>>;

    /// Takes or renews the term of `system`. `None`: another candidate holds it. The term's number
    /// grows with every change of holder and never goes back.
    async fn campaign(
        &self,
        system: &SystemId,
        candidate: &str,
        ttl_ms: u64,
    ) -> Result<Option<Term>>;

    /// The current term by the store's clock; `None`: no process holds it.
    async fn term(&self, system: &SystemId) -> Result<Option<Term>>;

    /// Ends the term if `term` is still the current one.
    async fn resign(&self, system: &SystemId, term: u64) -> Result<()>;

    /// What is kept of the brake of `system`; the default record if nothing was stored.
    async fn brake(&self, system: &SystemId) -> Result<BrakeRecord>;

    /// Replaces the brake's record by `next` if the version that is stored is the one before
    /// `next.version`, in one atomic step; false if it is another one. From then on the store-away
    /// grace is waived until [`BrakeRecord::waived_until_ms`].
    async fn swap_brake(&self, system: &SystemId, next: &BrakeRecord) -> Result<bool>;

    /// What processes tell each other about upkeep; `None` for a store that only one process uses,
    /// or on which upkeep costs nothing.
    fn upkeep(&self) -> Option<&dyn UpkeepStore> {
        None
    }

    /// The operator's setting for the brake of `system`; `Auto` if there is none.
    async fn brake_setting(&self, system: &SystemId) -> Result<BrakeSetting> {
        Ok(self.brake(system).await?.setting)
    }

    /// Stores the operator's setting. It ends an override that is in use.
    ///
    /// The race: an order is carried out, its answer is lost, a pass uses the override up, and the order
    /// comes again. The record remembers the requests of the latest orders, so that a repetition does not
    /// grant another pass, nor undo what another operator has ordered since.
    async fn set_brake(&self, system: &SystemId, setting: BrakeSetting) -> Result<()> {
        let current = current(system);
        for _ in 0..BRAKE_TRIES {
            let record = self.brake(system).await?;
            let mut next = record.ordered(setting.clone());
            if let Some(current) = &current {
                if record.was_ordered_by(&current.request)? {
                    return Ok(());
                }
                next.note_request(&current.request);
            }
            if self.swap_brake(system, &next).await? {
                return Ok(());
            }
        }
        Err(brake_contended(system))
    }

    /// What is kept of a request; `KeyReused` if its key came before with another fingerprint. A store that
    /// keeps no answers knows of none.
    async fn kept_request(&self, _: &SystemId, _: &RequestId) -> Result<KeptRequest> {
        Ok(KeptRequest::Unknown)
    }

    /// Keeps the answer of a request that was carried out, for [`REQUEST_AGE_MS`](crate::request::REQUEST_AGE_MS).
    /// If this fails, the answer may be known nevertheless.
    async fn keep_answer(&self, _: &SystemId, _: &RequestId, _answer: &str) -> Result<()> {
        Ok(())
    }

    /// Forgets a request that has changed nothing, so that its repetition is tried anew.
    async fn forget_request(&self, _: &SystemId, _: &RequestId) -> Result<()> {
        Ok(())
    }

    /// Notes, marks and turns of the systems on this store.
    fn notes(&self) -> &dyn NoteStore;
}

/// Too many processes change the brake's record at the same time.
pub(crate) fn brake_contended(system: &SystemId) -> Error {
    Error::Throttled {
        store: system.to_string(),
        what: "the brake is being changed by too many at once".to_owned(),
    }
}

/// How far the comparison of an index with its data has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileState {
    /// When the newest run began, in milliseconds of the store's clock.
    pub began_ms: u64,
    /// Whether that run has not reached the end.
    pub unfinished: bool,
    /// Where it continues; `None`: at the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Implemented by stores that several processes use without a server that could tell them.
#[async_trait]
pub trait UpkeepStore: Send + Sync {
    /// Leaves a sign that `system` is in use now.
    async fn sign_activity(&self, system: &SystemId) -> Result<()>;

    /// How long ago the newest sign of any process was left; `None`: there was none.
    async fn since_activity(&self, system: &SystemId) -> Result<Option<Duration>>;

    /// How far the comparison of the index has come, and the store's time in milliseconds.
    async fn reconcile_state(&self, system: &SystemId) -> Result<(Option<ReconcileState>, u64)>;

    async fn keep_reconcile_state(&self, system: &SystemId, state: &ReconcileState) -> Result<()>;
}
