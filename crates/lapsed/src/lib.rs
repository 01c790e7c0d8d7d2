//! Knows who is alive and what they hold, and takes back what the dead left behind: exactly once,
//! at a cost that grows with the dead and not with the living, and never from somebody alive.
//!
//! Read in this order: [`clock`] (time is given, never taken), [`owner`] (who holds things),
//! [`sweep`] (suspect → guard → outcome), [`receipt`] (what happened), [`schedule`] and [`leader`]
//! (when, and who), then the room of a system: [`registry`],
//! [`sessions`], [`inflight`], [`leases`], [`availability`].
//!
//! This crate does no I/O. A store (`lapsed-embedded`, ...) fills the seams [`store::Store`],
//! [`owner::OwnerStore`], [`sweep::Sweep`] and one trait a system.
#![warn(missing_docs)]

pub mod activity;
pub mod availability;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod error;
pub mod inflight;
pub mod leader;
pub mod leases;
pub mod name;
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
