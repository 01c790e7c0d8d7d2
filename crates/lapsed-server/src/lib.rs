//! The daemon: configuration, sweeps, HTTP API, metrics and dashboard.
//!
//! Read the modules in this order: `config` (parses and checks the configuration), `systems` (what
//! each kind of system adds), `node` (the opened stores and systems), then `http`, `api` and
//! `daemon` (serving them).

pub mod api;
pub mod config;
pub mod connections;
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
pub mod schemas;
pub mod stop_signals;
pub mod stores;
pub mod systems;
pub mod telemetry;
pub mod tls;
pub mod webhooks;
