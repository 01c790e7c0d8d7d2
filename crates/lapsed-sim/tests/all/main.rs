//! All tests of the simulation in one program: linking costs more than most of them, and those that wait
//! wait at the same time. One module a exercise; `cargo test -p lapsed-sim --test all MODULE::` runs one.
#![allow(clippy::unwrap_used)]

mod availability;
mod bucket;
mod campaign;
mod disk;
mod fixed_seeds;
mod forgetting;
mod fresh_seeds;
mod jobs;
mod lease_process;
mod leases;
mod planted_bugs;
mod regressions;
mod sessions;
mod upkeep;
mod week;
