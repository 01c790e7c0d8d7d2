//! Where the store and the model meet: every call is carried out, predicted and compared in one step.
//!
//! A write that the power failure or the disk error cut off may have happened or not; the store must
//! then be exactly one of the two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::inflight::{InflightStore, JobPlace as Seen};
use lapsed_core::owner::{Claim, Ending, Incarnation, OwnerStore};
use lapsed_core::{Error, Kind, Name, SystemId};
use lapsed_embedded::{Embedded, EmbeddedInflight, Options};

use crate::disk::{CHECKPOINT_BYTES, Disk, Keep, Lies, SyncFault};
use crate::jobs::bug::{JobBug, guard, rules, true_rules};
use crate::jobs::model::{JobModel, ModelPlace};
use crate::promise::{Broken, Checked, Promise, holds};
use crate::random::SimRandom;
use crate::trace::Trace;

/// The TTL of a beat, in milliseconds.
pub const TTL_MS: u64 = 10_000;

/// The wall clock time at which a run begins.
const START_MS: u64 = 1_700_000_000_000;

/// The store on its disk, and the model beside it.
pub struct JobSimSystem {
    /// The true time, which is also the store's clock.
    pub clock: ManualClock,
    /// The source of all randomness in the run.
    pub random: SimRandom,
    pub trace: Trace,
    pub model: JobModel,
    /// The disk under the store.
    pub disk: Disk,
    /// How often each kind of event happened.
    pub counts: BTreeMap<&'static str, u64>,
    pub(super) bug: Option<JobBug>,
    store: Option<(Embedded, Arc<EmbeddedInflight>)>,
    /// `TokensBeginAnew`: how much is subtracted from every token that the store gives.
    pub(super) shift: u64,
}

/// Runs a call to its end. The in-memory store never waits, so the future is ready at once.
pub(super) fn now<T>(call: impl Future<Output = T>) -> T {
    tokio::task::unconstrained(call).now_or_never().expect("the store in memory answers at once")
}

/// The one queue that all jobs are on.
pub fn queue() -> Name {
    Name::new("q").expect("it is a valid name")
}

impl JobSimSystem {
    pub fn new(seed: u64, bug: Option<JobBug>, printed: bool) -> Self {
        let mut sim = JobSimSystem {
            clock: ManualClock::at(START_MS),
            random: SimRandom::new(seed),
            trace: Trace::new(printed),
            model: JobModel::new(true_rules(bug), TTL_MS, START_MS),
            disk: Disk::new(match bug {
                Some(JobBug::AcknowledgedBeforeDurable) => Lies::Always,
                _ => Lies::Never,
            }),
            counts: BTreeMap::new(),
            bug,
            store: None,
            shift: 0,
        };
        sim.open().expect("an empty disk can be opened");
        sim
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    pub fn at_ms(&self) -> u64 {
        self.now_ms() - START_MS
    }

    /// Adds a line to the trace.
    pub fn note(&mut self, who: &str, what: std::fmt::Arguments<'_>) {
        let at_ms = self.at_ms();
        self.trace.note(at_ms, who, what);
    }

    pub fn pass(&self, span_ms: u64) {
        self.clock.advance(Duration::from_millis(span_ms));
    }

    pub(super) fn counted(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(super) fn jobs(&self) -> &Arc<EmbeddedInflight> {
        &self.store.as_ref().expect("the store is open").1
    }

    fn open(&mut self) -> Checked {
        let disk = self.disk.clone();
        let options = Options {
            clock: Arc::new(self.clock.clone()),
            guard: guard(self.bug),
            checkpoint_bytes: CHECKPOINT_BYTES,
            ..Options::default()
        };
        let id = SystemId::new(Kind::Inflight, "jobs").expect("it is a valid name");
        let opened =
            Embedded::with_backend(options, move |file| disk.handle(file)).and_then(|store| {
                let jobs = store.inflight(id, Duration::from_millis(TTL_MS), rules(self.bug))?;
                Ok((store, jobs))
            });
        let opened = opened.map_err(|error| {
            Broken::new(Promise::P4, format!("what is left cannot be opened: {error}"))
        });
        self.store = Some(opened?);
        self.model.back_ms = self.now_ms();
        Ok(())
    }

    /// Cuts the power, opens the store again and compares it.
    pub fn crash(&mut self, keep: Keep) -> Checked {
        self.note("chaos", format_args!("the power fails, and keeps {keep:?}"));
        self.counted("power failures");
        self.disk.cut_power(keep);
        self.reopen()?;
        self.know_ends();
        self.compare()
    }

    pub(super) fn reopen(&mut self) -> Checked {
        self.store = None;
        self.disk.take_fired();
        self.pass(5);
        self.open()?;
        if self.bug == Some(JobBug::TokensBeginAnew) {
            self.shift += self.model.token;
        }
        Ok(())
    }

    /// Reads from the store which uncertain ends survived: an end that was only in memory and never
    /// answered is undone.
    fn know_ends(&mut self) {
        for number in std::mem::take(&mut self.model.unsure) {
            let ended = self.ended(number);
            if let Some(incarnation) = self.model.incarnations.get_mut(&number) {
                incarnation.ended = ended;
            }
        }
    }

    fn ended(&self, number: u64) -> Option<Ending> {
        let incarnation = self.model.incarnations.get(&number)?;
        let claim = Claim::exact(incarnation.name.clone(), Incarnation(number));
        let info = now(self.jobs().owner(&claim)).ok().flatten()?;
        info.ended.map(|(ending, _)| ending)
    }

    /// A write failed because of the disk: the store must equal the model with it or without it.
    pub(super) fn doubt(&mut self, error: &Error, after: JobModel) -> Checked {
        holds(matches!(error, Error::Unavailable { .. }), Promise::P4, || format!("{error}"))?;
        let fired = self.disk.take_fired();
        holds(fired.is_some(), Promise::P4, || format!("nothing failed, and yet: {error}"))?;
        self.note("chaos", format_args!("a write was cut off: {fired:?}"));
        self.counted("writes cut off");
        let before = std::mem::replace(&mut self.model, after);
        let ended = |n: &&u64| self.model.has_ended(**n) && !before.has_ended(**n);
        let ends: Vec<u64> = self.model.incarnations.keys().filter(ended).copied().collect();
        let restarted = matches!(fired, Some(SyncFault::Power(_)));
        if restarted {
            self.reopen()?;
            self.know_ends();
        }
        if self.compare().is_ok() {
            return Ok(());
        }
        self.model = JobModel { back_ms: self.model.back_ms, ..before };
        for number in ends {
            // The store ends an incarnation in memory first; the disk follows with the next answer
            // about it.
            if let (Some(ending), Some(incarnation)) =
                (self.ended(number), self.model.incarnations.get_mut(&number))
            {
                incarnation.ended = Some(ending);
                self.model.unsure.insert(number);
            }
        }
        if restarted {
            self.know_ends();
        }
        self.compare()
    }
}

impl JobSimSystem {
    /// Compares every job and the counts of the store with the model.
    pub fn compare(&mut self) -> Checked {
        let (now_ms, mut told) = (self.now_ms(), Vec::new());
        for (id, job) in &self.model.jobs {
            let found = now(self.jobs().job(id));
            let found = found.map_err(|e| Broken::new(Promise::P4, e.to_string()))?;
            let seen = found.as_ref().map(|job| &job.place);
            let agrees = match (job.place, seen) {
                (ModelPlace::Completed | ModelPlace::Dropped, None) => true,
                (ModelPlace::Queued, Some(Seen::Queued)) => true,
                (ModelPlace::Dead(why), Some(Seen::Dead { why: seen, .. })) => why == *seen,
                (
                    ModelPlace::InFlight { incarnation, token },
                    Some(Seen::InFlight { incarnation: seen_incarnation, token: seen, .. }),
                ) => {
                    if token == 0 {
                        told.push((id.clone(), incarnation, seen.0.wrapping_sub(self.shift)));
                    }
                    let is_known = self.shift > 0 || token == 0 || token == seen.0;
                    incarnation == seen_incarnation.0 && is_known
                }
                _ => false,
            };
            holds(agrees, Promise::P4, || format!("{id} is {:?}, not {seen:?}", job.place))?;
            let (crashes, counted) =
                (self.model.crashes(job, now_ms), found.map(|job| job.crashes));
            holds(counted.is_none_or(|seen| seen == crashes), Promise::P3, || {
                format!("{id} has {crashes} crashes, not {counted:?}")
            })?;
        }
        self.compare_account()?;
        for (id, incarnation, token) in told {
            self.model.set(&id, ModelPlace::InFlight { incarnation, token });
            self.model.token = self.model.token.max(token);
        }
        Ok(())
    }

    fn compare_account(&self) -> Checked {
        let counts = now(self.jobs().counts());
        let counts = counts.map_err(|e| Broken::new(Promise::P4, e.to_string()))?;
        let expected = self.model.counts();
        holds(counts == expected, Promise::P8, || format!("{counts:?}, not {expected:?}"))?;
        holds(counts.balances(), Promise::P4, || format!("{counts:?} does not balance"))?;
        let queued = now(self.jobs().queues(None, 10)).unwrap_or_default();
        let queued: u64 = queued.iter().map(|(_, length)| length).sum();
        holds(queued == self.model.queue.len() as u64, Promise::P8, || {
            format!("{queued} on queues, not {}", self.model.queue.len())
        })
    }
}
