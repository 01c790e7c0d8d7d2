//! Servers and daemons broken under load: a program of its own, because it leaves the machine nothing for
//! stories that count on going on.
#![allow(clippy::unwrap_used)]

mod availability_faults;
#[path = "../all/support/mod.rs"]
mod support;
