//! The engine of lapsed: it knows which owners are alive and what they hold, and reclaims what dead
//! owners left behind. A reclaim happens exactly once, its cost grows with the number of dead owners
//! and not with the number of live ones, and nothing is ever taken from a live owner.
//!
//! Read the modules in this order: [`clock`] (time and randomness are always passed in), [`owner`]
//! (owners, incarnations, heartbeats), [`sweep`] (suspect → guard → outcome), [`receipt`] (the record
//! of each reclaim), [`schedule`] and [`leader`] (when passes run, and in which process), [`notes`]
//! (small data that outlives a process), then one system: [`registry`], [`sessions`], [`inflight`] or
//! [`leases`].
//!
//! This crate does no I/O. A store crate such as `lapsed-embedded` implements [`store::Store`],
//! [`owner::OwnerStore`], [`sweep::Sweep`] and one trait per system. People depend on
//! the crate `lapsed`: it opens a store, starts a system on it, and has an example of each system.
//!
//! Everything depends on one rule, which a store evaluates inside the same atomic step that removes
//! the entry and writes the receipt:
//!
//! ```
//! use lapsed_core::owner::Incarnation;
//! use lapsed_core::receipt::Reason;
//! use lapsed_core::registry::rules::{IncarnationState, OwnerCase, OwnerGuard, StrictOwnerGuard};
//! use lapsed_core::sweep::Refusal;
//!
//! let state = IncarnationState { started_ms: 0, deadline_ms: 90_000, ttl_ms: 90_000, ended: None };
//! let suspected = Incarnation(1);
//! let case = OwnerCase { suspected, holder: suspected, state, now_ms: 90_000, back_ms: 0 };
//! assert_eq!(StrictOwnerGuard.judge(&case), Ok(Reason::OwnerDead));
//!
//! // A heartbeat that arrived before the step wins, whatever the page of suspects said.
//! let beaten = IncarnationState { deadline_ms: 180_000, ..state };
//! assert_eq!(StrictOwnerGuard.judge(&OwnerCase { state: beaten, ..case }), Err(Refusal::Alive));
//!
//! // The entry is not taken if another incarnation or another owner holds the key by now.
//! let moved = OwnerCase { holder: Incarnation(2), ..case };
//! assert_eq!(StrictOwnerGuard.judge(&moved), Err(Refusal::Moved));
//!
//! // A store that was away until a moment ago declares nobody dead for one whole TTL.
//! let away = OwnerCase { back_ms: 89_000, ..case };
//! assert_eq!(StrictOwnerGuard.judge(&away), Err(Refusal::StoreAway));
//! ```

pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod error;
pub mod inflight;
pub mod leader;
pub mod leases;
pub mod name;
pub mod notes;
pub mod owner;
pub mod receipt;
pub mod reconcile;
pub mod registry;
pub mod request;
pub mod schedule;
pub mod sessions;
mod stop;
pub mod store;
pub mod store_caller;
pub mod sweep;
pub mod system;
pub mod upkeep;

pub use error::{Error, Result};
pub use name::{Kind, Name, SystemId};

/// Setters of a struct's fields that take the struct and give it back.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)*) => {$(
        $(#[$doc])*
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}
