//! Simulation of lapsed: owners, sweepers and clients on the real embedded store, under a virtual
//! clock, from one seed.
//!
//! Read in this order: [`clock`] (virtual time), [`disk`] (a disk that loses power), [`model`] (what
//! the store should answer), [`system`] (carries out every call on store and model and compares the
//! two), [`connection`] and [`remote`] (how calls reach the store, with faults), [`actors`] and
//! [`scenario`] (who does what), [`run`] (a whole run), and [`bug`] (the planted bugs that the
//! simulation must find).
//!
//! [`history`] runs any of the simulations by seed, and [`campaign`] many histories on several threads.
//!
//! Jobs in flight have a simulation of their own in [`jobs`], sessions in [`sessions`], leases on an
//! object store in [`leases`], and availability on two stores in [`availability`].
//!
//! The same seed gives the same run, down to the last line of its trace.

pub mod actors;
pub mod availability;
pub mod brake_model;
pub mod bug;
pub mod campaign;
pub mod clock;
pub mod connection;
pub mod disk;
pub mod executor;
pub mod history;
pub mod jobs;
pub mod leases;
pub mod model;
pub mod promise;
pub mod random;
pub mod remote;
pub mod run;
pub mod run_context;
pub mod scenario;
pub mod sessions;
pub mod system;
pub mod trace;
pub mod world;
