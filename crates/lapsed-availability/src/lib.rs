//! `availability`: which providers can take work now. Reads are answered from a mirror; a durable
//! store has the facts.
//!
//! Two stores take part. The **truth** (Postgres or the embedded store) has every fact: which
//! providers are online and active, the sessions, the settings, the log. The **mirror** (Valkey,
//! Redis or memory) has what is read thousands of times a minute, and the heartbeats. It can be
//! lost at any time.
//!
//! The races, and what closes them:
//!
//! - *Two writers update the mirror in the wrong order* (C2, C8). Every change of a provider in the
//!   truth takes the next **version** of that provider, under its lock, and then reads the whole
//!   state. The mirror applies a state only if its version is newer. Nothing is incremented or
//!   decremented.
//! - *A heartbeat arrives while its provider is being set offline* (C5). The mirror decides in one
//!   step, by its own clock, and removes the provider from the online set in that step. An earlier
//!   heartbeat wins; the sender of a later one learns that it is offline. The decision stays in the
//!   mirror (the provider is **pending offline**) until the truth has carried it out, so that the
//!   next pass continues if a sweeper dies in between.
//! - *A toggle arrives between the decision and the truth* (C2). Each toggle starts a new
//!   **epoch**; the truth carries out a decision only in the epoch that it was made in. *A
//!   heartbeat went to the truth because its daemon could not reach the mirror*: the truth also
//!   checks the heartbeats that it has.
//! - *Several sweepers flip the same provider* (C6). The transaction that flips the row also writes
//!   the log row and the receipt.
//! - *Clocks of different hosts differ* (C11). One store tells the other how old a heartbeat is,
//!   never its time. A heartbeat from the truth is dated by a reading of the mirror's clock from
//!   *before* the truth was read, so that a slow transfer makes no heartbeat newer.
//! - *A mirror that lost its data looks as if nobody were online*. It answers only after it was
//!   **seeded**, and that flag is lost together with the data.

mod beacon;
mod breaker;
mod caches;
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
pub use counters::{Counters, ReadKind, Source};
pub use mirror::{
    AvailablePage, BeatPage, MassBeats, Mirror, MirrorBeat, MirrorEntry, MirrorUpdate, MirrorView,
    OnlineBeat, Presence, SeenBeat, Snapshot, SnapshotTurn,
};
pub use operations::{Availability, AvailabilityParts, MIRROR_TIMEOUT, Sourced, Written};
pub use provider::{
    Available, ListedProvider, OnlineToggle, ProviderBeat, ProviderChange, ProviderProfile,
    ProviderQuery, ProviderState,
};
pub use reads::{AvailableFound, OwnStatus};
pub use session::{SessionChange, SessionOutcome, SessionRefusal, SessionStatus, WorkSession};
pub use summary::AvailabilitySummary;
pub use truth::{Flip, Flipped, Truth};

/// Largest number of providers in one answer or one call.
pub const PAGE_MAX: usize = 1_000;

/// How long a snapshot of the beacon lasts, in milliseconds.
pub const SNAPSHOT_MS: u64 = 10_000;

/// For the locks of this crate.
const LOCK: &str = "no holder of this lock panics";
