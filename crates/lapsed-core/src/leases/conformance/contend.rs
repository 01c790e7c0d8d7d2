//! One of several that compete for the same keys, writing down what it sees: see [`history`](super::history).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::history::{HistoryEvent, What};
use super::name;
use crate::leases::{AcquireRequest, Acquired, Fenced, Grant, LeaseKey, LeaseState, LeasesStore};

#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name, different for each run.
    pub who: String,
    /// The keys that everybody competes for.
    pub keys: Vec<LeaseKey>,
    /// How long each lease lasts.
    pub ttl: Duration,
    /// How often it takes one.
    pub rounds: usize,
}

/// The clock that every process of this machine shares.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The number that is kept as a key's state.
pub fn number(state: Option<&LeaseState>) -> u64 {
    match state {
        Some(LeaseState::Json(value)) => value.as_u64().unwrap_or(0),
        Some(LeaseState::Bytes(_)) | None => 0,
    }
}

impl Contender {
    /// Competes until all rounds are done; `tell` must store each event before it returns. After a
    /// failed call it does nothing, because it cannot know whether it holds the lease.
    pub async fn run(&self, leases: &dyn LeasesStore, tell: &mut (dyn FnMut(HistoryEvent) + Send)) {
        for round in 0..self.rounds {
            let key = &self.keys[round % self.keys.len()];
            // In one round of three the lease is not released, as if the process had died.
            let lets_go = round % 3 != 2;
            self.round(leases, key, lets_go, tell).await;
        }
    }

    async fn round(
        &self,
        leases: &dyn LeasesStore,
        key: &LeaseKey,
        lets_go: bool,
        tell: &mut (dyn FnMut(HistoryEvent) + Send),
    ) {
        let Some((grant, mut until_ns)) = self.acquire(leases, key, tell).await else { return };
        let ticket = grant.ticket();
        let event = |what| HistoryEvent {
            who: self.who.clone(),
            key: key.to_string(),
            token: grant.token.0,
            what,
        };
        let Ok(Some(described)) = leases.peek(key).await else { return };
        // What it has read is its own only as long as it holds the key.
        let found = number(described.state.as_ref());
        if described.token == grant.token && now_ns() < until_ns {
            let state = LeaseState::Json((found + 1).into());
            if let Ok(met) = leases.set_state(&ticket, Some(&state)).await
                && met.answer == Fenced::Done(())
            {
                tell(event(What::Counted { found }));
            }
        }
        let sent_ns = now_ns();
        if let Ok(met) = leases.renew(&ticket, None).await
            && let Fenced::Done(_) = met.answer
        {
            until_ns = sent_ns + self.ttl.as_nanos() as u64;
            tell(event(What::Renewed { until_ns }));
        }
        if lets_go && now_ns() < until_ns {
            tell(event(What::Releasing { at_ns: now_ns() }));
            let _ = leases.release(&ticket).await;
        }
    }

    /// Tries until it is granted, for longer than any other lease can last.
    async fn acquire(
        &self,
        leases: &dyn LeasesStore,
        key: &LeaseKey,
        tell: &mut (dyn FnMut(HistoryEvent) + Send),
    ) -> Option<(Grant, u64)> {
        let wish = AcquireRequest {
            key: key.clone(),
            owner: name(&self.who),
            ttl_ms: self.ttl.as_millis() as u64,
            request: None,
        };
        for _ in 0..1_000 {
            let sent_ns = now_ns();
            if let Ok(met) = leases.acquire(&wish).await
                && let Acquired::Granted(grant) = met.answer
            {
                let (got_ns, until_ns) = (now_ns(), sent_ns + self.ttl.as_nanos() as u64);
                let what = What::Granted { sent_ns, got_ns, until_ns };
                let token = grant.token.0;
                tell(HistoryEvent { who: self.who.clone(), key: key.to_string(), token, what });
                return Some((grant, until_ns));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        None
    }
}
