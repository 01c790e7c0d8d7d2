//! The series of jobs: where they are, how they ended, and what was done with the jobs of dead
//! workers. They are registered with the first system of jobs.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use lapsed_core::inflight::{Inflight, JobCounts, RecoveredJob, RecoveryAction};
use lapsed_core::receipt::Receipt;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metrics::labels::{ByAccount, ByRecovery, ByState, OfSystem};
use crate::metrics::{KindMetrics, Metrics};
use crate::node::OpenSystems;

const DID: &[RecoveryAction] =
    &[RecoveryAction::PutBack, RecoveryAction::DeadLetter, RecoveryAction::Dropped];

/// The series of all systems of jobs.
#[derive(Default)]
pub struct JobSeries {
    shown: OnceLock<()>,
    jobs: Family<ByState, Gauge>,
    account: Family<ByAccount, Counter>,
    recovered: Family<ByRecovery, Counter>,
}

impl KindMetrics for JobSeries {
    fn introduce(&self, of: &OfSystem, to: &mut Registry) {
        self.shown.get_or_init(|| {
            to.register("lapsed_jobs", "Jobs there are, by where", self.jobs.clone());
            let help = "Jobs by how they ended, since the beginning, as the store counts them";
            to.register("lapsed_jobs_account", help, self.account.clone());
            let help = "Jobs of workers that ended, by what was done with them";
            to.register("lapsed_recovered", help, self.recovered.clone());
        });
        for did in DID {
            drop(self.recovered.get_or_create(&of.by_recovery(did.as_str())));
        }
        self.gauge(of, &JobCounts::default());
    }

    fn reclaimed(&self, of: &OfSystem, receipt: &Receipt) {
        let done: Option<RecoveredJob> = serde_json::from_value(receipt.removed.clone()).ok();
        if let Some(done) = done {
            self.recovered.get_or_create(&of.by_recovery(done.did.as_str())).inc();
        }
    }
}

impl JobSeries {
    fn gauge(&self, of: &OfSystem, counts: &JobCounts) {
        for (state, count) in
            [("queued", counts.queued), ("in_flight", counts.in_flight), ("dead", counts.dead)]
        {
            self.jobs.get_or_create(&of.by_state(state)).set(count as i64);
        }
        for (what, count) in [
            ("entered", counts.entered),
            ("completed", counts.completed),
            ("dropped", counts.dropped),
        ] {
            let counter = self.account.get_or_create(&of.by_account(what));
            counter.inner().store(count, Ordering::Relaxed);
        }
    }
}

/// Reads the counts of every system of jobs from its store. If a store does not answer, the gauges
/// of its systems keep their values.
pub async fn scrape(metrics: &Metrics, systems: &OpenSystems) {
    let Some(series) = metrics.of::<JobSeries>() else { return };
    for live in systems.systems() {
        let Some(inflight) = live.operations::<Inflight>() else { continue };
        if let Ok(counts) = inflight.counts().await {
            series.gauge(&OfSystem::of(live.id()), &counts);
        }
    }
}
