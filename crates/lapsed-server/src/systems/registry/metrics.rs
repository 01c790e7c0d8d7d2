//! `teltonika_registry_janitor_evicted_total{instance_id}`: the counter of the original janitor.
//!
//! One series per owner would grow for ever, since owners come and go (trap A6). A series appears at zero when its
//! owner starts or registers through this daemon. It is dropped when for an hour the owner did neither and nothing was
//! evicted from it, and there are never more than a thousand: a new count then replaces the series that was used
//! longest ago, and no new zero appears.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::clock::Clock;
use lapsed_core::receipt::{Reason, Receipt};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry as MetricRegistry;

use crate::metrics::KindMetrics;
use crate::metrics::labels::OfSystem;

/// How long a series is kept after its owner's start, or after its last eviction.
const KEPT_FOR: Duration = Duration::from_secs(3600);

/// The most series that exist at a time.
const SERIES_MAX: usize = 1_000;

const NAME: &str = "teltonika_registry_janitor_evicted";
const HELP: &str = "Entries evicted because their owner died, by owner";

pub struct Evicted {
    clock: Arc<dyn Clock>,
    series: Mutex<HashMap<String, Series>>,
}

#[derive(Clone, Copy)]
struct Series {
    count: u64,
    last: Duration,
}

impl Evicted {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Evicted { clock, series: Mutex::default() }
    }

    /// Counts an entry that was evicted because its owner died.
    pub fn count(&self, receipt: &Receipt) {
        if receipt.reason != Reason::OwnerDead {
            return;
        }
        let last = self.clock.mono();
        let mut series = self.lock();
        if let Some(known) = series.get_mut(receipt.owner.as_str()) {
            known.count += 1;
            known.last = last;
            return;
        }
        if series.len() >= SERIES_MAX {
            drop_oldest(&mut series);
        }
        series.insert(receipt.owner.to_string(), Series { count: 1, last });
    }

    /// Shows an owner that has started with its count so far, which is zero for a new one.
    pub fn show(&self, owner: &Name) {
        let last = self.clock.mono();
        let mut series = self.lock();
        if let Some(known) = series.get_mut(owner.as_str()) {
            known.last = last;
        } else if series.len() < SERIES_MAX {
            series.insert(owner.to_string(), Series { count: 0, last });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Series>> {
        self.series.lock().expect("no holder of the series' lock panics")
    }
}

fn drop_oldest(series: &mut HashMap<String, Series>) {
    let oldest = series.iter().min_by_key(|(_, s)| s.last).map(|(name, _)| name.clone());
    if let Some(name) = oldest {
        series.remove(&name);
    }
}

/// The series that only registries have.
pub struct RegistrySeries {
    /// Shared with the metrics registry that collects it.
    evicted: Arc<Evicted>,
}

impl RegistrySeries {
    pub fn new(clock: Arc<dyn Clock>) -> RegistrySeries {
        RegistrySeries { evicted: Arc::new(Evicted::new(clock)) }
    }
}

impl KindMetrics for RegistrySeries {
    fn register(&self, to: &mut MetricRegistry) {
        to.register_collector(Box::new(self.evicted.clone()));
    }

    fn owner_started(&self, owner: &Name) {
        self.evicted.show(owner);
    }

    fn reclaimed(&self, _of: &OfSystem, receipt: &Receipt) {
        self.evicted.count(receipt);
    }
}

impl std::fmt::Debug for Evicted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Evicted")
    }
}

impl Collector for Evicted {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let now = self.clock.mono();
        let mut series = self.lock();
        series.retain(|_, s| now.saturating_sub(s.last) < KEPT_FOR);
        let mut family = encoder.encode_descriptor(NAME, HELP, None, MetricType::Counter)?;
        for (owner, one) in series.iter() {
            let labels = [("instance_id", owner.as_str())];
            ConstCounter::new(one.count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapsed_core::clock::ManualClock;
    use prometheus_client::encoding::text;

    fn receipt(owner: &str, reason: &str) -> Receipt {
        serde_json::from_value(serde_json::json!({
            "id": "registry-default-1", "key": "k", "owner": owner, "incarnation": 1,
            "reason": reason, "removed": null, "sweeper": "s", "batch": 1, "at_ms": 1,
            "evidence": {"clock": "store", "deadline_ms": 1, "judged_ms": 2, "late_ms": 1},
        }))
        .unwrap()
    }

    fn scrape(evicted: &Arc<Evicted>) -> String {
        let mut registry = MetricRegistry::default();
        registry.register_collector(Box::new(evicted.clone()));
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn trap_a6_a_series_is_dropped_when_its_owner_is_long_gone() {
        let clock = ManualClock::at(1);
        let evicted = Arc::new(Evicted::new(Arc::new(clock.clone())));
        evicted.count(&receipt("a", "owner_dead"));
        evicted.count(&receipt("a", "owner_dead"));
        evicted.count(&receipt("left", "owner_retired"));
        let text = scrape(&evicted);
        let line = "teltonika_registry_janitor_evicted_total{instance_id=\"a\"} 2";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("left"), "a graceful end is not an eviction: {text}");
        clock.advance(KEPT_FOR);
        assert!(!scrape(&evicted).contains("instance_id"));
    }

    #[test]
    fn trap_a6_there_are_never_more_series_than_the_cap() {
        let clock = ManualClock::at(1);
        let evicted = Arc::new(Evicted::new(Arc::new(clock.clone())));
        for n in 0..SERIES_MAX + 50 {
            clock.advance(Duration::from_millis(1));
            evicted.count(&receipt(&format!("owner-{n}"), "owner_dead"));
        }
        let text = scrape(&evicted);
        assert_eq!(text.matches("instance_id=").count(), SERIES_MAX);
        assert!(!text.contains("\"owner-49\"") && text.contains("\"owner-50\""));
    }
}
