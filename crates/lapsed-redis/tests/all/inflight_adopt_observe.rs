//! Adopted jobs are observed first: nothing is put back before half of the jobs in flight had a heartbeat at the same
//! time, or an operator has confirmed the configuration.

use std::time::{Duration, Instant};

use lapsed_core::sweep::{PassMode, Stopped, Sweep};
use lapsed_redis::AdoptedInflightLayout;
use lapsed_testbed::{Engine, RedisServer};

use crate::inflight_app::{App, AppFixture, INDEX, layout, pass, payload, uuid};
use crate::story::{eventually, on_both_engines};

on_both_engines! {
    a_backlog_of_orphans_waits_for_a_confirmation,
    jobs_of_a_healthy_fleet_need_no_confirmation,
    heartbeats_of_the_future_confirm_nothing,
    a_shorter_threshold_is_observed_anew,
}

/// A server that has run for longer than a threshold; no operator has confirmed the system.
async fn beside(engine: Engine) -> (RedisServer, AppFixture) {
    let server = RedisServer::start(engine).unwrap();
    let beside = AppFixture::at(App::connect(server.port(), 0), &server.url(), layout());
    eventually("the server to have been there for a while", async || {
        let uptime = server.info("uptime_in_seconds").unwrap().parse::<u64>().unwrap();
        (uptime >= 3).then_some(())
    })
    .await;
    (server, beside)
}

/// A heartbeat of a host whose clock is a little ahead: its job is alive for the whole test.
fn soon(beside: &AppFixture) -> String {
    (beside.app.now_ms() + 9_000).to_string()
}

/// An application that writes nanoseconds, or dates by a wrong clock, shows no life.
async fn heartbeats_of_the_future_confirm_nothing(engine: Engine) {
    let (_server, beside) = beside(engine).await;
    beside.app.orphans(0, 5, "default");
    for (n, score) in ["99999999999999", "99999999999", "1700000000000000000"].iter().enumerate() {
        for at in 0..5 {
            let n = 100 + 5 * n + at;
            beside.app.register_at(&uuid(n), payload(n, "default"), score);
        }
    }
    let report = pass(&beside.sweeper("s"), PassMode::Reclaim).await;
    assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Brake), "{report:?}");
    assert!(report.detail.as_ref().unwrap().contains("0 of 20 jobs in flight"), "{report:?}");
    let dated = |from, to| beside.app.number(&["ZCOUNT", INDEX, from, to]);
    let far = (dated("99999999999", "99999999999"), dated("99999999999999", "+inf"));
    assert_eq!(far, (5, 10), "and nothing is changed while lapsed only observes");
}

async fn a_backlog_of_orphans_waits_for_a_confirmation(engine: Engine) {
    let (_server, beside) = beside(engine).await;
    beside.app.orphans(0, 20, "default");
    for n in 100..110 {
        beside.app.register_at(&uuid(n), payload(n, "default"), &soon(&beside));
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        let report = pass(&beside.sweeper("s"), PassMode::Reclaim).await;
        assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Brake), "{report:?}");
    }
    let report = pass(&beside.sweeper("s"), PassMode::Reclaim).await;
    let detail = report.detail.unwrap();
    assert!(detail.contains("10 of 30 jobs in flight have a heartbeat"), "{detail}");
    let dry = pass(&beside.sweeper("s"), PassMode::DryRun).await;
    assert_eq!((dry.entries.len(), dry.stopped), (20, Stopped::Brake), "{dry:?}");
    assert_eq!((dry.reclaimed, dry.skipped.get("brake")), (0, Some(&20)), "{dry:?}");
    assert_eq!(beside.app.queued("default"), 0);
    beside.inflight.confirm_adoption().await.unwrap();
    assert_eq!(pass(&beside.sweeper("s"), PassMode::Reclaim).await.reclaimed, 20);
    assert_eq!(beside.app.queued("default"), 20);
}

async fn jobs_of_a_healthy_fleet_need_no_confirmation(engine: Engine) {
    let (_server, beside) = beside(engine).await;
    for n in 100..110 {
        beside.app.register_at(&uuid(n), payload(n, "default"), &soon(&beside));
    }
    beside.app.orphans(0, 10, "default");
    let first = pass(&beside.sweeper("s"), PassMode::Reclaim).await;
    assert_eq!((first.reclaimed, first.stopped), (10, Stopped::Done), "{first:?}");
    // All of them die: the heartbeats were found before, so that this is what it looks like.
    for n in 100..110 {
        beside.app.unregister(&uuid(n));
    }
    beside.app.orphans(20, 20, "default");
    let second = pass(&beside.sweeper("s"), PassMode::Reclaim).await;
    assert_eq!((second.reclaimed, beside.app.queued("default")), (20, 30), "{second:?}");
}

/// With a heartbeat every minute and `orphan_threshold = "1s"` by mistake, every owner looks overdue.
async fn a_shorter_threshold_is_observed_anew(engine: Engine) {
    let (_server, beside) = beside(engine).await;
    let long = AdoptedInflightLayout { orphan_threshold: Duration::from_secs(600), ..layout() };
    let patient = beside.with(long);
    for n in 0..10 {
        beside.app.orphan(&uuid(n), payload(n, "default"));
    }
    for n in 100..120 {
        let minute_ago = (beside.app.now_ms() - 60_000).to_string();
        beside.app.register_at(&uuid(n), payload(n, "default"), &minute_ago);
    }
    let due = patient.inflight.survey(PassMode::Reclaim).await.unwrap().unwrap();
    assert!(due.observation.unwrap().confirmed_ms.is_some(), "twenty of thirty have a heartbeat");
    let report = pass(&beside.sweeper("s"), PassMode::Reclaim).await;
    assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Brake), "{report:?}");
    assert!(report.detail.as_ref().unwrap().contains("only observes"), "{report:?}");
}
