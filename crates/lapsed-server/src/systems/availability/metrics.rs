//! The series of availability: how many providers are online, where answers come from, and the
//! state of the mirror. They are registered with the first system of this kind.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use lapsed_availability::{
    Availability, AvailabilitySummary, BreakerState, ProviderBeat, ReadKind, Source,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::AvailabilityOperations;
use crate::metrics::labels::{ByOutcome, BySource, OfSystem};
use crate::metrics::{KindMetrics, Metrics};
use crate::node::OpenSystems;

const BEATS: &[ProviderBeat] = &[
    ProviderBeat::Noted,
    ProviderBeat::Deactivated,
    ProviderBeat::Offline,
    ProviderBeat::Unavailable,
];

/// The series of all systems of availability.
#[derive(Default)]
pub struct AvailabilitySeries {
    shown: OnceLock<()>,
    online: Family<OfSystem, Gauge>,
    available: Family<OfSystem, Gauge>,
    beats: Family<ByOutcome, Counter>,
    reads: Family<BySource, Counter>,
    mirror_up: Family<OfSystem, Gauge>,
    mirror_seeded: Family<OfSystem, Gauge>,
    mirror_behind: Family<OfSystem, Gauge>,
    breaker: Family<OfSystem, Gauge>,
    seeds: Family<OfSystem, Counter>,
    snapshots: Family<OfSystem, Counter>,
    beats_mirrored: Family<OfSystem, Counter>,
    statements: Family<OfSystem, Counter>,
    mass_beats: Family<OfSystem, Counter>,
}

impl KindMetrics for AvailabilitySeries {
    fn introduce(&self, of: &OfSystem, to: &mut Registry) {
        self.shown.get_or_init(|| self.register_all(to));
        for read in ReadKind::ALL {
            for source in Source::ALL {
                drop(self.reads.get_or_create(&of.by_source(read.as_str(), source.as_str())));
            }
        }
        for beat in BEATS {
            drop(self.beats.get_or_create(&of.by_outcome(beat.as_str())));
        }
        for gauges in [
            &self.online,
            &self.available,
            &self.mirror_up,
            &self.mirror_seeded,
            &self.mirror_behind,
            &self.breaker,
        ] {
            drop(gauges.get_or_create(of));
        }
        for counters in
            [&self.seeds, &self.snapshots, &self.beats_mirrored, &self.statements, &self.mass_beats]
        {
            drop(counters.get_or_create(of));
        }
    }
}

impl AvailabilitySeries {
    fn register_all(&self, to: &mut Registry) {
        let help = "Providers that are online, as the mirror has it";
        to.register("lapsed_availability_online", help, self.online.clone());
        let help = "Providers that can take work now";
        to.register("lapsed_availability_available", help, self.available.clone());
        let help = "Heartbeats, by outcome";
        to.register("lapsed_availability_heartbeats", help, self.beats.clone());
        let help = "Reads, by where the answer came from";
        to.register("lapsed_availability_reads", help, self.reads.clone());
        let help = "Whether the mirror answers";
        to.register("lapsed_availability_mirror_up", help, self.mirror_up.clone());
        let help =
            "Whether the mirror has been filled from the truth and has not lost its contents since";
        to.register("lapsed_availability_mirror_seeded", help, self.mirror_seeded.clone());
        let help = "Providers with a change that this process could not write to the mirror yet";
        to.register("lapsed_availability_mirror_behind", help, self.mirror_behind.clone());
        let help = "Circuit breaker of the mirror: 0 closed, 1 half open, 2 open (mirror bypassed)";
        to.register("lapsed_availability_breaker_state", help, self.breaker.clone());
        let help = "How often this process filled the mirror from the truth";
        to.register("lapsed_availability_seeds", help, self.seeds.clone());
        let help = "Snapshots of the beacon that this process computed";
        to.register("lapsed_availability_snapshot_computed", help, self.snapshots.clone());
        let help = "Heartbeats that this process wrote to the truth";
        to.register("lapsed_availability_heartbeats_mirrored", help, self.beats_mirrored.clone());
        let help = "Statements that this process sent to Postgres";
        to.register("lapsed_availability_truth_statements", help, self.statements.clone());
        let help = "How often heartbeats were found that an application wrote at once, by no ping";
        to.register("lapsed_availability_mass_heartbeats", help, self.mass_beats.clone());
    }

    /// Copies the counts and the state of a system into the series.
    fn show(&self, of: &OfSystem, system: &Availability, summary: &AvailabilitySummary) {
        let counters = system.counters();
        let set = |counter: &Counter, value: u64| {
            counter.inner().store(value, Ordering::Relaxed);
        };
        for read in ReadKind::ALL {
            for source in Source::ALL {
                let by = of.by_source(read.as_str(), source.as_str());
                set(&self.reads.get_or_create(&by), counters.reads(*read, *source));
            }
        }
        for beat in BEATS {
            let by = of.by_outcome(beat.as_str());
            set(&self.beats.get_or_create(&by), counters.beats(*beat));
        }
        let loaded = |value: &std::sync::atomic::AtomicU64| value.load(Ordering::Relaxed);
        set(&self.seeds.get_or_create(of), loaded(&counters.seeds));
        set(&self.snapshots.get_or_create(of), loaded(&counters.snapshots));
        set(&self.beats_mirrored.get_or_create(of), loaded(&counters.beats_noted));
        self.gauge(of, summary);
    }

    fn gauge(&self, of: &OfSystem, summary: &AvailabilitySummary) {
        let presence = summary.mirror.as_ref().ok();
        if let Some(presence) = presence {
            self.online.get_or_create(of).set(presence.online as i64);
            let mass = self.mass_beats.get_or_create(of);
            mass.inner().store(presence.mass_beats_seen, Ordering::Relaxed);
        }
        if let Some((available, _)) = summary.available {
            self.available.get_or_create(of).set(available as i64);
        }
        self.mirror_up.get_or_create(of).set(i64::from(presence.is_some()));
        let seeded = presence.is_some_and(|presence| presence.seeded);
        self.mirror_seeded.get_or_create(of).set(i64::from(seeded));
        self.mirror_behind.get_or_create(of).set(summary.behind as i64);
        self.breaker.get_or_create(of).set(match summary.breaker {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        });
    }

    /// Copies the number of statements that were sent to the truth.
    fn show_statements(&self, of: &OfSystem, statements: u64) {
        self.statements.get_or_create(of).inner().store(statements, Ordering::Relaxed);
    }
}

/// Reads the counts and gauges of every system of availability, for a scrape.
pub async fn scrape(metrics: &Metrics, systems: &OpenSystems) {
    let Some(series) = metrics.of::<AvailabilitySeries>() else { return };
    for live in systems.systems() {
        let Some(AvailabilityOperations { system, .. }) = live.operations() else { continue };
        let of = OfSystem::of(live.id());
        series.show(&of, system, &system.summary().await);
        if let Some(statements) = systems.statements(live.store_name()) {
            series.show_statements(&of, statements);
        }
    }
}
