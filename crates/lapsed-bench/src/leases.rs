//! Leases: on the embedded store beside etcd and ZooKeeper, on the same disk.

pub mod embedded;
mod etcd;
mod falling;
mod ours;
mod waits;
mod zookeeper;
