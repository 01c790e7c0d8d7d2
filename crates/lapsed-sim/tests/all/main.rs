//! All tests of the simulation in one program: linking costs more than most of them, and those that wait
//! wait at the same time. One module a exercise; `cargo test -p lapsed-sim --test all MODULE::` runs one.
#![allow(clippy::unwrap_used)]

mod availability;
mod bucket;
mod disk;
mod fixed_seeds;
mod fresh_seeds;
mod jobs;
mod leases;
mod planted_bugs;
mod regressions;
