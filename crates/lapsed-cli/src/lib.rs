//! The command line of lapsed, as a library so that tests can reach it.
//!
//! Read in this order: `cli` (what can be typed), `commands` (what each does), `kinds` (the verbs that belong to one
//! kind of system), `backend` (the daemon over HTTP, or the stores themselves), `top` (the live screen), `log`.

pub mod backend;
pub mod cli;
pub mod commands;
pub mod hints;
pub mod kinds;
pub mod log;
pub mod top;
