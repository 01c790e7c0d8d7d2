//! Calls of the mirror, each with a time limit, and what is remembered of updates that failed.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Availability;
use crate::{LOCK, MirrorUpdate, ProviderState};
use lapsed_core::clock::call_within;
use lapsed_core::error::{Error, Result};
use lapsed_core::name::{Name, SystemId};

impl Availability {
    /// The mirror's clock, for dating heartbeats; `None`: it does not answer.
    pub(crate) async fn mirror_time(&self) -> Option<u64> {
        self.gated("time", self.parts.mirror.now_ms()).await.ok()
    }

    /// Writes states that were read after `at_ms` of the mirror's clock to the mirror; whether that
    /// succeeded.
    pub(crate) async fn tell(&self, states: Vec<ProviderState>, at_ms: Option<u64>) -> bool {
        if states.is_empty() {
            return true;
        }
        let ids: Vec<Name> = states.iter().map(|state| state.id.clone()).collect();
        let told = match at_ms {
            None => false,
            Some(at_ms) => {
                let told = dated(states, at_ms);
                self.gated("apply", self.parts.mirror.apply(&told, None)).await.is_ok()
            }
        };
        // A success does not remove what others have remembered, because theirs may be newer.
        if !told {
            self.owe(&ids);
        }
        told
    }

    /// Remembers that the mirror must be updated for these providers.
    pub(crate) fn owe(&self, ids: &[Name]) {
        self.lock_behind().extend(ids.iter().cloned());
    }

    /// Takes the remembered providers.
    pub(crate) fn take_behind(&self) -> Vec<Name> {
        std::mem::take(&mut *self.lock_behind()).into_iter().collect()
    }

    /// For how many providers the mirror must still be updated.
    pub fn behind(&self) -> usize {
        self.lock_behind().len()
    }

    /// Calls the mirror for a user who waits: with a short time limit, and not at all while the
    /// breaker is open.
    pub(crate) async fn gated<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if !self.breaker.lets_through(self.parts.clock.mono()) {
            return Err(Error::Unavailable {
                store: format!("the mirror of {}", self.parts.id),
                what: "it failed several times in a row and is not called for a moment".to_owned(),
            });
        }
        self.timed(what, self.parts.mirror_timeout, call).await
    }

    /// Calls the mirror in the background.
    pub(crate) async fn background<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.timed(what, self.parts.timeout, call).await
    }

    async fn timed<T>(
        &self,
        what: &str,
        limit: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mirror = MirrorOf(&self.parts.id);
        let answer = call_within(&*self.parts.clock, limit, &mirror, what, call).await;
        match &answer {
            Ok(_) | Err(Error::Invalid(_)) => self.breaker.succeeded(),
            Err(error) => {
                self.breaker.failed(self.parts.clock.mono());
                self.parts.observer.store_error(&self.parts.id, error);
            }
        }
        answer
    }

    fn lock_behind(&self) -> std::sync::MutexGuard<'_, BTreeSet<Name>> {
        self.behind.lock().expect(LOCK)
    }
}

/// Dates the heartbeats of states by a reading of the mirror's clock from before they were read.
pub(crate) fn dated(states: Vec<ProviderState>, at_ms: u64) -> Vec<MirrorUpdate> {
    let dated = |state: ProviderState| {
        let beat_ms = state.beat_age_ms.map(|age_ms| at_ms.saturating_sub(age_ms));
        MirrorUpdate { state, beat_ms }
    };
    states.into_iter().map(dated).collect()
}

/// Remembers a provider in `behind` unless it is disarmed, also if the caller goes away.
pub(crate) struct PendingMirrorUpdate<'a> {
    pub of: &'a Availability,
    pub id: Option<&'a Name>,
}

impl Drop for PendingMirrorUpdate<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.of.owe(std::slice::from_ref(id));
        }
    }
}

/// The name of a system's mirror in error texts.
struct MirrorOf<'a>(&'a SystemId);

impl std::fmt::Display for MirrorOf<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the mirror of {}", self.0)
    }
}
