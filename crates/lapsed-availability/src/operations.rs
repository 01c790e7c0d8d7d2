//! The operations of `availability`, the same on every pair of stores: what is written.
//!
//! The truth commits first. Then the mirror is told, as well as can be: what it was not told is
//! remembered here and told later, and what a dead process remembered is found by reconciling.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;

use crate::beacon::LastCount;
use crate::breaker::{Breaker, BreakerPolicy, BreakerState};
use crate::counters::Counters;
use crate::fallback::Beats;
use crate::rules::{AvailabilitySettings, SettingsPatch};
use crate::services::Services;
use crate::sweep::Survey;
use crate::{
    Mirror, MirrorUpdate, ProviderChange, ProviderProfile, ProviderState, SessionChange,
    SessionOutcome, Truth, WorkSession,
};
use lapsed_core::activity::Activity;
use lapsed_core::clock::{Clock, within};
use lapsed_core::error::{Error, Result};
use lapsed_core::name::{Name, SystemId};
use lapsed_core::receipt::Observer;
use lapsed_core::reconcile::Reconcile;
use lapsed_core::store::Store;
use lapsed_core::sweep::brake::{Brake, BrakeSetting};
use lapsed_core::sweep::{BatchId, Sweep};
use lapsed_core::system::store_caller::StoreCaller;
use lapsed_core::system::{Explanation, Restored, System};

/// How long the settings are believed, unless somebody says that they have changed.
const SETTINGS_FOR: Duration = Duration::from_secs(60);

/// How long they are believed once more when the truth does not say.
const SETTINGS_AGAIN: Duration = Duration::from_secs(5);

/// What `availability` is made of.
pub struct AvailabilityParts {
    /// Which system this is.
    pub id: SystemId,
    /// Where every fact is.
    pub truth: Arc<dyn Truth>,
    /// Where they are asked for.
    pub mirror: Arc<dyn Mirror>,
    /// Whether the silent are spared.
    pub brake: Arc<Brake>,
    pub clock: Arc<dyn Clock>,
    /// Notes who uses it.
    pub activity: Arc<Activity>,
    pub witness: Arc<dyn Observer>,
    /// How long one call of the truth may take, and one of the mirror that nobody waits for.
    pub timeout: Duration,
    /// How long one call of the mirror may take while somebody waits.
    pub mirror_timeout: Duration,
    /// When the mirror is not asked.
    pub breaker: BreakerPolicy,
    /// How long a snapshot of the beacon lasts.
    pub snapshot_ttl: Duration,
}

/// One system of providers.
pub struct Availability {
    pub(super) parts: AvailabilityParts,
    pub(super) calls: StoreCaller,
    pub(super) me: Weak<Availability>,
    pub(super) breaker: Breaker,
    settings: Mutex<CachedSettings>,
    /// Those of whom the mirror was not told.
    behind: Mutex<BTreeSet<Name>>,
    pub(super) survey: Mutex<Survey>,
    pub(super) beats: Beats,
    pub(super) last_count: LastCount,
    pub(super) counters: Counters,
    pub(super) unseeded: tokio::sync::Notify,
    services: Arc<Services>,
    /// The batches that belong to no pass.
    batches: (Arc<str>, AtomicU64),
    /// What the truth's clock said, and when that was known here.
    pub(super) truth_time: Mutex<Option<(u64, Duration)>>,
}

/// What is known of the settings.
#[derive(Default)]
struct CachedSettings {
    settings: Option<AvailabilitySettings>,
    /// Until when they are believed, on the monotonic clock.
    until: Duration,
    /// How often somebody said that they have changed: what was read before that is not believed.
    changes: u64,
}

/// An answer, and where it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    pub answer: T,
    /// Where it is from.
    pub source: Source,
}

/// Where an answer is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    Mirror,
    /// The truth, because the mirror did not answer, or was not asked.
    Truth,
    /// What the truth said a moment ago.
    Cache,
}

impl Source {
    /// Every one there is.
    pub const ALL: &[Source] = &[Source::Mirror, Source::Truth, Source::Cache];

    /// The word used in metrics and headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Mirror => "mirror",
            Source::Truth => "truth",
            Source::Cache => "cache",
        }
    }
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written<T> {
    /// The answer: true, and durable.
    pub answer: T,
    /// Whether the mirror was told. Otherwise it is told later.
    pub mirrored: bool,
}

impl Availability {
    /// Ready to use; [`seed`](Self::seed) it before it is asked, or it asks the truth.
    pub fn new(parts: AvailabilityParts) -> Arc<Self> {
        let calls = StoreCaller {
            id: parts.id.clone(),
            clock: parts.clock.clone(),
            activity: parts.activity.clone(),
            observer: parts.witness.clone(),
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

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether the mirror is asked.
    pub fn breaker(&self) -> BreakerState {
        self.breaker.state(self.parts.clock.mono())
    }

    /// What the engine needs of a store, from both.
    pub fn services(&self) -> Arc<dyn Store> {
        self.services.clone()
    }

    /// A batch of this process that belongs to no pass.
    pub(super) fn next_batch(&self) -> BatchId {
        let (sweeper, last) = &self.batches;
        BatchId { sweeper: sweeper.clone(), number: last.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    pub(super) fn store(&self) -> &dyn Store {
        &*self.services
    }

    /// What the operator says of the brake, asked of the truth.
    pub(super) async fn brake_setting_now(&self) -> Result<BrakeSetting> {
        self.services.heard();
        self.calls.quiet("brake", self.services.brake_setting(&self.parts.id)).await
    }

    /// Makes a provider, or changes its name.
    pub async fn put_provider(&self, profile: &ProviderProfile) -> Result<Written<ProviderChange>> {
        let work = self.parts.truth.put_provider(profile);
        let change = self.change(&profile.id, "put", async { Ok(Some(work.await?)) });
        Ok(change.await?.expect("a provider that was made is there"))
    }

    /// Sets a provider online: it is a beat, and the beginning of a new epoch.
    pub async fn set_online(&self, id: &Name) -> Result<Option<Written<ProviderChange>>> {
        self.change(id, "online", self.parts.truth.set_online(id, true)).await
    }

    /// Sets a provider offline.
    pub async fn set_offline(&self, id: &Name) -> Result<Option<Written<ProviderChange>>> {
        self.change(id, "offline", self.parts.truth.set_online(id, false)).await
    }

    /// Lets a provider work.
    pub async fn activate(&self, id: &Name) -> Result<Option<Written<ProviderChange>>> {
        self.change(id, "activate", self.parts.truth.set_active(id, true)).await
    }

    /// Lets it work no longer, and revokes its logins.
    pub async fn deactivate(&self, id: &Name) -> Result<Option<Written<ProviderChange>>> {
        self.change(id, "deactivate", self.parts.truth.set_active(id, false)).await
    }

    /// Accepts, ends, reroutes, ... a session.
    pub async fn change_session(&self, change: &SessionChange) -> Result<Written<SessionOutcome>> {
        let settings = self.settings().await?;
        let at_ms = self.mirror_time().await;
        let max = settings.max_customers_per_mitra;
        let work = self.parts.truth.change_session(change, max);
        let answer = match self.calls.call("session", work).await {
            Ok(answer) => answer,
            Err(error) => {
                // It may have been carried out: whoever was to have it is told later. Whoever has one fewer
                // by it looks fuller than it is until mirror and truth are compared.
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

    /// Tells the mirror anew of providers that changed behind our back.
    pub async fn refresh(&self, ids: &[Name]) -> Result<bool> {
        let at_ms = self.mirror_time().await;
        let ids: Vec<(Name, u64)> = ids.iter().map(|id| (id.clone(), 0)).collect();
        let states = self.calls.quiet("refresh", self.parts.truth.refresh(&ids)).await?;
        Ok(self.tell(states, at_ms).await)
    }

    /// The settings, a minute old at the most; in the absence of the truth, as they were last known.
    pub async fn settings(&self) -> Result<AvailabilitySettings> {
        let now = self.parts.clock.mono();
        let (known, until) = {
            let known = self.lock_settings();
            (known.settings, known.until)
        };
        match known.filter(|_| now < until) {
            Some(settings) => Ok(settings),
            None => match (self.settings_now().await, known) {
                (Err(Error::Unavailable { .. } | Error::Throttled { .. }), Some(settings)) => {
                    // Nobody else waits for a truth that is away, for a while.
                    self.lock_settings().until = self.parts.clock.mono() + SETTINGS_AGAIN;
                    Ok(settings)
                }
                (answer, _) => answer,
            },
        }
    }

    /// The settings as they were last read.
    pub fn settings_known(&self) -> Option<AvailabilitySettings> {
        self.lock_settings().settings
    }

    /// The settings as they are. Those that make no sense are not followed: the last ones that did are.
    pub async fn settings_now(&self) -> Result<AvailabilitySettings> {
        let (asked, changes) = (self.parts.clock.mono(), self.lock_settings().changes);
        let read = self.calls.quiet("settings", self.parts.truth.settings()).await;
        let checked = match read {
            Ok(read) => read.check().map(|()| read),
            Err(error @ Error::Corrupt { .. }) => Err(error),
            Err(error) => return Err(error),
        };
        let mut known = self.lock_settings();
        let settings = match checked {
            Ok(read) => read,
            Err(error) => {
                let settings = known.settings.unwrap_or_default();
                tracing::error!(system = %self.parts.id, %error,
                    "the configuration table cannot be followed; going on with the last settings that could, \
                     or with the defaults");
                settings
            }
        };
        known.settings = Some(settings);
        if known.changes == changes {
            known.until = asked + SETTINGS_FOR;
        }
        self.parts.brake.set_threshold(Duration::from_millis(settings.stale_ms()));
        Ok(settings)
    }

    /// Changes settings, and tells everybody.
    pub async fn set_settings(&self, patch: &SettingsPatch) -> Result<AvailabilitySettings> {
        let work = self.parts.truth.set_settings(patch);
        let settings = self.calls.call("settings", work).await?;
        self.settings_changed().await;
        for setting in patch.names() {
            let told = self.background("announce", self.parts.mirror.announce(setting)).await;
            if let Err(error) = told {
                tracing::warn!(system = %self.parts.id, %error, setting,
                    "the other daemons were not told of a setting; they read it within a minute");
            }
        }
        Ok(settings)
    }

    /// Somebody says that a setting has changed, or what the operator wants of the brake: it is read again when
    /// it is next needed, and the snapshot that was made by the old one is dropped.
    pub async fn settings_changed(&self) {
        self.services.heard();
        {
            // Kept for as long as the truth is away, and otherwise read again.
            let mut known = self.lock_settings();
            (known.until, known.changes) = (Duration::ZERO, known.changes + 1);
        }
        self.last_count.forget().await;
        let _ = self.background("drop_snapshot", self.parts.mirror.drop_snapshot()).await;
    }

    /// One change of one provider: truth first. Whoever is not told is remembered, also when the caller
    /// goes away in the middle.
    async fn change(
        &self,
        id: &Name,
        what: &str,
        work: impl Future<Output = Result<Option<ProviderChange>>>,
    ) -> Result<Option<Written<ProviderChange>>> {
        let at_ms = self.mirror_time().await;
        let mut debt = PendingMirrorUpdate { of: self, id: Some(id) };
        let answer = self.calls.call(what, work).await;
        // An error may have been carried out: the debt stays.
        let Some(changed) = answer? else {
            debt.id = None;
            return Ok(None);
        };
        let mirrored = self.tell(vec![changed.state.clone()], at_ms).await;
        debt.id = None;
        Ok(Some(Written { answer: changed, mirrored }))
    }

    /// The mirror's clock now, for dating beats by; `None`: it does not answer.
    pub(super) async fn mirror_time(&self) -> Option<u64> {
        self.gated("time", self.parts.mirror.now_ms()).await.ok()
    }

    /// Tells the mirror states that were read after `at_ms` of its clock. Whether it was told.
    pub(super) async fn tell(&self, states: Vec<ProviderState>, at_ms: Option<u64>) -> bool {
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
        // What somebody else owes is not paid by this: theirs may be newer.
        if !told {
            self.owe(&ids);
        }
        told
    }

    /// Remembers that the mirror has to be told of these.
    pub(super) fn owe(&self, ids: &[Name]) {
        self.lock_behind().extend(ids.iter().cloned());
    }

    /// Takes over what is owed.
    pub(super) fn take_behind(&self) -> Vec<Name> {
        std::mem::take(&mut *self.lock_behind()).into_iter().collect()
    }

    /// Of how many the mirror was not told.
    pub fn behind(&self) -> usize {
        self.lock_behind().len()
    }

    /// One call of the mirror that somebody waits for: short, and not at all while the breaker is open.
    pub(super) async fn gated<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if !self.breaker.lets_through(self.parts.clock.mono()) {
            return Err(Error::Unavailable {
                store: format!("the mirror of {}", self.parts.id),
                what: "it failed several times in a row and is left alone for a moment".to_owned(),
            });
        }
        self.timed(what, self.parts.mirror_timeout, call).await
    }

    /// One call of the mirror that nobody waits for.
    pub(super) async fn background<T>(
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
        let in_time = within(&*self.parts.clock, limit, call).await;
        let answer = in_time.unwrap_or_else(|| {
            let store = format!("the mirror of {}", self.parts.id);
            Err(Error::timed_out(&store, what, limit.as_millis()))
        });
        match &answer {
            Ok(_) | Err(Error::Invalid(_)) => self.breaker.succeeded(),
            Err(error) => {
                self.breaker.failed(self.parts.clock.mono());
                self.parts.witness.store_error(&self.parts.id, error);
            }
        }
        answer
    }

    fn lock_settings(&self) -> std::sync::MutexGuard<'_, CachedSettings> {
        self.settings.lock().expect(LOCK)
    }

    fn lock_behind(&self) -> std::sync::MutexGuard<'_, BTreeSet<Name>> {
        self.behind.lock().expect(LOCK)
    }
}

/// States, their beats dated by a reading of the mirror's clock from before they were read.
pub(super) fn dated(states: Vec<ProviderState>, at_ms: u64) -> Vec<MirrorUpdate> {
    let dated = |state: ProviderState| {
        let beat_ms = state.beat_age_ms.map(|age_ms| at_ms.saturating_sub(age_ms));
        MirrorUpdate { state, beat_ms }
    };
    states.into_iter().map(dated).collect()
}

/// That the mirror has to be told of a provider, whatever becomes of the caller.
struct PendingMirrorUpdate<'a> {
    of: &'a Availability,
    id: Option<&'a Name>,
}

impl Drop for PendingMirrorUpdate<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.of.owe(std::slice::from_ref(id));
        }
    }
}

pub(super) const LOCK: &str = "no holder of this lock panics";

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
