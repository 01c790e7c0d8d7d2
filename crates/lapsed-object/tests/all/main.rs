//! All stories of this crate in one program: the servers are started once.

mod fixture;
mod leases;
mod probe;
