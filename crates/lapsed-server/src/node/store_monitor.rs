//! How a store is: whether it answers, how fast, and how far its clock is from this host's.
//!
//! A probe has a time limit, and its answer is everybody's for a while: whoever comes meanwhile waits
//! for the one that is under way, so that many who look cost the store no more than one. Asking changes
//! nothing, and no pass waits for it.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::Result;
use lapsed_core::clock::{Clock, call_within};
use lapsed_core::store::{Store, StoreInfo};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use utoipa::ToSchema;

use crate::config::store::StoreConfig;
use crate::stores::{OpenObject, OpenStore};

/// How long a store may take to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// For how long an answer is good.
const FRESH: Duration = Duration::from_secs(1);

/// The same where every request has a price.
const FRESH_PRICED: Duration = Duration::from_secs(15);

/// How a store is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreHealth {
    /// Its name in the configuration.
    pub name: String,
    /// Where it is, without secrets.
    pub place: String,
    /// The systems that use it, as `KIND/NAME`.
    pub systems: Vec<String>,
    /// Whether it answers.
    pub answers: bool,
    /// How long the answer took, or how long one was waited for.
    pub latency_us: u64,
    /// What it says it is; none while it does not answer.
    pub engine: Option<String>,
    /// Which life of the store this is.
    pub incarnation: Option<String>,
    /// How far its clock is ahead of this host's (behind, if negative), within half the latency.
    pub clock_offset_ms: Option<i64>,
    /// Since when it has been serving without a gap, on its clock; none where it does not say.
    pub serving_since_ms: Option<u64>,
    /// When it was asked, on this process's wall clock.
    pub checked_ms: u64,
    /// Why it does not answer.
    pub error: Option<String>,
}

/// One store, to be asked how it is.
pub struct StoreMonitor {
    name: String,
    place: String,
    systems: Vec<String>,
    store: Arc<dyn Store>,
    object: Option<OpenObject>,
    clock: Arc<dyn Clock>,
    last: Mutex<Option<(Duration, StoreHealth)>>,
}

impl StoreMonitor {
    /// Of `store`, that `systems` use.
    pub fn new(
        config: &StoreConfig,
        store: &OpenStore,
        systems: Vec<String>,
        clock: Arc<dyn Clock>,
    ) -> StoreMonitor {
        StoreMonitor {
            name: config.name.clone(),
            place: config.describe(),
            systems,
            store: store.store(),
            object: store.object().cloned(),
            clock,
            last: Mutex::default(),
        }
    }

    /// How it is now, or was a moment ago.
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

    /// Of an object store's clock only bounds are known: the middle between them.
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
    use lapsed_core::sweep::brake::BrakeSetting;

    use super::*;

    /// Answers after 40 ms, five seconds ahead; nothing when it is told to be silent.
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
        async fn brake_setting(&self, _: &SystemId) -> Result<BrakeSetting> {
            Ok(BrakeSetting::Auto)
        }
        async fn set_brake(&self, _: &SystemId, _: BrakeSetting) -> Result<()> {
            Ok(())
        }
        fn notes(&self) -> &dyn NoteStore {
            &NoNotes
        }
    }

    fn pulse(silent: bool) -> (StoreMonitor, Arc<Slow>, ManualClock) {
        let clock = ManualClock::default();
        let store = Arc::new(Slow { clock: clock.clone(), asked: AtomicU64::new(0), silent });
        let pulse = StoreMonitor {
            name: "main".to_owned(),
            place: "here".to_owned(),
            systems: Vec::new(),
            store: store.clone(),
            object: None,
            clock: Arc::new(clock.clone()),
            last: Mutex::default(),
        };
        (pulse, store, clock)
    }

    #[tokio::test]
    async fn latency_and_offset_are_told_and_many_who_look_ask_once() {
        let (pulse, store, clock) = pulse(false);
        let seen = futures::future::join_all((0..100).map(|_| pulse.take())).await;
        assert_eq!(store.asked.load(Ordering::Relaxed), 1);
        assert_eq!((seen[0].latency_us, seen[0].clock_offset_ms), (40_000, Some(5_000)));
        assert!(seen.iter().all(|health| *health == seen[0] && health.answers));
        clock.advance(FRESH);
        pulse.take().await;
        assert_eq!(store.asked.load(Ordering::Relaxed), 2, "and again a second later");
    }

    #[tokio::test]
    async fn a_store_that_is_silent_is_waited_for_no_longer_than_the_limit() {
        let (pulse, _, _) = pulse(true);
        let health = pulse.take().await;
        assert!(!health.answers && health.engine.is_none(), "{health:?}");
        assert!(health.error.unwrap().contains("main"));
    }
}
