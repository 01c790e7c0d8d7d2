//! One opened system: the operations that routes and commands use on a system of any kind.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed::assembly::Assembly;
use lapsed_core::clock::{Clock, call_within};
use lapsed_core::leader::Campaign;
use lapsed_core::receipt::{Observer, Reason, Receipt, ReceiptQuery};
use lapsed_core::reconcile::ResumableReconcile;
use lapsed_core::request::{KeptRequest, RequestId};
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::{Brake, BrakeRecord, BrakeSetting, BrakeVerdict, HeldBy};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Census, PassMode, PassReport, Stopped, Sweep, Sweeper};
use lapsed_core::system::{Explanation, OwnerService, Restored, System};
use lapsed_core::upkeep::ActivitySigns;
use lapsed_core::{Error, Result, SystemId};

use super::journal::Journal;
use super::plan::{BuildContext, LiveHooks, SystemPlan};
use super::reconcile::{Reconciler, ReconcilerParts};
use super::shapes::{BrakeStatus, Lag, SystemStatus, named};
use crate::config::common::{AdoptStart, SystemSettings};
use crate::config::origin::Show;
use crate::config::units::show_span;
use crate::stores::OpenStore;

/// How many of the newest receipts the lag in the status is computed from.
const LAG_SAMPLES: usize = 1_000;

/// Verdicts of `explain` after which the next pass acts.
const PASS_DECIDES: [&str; 5] = ["overdue", "dead", "retired", "orphan", "spared"];

/// The longest reason of an override, in characters.
const REASON_MAX: usize = 300;

/// The most entries that a report of a pass may list.
pub const LIST_MAX: usize = 100_000;

/// What a system is built with: its stores, the clock and the journal of the process.
pub struct LiveContext<'a> {
    pub store: &'a OpenStore,
    /// The store of the mirror, which is derived from the main store; `None` if the system has no
    /// mirror in another store.
    pub mirror: Option<&'a OpenStore>,
    pub clock: Arc<dyn Clock>,
    pub journal: Arc<Journal>,
    pub process: &'a str,
    /// Whether passes are only run by command. Such passes do not wait until the system is idle.
    pub by_hand: bool,
}

pub struct LiveSystem {
    common: SystemSettings,
    system: Arc<dyn System>,
    operations: Arc<dyn Any + Send + Sync>,
    /// Its owners; `None` for a kind without owners.
    pub(crate) owners: Option<OwnerService>,
    sweep: Arc<dyn Sweep>,
    sweeper: Arc<Sweeper>,
    brake: Arc<Brake>,
    pub(super) store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    journal: Arc<Journal>,
    campaign: Mutex<Option<Campaign>>,
    reconciler: Option<Arc<Reconciler>>,
    resumable: Option<Arc<ResumableReconcile>>,
    signs: Mutex<Option<ActivitySigns>>,
    is_metered: bool,
    hooks: &'static dyn LiveHooks,
}

impl LiveSystem {
    /// Builds a system from its plan.
    pub fn build(plan: &dyn SystemPlan, context: LiveContext<'_>) -> Result<LiveSystem> {
        let common = plan.common().clone();
        let LiveContext { store: opened, mirror, clock, journal, process, by_hand } = context;
        let policy = Policy {
            idle_grace: common.policy.idle_grace.filter(|_| !by_hand),
            ..common.policy.clone()
        };
        let observer: Arc<dyn Observer> = journal.clone();
        let assembly = Assembly::new(policy, common.brake.clone(), common.threshold)
            .clock(clock.clone())
            .observer(observer.clone())
            .process(process.to_owned())
            .retention(common.retention);
        let context = BuildContext { store: opened, mirror, assembly: &assembly };
        let built = plan.build(context)?;
        let store = built.store.unwrap_or_else(|| opened.store());
        let sweep = built.system.sweep();
        let reconciler = built.system.index().map(|index| {
            Arc::new(Reconciler::new(
                ReconcilerParts::new(common.id.clone(), index, clock.clone())
                    .observer(observer.clone())
                    .timeout(common.policy.timeout)
                    .every(common.reconcile.every),
            ))
        });
        let resumable = match (common.reconcile.every, built.system.index(), store.upkeep()) {
            (Some(every), Some(index), Some(_)) => Some(Arc::new(ResumableReconcile {
                system: common.id.clone(),
                index,
                store: store.clone(),
                clock: clock.clone(),
                observer: observer.clone(),
                idle: assembly.idle_rule(&common.id, store.clone()),
                every,
                requests_per_hour: common.reconcile.requests_per_hour,
                timeout: common.policy.timeout,
            })),
            _ => None,
        };
        let signs = assembly.activity_signs(&common.id, store.clone());
        let (sweeper, campaign) = assembly.sweeper(sweep.clone(), store.clone());
        Ok(LiveSystem {
            common,
            owners: built.system.owner_service().cloned(),
            system: built.system,
            operations: built.operations,
            sweep,
            sweeper: Arc::new(sweeper),
            brake: assembly.brake,
            store,
            clock,
            journal,
            campaign: Mutex::new(campaign),
            reconciler,
            resumable,
            signs: Mutex::new(Some(signs)),
            is_metered: opened.object().is_some(),
            hooks: plan.hooks(),
        })
    }

    pub fn id(&self) -> &SystemId {
        &self.common.id
    }

    /// The name of the system's store in the configuration.
    pub fn store_name(&self) -> &str {
        &self.common.store
    }

    /// Whether every request to the system's store costs money.
    pub fn is_metered(&self) -> bool {
        self.is_metered
    }

    /// The operations that only this kind of system has; `None` if `T` is not their type.
    pub fn operations<T: 'static>(&self) -> Option<&T> {
        self.operations.downcast_ref()
    }

    /// The operations of the kind as a shared pointer; `None` if `T` is not their type.
    pub fn share_operations<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.operations.clone().downcast().ok()
    }

    /// How the system begins if it is adopted.
    pub(super) fn adopts(&self) -> AdoptStart {
        self.common.adopt
    }

    /// The name of the mirror's store in the configuration; `None` if the system has no mirror in
    /// another store.
    pub fn mirror_name(&self) -> Option<&str> {
        self.common.mirror.as_deref()
    }

    pub fn sweeper(&self) -> &Arc<Sweeper> {
        &self.sweeper
    }

    /// What makes the system's index agree with its truth; `Unsupported` for a system without an
    /// index.
    pub fn reconciler(&self) -> Result<&Arc<Reconciler>> {
        self.reconciler.as_ref().ok_or_else(|| Error::Unsupported {
            operation: "reconciling: it keeps no index besides its truth, so the two cannot drift \
                        apart and there is nothing to compare"
                .to_owned(),
            store: format!("{} on store `{}`", self.id(), self.common.store),
        })
    }

    /// The scheduled comparison of the index on a store whose requests are paid; `None` on others,
    /// where the [`reconciler`](Self::reconciler) has the schedule.
    pub fn resumable_reconcile(&self) -> Option<&Arc<ResumableReconcile>> {
        self.resumable.as_ref()
    }

    /// What tells other processes that the system is in use. Only the first caller gets it and must
    /// run it.
    pub fn take_activity_signs(&self) -> Option<ActivitySigns> {
        self.signs.lock().expect("no holder of this lock panics").take()
    }

    /// The candidacy for leadership in leader mode, `None` otherwise. Only the first caller gets it
    /// and must run it.
    pub fn take_campaign(&self) -> Option<Campaign> {
        self.campaign.lock().expect("no holder of this lock panics").take()
    }

    /// Counts owners, entries and suspects in the store.
    pub async fn census(&self) -> Result<Census> {
        self.call("census", self.sweep.census()).await
    }

    /// Takes the census, and measures how long the store took to answer.
    pub async fn timed_census(&self) -> (Result<Census>, Duration) {
        let asked = self.clock.mono();
        let census = self.census().await;
        (census, self.clock.mono().saturating_sub(asked))
    }

    /// What the brake would decide for `census`. Changes nothing.
    pub fn verdict(&self, census: &Census) -> BrakeVerdict {
        self.brake.preview(census)
    }

    /// The operator's setting of the brake, as it was last read from the store.
    pub fn brake_setting(&self) -> BrakeSetting {
        self.brake.setting()
    }

    /// The store's engine, incarnation and clock, read from the store.
    pub async fn store_info(&self) -> Result<StoreInfo> {
        self.call("info", self.store.info()).await
    }

    /// The complete status of the system. If the store does not answer, the status says so and
    /// lacks what only the store knows.
    pub async fn status(&self) -> SystemStatus {
        let SystemSettings { id, policy, threshold, store, .. } = &self.common;
        let mut status = SystemStatus {
            system: id.name.to_string(),
            kind: id.kind.to_string(),
            threshold_ms: threshold.as_millis() as u64,
            grace_ms: self.common.grace.map(|grace| grace.as_millis() as u64),
            idle_grace_ms: policy.idle_grace.map(|grace| grace.as_millis() as u64),
            every_ms: policy.every.as_millis() as u64,
            mode: policy.mode.show(),
            leads: self.sweeper.leads(),
            leader: None,
            store_name: store.clone(),
            store: None,
            census: None,
            jobs: None,
            availability: None,
            brake: None,
            last_pass: self.journal.last_pass(id),
            lag: None,
            error: None,
        };
        if let Err(error) = self.fill(&mut status).await {
            status.error = Some(error.to_string());
        }
        status
    }

    async fn fill(&self, status: &mut SystemStatus) -> Result<()> {
        self.hooks.fill_status(self, status).await;
        if status.leads.is_some() {
            let term = self.call("term", self.store.term(self.id())).await?;
            status.leader = term.map(|term| term.holder);
        }
        status.store = Some(self.store_info().await?);
        let census = self.census().await?;
        status.brake = Some(self.brake_status_for(&census).await?);
        status.census = Some(census);
        self.hooks.fill_counts(self, status).await?;
        let query = ReceiptQuery { limit: LAG_SAMPLES, ..ReceiptQuery::default() };
        let newest = self.receipts(query).await?;
        let dead = newest.iter().filter(|r| r.reason != Reason::OwnerRetired);
        status.lag = Lag::of(dead.map(|r| r.evidence.late_ms).collect());
        Ok(())
    }

    /// Runs one pass now. In leader mode outside the daemon, it first asks for the leader's term
    /// and resigns afterwards.
    pub async fn pass(&self, act: PassMode, list: usize, stop: &StopSignal) -> PassReport {
        if act == PassMode::Reclaim {
            self.hooks.before_pass(self).await;
            if let Err(error) = self.adopt_as_configured().await {
                tracing::warn!(system = %self.id(), %error, "`adopt = \"now\"` could not be recorded");
            }
        }
        let campaign = self.take_campaign();
        if let Some(campaign) = &campaign {
            campaign.renew().await;
        }
        let mut report = self.sweeper.pass(act, list.min(LIST_MAX), stop).await;
        if let Some(campaign) = &campaign {
            campaign.resign().await;
        }
        if report.detail.is_none() && report.stopped == Stopped::Done {
            (report.held_by, report.detail) = self.held().await.unzip();
        }
        report.detail = report.detail.map(|words| named(&words, self.id()));
        *self.campaign.lock().expect("no holder of this lock panics") = campaign;
        report
    }

    /// Why the brake holds, and its explanation: a pass that reclaimed nothing may have found
    /// suspects that the brake protects.
    async fn held(&self) -> Option<(HeldBy, String)> {
        let census = self.census().await.ok().filter(|census| census.population > 0)?;
        let verdict = self.verdict(&census);
        Some((verdict.held_by()?, self.brake.describe(&verdict, census.now_ms)))
    }

    /// Explains why the entry `key` would, or would not, be reclaimed now.
    pub async fn explain(&self, key: &str) -> Result<Explanation> {
        self.refresh_brake().await?;
        let mut explanation = self.system.explain(key).await?;
        if PASS_DECIDES.contains(&explanation.verdict.as_str()) {
            let every = show_span(self.common.policy.every);
            explanation.because.push(format!(
                "a daemon runs a pass every {every} (sweep.every); `lapsed sweep SYSTEM` runs one now"
            ));
        }
        for sentence in &mut explanation.because {
            *sentence = named(sentence, self.id());
        }
        Ok(explanation)
    }

    /// Puts back the entry that was reclaimed with receipt `seq`.
    pub async fn restore(&self, seq: u64) -> Result<Restored> {
        self.system.restore(seq).await
    }

    pub async fn receipts(&self, query: ReceiptQuery) -> Result<Vec<Receipt>> {
        self.call("receipts", self.store.receipts(self.id(), query)).await
    }

    pub async fn receipt(&self, seq: u64) -> Result<Option<Receipt>> {
        self.call("receipt", self.store.receipt(self.id(), seq)).await
    }

    /// What the store knows of a request with an idempotency key.
    pub async fn kept_request(&self, request: &RequestId) -> Result<KeptRequest> {
        self.call("kept_request", self.store.kept_request(self.id(), request)).await
    }

    /// Keeps the answer of a request that was carried out.
    pub async fn keep_answer(&self, request: &RequestId, answer: &str) -> Result<()> {
        self.call("keep_answer", self.store.keep_answer(self.id(), request, answer)).await
    }

    /// Forgets a request that has changed nothing.
    pub async fn forget_request(&self, request: &RequestId) -> Result<()> {
        self.call("forget_request", self.store.forget_request(self.id(), request)).await
    }

    /// The operator's setting of the brake, and what the brake does now.
    pub async fn brake_status(&self) -> Result<BrakeStatus> {
        let census = self.census().await?;
        self.brake_status_for(&census).await
    }

    async fn brake_status_for(&self, census: &Census) -> Result<BrakeStatus> {
        let record = self.refresh_brake().await?;
        let verdict = self.verdict(census);
        let words = self.brake.describe(&verdict, census.now_ms);
        let mut status = BrakeStatus::of(self.id(), &record, &verdict, words);
        if let Some(observation) = census.observation.as_ref().filter(|_| verdict.is_observing()) {
            status.words = format!("{}; {}", status.words, observation.describe());
        }
        Ok(status)
    }

    /// Stores the operator's setting of the brake. Returns the brake's status afterwards.
    pub async fn set_brake(&self, order: BrakeOrder) -> Result<BrakeStatus> {
        let setting = match order {
            BrakeOrder::Auto => BrakeSetting::Auto,
            BrakeOrder::Hold => BrakeSetting::Hold,
            BrakeOrder::Override { reason } => {
                self.refuse_override_while_observing().await?;
                BrakeSetting::Override { reason: checked(&reason)? }
            }
        };
        self.call("brake", self.store.set_brake(self.id(), setting.clone())).await?;
        let (word, reason) = (setting.as_str(), setting.reason());
        tracing::warn!(system = %self.id(), setting = word, reason, "brake set by the operator");
        self.brake_status().await
    }

    /// An override lets a mass death through, not a configuration that nobody has confirmed. It would wait
    /// until the adoption is confirmed, and then let everything through unasked.
    async fn refuse_override_while_observing(&self) -> Result<()> {
        if !self.census().await?.is_observing() {
            return Ok(());
        }
        let id = self.id();
        Err(Error::Invalid(format!(
            "{id} only observes, so that an override has no effect. Look at `lapsed sweep {id} --dry-run`, and if the \
             key names are right, confirm them with `lapsed adopt {id}`"
        )))
    }

    async fn refresh_brake(&self) -> Result<BrakeRecord> {
        let record = self.call("brake", self.store.brake(self.id())).await?;
        self.brake.set(record.clone());
        Ok(record)
    }

    /// Runs a store call with the policy's time limit, and reports a failure to the journal (trap
    /// X1).
    pub(super) async fn call<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = self.common.policy.timeout;
        let answer = call_within(&*self.clock, limit, &self.common.store, what, call).await;
        if let Err(error) = &answer {
            self.journal.store_error(self.id(), error);
        }
        answer
    }
}

/// An operator's order to the brake of a system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrakeOrder {
    Auto,
    Hold,
    /// Let one pass through, whatever the automatic brake says.
    Override {
        /// Why; kept in the audit log and shown in the status.
        reason: String,
    },
}

impl BrakeOrder {
    /// The name of the order in the audit log.
    pub fn what(&self) -> &'static str {
        match self {
            BrakeOrder::Auto => "brake auto",
            BrakeOrder::Hold => "brake hold",
            BrakeOrder::Override { .. } => "brake override",
        }
    }
}

/// The reason of an override, if it is one line of text.
fn checked(reason: &str) -> Result<String> {
    let reason = reason.trim();
    if reason.is_empty() {
        return Err(Error::Invalid("an override needs a reason".to_owned()));
    }
    if reason.chars().count() > REASON_MAX || reason.chars().any(char::is_control) {
        let what = format!(
            "the reason of an override must be one line of at most {REASON_MAX} characters"
        );
        return Err(Error::Invalid(what));
    }
    Ok(reason.to_owned())
}
