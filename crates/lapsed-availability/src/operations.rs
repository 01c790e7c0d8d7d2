//! The write operations of `availability`, the same for every pair of stores.
//!
//! The truth commits first, then the mirror is updated on a best-effort basis. An update that
//! failed is remembered here and repeated later; reconciling finds what a dead process had
//! remembered.

mod mirror_updates;
mod settings;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;

use self::mirror_updates::PendingMirrorUpdate;
pub(super) use self::mirror_updates::dated;
use self::settings::CachedSettings;

use crate::breaker::{Breaker, BreakerPolicy, BreakerState};
use crate::caches::{LastCount, Survey};
use crate::counters::{Counters, Source};
use crate::fallback::Beats;
use crate::rules::AvailabilitySettings;
use crate::services::Services;
use crate::{
    Mirror, ProviderChange, ProviderProfile, SNAPSHOT_MS, SessionChange, SessionOutcome, Truth,
    WorkSession,
};
use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::error::Result;
use lapsed_core::name::{Name, SystemId};
use lapsed_core::receipt::{NoObserver, Observer};
use lapsed_core::reconcile::Reconcile;
use lapsed_core::setters;
use lapsed_core::store::Store;
use lapsed_core::store_caller::Activity;
use lapsed_core::store_caller::StoreCaller;
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{BatchId, Sweep};
use lapsed_core::system::{Explanation, Restored, System};

/// How long the mirror may take while somebody waits, unless the configuration says otherwise.
pub const MIRROR_TIMEOUT: Duration = Duration::from_millis(250);

/// What an availability system needs.
pub struct AvailabilityParts {
    /// Kind and name of the system.
    pub(super) id: SystemId,
    /// The durable store of every fact.
    pub(super) truth: Arc<dyn Truth>,
    /// The fast store that reads are answered from.
    pub(super) mirror: Arc<dyn Mirror>,
    /// The brake, which decides whether silent providers are spared.
    pub(super) brake: Arc<Brake>,
    pub(super) clock: Arc<dyn Clock>,
    /// Records when the system is used.
    pub(super) activity: Arc<Activity>,
    pub(super) observer: Arc<dyn Observer>,
    /// How long one call of the truth may take, and one of the mirror that nobody waits for.
    pub(super) timeout: Duration,
    /// How long one call of the mirror may take while somebody waits.
    pub(super) mirror_timeout: Duration,
    /// When the mirror is not asked.
    pub(super) breaker: BreakerPolicy,
    /// How long a snapshot of the beacon lasts.
    pub(super) snapshot_ttl: Duration,
}

impl AvailabilityParts {
    /// Everything that availability must be given; the rest has the defaults of the configuration
    /// file.
    pub fn new(id: SystemId, truth: Arc<dyn Truth>, mirror: Arc<dyn Mirror>) -> Self {
        let silence = Duration::from_millis(AvailabilitySettings::default().stale_ms());
        AvailabilityParts {
            id,
            truth,
            mirror,
            brake: Arc::new(Brake::new(BrakePolicy::default(), silence)),
            clock: SystemClock::shared(),
            activity: Arc::default(),
            observer: Arc::new(NoObserver),
            timeout: Policy::default().timeout,
            mirror_timeout: MIRROR_TIMEOUT,
            breaker: BreakerPolicy::default(),
            snapshot_ttl: Duration::from_millis(SNAPSHOT_MS),
        }
    }

    setters! {
        /// The brake, to be shared with the sweeper of the same system.
        brake: Arc<Brake>;
        /// The clock of this process; by default the system's.
        clock: Arc<dyn Clock>;
        /// Counts the operations, to be shared with the sweeper of the same system.
        activity: Arc<Activity>;
        /// The most time that one call of the truth may take, and one of the mirror that nobody
        /// waits for.
        timeout: Duration;
        /// The most time that one call of the mirror may take while somebody waits.
        mirror_timeout: Duration;
        /// After how many failures the mirror is not asked any more, and for how long.
        breaker: BreakerPolicy;
        /// How long a snapshot of the beacon lasts.
        snapshot_ttl: Duration;
    }

    /// Is shown what happens, for metrics and logs.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }
}

/// One availability system: the operations on a truth and its mirror.
pub struct Availability {
    pub(super) parts: AvailabilityParts,
    pub(super) calls: StoreCaller,
    pub(super) me: Weak<Availability>,
    pub(super) breaker: Breaker,
    settings: Mutex<CachedSettings>,
    /// Providers whose last change was not yet written to the mirror.
    behind: Mutex<BTreeSet<Name>>,
    pub(super) survey: Mutex<Survey>,
    pub(super) beats: Beats,
    pub(super) last_count: LastCount,
    pub(super) counters: Counters,
    pub(super) unseeded: tokio::sync::Notify,
    services: Arc<Services>,
    /// Sweeper name and counter for batches that belong to no pass.
    batches: (Arc<str>, AtomicU64),
    /// A reading of the truth's clock, and when it was made on this process's monotonic clock.
    pub(super) truth_time: Mutex<Option<(u64, Duration)>>,
}

/// An answer, and which store it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    pub answer: T,
    /// The store that the answer came from.
    pub source: Source,
}

/// Result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written<T> {
    /// The answer of the truth. It is durable.
    pub answer: T,
    /// Whether the mirror was updated. If not, it will be later.
    pub mirrored: bool,
}

impl Availability {
    /// Creates the system. Until [`seed`](Self::seed) has run, reads go to the truth.
    pub fn new(parts: AvailabilityParts) -> Arc<Self> {
        let calls = StoreCaller {
            id: parts.id.clone(),
            clock: parts.clock.clone(),
            activity: parts.activity.clone(),
            observer: parts.observer.clone(),
            timeout: parts.timeout,
        };
        let services =
            Arc::new(Services::new(&*parts.truth, parts.mirror.clone(), parts.clock.clone()));
        let batches = (format!("beats-{:016x}", parts.clock.random()).into(), AtomicU64::new(0));
        Arc::new_cyclic(|me| Availability {
            breaker: Breaker::new(parts.breaker),
            parts,
            calls,
            me: me.clone(),
            settings: Mutex::default(),
            behind: Mutex::default(),
            survey: Mutex::default(),
            beats: Beats::default(),
            last_count: LastCount::default(),
            counters: Counters::default(),
            unseeded: tokio::sync::Notify::new(),
            services,
            batches,
            truth_time: Mutex::default(),
        })
    }

    /// Counters since the process started.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// State of the mirror's circuit breaker.
    pub fn breaker(&self) -> BreakerState {
        self.breaker.state(self.parts.clock.mono())
    }

    /// The engine's services, provided by both stores together.
    pub fn services(&self) -> Arc<dyn Store> {
        self.services.clone()
    }

    /// The id of a batch of this process that belongs to no pass.
    pub(super) fn next_batch(&self) -> BatchId {
        let (sweeper, last) = &self.batches;
        BatchId { sweeper: sweeper.clone(), number: last.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    pub(super) fn store(&self) -> &dyn Store {
        &*self.services
    }

    /// Makes the next pass read the brake's record from the truth, instead of what is cached.
    pub(super) fn forget_brake(&self) {
        self.services.heard();
    }

    /// Creates a provider or changes its name.
    pub async fn put_provider(&self, profile: &ProviderProfile) -> Result<Written<ProviderChange>> {
        let work = self.parts.truth.put_provider(profile);
        let change = self.change(&profile.id, "put", async { Ok(Some(work.await?)) });
        Ok(change.await?.expect("a provider that was made is there"))
    }

    /// Sets a provider online. This counts as a heartbeat and starts a new epoch.
    pub async fn set_online(&self, id: &Name) -> Result<Option<Written<ProviderChange>>> {
        self.change(id, "online", self.parts.truth.set_online(id, true)).await
    }

    /// Sets a provider offline.
    pub async fn set_offline(&self, id: &Name) -> Result<Option<Written<ProviderChange>>> {
        self.change(id, "offline", self.parts.truth.set_online(id, false)).await
    }

    /// Allows a provider to work.
    pub async fn activate(&self, id: &Name) -> Result<Option<Written<ProviderChange>>> {
        self.change(id, "activate", self.parts.truth.set_active(id, true)).await
    }

    /// Forbids a provider to work, and revokes its logins.
    pub async fn deactivate(&self, id: &Name) -> Result<Option<Written<ProviderChange>>> {
        self.change(id, "deactivate", self.parts.truth.set_active(id, false)).await
    }

    /// Accepts, ends or reroutes a session, or changes its status.
    pub async fn change_session(&self, change: &SessionChange) -> Result<Written<SessionOutcome>> {
        let settings = self.settings().await?;
        let at_ms = self.mirror_time().await;
        let max = settings.max_customers_per_mitra;
        let work = self.parts.truth.change_session(change, max);
        let answer = match self.calls.call("session", work).await {
            Ok(answer) => answer,
            Err(error) => {
                // The change may have been carried out, so the mirror is updated later for the
                // provider that should get the session. A provider that lost one looks fuller than
                // it is until the mirror is reconciled.
                self.owe(change.provider().map_or(&[], std::slice::from_ref));
                return Err(error);
            }
        };
        let mirrored = match &answer {
            SessionOutcome::Done { touched, .. } => self.tell(touched.clone(), at_ms).await,
            SessionOutcome::Refused(_) => true,
        };
        Ok(Written { answer, mirrored })
    }

    pub async fn session(&self, id: &Name) -> Result<Option<WorkSession>> {
        self.calls.call("session", self.parts.truth.session(id)).await
    }

    /// Updates the mirror for providers that another program changed in the truth.
    pub async fn refresh(&self, ids: &[Name]) -> Result<bool> {
        let at_ms = self.mirror_time().await;
        let ids: Vec<(Name, u64)> = ids.iter().map(|id| (id.clone(), 0)).collect();
        let states = self.calls.quiet("refresh", self.parts.truth.refresh(&ids)).await?;
        Ok(self.tell(states, at_ms).await)
    }

    /// Changes one provider, the truth first. If the mirror is not updated, also because the caller
    /// went away, the provider is remembered in `behind`.
    async fn change(
        &self,
        id: &Name,
        what: &str,
        work: impl Future<Output = Result<Option<ProviderChange>>>,
    ) -> Result<Option<Written<ProviderChange>>> {
        let at_ms = self.mirror_time().await;
        let mut debt = PendingMirrorUpdate { of: self, id: Some(id) };
        let answer = self.calls.call(what, work).await;
        // After an error the change may have been carried out, so the provider stays in `behind`.
        let Some(changed) = answer? else {
            debt.id = None;
            return Ok(None);
        };
        let mirrored = self.tell(vec![changed.state.clone()], at_ms).await;
        debt.id = None;
        Ok(Some(Written { answer: changed, mirrored }))
    }
}

#[async_trait]
impl System for Availability {
    fn id(&self) -> &SystemId {
        &self.parts.id
    }

    fn sweep(&self) -> Arc<dyn Sweep> {
        self.me.upgrade().expect("whoever asks holds it")
    }

    async fn explain(&self, key: &str) -> Result<Explanation> {
        self.explain_provider(&Name::new(key)?).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        let at_ms = self.mirror_time().await;
        let (restored, state) = self.calls.call("restore", self.parts.truth.restore(seq)).await?;
        self.tell(state.into_iter().collect(), at_ms).await;
        Ok(restored)
    }

    fn index(&self) -> Option<Arc<dyn Reconcile>> {
        Some(self.me.upgrade().expect("whoever asks holds it"))
    }
}
