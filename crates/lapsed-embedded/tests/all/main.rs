//! All tests of the embedded store in one program: linking costs more than most of them, and those that wait
//! wait at the same time. One module a story; `cargo test -p lapsed-embedded --test all MODULE::` runs one.
#![allow(clippy::unwrap_used)]

mod conformance;
mod fixture;
mod folder;
mod inflight;
mod leader;
mod order;
mod owner_handle;
mod passes;
mod races;
mod sessions;
mod sessions_crash;
mod sessions_races;
