//! The seam that every store fills once, whatever systems run on it.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::leader::Term;
use crate::name::SystemId;
use crate::notes::NoteStore;
use crate::receipt::{Receipt, ReceiptQuery};
use crate::sweep::brake::BrakeSetting;

/// What a store says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreInfo {
    pub engine: String,
    /// Where it is, without secrets.
    pub place: String,
    /// Which life of the store this is.
    pub incarnation: String,
    pub now_ms: u64,
    /// Since when it has been serving without a gap, on its clock.
    pub back_ms: u64,
}

/// Receipts, terms and settings: the services that the engine needs of a store.
#[async_trait]
pub trait Store: Send + Sync {
    /// Who it is; also a cheap sign that it answers.
    async fn info(&self) -> Result<StoreInfo>;

    /// Receipts of one system.
    async fn receipts(&self, system: &SystemId, query: ReceiptQuery) -> Result<Vec<Receipt>>;

    async fn receipt(&self, system: &SystemId, seq: u64) -> Result<Option<Receipt>>;

    /// Takes or renews the term of `system`. `None`: somebody else holds it. The number in the
    /// answer grows with every change of holder and never goes back.
    async fn campaign(
        &self,
        system: &SystemId,
        candidate: &str,
        ttl_ms: u64,
    ) -> Result<Option<Term>>;

    /// The term that is held now, by the store's clock; `None`: nobody holds it.
    async fn term(&self, system: &SystemId) -> Result<Option<Term>>;

    /// Gives the term back, if `term` is still the current one.
    async fn resign(&self, system: &SystemId, term: u64) -> Result<()>;

    /// What the operator said of the brake of `system`.
    async fn brake_setting(&self, system: &SystemId) -> Result<BrakeSetting>;

    /// Remembers what the operator says. A release also waives a store-away grace that is running.
    async fn set_brake(&self, system: &SystemId, setting: BrakeSetting) -> Result<()>;

    /// What is kept besides: books, marks, turns.
    fn notes(&self) -> &dyn NoteStore;
}
