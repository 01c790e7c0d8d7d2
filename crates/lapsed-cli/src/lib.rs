//! The binary `lapsed`, as a library so that tests can reach it: configuration, daemon, HTTP, and
//! the commands.
//!
//! Read in this order: `config` (what is wanted), `systems` (what each kind makes of it), `node`
//! (opened and ready), then `http` and `daemon` (served) or `backend` and `commands` (asked).

pub mod backend;
pub mod cli;
pub mod commands;
pub mod config;
pub mod daemon;
pub mod demo;
pub mod endings;
pub mod failure;
pub mod feed;
pub mod http;
pub mod metrics;
pub mod node;
pub mod outbound;
pub mod outbox;
pub mod preset;
pub mod print;
pub mod stores;
pub mod systems;
pub mod telemetry;
pub mod tls;
pub mod top;
pub mod webhooks;
