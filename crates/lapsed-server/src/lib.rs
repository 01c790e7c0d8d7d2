//! The daemon: configuration, sweeps, HTTP API, metrics, dashboard.
//!
//! Read in this order: `config` (what is wanted), `systems` (what each kind makes of it), `node`
//! (stores and systems, opened), then `http` and `daemon` (served).

pub mod api;
pub mod config;
pub mod daemon;
pub mod failure;
pub mod feed;
pub mod http;
pub mod metrics;
pub mod node;
pub mod outbound;
pub mod plan;
pub mod preset;
pub mod print;
pub mod stop_signals;
pub mod stores;
pub mod systems;
pub mod telemetry;
pub mod tls;
pub mod webhooks;
pub mod write_timeout;
