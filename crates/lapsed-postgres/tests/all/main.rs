//! All tests of PostgreSQL in one program: linking costs more than most of them. One module a story;
//! `cargo test -p lapsed-postgres --test all MODULE::` runs one.
#![allow(clippy::unwrap_used)]

mod adopted;
mod bloat;
mod clocks_apart;
mod conformance;
mod connection;
mod differential;
mod faults;
mod fixture;
mod flips;
mod listening;
mod noted_requests;
mod notes;
mod permissions;
mod promotion;
mod races;
mod schema;
mod services;
mod storm;
mod truth;
