//! What every system offers besides its own operations: what the daemon and the CLI work with.

pub mod calls;
pub(crate) mod retiring;
pub mod words;

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::name::SystemId;
use crate::reconcile::Reconcile;
use crate::sweep::Sweep;

/// Why something is, or is not, dead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub system: String,
    pub kind: String,
    /// What was asked about.
    pub key: String,
    /// One word: `live`, `overdue`, `spared`, `dead`, `retired`, `reclaimed`, `unknown`; of a
    /// session also `active`, `grace`, `orphan`.
    pub verdict: String,
    /// The reasons, one sentence each.
    pub because: Vec<String>,
    /// The same as data.
    pub facts: serde_json::Value,
}

/// What became of a `restore`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Restored {
    Restored {
        key: String,
        /// Held by whom now.
        owner: String,
        incarnation: u64,
    },
    /// It was not put back, and nothing changed.
    Refused { why: String },
}

#[async_trait]
pub trait System: Send + Sync {
    fn id(&self) -> &SystemId;

    fn sweep(&self) -> Arc<dyn Sweep>;

    /// Why `key` is, or is not, dead.
    async fn explain(&self, key: &str) -> Result<Explanation>;

    /// Puts back what a receipt removed, if its place is still free.
    async fn restore(&self, seq: u64) -> Result<Restored>;

    /// Its index, where it has one besides its truth.
    fn index(&self) -> Option<Arc<dyn Reconcile>> {
        None
    }
}
