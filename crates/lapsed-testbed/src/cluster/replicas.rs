//! One replica for each master, and failovers between the two.

use std::time::Duration;

use crate::cluster::{AGREE_LIMIT, Cluster};
use crate::server::field_of;
use crate::{RedisServer, TestbedError, TestbedResult, until};

/// How long an election may take.
const ELECTION_LIMIT: Duration = Duration::from_secs(20);

impl Cluster {
    /// Starts one more node for each master, which follows it. The nodes of the replicas come after
    /// those of the masters, in the same order.
    pub fn add_replicas(&mut self) -> TestbedResult<()> {
        let masters = self.nodes.len();
        for nth in 0..masters {
            let options = self.nodes[nth].options().clone();
            let replica = options.start()?;
            let port = self.nodes[nth].port().to_string();
            replica.command(&["CLUSTER", "MEET", "127.0.0.1", &port])?;
            let master = self.ids[nth].clone();
            until("a new node to know its master", AGREE_LIMIT, || {
                Ok(replica.command(&["CLUSTER", "REPLICATE", &master]).ok())
            })?;
            self.ids.push(replica.command(&["CLUSTER", "MYID"])?);
            self.nodes.push(replica);
        }
        self.wait_ok()?;
        (masters..2 * masters).try_for_each(|nth| wait_linked(&self.nodes[nth]))
    }

    /// Makes the replica of index `replica` the master of its slots, with everything that the old master has:
    /// the old one stops writing until the replica has caught up.
    pub fn fail_over_to(&self, replica: usize) -> TestbedResult<()> {
        wait_linked(&self.nodes[replica])?;
        self.nodes[replica].command(&["CLUSTER", "FAILOVER"])?;
        self.wait_master(replica)
    }

    /// Makes a replica master whose old master is gone: by an election of the others, or, if none comes about,
    /// without it, as an operator would.
    pub fn take_over(&self, replica: usize) -> TestbedResult<()> {
        self.wait_master(replica).or_else(|_| {
            self.nodes[replica].command(&["CLUSTER", "FAILOVER", "TAKEOVER"])?;
            self.wait_master(replica)
        })
    }

    /// Waits until a node is a master.
    fn wait_master(&self, nth: usize) -> TestbedResult<()> {
        until("a replica to become master", ELECTION_LIMIT, || {
            let info = self.nodes[nth].command(&["INFO", "replication"])?;
            Ok((field_of(&info, "role") == "master").then_some(()))
        })
    }

    /// Waits until a node follows its master and has what that has.
    pub fn wait_replica(&self, nth: usize) -> TestbedResult<()> {
        let node = self.nodes.get(nth).ok_or_else(|| TestbedError::new("there is no such node"))?;
        wait_linked(node)
    }
}

fn wait_linked(node: &RedisServer) -> TestbedResult<()> {
    until("a replica to follow its master", AGREE_LIMIT, || {
        let info = node.command(&["INFO", "replication"])?;
        let is_linked =
            field_of(&info, "role") == "slave" && field_of(&info, "master_link_status") == "up";
        Ok(is_linked.then_some(()))
    })
}
