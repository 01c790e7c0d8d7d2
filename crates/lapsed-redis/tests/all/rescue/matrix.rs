//! Faults of the systems that `faults.rs` does not have, one row for each system: keys as a killed worker leaves them.

use lapsed_core::sweep::Outcome;
use lapsed_testbed::{Persistence, ServerOptions};

use super::*;
use crate::rescue::faults::{look, now_ms};
use crate::rescue::many_orphans::leave;
use crate::rescue::resque::leave_jobs;
use crate::rescue::streams::{leave_entries, streams};
use crate::rescue::versions::leave_one;
use crate::story::reclaim;

lapsed_testbed::steady_async_tests! {
    a_job_that_ends_between_suspicion_and_put_back_stays_ended_in_each_system,
    a_restart_of_redis_spares_the_workers_of_each_system_for_the_grace,
}

struct Row {
    profile: &'static str,
    /// Leaves one job of a worker that is gone.
    leave: fn(&App),
    /// What the worker's end of the job does.
    end: &'static [&'static [&'static str]],
    /// How many jobs wait.
    waiting: fn(&App) -> i64,
}

const ROWS: [Row; 6] = [
    Row {
        profile: "bullmq",
        leave: |app| leave_one(app, "bull:mails", "bullmq:6.7.0"),
        end: &[
            &["LREM", "bull:mails:active", "1", "a"],
            &["ZADD", "bull:mails:completed", "1", "a"],
        ],
        waiting: |app| app.number(&["LLEN", "bull:mails:wait"]),
    },
    Row {
        profile: "celery",
        leave: |app| leave(app, "celery", 1, "x"),
        end: &[&["HDEL", "unacked", "tag-0"], &["ZREM", "unacked_index", "tag-0"]],
        waiting: |app| app.number(&["LLEN", "mails"]),
    },
    Row {
        profile: "sidekiq",
        leave: |app| leave(app, "sidekiq", 1, "x"),
        end: &[&["DEL", "working:queue:mails:vm:1:ab"]],
        waiting: |app| app.number(&["LLEN", "queue:mails"]),
    },
    Row {
        profile: "asynq",
        leave: |app| leave(app, "asynq", 1, "x"),
        end: &[
            &["LREM", "asynq:{mails}:active", "0", "0"],
            &["ZREM", "asynq:{mails}:lease", "0"],
            &["DEL", "asynq:{mails}:t:0"],
        ],
        waiting: |app| app.number(&["LLEN", "asynq:{mails}:pending"]),
    },
    Row {
        profile: "resque",
        leave: |app| leave_jobs(app, 0..1),
        end: &[&["DEL", "resque:worker:vm:0:mails"]],
        waiting: |app| app.number(&["LLEN", "resque:queue:mails"]),
    },
    Row {
        profile: "streams",
        leave: |app| leave_entries(app, 0..1),
        end: &[&[
            "EVAL",
            "local id = redis.call('XRANGE', 'mails', '-', '+')[1][1] redis.call('XACK', 'mails', 'workers', id)",
            "0",
        ]],
        // The entry itself stays where it was.
        waiting: |app| app.number(&["XLEN", "mails"]) - 1,
    },
];

fn opened(redis: &Redis, row: &Row, grace: Duration) -> Arc<RescuedInflight> {
    let usual = match row.profile {
        "streams" => streams(Duration::ZERO),
        other => layout(other, Duration::ZERO),
    };
    let layout = RescueLayout { grace: Some(grace), ..usual };
    Arc::new(redis.rescued_inflight(id(), layout).unwrap())
}

async fn a_job_that_ends_between_suspicion_and_put_back_stays_ended_in_each_system() {
    const GRACE: Duration = Duration::from_millis(300);
    for row in &ROWS {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let (app, redis) = (App::on(&server), connect(&server.url()));
        (row.leave)(&app);
        let sweep: Arc<dyn Sweep> = opened(&redis, row, GRACE);
        past_the_grace(&app, &redis, GRACE).await;
        let found = eventually("a suspect", async || {
            Some(look(&sweep).await).filter(|found| found.len() == 1)
        })
        .await;
        for command in row.end {
            app.text(command);
        }
        let answer = reclaim(&*sweep, now_ms(&app), found).await;
        assert!(matches!(answer.outcomes[0], Outcome::Gone), "{}: {answer:?}", row.profile);
        assert_eq!((row.waiting)(&app), 0, "{}", row.profile);
        assert!(receipts(&redis, &id()).await.is_empty(), "{}", row.profile);
    }
}

async fn a_restart_of_redis_spares_the_workers_of_each_system_for_the_grace() {
    const GRACE: Duration = Duration::from_secs(4);
    for row in &ROWS {
        let server =
            ServerOptions::new(Engine::Redis).persistence(Persistence::Aof).start().unwrap();
        let (app, redis) = (App::on(&server), connect(&server.url()));
        (row.leave)(&app);
        let inflight = opened(&redis, row, GRACE);
        let sweep: Arc<dyn Sweep> = inflight.clone();
        let sweeper = sweeper(&sweep, &redis, Policy::default());
        pass(&sweeper).await;
        server.restart().unwrap();
        let app = App::on(&server);
        let back_ms = now_ms(&app);
        eventually("the job to be put back", async || {
            pass(&sweeper).await;
            (!receipts(&redis, &id()).await.is_empty()).then_some(())
        })
        .await;
        pass(&sweeper).await;
        let found = receipts(&redis, &id()).await;
        assert_eq!(found.len(), 1, "{}: {found:?}", row.profile);
        let spared_ms = found[0].at_ms - back_ms;
        assert!(
            spared_ms >= 3_500,
            "{}: put back {spared_ms} ms after Redis was back",
            row.profile
        );
    }
}
