//! Where the store and the model meet: every call is carried out, predicted and compared in one step.
//!
//! A write that the power failure or the disk error cut off may have happened or not; the store must
//! then be exactly one of the two.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::owner::{Claim, Ending, Incarnation, OwnerStore};
use lapsed_core::sessions::SessionsStore;
use lapsed_core::{Error, Kind, Name, SystemId};
use lapsed_embedded::{Embedded, EmbeddedSessions, Options};

use crate::disk::{CHECKPOINT_BYTES, Disk, Keep, Lies, SyncFault};
use crate::promise::{Broken, Checked, Promise, holds};
use crate::random::SimRandom;
use crate::sessions::bug::{SessionBug, guard};
use crate::sessions::model::SessionModel;
use crate::trace::Trace;

/// The TTL of a beat, in milliseconds.
pub const TTL_MS: u64 = 10_000;

/// How long a session without references is kept, in milliseconds.
pub const GRACE_MS: u64 = 8_000;

/// The wall clock time at which a run begins.
const START_MS: u64 = 1_700_000_000_000;

/// The store on its disk, and the model beside it.
pub struct SessionSimSystem {
    /// The true time, which is also the store's clock.
    pub clock: ManualClock,
    /// The source of all randomness in the run.
    pub random: SimRandom,
    pub trace: Trace,
    pub model: SessionModel,
    /// The disk under the store.
    pub disk: Disk,
    /// How often each kind of event happened.
    pub counts: BTreeMap<&'static str, u64>,
    pub(super) bug: Option<SessionBug>,
    store: Option<(Embedded, Arc<EmbeddedSessions>)>,
}

/// Runs a call to its end. The in-memory store never waits, so the future is ready at once.
pub(super) fn now<T>(call: impl Future<Output = T>) -> T {
    tokio::task::unconstrained(call).now_or_never().expect("the store in memory answers at once")
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text).expect("it is a valid name")
}

impl SessionSimSystem {
    pub fn new(seed: u64, bug: Option<SessionBug>, printed: bool) -> Self {
        let mut sim = SessionSimSystem {
            clock: ManualClock::at(START_MS),
            random: SimRandom::new(seed),
            trace: Trace::new(printed),
            model: SessionModel::new(TTL_MS, GRACE_MS, START_MS),
            disk: Disk::new(match bug {
                Some(SessionBug::SessionLostWithPower) => Lies::Always,
                _ => Lies::Never,
            }),
            counts: BTreeMap::new(),
            bug,
            store: None,
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

    pub(super) fn store(&self) -> &Arc<EmbeddedSessions> {
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
        let id = SystemId::new(Kind::Sessions, "chats").expect("it is a valid name");
        let (ttl, grace) = (Duration::from_millis(TTL_MS), Duration::from_millis(GRACE_MS));
        let opened =
            Embedded::with_backend(options, move |file| disk.handle(file)).and_then(|store| {
                let sessions = store.sessions(id, ttl, grace)?;
                Ok((store, sessions))
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

    fn reopen(&mut self) -> Checked {
        self.store = None;
        self.disk.take_fired();
        self.pass(5);
        self.open()
    }

    /// Reads from the store which uncertain ends survived: an end that was only in memory and never
    /// answered is undone.
    fn know_ends(&mut self) {
        for number in std::mem::take(&mut self.model.unsure) {
            let ended = self.ended(number);
            if let Some(server) = self.model.incarnations.get_mut(&number) {
                server.ended = ended;
            }
        }
    }

    fn ended(&self, number: u64) -> Option<Ending> {
        let server = self.model.incarnations.get(&number)?;
        let claim = Claim::exact(server.name.clone(), Incarnation(number));
        let info = now(self.store().owner(&claim)).ok().flatten()?;
        info.ended.map(|(ending, _)| ending)
    }

    /// A write failed because of the disk: the store must equal the model with it or without it.
    pub(super) fn doubt(&mut self, error: &Error, after: SessionModel) -> Checked {
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
        if self.compare().is_err() {
            self.model = SessionModel { back_ms: self.model.back_ms, ..before };
        }
        for number in ends {
            // The store ends an incarnation in memory first; the disk follows with the next answer
            // about it.
            let ending = self.ended(number);
            if let Some(server) = self.model.incarnations.get_mut(&number) {
                server.ended = ending;
            }
            if ending.is_some() {
                self.model.unsure.insert(number);
            }
        }
        if restarted {
            self.know_ends();
        }
        self.compare()
    }
}

impl SessionSimSystem {
    /// Compares every session, every broadcaster and the counts of the store with the model.
    pub fn compare(&self) -> Checked {
        let unreadable = |error: Error| Broken::new(Promise::P4, error.to_string());
        for id in &self.model.known {
            let found = now(self.store().get(id)).map_err(unreadable)?;
            let expected = self.model.sessions.get(id);
            holds(found.is_some() == expected.is_some(), Promise::P4, || {
                format!("{id} is {expected:?}, not {found:?}")
            })?;
            let (Some(found), Some(expected)) = (found, expected) else { continue };
            let references = expected.total();
            holds(found.references == references, Promise::P4, || {
                format!("{id} has {references} references, not {}", found.references)
            })?;
            let waits = references == 0;
            let since_ms = (waits && expected.disconnected).then_some(expected.since_ms);
            holds(found.disconnected_ms == since_ms, Promise::P8, || {
                format!("{id} is disconnected since {since_ms:?}, not {:?}", found.disconnected_ms)
            })?;
            let due_ms = waits.then(|| self.model.due_ms(expected));
            holds(found.due_ms == due_ms, Promise::P7, || {
                format!("{id} is due at {due_ms:?}, not {:?}", found.due_ms)
            })?;
        }
        self.compare_indexes()
    }

    fn compare_indexes(&self) -> Checked {
        let unreadable = |error: Error| Broken::new(Promise::P4, error.to_string());
        let broadcasters: BTreeSet<&Name> =
            self.model.sessions.values().map(|session| &session.broadcaster).collect();
        for broadcaster in broadcasters {
            let found = now(self.store().of_broadcaster(broadcaster)).map_err(unreadable)?;
            let expected = self.model.current.get(broadcaster);
            holds(found.as_ref() == expected, Promise::P8, || {
                format!("the session of {broadcaster} is {expected:?}, not {found:?}")
            })?;
        }
        let gone = |s: &&super::model::ModelSession| s.references.is_empty() && s.disconnected;
        let expected = self.model.sessions.values().filter(gone).count() as u64;
        let found = now(self.store().disconnected_count()).map_err(unreadable)?;
        holds(found == expected, Promise::P8, || {
            format!("{found} sessions are disconnected, not {expected}")
        })
    }
}
