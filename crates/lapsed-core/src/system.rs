//! What every system offers besides its own operations. The daemon and the command line work with
//! it, without knowing the system's kind.

pub mod explain;
mod owners;
mod parts;

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::name::SystemId;
use crate::reconcile::Reconcile;
use crate::sweep::Sweep;

pub use owners::OwnerService;
pub use parts::SystemParts;

/// Why an entry or owner is, or is not, dead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    pub system: String,
    pub kind: String,
    /// The key that the question was about.
    pub key: String,
    /// One word: `live`, `overdue`, `spared`, `dead`, `retired`, `reclaimed` or `unknown`; of a session
    /// also `active`, `grace`, `orphan` or `unindexed`, of a job `queued` or `dead_letter`, of a lease `free`, of a
    /// provider `available`, `full`, `offline`, `deactivated` or `unreadable`. Of a job of another job system, where no worker of it
    /// lives, that system's own word.
    pub verdict: String,
    /// The reasons, one sentence each.
    pub because: Vec<String>,
    /// The values that the reasons are based on.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub facts: serde_json::Value,
}

/// Result of a `restore`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
#[non_exhaustive]
pub enum Restored {
    Restored {
        key: String,
        /// The owner that holds it now.
        owner: String,
        incarnation: u64,
    },
    /// It was not restored, and nothing changed.
    Refused { why: String },
}

#[async_trait]
pub trait System: Send + Sync {
    fn id(&self) -> &SystemId;

    fn sweep(&self) -> Arc<dyn Sweep>;

    /// Explains why `key` is, or is not, dead.
    async fn explain(&self, key: &str) -> Result<Explanation>;

    /// Restores what a receipt removed, if its key is still free.
    async fn restore(&self, seq: u64) -> Result<Restored>;

    /// The index of the system, if it has one besides its data.
    fn index(&self) -> Option<Arc<dyn Reconcile>> {
        None
    }

    /// Its owners, where entries live by an owner's heartbeat and not by a deadline of their own.
    fn owner_service(&self) -> Option<&OwnerService> {
        None
    }
}

/// Implements what is the same for every system with owners: [`System`], and `Deref` to the [`OwnerService`]
/// that starts, ends and lists its owners.
macro_rules! system_with_owners {
    ($system:ident) => {
        impl std::ops::Deref for $system {
            type Target = crate::system::OwnerService;

            fn deref(&self) -> &Self::Target {
                &self.owners
            }
        }

        #[async_trait::async_trait]
        impl crate::system::System for $system {
            fn id(&self) -> &crate::name::SystemId {
                &self.parts.id
            }

            fn owner_service(&self) -> Option<&crate::system::OwnerService> {
                Some(&self.owners)
            }

            fn sweep(&self) -> Arc<dyn crate::sweep::Sweep> {
                self.parts.entries.clone()
            }

            async fn explain(&self, key: &str) -> Result<crate::system::Explanation> {
                self.explain_key(&Name::new(key)?).await
            }

            async fn restore(&self, seq: u64) -> Result<crate::system::Restored> {
                self.calls.call("restore", self.parts.entries.restore(seq)).await
            }

            fn index(&self) -> Option<Arc<dyn crate::reconcile::Reconcile>> {
                self.parts.index.clone()
            }
        }
    };
}

pub(crate) use system_with_owners;
