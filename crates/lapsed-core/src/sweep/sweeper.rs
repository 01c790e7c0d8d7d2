//! The sweeper of one system: what it is made of, and what one of its passes leaves for the next.

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::clock::{Clock, SystemClock};
use crate::leader::Leadership;
use crate::receipt::{NoObserver, Observer, Retention};
use crate::setters;
use crate::stop::StopSignal;
use crate::store::Store;
use crate::store_caller::Activity;
use crate::sweep::brake::{Brake, BrakePolicy};
use crate::sweep::pass::Run;
use crate::sweep::policy::{BatchSize, Policy, SweepMode};
use crate::sweep::report::{PassReport, Stopped};
use crate::sweep::{BatchId, Cursor, Sweep};
use crate::upkeep::IdleRule;

/// Whether a pass changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PassMode {
    Reclaim,
    /// Reads the same pages and evaluates the same guard, but changes nothing.
    DryRun,
}

impl PassMode {
    /// Whether the pass may change the store. A store that does not know a mode changes nothing.
    pub fn reclaims(self) -> bool {
        matches!(self, PassMode::Reclaim)
    }
}

/// What a sweeper needs.
pub struct SweeperParts {
    /// Unique among all sweepers that run against the same store.
    name: String,
    pub(super) sweep: Arc<dyn Sweep>,
    /// The store of terms and of the operator's settings.
    pub(super) store: Arc<dyn Store>,
    pub(super) policy: Policy,
    pub(super) brake: Arc<Brake>,
    pub(super) clock: Arc<dyn Clock>,
    /// Records when the system is used.
    pub(super) activity: Arc<Activity>,
    /// The candidate's view, in leader mode.
    leadership: Option<Leadership>,
    pub(super) observer: Arc<dyn Observer>,
    /// How long receipts are kept.
    pub(super) retention: Retention,
}

impl SweeperParts {
    /// A sweeper with the default policy. `name` must be unique among all sweepers that run
    /// against the same store.
    pub fn new(name: String, sweep: Arc<dyn Sweep>, store: Arc<dyn Store>) -> Self {
        SweeperParts {
            name,
            brake: Arc::new(Brake::new(BrakePolicy::default(), sweep.threshold())),
            sweep,
            store,
            policy: Policy::default(),
            clock: SystemClock::shared(),
            activity: Arc::default(),
            leadership: None,
            observer: Arc::new(NoObserver),
            retention: Retention::default(),
        }
    }

    setters! {
        /// How much a pass may do, and how often the schedule runs one.
        policy: Policy;
        /// The brake, to be shared with the operations of the same system.
        brake: Arc<Brake>;
        /// The clock of this process; by default the system's.
        clock: Arc<dyn Clock>;
        /// Counts the operations, to be shared with the operations of the same system.
        activity: Arc<Activity>;
        /// The candidate's view of its term; required in leader mode.
        leadership: Option<Leadership>;
        /// How long receipts are kept.
        retention: Retention;
    }

    /// Is shown what happens, for metrics and logs.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }
}

/// Runs the passes of one sweep, one at a time.
pub struct Sweeper {
    pub(super) parts: SweeperParts,
    pub(super) name: Arc<str>,
    progress: Mutex<Progress>,
}

/// State that one pass leaves for the next.
pub(super) struct Progress {
    pub cursor: Cursor,
    pub size: BatchSize,
    pub batches: u64,
    pub in_doubt: Vec<BatchId>,
}

impl Sweeper {
    pub fn new(parts: SweeperParts) -> Self {
        let progress = Progress {
            cursor: Cursor::default(),
            size: BatchSize::new(&parts.policy),
            batches: 0,
            in_doubt: Vec::new(),
        };
        let name = Arc::from(parts.name.as_str());
        parts.brake.set_interval(parts.policy.every);
        Sweeper { parts, name, progress: Mutex::new(progress) }
    }

    pub fn policy(&self) -> &Policy {
        &self.parts.policy
    }

    pub fn brake(&self) -> &Arc<Brake> {
        &self.parts.brake
    }

    pub fn sweep(&self) -> &Arc<dyn Sweep> {
        &self.parts.sweep
    }

    /// Whether this process is the leader; `None` if no leader is needed.
    pub fn leads(&self) -> Option<bool> {
        (self.parts.policy.mode == SweepMode::Leader).then(|| self.term().is_some())
    }

    /// Whether the answer to an earlier batch was lost, so that the next pass must settle it.
    pub fn is_in_doubt(&self) -> bool {
        self.progress.try_lock().is_ok_and(|progress| !progress.in_doubt.is_empty())
    }

    /// Runs one pass. A second caller waits for the first. The report names at most `list` entries.
    /// A dry run starts from the beginning and leaves no state.
    pub async fn pass(&self, act: PassMode, list: usize, stop: &StopSignal) -> PassReport {
        let mut progress = self.progress.lock().await;
        let mut run = Run::new(self, act, list, stop);
        let stopped = match run.go(&mut progress).await {
            Ok(stopped) => stopped,
            Err(error) => {
                run.fail(&error);
                Stopped::Error
            }
        };
        run.end_override().await;
        let mut report = run.report;
        report.stopped = stopped;
        report.took_ms = (self.parts.clock.mono() - run.began).as_millis() as u64;
        self.parts.observer.passed(&report);
        report
    }

    /// When the system counts as idle; `None` if passes do not wait for that.
    pub(super) fn idle_rule(&self) -> Option<IdleRule> {
        let SweeperParts { store, sweep, policy, clock, activity, .. } = &self.parts;
        Some(IdleRule {
            store: store.clone(),
            system: sweep.system().clone(),
            activity: activity.clone(),
            clock: clock.clone(),
            timeout: policy.timeout,
            grace: policy.idle_grace?,
        })
    }

    pub(super) fn term(&self) -> Option<u64> {
        self.parts.leadership.as_ref().and_then(Leadership::term)
    }
}
