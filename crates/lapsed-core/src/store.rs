//! What every store implements once, independent of the systems that run on it: receipts, terms,
//! the operator's brake setting, and notes.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::leader::Term;
use crate::name::SystemId;
use crate::notes::NoteStore;
use crate::receipt::{Receipt, ReceiptQuery};
use crate::sweep::brake::BrakeSetting;

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

    /// The current term by the store's clock; `None`: nobody holds it.
    async fn term(&self, system: &SystemId) -> Result<Option<Term>>;

    /// Ends the term if `term` is still the current one.
    async fn resign(&self, system: &SystemId, term: u64) -> Result<()>;

    /// The operator's setting for the brake of `system`; `Auto` if there is none.
    async fn brake_setting(&self, system: &SystemId) -> Result<BrakeSetting>;

    /// Stores the operator's setting. A release also waives a store-away grace that is running.
    async fn set_brake(&self, system: &SystemId, setting: BrakeSetting) -> Result<()>;

    /// Notes, marks and turns of the systems on this store.
    fn notes(&self) -> &dyn NoteStore;
}
