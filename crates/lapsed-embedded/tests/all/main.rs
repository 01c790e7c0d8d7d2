//! All tests of the embedded store in one program: linking costs more than most of them, and tests
//! that wait do so at the same time. `cargo test -p lapsed-embedded --test all MODULE::` runs one
//! module.
#![allow(clippy::unwrap_used)]

mod availability;
mod availability_account;
mod availability_crash;
mod availability_flips;
mod availability_races;
mod availability_storm;
mod availability_truth;
mod conformance;
mod fixture;
mod folder;
mod inflight;
mod inflight_account;
mod inflight_crash;
mod inflight_races;
mod inflight_worker;
mod interrupted_passes;
mod leader;
mod leases;
mod leases_crash;
mod leases_races;
mod log;
mod long_reads;
mod many_ended_owners;
mod noted_requests;
mod notes;
mod old_format;
mod order;
mod owner_handle;
mod passes;
mod races;
mod receipt_blocks;
mod sessions;
mod sessions_crash;
mod sessions_races;
