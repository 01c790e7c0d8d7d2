//! The operations of `leases`, the same on every store.

use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{Either, select};

use crate::error::{Error, Result};
use crate::leases::hold::{Hold, HoldAttempt, HoldOptions};
use crate::leases::rules::StagedState;
use crate::leases::wait_queue::{RetryPauses, WaitQueues};
use crate::leases::{
    AcquireRequest, Acquired, Decision, DecisionInfo, Fenced, Grant, LeaseInfo, LeaseKey,
    LeaseState, LeaseTicket, LeasesStore, Namespace, PAGE_MAX, TTL_MS_MAX, TTL_MS_MIN, WithCleared,
};
use crate::name::{Name, SystemId};
use crate::owner::trust::Sent;
use crate::reconcile::Reconcile;
use crate::store_caller::StoreCaller;
use crate::sweep::Sweep;
use crate::system::{Explanation, Restored, System, SystemParts};

/// What a system of leases needs.
pub type LeasesParts = SystemParts<dyn LeasesStore>;

/// A system of leases and decisions.
pub struct Leases {
    pub(super) parts: LeasesParts,
    pub(super) calls: StoreCaller,
    decision_ttl: Duration,
    lines: WaitQueues,
}

impl Leases {
    /// `decision_ttl` is how long a decision is kept unless the request says otherwise.
    pub fn new(parts: LeasesParts, decision_ttl: Duration) -> Self {
        let calls = parts.calls();
        Leases { parts, calls, decision_ttl, lines: WaitQueues::default() }
    }

    /// How long a lease lasts unless the request says otherwise.
    pub fn ttl(&self) -> Duration {
        self.parts.ttl
    }

    /// How long a decision is kept unless the request says otherwise.
    pub fn decision_ttl(&self) -> Duration {
        self.decision_ttl
    }

    /// Acquires a lease. While another holder has it, waits in a queue for up to `wait`.
    pub async fn acquire(&self, acquire: &AcquireRequest, wait: Duration) -> Result<Acquired> {
        self.acquire_unless(acquire, wait, pending()).await
    }

    /// Like [`acquire`](Self::acquire) for a caller that may stop waiting. `given_up` is polled
    /// between two store calls and never during one, so that a granted lease is always returned.
    pub async fn acquire_unless(
        &self,
        acquire: &AcquireRequest,
        wait: Duration,
        given_up: impl Future<Output = ()>,
    ) -> Result<Acquired> {
        Ok(self.acquire_timed(acquire, wait, pin!(given_up)).await?.0)
    }

    /// Also returns when the deciding request was sent.
    pub(super) async fn acquire_timed(
        &self,
        acquire: &AcquireRequest,
        wait: Duration,
        mut given_up: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(Acquired, Sent)> {
        check_ttl(acquire.ttl_ms)?;
        let clock = &*self.parts.clock;
        let until = clock.mono() + wait;
        let first = self.attempt(acquire).await?;
        if matches!(first.0, Acquired::Granted(_)) || wait.is_zero() {
            return Ok(first);
        }
        let turn = pin!(self.lines.stand(clock, &acquire.key, wait));
        let Either::Left((Some(_turn), _)) = select(turn, given_up.as_mut()).await else {
            return Ok(first);
        };
        let mut pauses = RetryPauses::new();
        loop {
            let waiter = self.parts.entries.waiter(&acquire.key);
            let mut heard = waiter.map(|waiter| Box::pin(waiter.notified_owned()));
            // Waiting starts before the store is asked, so that a notification in between is not
            // missed.
            if let Some(heard) = &mut heard {
                heard.as_mut().enable();
            }
            let answer = self.attempt(acquire).await?;
            let left = until.saturating_sub(clock.mono());
            let over_in = match &answer.0 {
                Acquired::Held(grant) if !left.is_zero() => grant.left(),
                Acquired::Granted(_) | Acquired::Held(_) => return Ok(answer),
            };
            let pause = clock.sleep(pauses.next(clock, over_in, left));
            let pause = async {
                match heard {
                    Some(heard) => drop(select(heard, pin!(pause)).await),
                    None => pause.await,
                }
            };
            if let Either::Right(_) = select(pin!(pause), given_up.as_mut()).await {
                return Ok(answer);
            }
        }
    }

    async fn attempt(&self, acquire: &AcquireRequest) -> Result<(Acquired, Sent)> {
        let sent = Sent::now(&*self.parts.clock);
        Ok((self.met("acquire", self.parts.entries.acquire(acquire)).await?, sent))
    }

    /// Acquires a lease and returns a handle that renews it in the background and reports when it
    /// was lost.
    pub async fn hold(
        self: &Arc<Self>,
        acquire: &AcquireRequest,
        wait: Duration,
        options: HoldOptions,
    ) -> Result<HoldAttempt> {
        options.check(acquire)?;
        match self.acquire_timed(acquire, wait, pin!(pending())).await? {
            (Acquired::Granted(grant), sent) => Ok(HoldAttempt::Hold(Hold::new(
                self.clone(),
                acquire.key.clone(),
                grant,
                sent,
                options,
            ))),
            (Acquired::Held(grant), _) => Ok(HoldAttempt::Held(grant)),
        }
    }

    /// Sets the deadline to one TTL from now.
    pub async fn renew(
        &self,
        ticket: &LeaseTicket,
        ttl: Option<Duration>,
    ) -> Result<Fenced<Grant>> {
        let ttl_ms = ttl.map(|ttl| ttl.as_millis() as u64);
        ttl_ms.map(check_ttl).transpose()?;
        self.fenced("renew", self.parts.entries.renew(ticket, ttl_ms)).await
    }

    /// Ends the lease; the key keeps its token.
    pub async fn release(&self, ticket: &LeaseTicket) -> Result<Fenced<()>> {
        self.fenced("release", self.parts.entries.release(ticket)).await
    }

    /// State of one key; clears an expired lease. `None`: the key was never leased.
    pub async fn describe(&self, key: &LeaseKey) -> Result<Option<LeaseInfo>> {
        self.met("describe", self.parts.entries.describe(key)).await
    }

    /// Keys of a namespace after `after`, ordered by name. Clears nothing.
    pub async fn list(
        &self,
        namespace: &Namespace,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<LeaseInfo>> {
        let limit = limit.min(PAGE_MAX);
        self.calls.call("list", self.parts.entries.list(namespace, after, limit)).await
    }

    /// Namespaces after `after`, ordered by name.
    pub async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Vec<Namespace>> {
        let limit = limit.min(PAGE_MAX);
        self.calls.call("namespaces", self.parts.entries.namespaces(after, limit)).await
    }

    /// Sets or removes the state of a key on behalf of its holder.
    pub async fn set_state(
        &self,
        ticket: &LeaseTicket,
        state: Option<&LeaseState>,
    ) -> Result<Fenced<()>> {
        state.map(LeaseState::check).transpose()?;
        self.fenced("state", self.parts.entries.set_state(ticket, state)).await
    }

    /// Stages a state for a transaction, or removes the staged state, on behalf of the key's
    /// holder.
    pub async fn stage(
        &self,
        ticket: &LeaseTicket,
        staged: Option<&StagedState>,
    ) -> Result<Fenced<()>> {
        staged.map(|staged| staged.state.check()).transpose()?;
        self.fenced("stage", self.parts.entries.stage(ticket, staged)).await
    }

    /// Decides a transaction, or returns the decision that was made before.
    pub async fn decide(
        &self,
        txn: &Name,
        decision: Decision,
        ttl: Option<Duration>,
    ) -> Result<DecisionInfo> {
        let ttl_ms = ttl.unwrap_or(self.decision_ttl).as_millis() as u64;
        check_ttl(ttl_ms)?;
        self.met("decide", self.parts.entries.decide(txn, decision, ttl_ms)).await
    }

    /// The decision on a transaction, if there is one.
    pub async fn decision(&self, txn: &Name) -> Result<Option<DecisionInfo>> {
        self.met("decision", self.parts.entries.decision(txn)).await
    }

    /// Calls the store and reports what it cleared to the observer.
    async fn met<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<WithCleared<T>>>,
    ) -> Result<T> {
        let met = self.calls.call(what, call).await?;
        for expiry in &met.cleared {
            let late_ms = expiry.at_ms.saturating_sub(expiry.deadline_ms);
            self.parts.observer.cleared(&self.parts.id, expiry.subject.reason(), late_ms);
        }
        Ok(met.answer)
    }

    /// The same for operations that present a token: reports callers that no longer hold the lease.
    async fn fenced<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<WithCleared<Fenced<T>>>>,
    ) -> Result<Fenced<T>> {
        let answer = self.met(what, call).await?;
        if let Fenced::Lost(_) = &answer {
            self.parts.observer.zombie_rejected(&self.parts.id);
        }
        Ok(answer)
    }
}

fn check_ttl(ttl_ms: u64) -> Result<()> {
    if (TTL_MS_MIN..=TTL_MS_MAX).contains(&ttl_ms) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "a TTL is between {TTL_MS_MIN} ms and {TTL_MS_MAX} ms (30 days); this one is {ttl_ms} ms"
    )))
}

impl Grant {
    /// Time left until the deadline, by the store's clock when it answered.
    pub fn left(&self) -> Duration {
        Duration::from_millis(self.deadline_ms.saturating_sub(self.now_ms))
    }

    /// The proof with which operations act on this lease.
    pub fn ticket(&self) -> LeaseTicket {
        let key = LeaseKey { namespace: self.namespace.clone(), key: self.key.clone() };
        LeaseTicket { key, token: self.token }
    }
}

#[async_trait]
impl System for Leases {
    fn id(&self) -> &SystemId {
        &self.parts.id
    }

    fn sweep(&self) -> Arc<dyn Sweep> {
        self.parts.entries.clone()
    }

    async fn explain(&self, key: &str) -> Result<Explanation> {
        self.explain_key(key).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.calls.call("restore", self.parts.entries.restore(seq)).await
    }

    fn index(&self) -> Option<Arc<dyn Reconcile>> {
        self.parts.index.clone()
    }
}
