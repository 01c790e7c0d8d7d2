//! All tests of Redis and Valkey in one program: linking costs more than most of them, and those that wait
//! wait at the same time. One module a story; `cargo test -p lapsed-redis --test all MODULE::` runs one.
#![allow(clippy::unwrap_used)]

mod adopt;
mod availability;
mod caller;
mod chat;
mod clock_set_back;
mod faults;
mod fixture;
mod functions;
mod functions_versions;
mod inflight;
mod inflight_adopt;
mod inflight_adopt_faults;
mod inflight_adopt_letters;
mod inflight_adopt_log;
mod inflight_adopt_sidekiq;
mod inflight_app;
mod inflight_child;
mod inflight_faults;
mod inflight_functions;
mod inflight_index;
mod inflight_old_receipts;
mod inflight_queues;
mod inflight_together;
mod jobs;
mod languages;
mod migrate;
mod migrate_lookup;
mod mirror;
mod mirror_faults;
mod mirror_listen;
mod mirror_model;
mod mirror_world;
mod old_receipts;
mod permissions;
mod registry;
mod ruby;
mod sessions;
mod sessions_adopt;
mod sessions_faults;
mod sessions_migrate;
mod sessions_types;
mod sidekiq;
mod story;
mod suspects_ahead;
