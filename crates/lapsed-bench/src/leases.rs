//! Leases: on the embedded store beside etcd and ZooKeeper, on the same disk; on an object store beside
//! reading everything there is.

pub mod embedded;
mod etcd;
mod falling;
pub mod object;
mod ours;
mod timed;
mod waits;
mod zookeeper;
