//! Leases: on the embedded store beside etcd and ZooKeeper, on the same disk; on an object store beside
//! reading everything there is.

mod drain_time;
pub mod embedded;
mod etcd;
mod lapsed;
mod latency_probe;
pub mod object;
mod timed_sweep;
mod zookeeper;
