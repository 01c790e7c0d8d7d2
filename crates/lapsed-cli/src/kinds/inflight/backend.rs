//! The operations on dead letters, on a daemon or on a store.

use lapsed_core::inflight::rules::QueueEnd;
use lapsed_core::inflight::{Inflight, Job, JobPlace};
use lapsed_core::{Name, SystemId};
use serde_json::json;

use crate::backend::remote::{read, segment};
use crate::backend::{Backend, BackendRef, LocalBackend, RemoteBackend};
use crate::cli::TargetArgs;
use crate::commands;
use lapsed_server::failure::Failure;
use lapsed_server::node::audit;
use lapsed_server::systems::inflight::routes::{DeadLetters, JobBody, PutBackBody};

pub trait JobsBackend: Backend {
    /// One page of dead letters, ordered by id.
    fn dead(
        &self,
        system: &SystemId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DeadLetters, Failure>;
    fn dead_letter(&self, system: &SystemId, id: &str) -> Result<Option<Job>, Failure>;
    /// Puts a dead letter back on its queue; whether there was one.
    fn put_back(&self, system: &SystemId, id: &str, end: QueueEnd) -> Result<bool, Failure>;
    /// Deletes a dead letter; whether there was one.
    fn delete_dead(&self, system: &SystemId, id: &str) -> Result<bool, Failure>;
}

/// Opens the backend of `target`, runs `work` on it, and closes it.
pub fn ask<T>(
    target: &TargetArgs,
    work: impl FnOnce(&dyn JobsBackend) -> Result<T, Failure>,
) -> Result<T, Failure> {
    commands::ask(target, |backend| match backend.as_ref() {
        BackendRef::Local(local) => work(local),
        BackendRef::Remote(remote) => work(remote),
    })
}

impl LocalBackend {
    fn inflight(&self, system: &SystemId) -> Result<&Inflight, Failure> {
        let inflight = self.live(system)?.operations::<Inflight>();
        inflight.ok_or_else(|| Failure::usage(format!("`{system}` has no jobs")))
    }
}

impl JobsBackend for LocalBackend {
    fn dead(
        &self,
        system: &SystemId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DeadLetters, Failure> {
        let after = after.map(Name::new).transpose()?;
        let dead = self.inflight(system)?.dead(after.as_ref(), limit);
        let dead = self.runtime.block_on(dead)?;
        let next = dead.last().filter(|_| dead.len() == limit).map(|job| job.id.to_string());
        Ok(DeadLetters { dead, next })
    }

    fn dead_letter(&self, system: &SystemId, id: &str) -> Result<Option<Job>, Failure> {
        let id = Name::new(id)?;
        let found = self.runtime.block_on(self.inflight(system)?.job(&id))?;
        Ok(found.filter(|job| matches!(job.place, JobPlace::Dead { .. })))
    }

    fn put_back(&self, system: &SystemId, id: &str, end: QueueEnd) -> Result<bool, Failure> {
        let id = Name::new(id)?;
        let work = self.inflight(system)?.put_back(&id, end);
        let outcome = |found: &bool| audit::outcome(*found, "queued");
        self.audited(self.live(system)?, ("dead put_back", &id), work, outcome)
    }

    fn delete_dead(&self, system: &SystemId, id: &str) -> Result<bool, Failure> {
        let id = Name::new(id)?;
        let work = self.inflight(system)?.delete(&id);
        let outcome = |found: &bool| audit::outcome(*found, "deleted");
        self.audited(self.live(system)?, ("dead delete", &id), work, outcome)
    }
}

impl JobsBackend for RemoteBackend {
    fn dead(
        &self,
        system: &SystemId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DeadLetters, Failure> {
        let mut path = format!("/v1/{system}/dead?limit={limit}");
        if let Some(after) = after {
            path.push_str(&format!("&after={}", segment(after)));
        }
        self.get(&path)
    }

    fn dead_letter(&self, system: &SystemId, id: &str) -> Result<Option<Job>, Failure> {
        // Not `dead/ID`: an id may be equal to the name of an operation under `dead/`.
        let answer = self.look(&format!("/v1/{system}/jobs/{}", segment(id)))?;
        if answer.status() == 404 {
            return Ok(None);
        }
        let job: Job = read(self.judge(Ok(answer))?)?;
        Ok(Some(job).filter(|job| matches!(job.place, JobPlace::Dead { .. })))
    }

    fn put_back(&self, system: &SystemId, id: &str, end: QueueEnd) -> Result<bool, Failure> {
        let body = PutBackBody { id: id.to_owned(), end: end.into() };
        self.change(&format!("/v1/{system}/dead/put_back"), &json!(body))
    }

    fn delete_dead(&self, system: &SystemId, id: &str) -> Result<bool, Failure> {
        let body = JobBody { id: id.to_owned() };
        self.change(&format!("/v1/{system}/dead/delete"), &json!(body))
    }
}
