//! Knows who is alive and what they hold, and takes back what the dead left behind: exactly once,
//! at a cost that grows with the dead and not with the living, and never from somebody alive.
//!
//! Read in this order: [`clock`] (time is given, never taken), [`owner`] (who holds things),
//! [`sweep`] (suspect → guard → outcome), [`receipt`] (what happened), [`schedule`] and [`leader`]
//! (when, and who), [`notes`] (small things that outlive a process), then the room of a system: [`registry`],
//! [`sessions`], [`inflight`], [`leases`].
//!
//! This crate does no I/O. A store (`lapsed-embedded`, ...) fills the seams [`store::Store`],
//! [`owner::OwnerStore`], [`sweep::Sweep`] and one trait a system. The page of `lapsed-embedded` shows a
//! registry from its opening to its first reclaim; there is an example a system in its `examples/`.
//!
//! Everything serves one rule, which a store calls inside the atomic step that also removes and
//! writes the receipt:
//!
//! ```
//! use lapsed_core::owner::Incarnation;
//! use lapsed_core::receipt::Reason;
//! use lapsed_core::registry::rules::{Case, Guard, Life, Strict};
//! use lapsed_core::sweep::Refusal;
//!
//! let life = Life { started_ms: 0, deadline_ms: 90_000, ttl_ms: 90_000, ended: None };
//! let suspected = Incarnation(1);
//! let case = Case { suspected, holder: suspected, life, now_ms: 90_000, back_ms: 0 };
//! assert_eq!(Strict.judge(&case), Ok(Reason::OwnerDead));
//!
//! // A beat that arrived before the step wins, whatever the page of suspects said.
//! let beaten = Life { deadline_ms: 180_000, ..life };
//! assert_eq!(Strict.judge(&Case { life: beaten, ..case }), Err(Refusal::Alive));
//!
//! // So does an owner that started anew, or somebody else who holds the key by now.
//! assert_eq!(Strict.judge(&Case { holder: Incarnation(2), ..case }), Err(Refusal::Moved));
//!
//! // A store that was away until a moment ago declares nobody dead before a whole TTL.
//! assert_eq!(Strict.judge(&Case { back_ms: 89_000, ..case }), Err(Refusal::StoreAway));
//! ```

pub mod activity;

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
pub mod schedule;
pub mod sessions;
pub mod store;
pub mod sweep;
pub mod system;

pub use error::{Error, Result};
pub use name::{Kind, Name, SystemId};
