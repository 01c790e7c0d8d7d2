//! `availability`: who can take work now, answered from a mirror, true in a durable store.
//!
//! Two stores take part. The **truth** (Postgres, or the embedded store) has every fact: who is online
//! and active, the sessions, the settings, the log. The **mirror** (Valkey or Redis, or memory) has what
//! is asked thousands of times a minute, and the beats. It can be lost at any time.
//!
//! The races, and what closes them:
//!
//! - *Two writers tell the mirror in the wrong order* (C2, C8). Every change of a provider in the truth
//!   takes the next **version** of that provider, under its lock, and reads the whole state after
//!   that; the mirror takes a state over only if its version is newer. Nothing is counted up or down.
//! - *A ping arrives while somebody is being set offline* (C5). The mirror decides in one step, by its own
//!   clock, and takes the provider out of the set in that step: a ping is before it and wins, or after
//!   it and is told. The decision stays in the mirror (it is **doomed**) until the truth has carried it
//!   out, so that a sweeper that dies in between is followed up by the next.
//! - *A toggle arrives between the decision and the truth* (C2). Each toggle begins a new **epoch**; the
//!   truth carries a decision out only in the epoch that it was made in. *A ping went to the truth,
//!   because its daemon could not reach the mirror*: the truth looks at the beats that it has, too.
//! - *Several sweepers flip the same provider* (C6): the one whose transaction flips the row writes the
//!   log row and the receipt in it.
//! - *Clocks of different hosts* (C11): what goes from one store to the other is how old a beat is, never
//!   when it was. A beat on its way from the truth is dated by a reading of the mirror's clock from
//!   *before* the truth was read, so that waiting makes nobody fresher.
//! - *A mirror that lost its data says that nobody is there*: it answers only once it was **seeded**, and
//!   what says so is lost together with the data.

mod beacon;
mod breaker;
#[cfg(feature = "conformance")]
pub mod conformance;
mod counters;
mod explain;
mod fallback;
mod maintenance;
pub mod memory;
mod mirror;
mod operations;
mod provider;
mod reads;
mod reconcile;
pub mod rules;
mod seed;
mod services;
mod session;
mod summary;
mod sweep;
mod truth;

pub use breaker::{BreakerPolicy, BreakerState};
pub use counters::{Counters, ReadKind};
pub use mirror::{
    AvailablePage, BeatPage, Mirror, MirrorBeat, MirrorEntry, MirrorUpdate, MirrorView, OnlineBeat,
    Presence, SeenBeat, Snapshot, SnapshotTurn,
};
pub use operations::{Availability, AvailabilityParts, Source, Sourced, Written};
pub use provider::{
    Available, ListedProvider, OnlineToggle, ProviderBeat, ProviderChange, ProviderProfile,
    ProviderQuery, ProviderState,
};
pub use reads::{AvailableFound, OwnStatus};
pub use session::{SessionChange, SessionOutcome, SessionRefusal, SessionStatus, WorkSession};
pub use summary::AvailabilitySummary;
pub use truth::{Flip, Flipped, Truth};

/// The most providers in one answer or one call.
pub const PAGE_MAX: usize = 1_000;

/// How long a snapshot of the beacon lasts.
pub const SNAPSHOT_MS: u64 = 10_000;
