//! Reading one job by its id, and pages of dead letters.

use lapsed_core::inflight::{Job, JobPlace, JobToken};
use lapsed_core::owner::Incarnation;
use lapsed_core::{Name, Result};

use crate::fault::Tried;
use crate::inflight::job_index::JobLocation;
use crate::inflight::rows::{Body, Death, name, split, split_claim};
use crate::inflight::{Core, EmbeddedInflight};
use crate::owners::load::open;
use crate::tables::{held_key, queued_key};
use crate::tx::Tx;

impl Core {
    /// The table and the key of a job's row.
    fn row_of(&self, id: &Name, place: &JobLocation) -> (&std::sync::Arc<str>, Vec<u8>) {
        match place {
            JobLocation::Queued { queue, place } => {
                (&self.tables.queued, queued_key(queue.as_str(), *place))
            }
            JobLocation::InFlight { incarnation, .. } => {
                (&self.tables.held, held_key(*incarnation, id.as_str()))
            }
            JobLocation::Dead => (&self.tables.dead, id.as_str().as_bytes().to_vec()),
        }
    }

    /// A job from its row; `None` if the record of its holder was removed, so that the job has
    /// moved.
    fn job_from(&self, id: &Name, place: &JobLocation, row: &[u8]) -> Tried<Option<Job>> {
        let (mark, body) = split(row)?;
        let place = match place {
            JobLocation::Queued { .. } => JobPlace::Queued,
            JobLocation::Dead => {
                let Death { why, at_ms, error } = serde_json::from_slice(mark)?;
                JobPlace::Dead { why, at_ms, error, kept_in: None }
            }
            JobLocation::InFlight { incarnation, .. } => {
                let Some(slot) = self.index.incarnation(*incarnation) else { return Ok(None) };
                let (token, since_ms) = split_claim(mark)?;
                JobPlace::InFlight {
                    owner: slot.name.clone(),
                    incarnation: Incarnation(*incarnation),
                    token: JobToken(token),
                    since_ms,
                    due_ms: slot.due_ms(self.look().1),
                    ended: slot.end().map(|end| (end.ending, end.at_ms)),
                }
            }
        };
        self.job(id, body, place).map(Some)
    }

    fn job(&self, id: &Name, body: Body<'_>, place: JobPlace) -> Tried<Job> {
        let (head, now_ms) = (body.head()?, self.store_clock.now_ms());
        Ok(Job {
            id: id.clone(),
            payload: body.payload()?,
            crashes: self.crashes(&head, now_ms),
            queue: head.queue,
            entered_ms: head.entered_ms,
            place,
            now_ms,
        })
    }

    /// Reads a job inside a job of the writer, in turn with everything that moves it.
    fn job_in_turn(&self, tx: &mut Tx, id: &Name) -> Tried<Option<Job>> {
        let Some(place) = self.location(tx, id) else { return Ok(None) };
        let (table, key) = self.row_of(id, &place);
        match tx.get(table, &key)? {
            Some(row) => self.job_from(id, &place, &row),
            None => Ok(None),
        }
    }
}

impl EmbeddedInflight {
    /// Takes the location from memory and the row from disk. If the job moved in between, reads it
    /// again inside a job of the writer.
    pub(super) async fn read_job(&self, id: &Name) -> Result<Option<Job>> {
        let Some(place) = self.core.jobs.get(id) else { return Ok(None) };
        if let Some(job) = self.row_at(id, &place)? {
            return Ok(Some(job));
        }
        let id = id.clone();
        self.write(move |core, tx| core.job_in_turn(tx, &id), |_| {}).await
    }

    fn row_at(&self, id: &Name, place: &JobLocation) -> Result<Option<Job>> {
        let disk = &self.owner_service.inner.disk;
        let txn = disk.read()?;
        let (table, key) = self.core.row_of(id, place);
        let read = || -> Tried<Option<Job>> {
            let Some(table) = open(&txn, table)? else { return Ok(None) };
            let Some(row) = table.get(&key)? else { return Ok(None) };
            self.core.job_from(id, place, row.value())
        };
        read().map_err(|fault| fault.told(&disk.name))
    }

    pub(super) fn read_dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        let disk = &self.owner_service.inner.disk;
        let txn = disk.read()?;
        let mut from = after.map_or_else(Vec::new, |id| id.as_str().as_bytes().to_vec());
        from.extend(after.map(|_| 0));
        let read = || -> Tried<Vec<Job>> {
            let Some(dead) = open(&txn, &self.core.tables.dead)? else { return Ok(Vec::new()) };
            let mut jobs = Vec::new();
            for row in dead.range(&*from..)?.take(limit) {
                let (id, row) = row?;
                jobs.extend(self.core.job_from(
                    &name(id.value())?,
                    &JobLocation::Dead,
                    row.value(),
                )?);
            }
            Ok(jobs)
        };
        read().map_err(|fault| fault.told(&disk.name))
    }
}
