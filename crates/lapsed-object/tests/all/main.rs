//! All stories of this crate in one program: the servers are started once.

#![allow(clippy::unwrap_used)] // a panic is a failing test

mod boundary;
mod contenders;
mod costs;
mod faults;
mod fixture;
mod killed;
mod layout;
mod leases;
mod notes;
mod probe;
mod staged;
mod transport;
mod unanswered_calls;
