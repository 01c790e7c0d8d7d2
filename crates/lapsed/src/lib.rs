//! Tracks which owners are alive and what they hold, and reclaims what dead owners left behind: exactly
//! once, never from a live owner, and at a cost that grows with the dead owners and not with the live ones.
//!
//! [`open`] a store by its URL, build one of the five systems on it, and start it. A started system
//! sweeps in the background until it is dropped. A process that holds something joins under a name; the
//! handle sends heartbeats in the background and knows when its owner was declared dead.
//!
//! # Registry: which instance holds a connection
//! ```
//! use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lapsed::Result<()> {
//! let lapsed = lapsed::open("memory:").await?; // embedded:DIR, redis://, postgres://, s3://, ...
//! let devices = lapsed.registry("devices").ttl(Duration::from_secs(90)).start().await?;
//! let me = devices.join("gateway-1").await?; // sends heartbeats; `me.lost().await`
//! me.register("imei-1").await?;
//! assert_eq!(devices.lookup("imei-1").await?.unwrap().owner(), "gateway-1");
//! me.leave().await?; // releases everything it held, with receipts
//! assert!(devices.lookup("imei-1").await?.is_none());
//! # Ok(())
//! # }
//! ```
//!
//! # Sessions: kept while somebody is connected, and a grace period longer
//! ```
//! use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lapsed::Result<()> {
//! let lapsed = lapsed::open("memory:").await?;
//! let chat = lapsed.sessions("chat").grace(Duration::from_secs(30)).start().await?;
//! let me = chat.join("server-1").await?;
//! me.activate("room-7").await?;
//! me.connect("room-7").await?;
//! assert_eq!(chat.get("room-7").await?.unwrap().references, 1);
//! me.disconnect("room-7").await?; // its grace begins
//! me.leave().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Inflight: a job goes back to its queue when its worker dies
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lapsed::Result<()> {
//! let lapsed = lapsed::open("memory:").await?;
//! let jobs = lapsed.inflight("jobs").start().await?;
//! jobs.enqueue("mail", "hello").await?;
//! let me = jobs.join("worker-1").await?;
//! let job = me.take("mail").await?.expect("there is one");
//! assert_eq!(job.payload(), "hello");
//! job.complete().await?; // or fail(..), give_back()
//! # Ok(())
//! # }
//! ```
//!
//! # Leases: one holder for each key, with a fencing token that only grows
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lapsed::Result<()> {
//! let lapsed = lapsed::open("memory:").await?;
//! let locks = lapsed.leases("locks").start().await?;
//! let guard = locks.acquire("nightly-report").await?; // renews itself; `guard.lost().await`
//! let _fencing_token = guard.token();
//! assert!(locks.try_acquire("nightly-report").await?.is_none());
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Availability: providers that are offline when their heartbeats stop
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lapsed::Result<()> {
//! let lapsed = lapsed::open("memory:").await?;
//! let drivers = lapsed.availability("drivers").start().await?;
//! drivers.add("driver-1").await?;
//! drivers.online("driver-1").await?;
//! assert!(drivers.heartbeat("driver-1").await?);
//! assert_eq!(drivers.available().await?, ["driver-1"]);
//! drivers.offline("driver-1").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Stores and features
//! | URL | feature | systems |
//! |---|---|---|
//! | `memory:`, `embedded:DIR` | `embedded` (default) | all |
//! | `redis://`, `rediss://`, `redis+cluster://`, `valkey://` | `redis` | registry, sessions, inflight; mirror of availability |
//! | `postgres://` | `postgres` | availability, with a mirror on Redis |
//! | `s3://`, `az://`, `gs://` | `object` | leases |

#![warn(missing_docs)]

mod common;
#[cfg(doctest)]
mod documents;
pub mod observe;
mod open;

// The daemon uses the following modules. Users meet only the types that are exported below.
#[doc(hidden)]
pub mod assembly;
#[doc(hidden)]
pub mod availability;
#[doc(hidden)]
pub mod inflight;
#[doc(hidden)]
pub mod leases;
#[doc(hidden)]
pub mod registry;
#[doc(hidden)]
pub mod sessions;
#[doc(hidden)]
pub mod stores;

pub use availability::{AvailabilityBuilder, AvailabilitySystem};
pub use common::SweepSchedule::{self, Every, Manual};
pub use inflight::{
    HeldJob, InflightBuilder, InflightMember, InflightSystem, JobResult, OnDeath, QueueEnd,
};
pub use leases::{Decision, DecisionInfo, LeaseGuard, LeasesBuilder, LeasesSystem, LostLease};
pub use open::{Lapsed, OpenOptions, open};
pub use registry::{RegistryBuilder, RegistryEntry, RegistryMember, RegistrySystem};
pub use sessions::{Session, SessionProfile, SessionsBuilder, SessionsMember, SessionsSystem};

/// Calls take names as `&str`. Where an answer has a `Name`, it displays as its text, and `as_str` gives that text.
pub use lapsed_core::Name;
pub use lapsed_core::owner::{Lost, ReleasedHoldings};
pub use lapsed_core::receipt::{Observer, Receipt};
pub use lapsed_core::sweep::PassReport;
pub use lapsed_core::system::{Explanation, Restored};
pub use lapsed_core::{Error, Result};
