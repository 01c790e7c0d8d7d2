//! Reads jobs from disk, at opening and after a batch was undone.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use lapsed_core::{Name, Result};

use crate::StoredSystem;
use crate::disk::Disk;
use crate::fault::{Fault, Tried};
use crate::inflight::Core;
use crate::inflight::job_index::{JobLocation, JobTotals};
use crate::inflight::rows::{name, split, split_claim};
use crate::owners::OwnerTable;
use crate::owners::load::open;
use crate::snapshot::Snapshot;
use crate::tables::{META, split_held, split_queued};
use crate::tx::{Changed, Tx};

type All = HashMap<Name, JobLocation, RandomState>;

/// Adds one job; an error if it is already somewhere else.
fn add(all: &mut All, id: Name, place: JobLocation) -> Tried<()> {
    match all.insert(id.clone(), place) {
        None => Ok(()),
        Some(_) => Err(Fault::row(format!("job `{id}` is in two places"))),
    }
}

impl Core {
    fn load_queued(&self, txn: &Snapshot, all: &mut All) -> Tried<()> {
        let Some(queued) = open(txn, &self.tables.queued)? else { return Ok(()) };
        let mut last: Option<Name> = None;
        for row in queued.iter()? {
            let (key, row) = row?;
            let (queue, place) = split_queued(key.value())
                .ok_or_else(|| Fault::row("a key of `queued` has no position"))?;
            // All jobs of a queue share one allocation of its name.
            let queue = match last.take().filter(|last| last.as_str() == queue) {
                Some(queue) => queue,
                None => name(queue.as_bytes())?,
            };
            last = Some(queue.clone());
            add(all, name(split(row.value())?.0)?, JobLocation::Queued { queue, place })?;
        }
        Ok(())
    }

    /// Reads the jobs in flight, and counts them by incarnation.
    fn load_held(&self, txn: &Snapshot, all: &mut All) -> Tried<HashMap<u64, u64>> {
        let mut counts = HashMap::new();
        let Some(held) = open(txn, &self.tables.held)? else { return Ok(counts) };
        for row in held.iter()? {
            let (key, row) = row?;
            let (incarnation, id) = split_held(key.value())
                .ok_or_else(|| Fault::row("a row of `held` is not a job"))?;
            let (token, _) = split_claim(split(row.value())?.0)?;
            add(all, name(id.as_bytes())?, JobLocation::InFlight { incarnation, token })?;
            *counts.entry(incarnation).or_default() += 1;
        }
        Ok(counts)
    }

    fn load_dead(&self, txn: &Snapshot, all: &mut All) -> Tried<()> {
        let Some(dead) = open(txn, &self.tables.dead)? else { return Ok(()) };
        for row in dead.iter()? {
            add(all, name(row?.0.value())?, JobLocation::Dead)?;
        }
        Ok(())
    }

    fn load_account(&self, txn: &Snapshot) -> Tried<JobTotals> {
        let Some(meta) = open(txn, META)? else { return Ok(JobTotals::default()) };
        match meta.get(&self.tables.account)? {
            Some(row) => Ok(serde_json::from_slice(row.value())?),
            None => Ok(JobTotals::default()),
        }
    }

    fn load(&self, txn: &Snapshot) -> Tried<()> {
        let mut all = All::default();
        self.load_queued(txn, &mut all)?;
        let held = self.load_held(txn, &mut all)?;
        self.load_dead(txn, &mut all)?;
        let account = self.load_account(txn)?;
        self.owners.load(txn, &held)?;
        self.jobs.replace(all, account);
        Ok(())
    }
}

impl StoredSystem for Core {
    fn owners(&self) -> &OwnerTable {
        &self.owners
    }

    fn read(&self, disk: &Disk) -> Result<()> {
        let txn = disk.read()?;
        self.load(&txn).map_err(|fault| fault.told(&disk.name))
    }

    fn stamp(&self, tx: &mut Tx) -> Tried<()> {
        match tx.jobs_changed(&self.tables.held).and_then(|changes| changes.account) {
            Some(account) => tx.meta_put(&self.tables.account, &serde_json::to_vec(&account)?),
            None => Ok(()),
        }
    }

    fn committed(&self, changed: &mut Changed) {
        if let Some(changes) = changed.jobs.remove(&self.tables.held) {
            self.jobs.apply(changes);
        }
    }
}
