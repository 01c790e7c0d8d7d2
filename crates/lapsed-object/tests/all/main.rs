//! All stories of this crate in one program: the servers are started once.

mod costs;
mod faults;
mod fixture;
mod killed;
mod layout;
mod leases;
mod probe;
