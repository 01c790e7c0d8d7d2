//! The library as its users meet it: everything here goes through what `lapsed` exports.
#![allow(clippy::unwrap_used)]

mod availability;
mod documents;
mod examples;
mod inflight;
mod leases;
#[cfg(feature = "redis")]
mod lost_answers;
mod observe;
mod opening;
#[cfg(feature = "redis")]
mod redis;
mod registry;
mod sessions;
mod stores;
