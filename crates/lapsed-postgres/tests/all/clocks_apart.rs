//! C11: the clock of the truth and the clock of the mirror are two hours apart, and neither agrees with
//! this host's. Ages of heartbeats cross between the stores; a time that crossed would make the living
//! look silent, or the silent alive.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use lapsed_availability::conformance::{AvailabilityFixture, healing, reading, sweeps};
use lapsed_postgres::Triggers;
use lapsed_testbed::{
    Engine, PostgresOptions, PostgresServer, RedisServer, ServerOptions, SettableClock,
};

use crate::conformance::{fixture, next_mirror};
use crate::fixture::{Bench, Server};

/// PostgreSQL and Valkey, each by a clock of its own.
struct Apart {
    truth: Arc<PostgresServer>,
    mirror: Arc<RedisServer>,
    databases: AtomicUsize,
}

impl Apart {
    /// The truth's clock is ahead of this host's by this many seconds, and the mirror's is behind by as many.
    fn by(seconds: i64) -> Apart {
        let ahead = SettableClock::ahead_by(seconds).unwrap();
        let behind = SettableClock::ahead_by(-seconds).unwrap();
        let truth = PostgresOptions::default().clock(&ahead).start().unwrap();
        let mirror = ServerOptions::new(Engine::Valkey).clock(&behind).start().unwrap();
        let (truth, mirror) = (Arc::new(truth), Arc::new(mirror));
        Apart { truth, mirror, databases: AtomicUsize::new(0) }
    }

    async fn fixture(&self) -> AvailabilityFixture {
        let bench = Bench::with(Server::Own(self.truth.clone()), Triggers::Without).await;
        fixture(bench, next_mirror(self.mirror.clone(), &self.databases))
    }

    /// Cases of the suite in which something passes from one store to the other, side by side.
    async fn cases_hold(&self) {
        macro_rules! cases {
            ($($case:path),* $(,)?) => {
                tokio::join!($(async { $case(self.fixture().await.settled().await).await }),*)
            };
        }
        cases!(
            sweeps::silent_providers_are_set_offline_once,
            sweeps::trap_c5_a_heartbeat_before_the_decision_wins,
            sweeps::a_heartbeat_that_reached_the_truth_wins,
            sweeps::trap_c11_evidence_uses_one_clock,
            reading::silent_providers_are_unavailable_before_any_pass,
            healing::trap_c1_seeding_does_not_revive_silent_providers,
            healing::trap_c9_heartbeats_in_the_truth_only_go_forward,
            healing::heartbeats_keep_their_age_on_the_way_to_the_truth,
        );
    }
}

lapsed_testbed::steady_async_tests! {
    trap_c11_a_truth_two_hours_ahead_of_its_mirror_judges_alike,
    trap_c11_a_truth_two_hours_behind_its_mirror_judges_alike,
}

async fn trap_c11_a_truth_two_hours_ahead_of_its_mirror_judges_alike() {
    Apart::by(3_600).cases_hold().await;
}

async fn trap_c11_a_truth_two_hours_behind_its_mirror_judges_alike() {
    Apart::by(-3_600).cases_hold().await;
}
