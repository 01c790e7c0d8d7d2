//! All tests of the binary in one program: linking costs more than most of them, and those that wait
//! wait at the same time. One module a story; `cargo test -p lapsed-cli --test all MODULE::` runs one.
#![allow(clippy::unwrap_used)]

mod alerts;
mod availability;
mod availability_config;
mod availability_seed;
mod availability_servers;
mod commands;
mod config;
mod crash;
mod demo;
mod events;
mod folder;
mod frozen;
mod full_disk;
mod functions;
mod http;
mod inflight;
mod inflight_redis;
mod lease_run;
mod leases;
mod leases_objects;
mod leases_sweep;
mod letters;
mod openapi;
mod outbox;
mod providers;
mod reconcile;
mod reconcile_index;
mod redis;
mod redis_stuck;
mod sessions;
mod support;
