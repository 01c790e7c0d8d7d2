//! The dashboard in a real browser. A test program of its own, because only a few browsers should
//! run at a time.
#![allow(clippy::unwrap_used)]

mod live_receipts;
mod operator_actions;
mod page;
mod screenshots;
mod search_and_layout;
mod store_outage;
#[path = "../all/support/mod.rs"]
mod support;
mod token_login;
