//! Moving a slot from one node to another while the cluster serves, as an operator would.

use std::time::Duration;

use super::{AGREE_LIMIT, Cluster};
use crate::resp::{Reply, RespConnection};
use crate::{TestbedError, TestbedResult, until};

const CALL_LIMIT: Duration = Duration::from_secs(20);

impl Cluster {
    /// Moves a slot with its keys to the node of index `to`, and waits until every running node
    /// sends its clients there. Nothing to do if it is there.
    pub fn migrate_slot(&self, slot: u16, to: usize) -> TestbedResult<()> {
        self.migrate_slot_in_steps(slot, to, || {})
    }

    /// The same one key at a time. `step` is called when the slot is marked on both sides, after
    /// each key, and so at last when no key is left but the slot is still the old node's.
    pub fn migrate_slot_in_steps(
        &self,
        slot: u16,
        to: usize,
        mut step: impl FnMut(),
    ) -> TestbedResult<()> {
        let from = self.master_of_slot(slot)?;
        if to >= self.nodes.len() {
            return Err(TestbedError::new(format!("there is no node {to}")));
        }
        if from == to {
            return Ok(());
        }
        let number = slot.to_string();
        // First who takes, then who gives: in the other order clients are sent to a node that refuses.
        self.set_slot(to, &[&number, "IMPORTING", &self.ids[from]])?;
        self.set_slot(from, &[&number, "MIGRATING", &self.ids[to]])?;
        step();
        let mut source = self.nodes[from].connect(CALL_LIMIT)?;
        while self.move_one_key(&mut source, &number, to)? {
            step();
        }
        self.hand_over(slot, from, to)
    }

    /// Moves one key of the slot; false if none is left.
    fn move_one_key(
        &self,
        source: &mut RespConnection,
        slot: &str,
        to: usize,
    ) -> TestbedResult<bool> {
        let keys = match source.call(&["CLUSTER", "GETKEYSINSLOT", slot, "1"])? {
            Reply::List(keys) => keys,
            other => return Err(TestbedError::new(format!("GETKEYSINSLOT answered {other}"))),
        };
        let Some(Reply::Text(key)) = keys.first() else { return Ok(false) };
        let port = self.nodes[to].port().to_string();
        let limit_ms = CALL_LIMIT.as_millis().to_string();
        let place: [&[u8]; 4] = [b"MIGRATE", b"127.0.0.1", port.as_bytes(), key];
        let mut args = [&place[..], &[b"0", limit_ms.as_bytes()]].concat();
        if let Some(password) = self.nodes[to].options().password() {
            args.extend_from_slice(&[b"AUTH", password.as_bytes()]);
        }
        // `NOKEY` (it expired meanwhile) is as good as `OK`.
        source.call(&args).map(|_| true)
    }

    /// Ends the migration on all nodes, the new holder first: should it stop halfway, somebody
    /// holds the slot.
    fn hand_over(&self, slot: u16, from: usize, to: usize) -> TestbedResult<()> {
        let running = |nth: &usize| self.nodes[*nth].pid().is_some();
        let others = (0..self.nodes.len()).filter(|nth| *nth != from && *nth != to);
        let all: Vec<usize> = [to, from].into_iter().chain(others).filter(running).collect();
        for nth in &all {
            self.set_slot(*nth, &[&slot.to_string(), "NODE", &self.ids[to]])?;
        }
        for nth in &all {
            until("all nodes to know the slot's new place", AGREE_LIMIT, || {
                let seen = self.master_seen_by(&self.nodes[*nth], slot)?;
                Ok((seen == Some(to)).then_some(()))
            })?;
        }
        Ok(())
    }

    fn set_slot(&self, node: usize, args: &[&str]) -> TestbedResult<()> {
        let command = [&["CLUSTER", "SETSLOT"], args].concat();
        self.nodes[node].command(&command).map(|_| ())
    }
}
