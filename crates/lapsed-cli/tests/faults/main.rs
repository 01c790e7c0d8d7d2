//! Faults of servers and daemons under load. A test program of its own, because it uses the whole
//! machine and would disturb tests that depend on timing.
#![allow(clippy::unwrap_used)]

mod availability_faults;
mod kills;
mod soak;
#[path = "../all/support/mod.rs"]
mod support;
