//! A cluster of masters without replicas, with its slots spread evenly.

mod migration;
mod replicas;
mod slot;

use std::ops::RangeInclusive;
use std::time::Duration;

pub use slot::{SLOTS, slot_of};

use crate::server::field_of;
use crate::{Engine, PortChoice, RedisServer, ServerOptions, TestbedError, TestbedResult, until};

/// How long the nodes may take to agree on something.
const AGREE_LIMIT: Duration = Duration::from_secs(30);

pub struct Cluster {
    nodes: Vec<RedisServer>,
    /// The name by which the cluster knows the node of the same index.
    ids: Vec<String>,
}

impl Cluster {
    /// As many masters, each with its share of the slots; waits until every one finds the cluster
    /// complete.
    pub fn start(engine: Engine, masters: usize) -> TestbedResult<Self> {
        Self::start_with(&ServerOptions::new(engine), masters)
    }

    /// The same, each node with these options; `port` must be [`PortChoice::Free`].
    pub fn start_with(options: &ServerOptions, masters: usize) -> TestbedResult<Self> {
        if masters == 0 || options.port != PortChoice::Free {
            return Err(TestbedError::new("a cluster needs a node and free ports"));
        }
        let node = |_| {
            let options = options.clone().extra("cluster-enabled", "yes");
            options.extra("cluster-announce-ip", "127.0.0.1").start()
        };
        let nodes = (0..masters).map(node).collect::<TestbedResult<Vec<_>>>()?;
        let id = |node: &RedisServer| node.command(&["CLUSTER", "MYID"]);
        let ids = nodes.iter().map(id).collect::<TestbedResult<_>>()?;
        let cluster = Self { nodes, ids };
        cluster.introduce()?;
        cluster.wait_ok()?;
        Ok(cluster)
    }

    pub fn url(&self) -> String {
        let address = |node: &RedisServer| format!("127.0.0.1:{}", node.port());
        let addresses: Vec<String> = self.nodes.iter().map(address).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The slot of a key: of its hash tag, if it has one.
    pub fn slot_of(&self, key: &str) -> u16 {
        slot_of(key.as_bytes())
    }

    /// The index of the node that holds `slot`, as the first node that answers sees it.
    pub fn master_of_slot(&self, slot: u16) -> TestbedResult<usize> {
        let views = self.nodes.iter().filter(|node| node.pid().is_some());
        let mut last = TestbedError::new("no node runs");
        for node in views {
            match self.master_seen_by(node, slot) {
                Ok(Some(master)) => return Ok(master),
                Ok(None) => last = TestbedError::new(format!("nobody holds slot {slot}")),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Waits until every node finds the cluster complete, with all its nodes known.
    pub fn wait_ok(&self) -> TestbedResult<()> {
        let known = self.nodes.len().to_string();
        for node in &self.nodes {
            until("cluster_state:ok", AGREE_LIMIT, || {
                let info = node.command(&["CLUSTER", "INFO"])?;
                let ok = field_of(&info, "cluster_state") == "ok"
                    && field_of(&info, "cluster_slots_assigned") == SLOTS.to_string()
                    && field_of(&info, "cluster_known_nodes") == known;
                Ok(ok.then_some(()))
            })?;
        }
        Ok(())
    }

    /// Gives every node its slots and an epoch of its own, and makes them known to each other.
    fn introduce(&self) -> TestbedResult<()> {
        for (nth, node) in self.nodes.iter().enumerate() {
            let share = share(nth, self.nodes.len());
            let (first, last) = (share.start().to_string(), share.end().to_string());
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(nth + 1).to_string()])?;
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
        }
        // Everyone meets everyone: gossip would get there too, but slower.
        for (nth, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[nth + 1..] {
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()])?;
            }
        }
        Ok(())
    }

    fn master_seen_by(&self, node: &RedisServer, slot: u16) -> TestbedResult<Option<usize>> {
        let view = node.command(&["CLUSTER", "NODES"])?;
        let holder = view.lines().find(|line| slot::listed(line, slot));
        let id = holder.and_then(|line| line.split(' ').next());
        Ok(self.ids.iter().position(|known| Some(known.as_str()) == id))
    }
}

/// The slots of the `nth` of `masters` nodes.
fn share(nth: usize, masters: usize) -> RangeInclusive<usize> {
    let slots = usize::from(SLOTS);
    nth * slots / masters..=(nth + 1) * slots / masters - 1
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn slot_ranges_are_adjacent_and_cover_all_slots() {
        for masters in 1..8 {
            let mut next = 0;
            for nth in 0..masters {
                assert_eq!(*share(nth, masters).start(), next);
                next = share(nth, masters).end() + 1;
            }
            assert_eq!(next, 16_384);
        }
    }
}
