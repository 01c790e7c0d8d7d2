//! The health of a store: whether it answers, how fast, and how far its clock is from this host's.
//!
//! A probe has a time limit, and its result is reused for a while. Callers that come during a probe
//! wait for it instead of starting another, so that any number of viewers costs the store one
//! probe. A probe changes nothing, and no pass waits for it.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::Result;
use lapsed_core::clock::{Clock, call_within};
use lapsed_core::store::{Store, StoreInfo};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use utoipa::ToSchema;

use super::store_outages::StoreOutages;
use crate::config::store::StoreConfig;
use crate::stores::{OpenObject, OpenStore};

/// How long a probe waits for the store's answer.
const LIMIT: Duration = Duration::from_secs(2);

/// How long the result of a probe is reused.
const FRESH: Duration = Duration::from_secs(1);

/// How long the result is reused where every request to the store costs money.
const FRESH_PRICED: Duration = Duration::from_secs(15);

/// The health of one store, as its last probe found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreHealth {
    /// The name of the store in the configuration.
    pub name: String,
    /// The address of the store, without secrets.
    pub place: String,
    /// The systems that use the store, as `KIND/NAME`.
    pub systems: Vec<String>,
    /// Whether the store answered the probe.
    pub answers: bool,
    /// How long the store took to answer, or how long the probe waited in vain, in microseconds.
    pub latency_us: u64,
    /// The software and version that the store reports; absent while it does not answer.
    pub engine: Option<String>,
    /// The incarnation of the store: it changes each time the store is opened or restarted.
    pub incarnation: Option<String>,
    /// How far the store's clock is ahead of this host's in milliseconds (negative: behind),
    /// accurate to half the latency.
    pub clock_offset_ms: Option<i64>,
    /// Since when the store has been serving without interruption, on its own clock; absent where
    /// the store does not say.
    pub serving_since_ms: Option<u64>,
    /// When the probe began, in milliseconds on this process's wall clock.
    pub checked_ms: u64,
    /// Why the store does not answer.
    pub error: Option<String>,
}

/// Probes one store on demand.
pub struct StoreMonitor {
    name: String,
    place: String,
    systems: Vec<String>,
    store: Arc<dyn Store>,
    object: Option<OpenObject>,
    clock: Arc<dyn Clock>,
    outages: Arc<StoreOutages>,
    last: Mutex<Option<(Duration, StoreHealth)>>,
}

impl StoreMonitor {
    /// A monitor of `store`, which `systems` use. Nothing is probed yet. Every probe tells `outages`
    /// whether the store answered.
    pub fn new(
        config: &StoreConfig,
        store: &OpenStore,
        systems: Vec<String>,
        clock: Arc<dyn Clock>,
        outages: Arc<StoreOutages>,
    ) -> StoreMonitor {
        StoreMonitor {
            name: config.name.clone(),
            place: config.describe(),
            systems,
            store: store.store(),
            object: store.object().cloned(),
            clock,
            outages,
            last: Mutex::default(),
        }
    }

    /// The name of the store in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The result of the last probe if it is recent enough, otherwise of a new probe.
    pub async fn take(&self) -> StoreHealth {
        let mut last = self.last.lock().await;
        let fresh = if self.object.is_some() { FRESH_PRICED } else { FRESH };
        match &*last {
            Some((at, health)) if self.clock.mono() < *at + fresh => health.clone(),
            _ => {
                let health = self.probe().await;
                *last = Some((self.clock.mono(), health.clone()));
                health
            }
        }
    }

    async fn probe(&self) -> StoreHealth {
        let (checked_ms, sent) = (self.clock.wall_ms(), self.clock.mono());
        let info = self.store.info();
        let answer = call_within(&*self.clock, LIMIT, &self.name, "info", info).await;
        let took = self.clock.mono().saturating_sub(sent);
        match &answer {
            Ok(_) => self.outages.answered(&self.name, sent),
            Err(error) => self.outages.probe_failed(&self.name, error),
        }
        self.describe(answer, checked_ms, took)
    }

    fn describe(&self, answer: Result<StoreInfo>, checked_ms: u64, took: Duration) -> StoreHealth {
        let error = answer.as_ref().err().map(ToString::to_string);
        let info = answer.ok();
        let half_way_ms = checked_ms + took.as_millis() as u64 / 2;
        let offset_ms = |info: &StoreInfo| info.now_ms as i64 - half_way_ms as i64;
        StoreHealth {
            name: self.name.clone(),
            place: self.place.clone(),
            systems: self.systems.clone(),
            answers: info.is_some(),
            latency_us: took.as_micros() as u64,
            clock_offset_ms: info.as_ref().map(|info| self.bounds_ms().unwrap_or(offset_ms(info))),
            serving_since_ms: info.as_ref().map(|info| info.back_ms).filter(|back_ms| *back_ms > 0),
            engine: info.as_ref().map(|info| info.engine.clone()),
            incarnation: info.map(|info| info.incarnation),
            checked_ms,
            error,
        }
    }

    /// The clock offset of an object store. Only bounds of it are known; this is the middle between
    /// them.
    fn bounds_ms(&self) -> Option<i64> {
        let offset = self.object.as_ref()?.store().offset()?;
        Some((offset.lo_ms + offset.hi_ms) / 2)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use async_trait::async_trait;
    use lapsed_core::SystemId;
    use lapsed_core::clock::ManualClock;
    use lapsed_core::leader::Term;
    use lapsed_core::notes::{NoNotes, NoteStore};
    use lapsed_core::receipt::{Receipt, ReceiptQuery};
    use lapsed_core::sweep::brake::BrakeRecord;

    use super::*;

    /// A store that answers after 40 ms with a clock that is five seconds ahead; it does not answer
    /// at all when `silent` is set.
    struct Slow {
        clock: ManualClock,
        asked: AtomicU64,
        silent: bool,
    }

    #[async_trait]
    impl Store for Slow {
        async fn info(&self) -> Result<StoreInfo> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if self.silent {
                // The time limit begins after the first poll.
                tokio::task::yield_now().await;
                self.clock.advance(LIMIT);
                futures::future::pending::<()>().await;
            }
            self.clock.advance(Duration::from_millis(20));
            let now_ms = self.clock.wall_ms() + 5_000;
            self.clock.advance(Duration::from_millis(20));
            let (engine, place) = ("slow".to_owned(), "here".to_owned());
            Ok(StoreInfo { engine, place, incarnation: "1".to_owned(), now_ms, back_ms: 1 })
        }
        async fn receipts(&self, _: &SystemId, _: ReceiptQuery) -> Result<Vec<Receipt>> {
            Ok(Vec::new())
        }
        async fn receipt(&self, _: &SystemId, _: u64) -> Result<Option<Receipt>> {
            Ok(None)
        }
        async fn campaign(&self, _: &SystemId, _: &str, _: u64) -> Result<Option<Term>> {
            Ok(None)
        }
        async fn term(&self, _: &SystemId) -> Result<Option<Term>> {
            Ok(None)
        }
        async fn resign(&self, _: &SystemId, _: u64) -> Result<()> {
            Ok(())
        }
        async fn brake(&self, _: &SystemId) -> Result<BrakeRecord> {
            Ok(BrakeRecord::default())
        }
        async fn swap_brake(&self, _: &SystemId, _: &BrakeRecord) -> Result<bool> {
            Ok(true)
        }
        fn notes(&self) -> &dyn NoteStore {
            &NoNotes
        }
    }

    fn monitor(silent: bool) -> (StoreMonitor, Arc<Slow>, ManualClock) {
        let clock = ManualClock::default();
        let store = Arc::new(Slow { clock: clock.clone(), asked: AtomicU64::new(0), silent });
        let monitor = StoreMonitor {
            name: "main".to_owned(),
            place: "here".to_owned(),
            systems: Vec::new(),
            store: store.clone(),
            object: None,
            outages: Arc::new(StoreOutages::new(Arc::new(clock.clone()))),
            clock: Arc::new(clock.clone()),
            last: Mutex::default(),
        };
        (monitor, store, clock)
    }

    #[tokio::test]
    async fn latency_and_offset_are_told_and_many_who_look_ask_once() {
        let (monitor, store, clock) = monitor(false);
        let seen = futures::future::join_all((0..100).map(|_| monitor.take())).await;
        assert_eq!(store.asked.load(Ordering::Relaxed), 1);
        assert_eq!((seen[0].latency_us, seen[0].clock_offset_ms), (40_000, Some(5_000)));
        assert!(seen.iter().all(|health| *health == seen[0] && health.answers));
        clock.advance(FRESH);
        monitor.take().await;
        assert_eq!(store.asked.load(Ordering::Relaxed), 2, "and again a second later");
    }

    #[tokio::test]
    async fn a_store_that_is_silent_is_waited_for_no_longer_than_the_limit() {
        let (monitor, _, _) = monitor(true);
        let health = monitor.take().await;
        assert!(!health.answers && health.engine.is_none(), "{health:?}");
        assert!(health.error.unwrap().contains("main"));
    }
}
