//! The dashboard in a real browser. A program of its own: a browser takes more of the machine than
//! all other stories together, and only a few of them should run at a time.
#![allow(clippy::unwrap_used)]

mod live_receipts;
mod operator_actions;
mod page;
mod screenshots;
mod search_and_layout;
#[path = "../all/support/mod.rs"]
mod support;
mod token_login;
