//! The handle of a live owner: it sends heartbeats in the background and knows when the owner was
//! lost.
//!
//! The race that it closes: the store may declare this process dead while the process still
//! believes that it is alive. [`trust`](super::trust) explains why a handle never believes so for
//! longer than the store does.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::clock::{Clock, call_within, jittered, within};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::trust::{Sent, TrustedDeadline, wait_trusting};
use crate::owner::{Claim, Incarnation, Lost, OwnerInfo, OwnerStore, ReleasedHoldings};

/// Options for the heartbeats of an owner.
#[derive(Clone)]
pub struct OwnerOptions {
    /// How long one heartbeat lasts.
    pub ttl: Duration,
    /// Heartbeat interval, below the TTL; `None`: a third of the TTL.
    pub every: Option<Duration>,
    /// Largest random change of each interval, as a share of it.
    pub jitter: f64,
    /// Time limit of one heartbeat call.
    pub timeout: Duration,
    /// How long [`Owner::retire`] may take in all.
    pub retire_timeout: Duration,
}

impl Default for OwnerOptions {
    fn default() -> Self {
        let ttl = Duration::from_secs(90);
        OwnerOptions {
            ttl,
            every: None,
            jitter: 0.1,
            timeout: Duration::from_secs(5),
            retire_timeout: Duration::from_secs(30),
        }
    }
}

impl OwnerOptions {
    /// The default options with this TTL.
    pub fn with_ttl(ttl: Duration) -> Self {
        OwnerOptions { ttl, ..Self::default() }
    }

    fn checked_every(&self) -> Result<Duration> {
        let every = self.every.unwrap_or(self.ttl / 3);
        if self.ttl < Duration::from_millis(3) || every.is_zero() {
            return Err(Error::Invalid("a TTL must be at least 3 ms, an interval above 0".into()));
        }
        if every >= self.ttl {
            return Err(Error::Invalid(format!(
                "the heartbeat interval ({every:?}) must be below the TTL ({:?}); a third of it is usual",
                self.ttl
            )));
        }
        Ok(every)
    }
}

/// A live owner. It ends when the handle is dropped or retired, or when the store declares it dead.
pub struct Owner {
    store: Arc<dyn OwnerStore>,
    clock: Arc<dyn Clock>,
    claim: Claim,
    incarnation: Incarnation,
    trust: watch::Receiver<TrustedDeadline>,
    lost: watch::Receiver<Option<Lost>>,
    beating: JoinHandle<()>,
    retire_timeout: Duration,
    release: Option<Release>,
}

/// Releases what one ended incarnation holds, with receipts.
pub(crate) type Release =
    Arc<dyn Fn(OwnerInfo) -> BoxFuture<'static, Result<ReleasedHoldings>> + Send + Sync>;

impl Owner {
    /// Starts a new incarnation and sends its heartbeats in the background, on the current tokio
    /// runtime.
    pub async fn start(
        store: Arc<dyn OwnerStore>,
        clock: Arc<dyn Clock>,
        name: &str,
        options: OwnerOptions,
    ) -> Result<Owner> {
        let every = options.checked_every()?;
        let name = Name::new(name)?;
        let sent = Sent::now(&*clock);
        let ttl_ms = options.ttl.as_millis() as u64;
        let started = store.start(&name, ttl_ms);
        let beat = call_within(&*clock, options.timeout, &"the store", "start", started).await?;
        let claim = Claim::exact(name, beat.incarnation);
        let (trust_tx, trust) = watch::channel(sent.trust(options.ttl));
        let (lost_tx, lost) = watch::channel(None);
        let (incarnation, retire_timeout) = (beat.incarnation, options.retire_timeout);
        let beater = HeartbeatTask {
            store: store.clone(),
            clock: clock.clone(),
            claim: claim.clone(),
            every,
            options,
            trust: trust_tx,
            lost: lost_tx,
        };
        let beating = tokio::spawn(beater.run());
        let release = None;
        Ok(Owner {
            store,
            clock,
            claim,
            incarnation,
            trust,
            lost,
            beating,
            retire_timeout,
            release,
        })
    }

    /// The same owner, which releases what it holds when it retires.
    pub(crate) fn releasing(mut self, release: Release) -> Owner {
        self.release = Some(release);
        self
    }

    /// Name that the owner was started with.
    pub fn name(&self) -> &Name {
        &self.claim.owner
    }

    /// Number of this incarnation. Pass it along as a fencing token with whatever this owner writes
    /// elsewhere.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The claim with which operations act as this owner.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// How much longer this process may believe that it holds its entries. Zero: it may not.
    pub fn trusted_for(&self) -> Duration {
        if self.lost.borrow().is_some() {
            return Duration::ZERO;
        }
        self.trust.borrow().left(&*self.clock)
    }

    /// Whether [`trusted_for`](Self::trusted_for) is above zero.
    pub fn is_live(&self) -> bool {
        !self.trusted_for().is_zero()
    }

    /// Resolves when this owner was lost: the store said so, or no heartbeat was answered for a
    /// whole TTL. `held` lists what the store says that the owner held; it is empty if the store
    /// did not answer.
    pub async fn lost(&self) -> Lost {
        self.watch().lost().await
    }

    /// Tells of the loss of this owner without keeping it alive.
    pub fn watch(&self) -> OwnerWatch {
        OwnerWatch { claim: self.claim.clone(), lost: self.lost.clone() }
    }

    /// Ends this incarnation and releases what it held, by the same guarded reclaim as that of a
    /// dead owner, with receipts. Takes at most [`OwnerOptions::retire_timeout`].
    ///
    /// After an error the incarnation may have ended: what it still holds is then released by the
    /// next pass. An owner that was started on a bare [`OwnerStore`], outside a system, only ends;
    /// the next pass releases what it held.
    pub async fn retire(self) -> Result<ReleasedHoldings> {
        self.beating.abort();
        let limit = self.retire_timeout;
        match within(&*self.clock, limit, self.end_and_release()).await {
            Some(done) => done,
            None => Err(Error::timed_out("the store", "retire", limit.as_millis())),
        }
    }

    async fn end_and_release(&self) -> Result<ReleasedHoldings> {
        let ended = self.store.end(&self.claim).await?;
        match &self.release {
            Some(release) => release(ended).await,
            None => Ok(ReleasedHoldings::none_of(ended.incarnation)),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

/// Learns of the loss of an owner that somebody else keeps alive.
#[derive(Clone)]
pub struct OwnerWatch {
    claim: Claim,
    lost: watch::Receiver<Option<Lost>>,
}

impl OwnerWatch {
    /// The claim of the owner.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Resolves when the owner was lost, or sends no more heartbeats because its handle was dropped
    /// or retired.
    pub async fn lost(&self) -> Lost {
        let mut lost = self.lost.clone();
        loop {
            if let Some(lost) = lost.borrow_and_update().clone() {
                return lost;
            }
            if lost.changed().await.is_err() {
                return unknown(&self.claim);
            }
        }
    }
}

fn unknown(claim: &Claim) -> Lost {
    Lost {
        owner: claim.owner.clone(),
        incarnation: claim.incarnation,
        ending: None,
        ended_ms: None,
        held: Vec::new(),
        held_total: 0,
    }
}

struct HeartbeatTask {
    store: Arc<dyn OwnerStore>,
    clock: Arc<dyn Clock>,
    claim: Claim,
    every: Duration,
    options: OwnerOptions,
    trust: watch::Sender<TrustedDeadline>,
    lost: watch::Sender<Option<Lost>>,
}

impl HeartbeatTask {
    async fn run(self) {
        let mut wait = jittered(&*self.clock, self.every, self.options.jitter);
        loop {
            if !wait_trusting(&*self.clock, &self.trust, wait, self.options.ttl).await {
                let lost = self.ask_what_was_lost().await;
                self.lost.send_replace(Some(lost));
                return;
            }
            match self.beat().await {
                Ok(()) => wait = jittered(&*self.clock, self.every, self.options.jitter),
                Err(Error::Lost(lost)) => {
                    self.lost.send_replace(Some(*lost));
                    return;
                }
                Err(error) => {
                    tracing::warn!(owner = %self.claim.owner, %error, "a heartbeat failed; it is repeated at the next interval");
                    wait = jittered(&*self.clock, self.every / 4, self.options.jitter);
                }
            }
        }
    }

    /// The trusted time is over, so this owner must not act any more. One last call asks the store
    /// what the owner held.
    async fn ask_what_was_lost(&self) -> Lost {
        let asked = self.store.beat(&self.claim);
        match within(&*self.clock, self.options.timeout, asked).await {
            Some(Err(Error::Lost(lost))) => *lost,
            _ => unknown(&self.claim),
        }
    }

    async fn beat(&self) -> Result<()> {
        let sent = Sent::now(&*self.clock);
        let left = self.trust.borrow().left(&*self.clock);
        let limit = self.options.timeout.min(left);
        let asked = self.store.beat(&self.claim);
        call_within(&*self.clock, limit, &"the store", "beat", asked).await?;
        self.trust.send_replace(sent.trust(self.options.ttl));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::clock::SystemClock;
    use crate::owner::Beat;

    /// A store that answers everything but the end of an owner.
    struct NeverEnds;

    #[async_trait]
    impl OwnerStore for NeverEnds {
        async fn start(&self, _owner: &Name, ttl_ms: u64) -> Result<Beat> {
            let incarnation = Incarnation(1);
            Ok(Beat { incarnation, deadline_ms: ttl_ms, now_ms: 0, ttl_ms, started: true })
        }
        async fn beat(&self, claim: &Claim) -> Result<Beat> {
            self.start(&claim.owner, 90_000).await
        }
        async fn end(&self, _claim: &Claim) -> Result<OwnerInfo> {
            std::future::pending().await
        }
        async fn owners(&self, _: Option<Incarnation>, _: usize) -> Result<Vec<OwnerInfo>> {
            Ok(Vec::new())
        }
        async fn owner(&self, _: &Claim) -> Result<Option<OwnerInfo>> {
            Ok(None)
        }
    }

    #[tokio::test]
    async fn retiring_on_a_silent_store_ends_within_its_time_limit() {
        let retire_timeout = Duration::from_millis(20);
        let options = OwnerOptions { retire_timeout, ..OwnerOptions::default() };
        let clock = SystemClock::shared();
        let owner = Owner::start(Arc::new(NeverEnds), clock, "i-1", options).await.unwrap();
        let retired = tokio::time::timeout(Duration::from_secs(10), owner.retire()).await;
        assert!(matches!(retired, Ok(Err(Error::Unavailable { .. }))));
    }
}
