//! Who does what: holders, deciders and sweepers, each in a process that may be frozen or killed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::clock::Clock;
use lapsed_core::leases::conformance::history::{HistoryEvent, What};
use lapsed_core::leases::{
    AcquireRequest, Acquired, Decision, Fenced, Grant, LeaseKey, LeaseState, LeaseTicket,
    LeasesStore,
};
use lapsed_core::receipt::{Observer, Receipt};
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, PassReport, Sweep, Sweeper, SweeperParts};

use crate::executor::World;
use crate::leases::bug::LeaseBug;

/// The TTL of a lease.
pub const TTL: Duration = Duration::from_secs(8);

/// The log of all processes, kept outside of them.
#[derive(Default)]
pub struct LeaseLog {
    inner: Mutex<LeaseRunRecord>,
}

/// The contents of the log.
#[derive(Clone, Default)]
pub struct LeaseRunRecord {
    pub events: Vec<HistoryEvent>,
    /// Releases, by key and token: whether the store confirmed it.
    pub releases: BTreeMap<(String, u64), bool>,
    /// The answers about each transaction.
    pub decisions: BTreeMap<String, Vec<Decision>>,
    /// What sweepers reported as reclaimed: key and token.
    pub counted: Vec<(String, u64)>,
    /// How often each kind of thing happened.
    pub counts: BTreeMap<&'static str, u64>,
}

impl LeaseLog {
    pub fn lock(&self) -> MutexGuard<'_, LeaseRunRecord> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one event of this kind.
    pub fn count(&self, what: &'static str) {
        *self.lock().counts.entry(what).or_default() += 1;
    }
}

impl Observer for LeaseLog {
    fn reclaimed(&self, receipt: &Receipt) {
        self.lock().counted.push((receipt.key.to_string(), receipt.incarnation.0));
    }
}

/// One process: its own clients, caches and clocks.
#[derive(Clone)]
pub struct Actor {
    pub world: Arc<World>,
    /// The log that all processes share.
    pub log: Arc<LeaseLog>,
    pub who: String,
    pub clock: Arc<dyn Clock>,
    pub leases: Arc<dyn LeasesStore>,
    pub store: Arc<dyn Store>,
    /// The planted bug, if the run has one.
    pub bug: Option<LeaseBug>,
}

/// The keys that all holders compete for, in two namespaces.
pub fn keys() -> Vec<LeaseKey> {
    let key = |namespace, key| LeaseKey::new(namespace, key).expect("both are well-formed");
    let mut keys = vec![key("blue", "a/1"), key("blue", "b"), key("red", "a/1"), key("red", "c ü")];
    keys.extend(["0", "1", "2", "3", "4", "5"].map(|bare| key(BARE, bare)));
    keys
}

/// The namespace of the keys without a state, which are forgotten when nobody uses them.
pub const BARE: &str = "bare";

fn number(state: Option<&LeaseState>) -> u64 {
    match state {
        Some(LeaseState::Json(value)) => value.as_u64().unwrap_or(0),
        Some(LeaseState::Bytes(_)) | None => 0,
    }
}

impl Actor {
    fn now_ns(&self) -> u64 {
        self.world.now().as_nanos() as u64
    }

    async fn rest(&self, least_ms: u64, most_ms: u64) {
        let span = self.world.random.between(least_ms, most_ms);
        self.clock.sleep(Duration::from_millis(span)).await;
    }

    fn tell(&self, key: &LeaseKey, token: u64, what: What) {
        self.world.note(&self.who, format_args!("{key} by token {token}: {what:?}"));
        let event = HistoryEvent { who: self.who.clone(), key: key.to_string(), token, what };
        self.log.lock().events.push(event);
    }

    /// Until when a holder trusts a grant that it requested at `sent_ns`.
    fn until_ns(&self, sent_ns: u64) -> u64 {
        let times = if self.bug == Some(LeaseBug::HolderBelievesTwice) { 2 } else { 1 };
        sent_ns + times * TTL.as_nanos() as u64
    }

    /// Acquires leases, increments their counters, renews and releases them, for ever.
    pub async fn hold(self) {
        let keys = keys();
        loop {
            self.rest(100, 4_000).await;
            let Some(key) = self.world.random.pick(&keys) else { return };
            let before = match self.bug {
                Some(LeaseBug::StateReadBefore) => self.peek(key).await,
                _ => None,
            };
            if let Some((grant, until_ns)) = self.acquire(key).await {
                self.held(key, &grant, until_ns, before).await;
            }
        }
    }

    async fn acquire(&self, key: &LeaseKey) -> Option<(Grant, u64)> {
        let owner = Name::new(&self.who).ok()?;
        let ttl_ms = TTL.as_millis() as u64;
        let bug = AcquireRequest { key: key.clone(), owner, ttl_ms, request: None };
        let sent_ns = self.now_ns();
        let met = self.leases.acquire(&bug).await.ok()?;
        if !met.cleared.is_empty() {
            self.log.count("cleared on the way");
        }
        let Acquired::Granted(grant) = met.answer else { return None };
        let (got_ns, until_ns) = (self.now_ns(), self.until_ns(sent_ns));
        self.tell(key, grant.token.0, What::Granted { sent_ns, got_ns, until_ns });
        self.log.count("granted");
        Some((grant, until_ns))
    }

    async fn peek(&self, key: &LeaseKey) -> Option<u64> {
        let described = self.leases.peek(key).await.ok()??;
        Some(number(described.state.as_ref()))
    }

    async fn held(&self, key: &LeaseKey, grant: &Grant, mut until_ns: u64, before: Option<u64>) {
        let ticket = grant.ticket();
        if key.namespace.as_str() != BARE {
            self.count_up(key, &ticket, until_ns, before).await;
        }
        for _ in 0..self.world.random.between(0, 2) {
            self.rest(500, 5_000).await;
            let sent_ns = self.now_ns();
            match self.leases.renew(&ticket, None).await {
                Ok(met) if matches!(met.answer, Fenced::Done(_)) => {
                    until_ns = self.until_ns(sent_ns);
                    self.tell(key, ticket.token.0, What::Renewed { until_ns });
                }
                Ok(_) => return self.log.count("zombies told"),
                Err(_) => self.log.count("unanswered"),
            }
        }
        // Some holders never release: to the others they look dead.
        if self.now_ns() < until_ns && self.world.random.odds(0.6) {
            self.release(key, &ticket).await;
        }
    }

    /// Increments the counter in the state of the key.
    async fn count_up(
        &self,
        key: &LeaseKey,
        ticket: &LeaseTicket,
        until_ns: u64,
        before: Option<u64>,
    ) {
        let found = match before {
            Some(before) => Some(before),
            None => self.peek(key).await,
        };
        let Some(found) = found.filter(|_| self.now_ns() < until_ns) else { return };
        let state = LeaseState::Json((found + 1).into());
        if let Ok(met) = self.leases.set_state(ticket, Some(&state)).await
            && met.answer == Fenced::Done(())
        {
            self.tell(key, ticket.token.0, What::Counted { found });
            self.log.count("counted");
        }
    }

    async fn release(&self, key: &LeaseKey, ticket: &LeaseTicket) {
        let what = (key.to_string(), ticket.token.0);
        self.tell(key, ticket.token.0, What::Releasing { at_ns: self.now_ns() });
        // Until the answer arrives, the release may or may not have happened.
        self.log.lock().releases.insert(what.clone(), false);
        match self.leases.release(ticket).await {
            Ok(met) if met.answer == Fenced::Done(()) => {
                self.log.lock().releases.insert(what, true);
                self.log.count("released");
            }
            _ => self.log.count("unanswered"),
        }
    }

    /// Decides transactions that other processes decide as well.
    pub async fn decide(self) {
        loop {
            self.rest(500, 6_000).await;
            let txn = format!("t{}", self.world.random.between(0, 30));
            let decision =
                if self.world.random.odds(0.5) { Decision::Commit } else { Decision::Rollback };
            let Ok(name) = Name::new(&txn) else { return };
            if let Ok(met) = self.leases.decide(&name, decision, 24 * 3_600_000).await {
                let answer = met.answer.decision;
                self.log.lock().decisions.entry(txn).or_default().push(answer);
                self.log.count("decided");
            }
        }
    }

    /// A sweeper that does not wait for the system to be idle.
    pub fn sweeper(&self) -> Sweeper {
        let sweep: Arc<dyn Sweep> = self.leases.clone();
        let policy = Policy { batch: 3, timeout: Duration::from_secs(60), ..Policy::default() };
        Sweeper::new(
            SweeperParts::new(
                format!("{}-{:x}", self.who, self.clock.random()),
                sweep,
                self.store.clone(),
            )
            .policy(policy)
            .clock(self.clock.clone())
            .observer(self.log.clone()),
        )
    }

    pub async fn sweep(self) {
        let sweeper = self.sweeper();
        let (_stopper, stop) = StopSignal::channel();
        loop {
            self.rest(1_000, 15_000).await;
            self.pass(&sweeper, &stop).await;
        }
    }

    pub async fn pass(&self, sweeper: &Sweeper, stop: &StopSignal) -> PassReport {
        let forgotten = self.leases.keys_forgotten();
        let report = sweeper.pass(PassMode::Reclaim, 0, stop).await;
        self.log.count("passes");
        for _ in forgotten..self.leases.keys_forgotten() {
            self.log.count("forgotten");
        }
        for _ in 0..report.reclaimed {
            self.log.count("reclaimed");
        }
        report
    }
}
