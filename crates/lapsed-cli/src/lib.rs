//! The command line of lapsed, as a library so that tests can reach it.
//!
//! Read in this order: `cli` (what can be typed), `commands` (what each does), `backend` (the daemon
//! over HTTP, or the stores themselves), `top` (the live screen).

pub mod backend;
pub mod cli;
pub mod commands;
pub mod top;
