//! Simulation of lapsed: owners, sweepers and clients on the real embedded store, under a virtual
//! clock, from one seed.
//!
//! Read in this order: [`clock`] (virtual time), [`disk`] (a disk that loses power), [`model`] (what
//! the store should say), [`system`] (where the two are compared, call by call), [`connection`] and
//! [`remote`] (how calls get there, or not), [`actors`] and [`scenario`] (who does what), [`run`]
//! (a whole run), and [`bug`] (what all of this must find).
//!
//! Jobs in flight have a smaller world of their own, in [`jobs`]; so have leases on an object store, in
//! [`leases`], and availability on two stores, in [`availability`].
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
pub mod jobs;
pub mod leases;
pub mod model;
pub mod promise;
pub mod random;
pub mod remote;
pub mod run;
pub mod run_context;
pub mod scenario;
pub mod system;
pub mod trace;
pub mod world;
