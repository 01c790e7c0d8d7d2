//! Which stores do not answer, and what the log says about it.
//!
//! A store that is away fails every call, of which there can be thousands a second. The log has one
//! WARN at the first failure, at most one more a minute with the number of failures, and one INFO
//! when the store is back.
//!
//! Two things can come in between a failure and the end of an outage. A call that was sent before
//! the store came back can still time out afterwards; an outage therefore ends only when no call has
//! failed for `SETTLED`, and a probe was answered after the last failure. And a store can answer
//! probes while it refuses the calls that matter (a missing permission, a full disk); such an outage
//! ends only after a minute without a failure, so that it is not reported again with every pass.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lapsed_core::clock::Clock;
use lapsed_core::schedule::StopSignal;
use lapsed_core::{Error, Kind, SystemId};
use tokio::sync::Notify;

use super::store_monitor::StoreMonitor;
use crate::failure::next_step;
use crate::print::span;

/// How long no call may have failed before a store that was away counts as back. No call takes
/// longer by default.
const SETTLED: Duration = Duration::from_secs(5);

/// The least time between two lines about the same outage. A store that answers probes, but fails
/// other calls, must not fail any for as long before it counts as back.
const REMINDED: Duration = Duration::from_secs(60);

/// How often a store that is away is probed.
const PROBED: Duration = Duration::from_secs(1);

/// The outages of all stores of this process.
pub struct StoreOutages {
    clock: Arc<dyn Clock>,
    systems: Mutex<HashMap<SystemId, Vec<StorePlace>>>,
    open: Mutex<BTreeMap<String, Outage>>,
    began: Notify,
}

/// A store of a system: its name in the configuration, and its address without secrets. Errors name
/// one or the other.
type StorePlace = (String, String);

/// One outage of one store.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outage {
    /// When the first call failed, on the monotonic clock.
    since: Duration,
    last_failed: Duration,
    /// Failed calls so far, without probes.
    failed: u64,
    /// When the last line was logged.
    logged: Duration,
    /// Whether a probe failed too: the store is away altogether.
    is_away: bool,
    /// When a probe was first answered after the last failure.
    answered: Option<Duration>,
}

impl StoreOutages {
    pub fn new(clock: Arc<dyn Clock>) -> StoreOutages {
        let (systems, open) = (Mutex::default(), Mutex::default());
        StoreOutages { clock, systems, open, began: Notify::new() }
    }

    /// Records which stores a system uses; its main store comes first.
    pub fn add_system(&self, system: SystemId, stores: Vec<StorePlace>) {
        self.systems.lock().expect("no holder of this lock panics").insert(system, stores);
    }

    /// Counts a failed call of a system. The first failure of its store is logged, later ones at most
    /// once a minute.
    pub fn call_failed(&self, system: &SystemId, error: &Error) {
        let (Error::Unavailable { store: named, .. }
        | Error::InUse { store: named, .. }
        | Error::Throttled { store: named, .. }) = error
        else {
            tracing::warn!(%system, %error, "store call failed");
            return;
        };
        let store = self.store_of(system, named);
        self.failed(&store, Some(system), error);
    }

    /// Records that a probe of `store` failed.
    pub fn probe_failed(&self, store: &str, error: &Error) {
        self.failed(store, None, error);
    }

    /// Records that `store` answered a probe that was sent at `sent` on the monotonic clock. Ends its
    /// outage if it is over.
    pub fn answered(&self, store: &str, sent: Duration) {
        let now = self.clock.mono();
        let mut open = self.lock();
        let Some(outage) = open.get_mut(store) else { return };
        if sent < outage.last_failed {
            return;
        }
        let answered = *outage.answered.get_or_insert(now);
        let settled = if outage.is_away { SETTLED } else { REMINDED };
        if now.saturating_sub(outage.last_failed) < settled {
            return;
        }
        let away = span(answered.saturating_sub(outage.since).as_millis() as u64);
        let failed = outage.failed;
        open.remove(store);
        tracing::info!(store, away, failed_calls = failed, "the store answers again");
    }

    /// Whether a store of this system is known not to answer.
    pub fn is_open(&self, name: &str, kind: &Kind) -> bool {
        let Ok(system) = SystemId::new(*kind, name) else { return false };
        let systems = self.systems.lock().expect("no holder of this lock panics");
        let open = self.lock();
        let stores = systems.get(&system).into_iter().flatten();
        stores.into_iter().any(|(store, _)| open.contains_key(store))
    }

    /// Probes every store once, all at the same time, so that those that do not answer are logged.
    /// Then probes those that are away until they are back, until `stop`.
    pub async fn watch(&self, monitors: &[Arc<StoreMonitor>], stop: StopSignal) {
        let probing = async {
            futures::future::join_all(monitors.iter().map(|monitor| monitor.take())).await;
            loop {
                let began = self.began.notified();
                let away: Vec<String> = self.lock().keys().cloned().collect();
                if away.is_empty() {
                    began.await;
                }
                self.clock.sleep(PROBED).await;
                let away =
                    monitors.iter().filter(|monitor| away.iter().any(|a| a == monitor.name()));
                futures::future::join_all(away.map(|monitor| monitor.take())).await;
            }
        };
        tokio::select! {
            () = stop.stopped() => {}
            () = probing => {}
        }
    }

    /// The store that an error of `system` means.
    fn store_of(&self, system: &SystemId, named: &str) -> String {
        let systems = self.systems.lock().expect("no holder of this lock panics");
        let Some(stores) = systems.get(system) else { return named.to_owned() };
        let is_meant = |(name, place): &&StorePlace| name == named || place == named;
        // The library says `the mirror of KIND/NAME` of a mirror that took too long.
        let is_mirror = named.starts_with("the mirror of ");
        let usual = if is_mirror { stores.last() } else { stores.first() };
        stores.iter().find(is_meant).or(usual).map_or(named.to_owned(), |(name, _)| name.clone())
    }

    fn failed(&self, store: &str, system: Option<&SystemId>, error: &Error) {
        let now = self.clock.mono();
        let mut open = self.lock();
        let is_new = !open.contains_key(store);
        let outage = open.entry(store.to_owned()).or_insert(Outage {
            since: now,
            last_failed: now,
            failed: 0,
            logged: now,
            is_away: false,
            answered: None,
        });
        (outage.last_failed, outage.answered) = (now, None);
        outage.failed += u64::from(system.is_some());
        outage.is_away |= system.is_none();
        let error = explained(error, store);
        let (failed, since) = (outage.failed, now.saturating_sub(outage.since));
        if is_new {
            let system = system.map(ToString::to_string);
            tracing::warn!(
                store,
                system,
                error,
                "the store does not answer; failures are counted \
                and reported once a minute"
            );
            self.began.notify_one();
        } else if now.saturating_sub(outage.logged) >= REMINDED {
            outage.logged = now;
            let away = span(since.as_millis() as u64);
            tracing::warn!(
                store,
                away,
                failed_calls = failed,
                error,
                "the store still does not answer"
            );
        } else {
            tracing::debug!(store, failed_calls = failed, error, "store call failed");
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Outage>> {
        self.open.lock().expect("no holder of this lock panics")
    }
}

/// The error with the advice that `lapsed check` gives, for the store of this name.
fn explained(error: &Error, store: &str) -> String {
    format!("{error}{}", next_step(error, Some(store)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapsed_core::clock::ManualClock;

    fn refused() -> Error {
        let what = "Connection refused".to_owned();
        Error::Unavailable { store: "redis://here".to_owned(), what }
    }

    fn outages() -> (StoreOutages, ManualClock, SystemId) {
        let clock = ManualClock::default();
        let outages = StoreOutages::new(Arc::new(clock.clone()));
        let system = SystemId::new(Kind::Registry, "a").unwrap();
        let main = ("main".to_owned(), "redis://here".to_owned());
        outages.add_system(system.clone(), vec![main]);
        (outages, clock, system)
    }

    #[test]
    fn an_outage_ends_when_a_probe_is_answered_after_the_last_failure() {
        let (outages, clock, system) = outages();
        outages.call_failed(&system, &refused());
        outages.probe_failed("main", &refused());
        assert!(outages.is_open("a", &Kind::Registry));
        let sent = clock.mono();
        clock.advance(Duration::from_secs(2));
        outages.call_failed(&system, &refused());
        outages.answered("main", sent);
        assert_eq!(outages.lock()["main"].answered, None, "it was sent before the last failure");
        outages.answered("main", clock.mono());
        assert!(outages.is_open("a", &Kind::Registry), "calls may still be waiting");
        assert_eq!(outages.lock()["main"].failed, 2, "probes are not counted");
        clock.advance(SETTLED);
        outages.answered("main", clock.mono());
        assert!(!outages.is_open("a", &Kind::Registry));
    }

    #[test]
    fn a_store_that_answers_probes_but_fails_calls_stays_reported() {
        let (outages, clock, system) = outages();
        for _ in 0..10 {
            outages.call_failed(&system, &refused());
            clock.advance(Duration::from_secs(15));
            outages.answered("main", clock.mono());
        }
        let outage = outages.lock()["main"].clone();
        assert_eq!(outage.failed, 10);
        assert_eq!(outage.logged, Duration::from_secs(120) + outage.since, "two reminders");
        clock.advance(REMINDED);
        outages.answered("main", clock.mono());
        assert!(!outages.is_open("a", &Kind::Registry));
    }

    #[test]
    fn the_advice_names_the_store() {
        let told = explained(&refused(), "main");
        assert!(told.contains("Start it, or correct `url` of [store.main]"), "{told}");
    }
}
