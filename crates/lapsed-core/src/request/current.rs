//! The request that a task carries out, as the stores see it that take part in keeping it.
//!
//! A request with a key may change a store in several steps and in several tasks. Each store reads here for
//! which request it works, and notes the request in the same atomic step as the change. The request is a
//! property of the task and not an argument, so that an operation cannot forget to pass it on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::future::Either;

use super::RequestId;
use crate::error::Result;
use crate::name::{Name, SystemId};

tokio::task_local! {
    static CURRENT: Arc<CurrentRequest>;
}

const LOCK: &str = "no holder of this lock panics";

/// A request with a key, while it is carried out.
#[derive(Debug)]
pub struct CurrentRequest {
    /// The system that keeps the request.
    pub system: SystemId,
    pub request: RequestId,
    /// How many steps of each kind are done.
    done: Mutex<HashMap<String, usize>>,
}

impl CurrentRequest {
    pub fn new(system: SystemId, request: RequestId) -> CurrentRequest {
        CurrentRequest { system, request, done: Mutex::default() }
    }

    /// Carries out `work` for this request: while it runs, [`current`] returns this.
    pub async fn carry_out<T>(self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(Arc::new(self), work).await
    }

    /// The next step of a kind. It stays the same until [`step_is_done`](Self::step_is_done), so that a
    /// step that was refused and is tried again with other arguments is still the same step. Steps of one
    /// kind must follow each other; those that run at the same time need kinds of their own.
    pub fn step(&self, kind: &str) -> Result<RequestId> {
        let number = self.done.lock().expect(LOCK).get(kind).map_or(1, |done| done + 1);
        let key = Name::new(&format!("!step/{kind}/{number}/{}", self.request.key))?;
        Ok(RequestId { key, ..self.request.clone() })
    }

    /// The step of this kind has changed the store, or had done so at an earlier attempt.
    pub fn step_is_done(&self, kind: &str) {
        *self.done.lock().expect(LOCK).entry(kind.to_owned()).or_default() += 1;
    }
}

/// The request that this task carries out for `system`; `None` if it has no key, or none is carried out.
pub fn current(system: &SystemId) -> Option<Arc<CurrentRequest>> {
    CURRENT.try_with(Arc::clone).ok().filter(|current| current.system == *system)
}

/// Work for the same request, to be run in another task.
pub fn continued<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    match CURRENT.try_with(Arc::clone) {
        Ok(current) => Either::Left(CURRENT.scope(current, work)),
        Err(_) => Either::Right(work),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Kind;

    fn system() -> SystemId {
        SystemId::new(Kind::Registry, "a").unwrap()
    }

    #[tokio::test]
    async fn the_request_is_known_in_its_task_and_in_those_that_continue_it() {
        assert!(current(&system()).is_none());
        let request = RequestId::new("k", "f", "a").unwrap();
        let other = SystemId::new(Kind::Registry, "b").unwrap();
        let work = async {
            assert!(current(&other).is_none());
            let seen = async { current(&system()).map(|current| current.request.clone()) };
            (seen.await, tokio::spawn(continued(async { current(&system()).is_some() })).await)
        };
        let (seen, elsewhere) =
            CurrentRequest::new(system(), request.clone()).carry_out(work).await;
        assert_eq!(seen, Some(request));
        assert!(elsewhere.unwrap());
    }

    #[test]
    fn a_step_stays_the_same_until_it_is_done() {
        let current = CurrentRequest::new(system(), RequestId::new("k", "f", "a").unwrap());
        let key = |kind: &str| current.step(kind).unwrap().key;
        assert_eq!(key("delete"), key("delete"));
        let first = key("delete");
        current.step_is_done("delete");
        assert_ne!(key("delete"), first);
        assert_ne!(key("update"), first);
    }
}
