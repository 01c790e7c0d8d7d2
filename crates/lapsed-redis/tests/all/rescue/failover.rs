//! Redis fails over while lapsed puts jobs back: a replica that missed the last writes is promoted. Everybody has a whole limit from
//! then on, and what the replica does not know of is put back once more, because it never happened there.

use std::collections::BTreeSet;

use lapsed_testbed::ByteProxy;

use super::faults::{self, now_ms};
use super::killed_lapsed::{back, leave_orphans};
use super::many_orphans;
use super::*;

lapsed_testbed::steady_async_tests! {
    after_a_failover_everybody_has_a_whole_limit_and_each_job_is_put_back_once,
    after_a_failover_copies_of_sidekiqs_heartbeats_put_each_job_back_once,
}

const GRACE: Duration = Duration::from_secs(4);
const JOBS: usize = 20;

async fn after_a_failover_everybody_has_a_whole_limit_and_each_job_is_put_back_once() {
    // Sidekiq's working lists are looked for once a minute, which is too long for a test; its heartbeats have a test of their own.
    for profile in faults::PROFILES.into_iter().chain(["celery", "asynq", "resque", "streams"]) {
        fail_over(profile).await;
    }
}

async fn fail_over(profile: &'static str) {
    let primary = RedisServer::start(Engine::Redis).unwrap();
    let replica = RedisServer::replica_of(&primary).unwrap();
    let proxy = ByteProxy::start(primary.port()).unwrap();
    let redis = connect(&format!("redis://127.0.0.1:{}", proxy.port()));
    let sweep: Arc<dyn Sweep> = many_orphans::of_mails(&redis, profile, GRACE);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    // Queues are looked for once a minute.
    let app = App::on(&primary);
    leave_orphans(&app, profile, 0);
    crate::story::settled(&*sweep).await;
    leave_orphans(&app, profile, JOBS);
    replica.wait_synced().unwrap();
    replica.promote().unwrap();
    // What the replica never sees.
    let mut before = 0;
    eventually("the jobs to be put back on the primary", async || {
        before += pass(&sweeper).await.reclaimed;
        (before == JOBS as u64).then_some(())
    })
    .await;
    let old = receipts(&redis, &id()).await;

    let app = App::on(&replica);
    let promoted_ms = now_ms(&app);
    proxy.redirect(replica.port());
    proxy.close_all();
    let mut after = 0;
    eventually("the jobs to be put back on the promoted replica", async || {
        after += pass(&sweeper).await.reclaimed;
        (after == JOBS as u64).then_some(())
    })
    .await;
    pass(&sweeper).await;
    let found = receipts(&redis, &id()).await;
    let keys: BTreeSet<&str> = found.iter().map(|receipt| receipt.key.as_str()).collect();
    let first_ms = found.iter().map(|receipt| receipt.at_ms).min().unwrap();
    println!(
        "{profile}: put back {before} before the failover and {after} after it, the first {} ms later; receipts {}",
        first_ms - promoted_ms,
        found.len()
    );
    assert_eq!((found.len(), keys.len()), (JOBS, JOBS), "{profile}");
    let spared_ms = first_ms - promoted_ms;
    assert!(spared_ms + 500 >= GRACE.as_millis() as u64, "{profile}: {spared_ms} ms");
    let highest = old.iter().map(|receipt| receipt.id.seq).max();
    let lowest = found.iter().map(|receipt| receipt.id.seq).min();
    assert!(lowest > highest, "{profile}: receipt {lowest:?} comes after {highest:?}");
    assert_eq!(back(&app, profile), JOBS, "{profile}");
}

/// What a process of Sidekiq ran is known from copies of its heartbeats, which the replica has.
async fn after_a_failover_copies_of_sidekiqs_heartbeats_put_each_job_back_once() {
    let primary = RedisServer::start(Engine::Redis).unwrap();
    let replica = RedisServer::replica_of(&primary).unwrap();
    let proxy = ByteProxy::start(primary.port()).unwrap();
    let redis = connect(&format!("redis://127.0.0.1:{}", proxy.port()));
    let sweep: Arc<dyn Sweep> = many_orphans::of_mails(&redis, "sidekiq", GRACE);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let app = App::on(&primary);
    beat(&app, JOBS);
    crate::story::settled(&*sweep).await;
    eventually("a copy of the heartbeat", async || {
        pass(&sweeper).await;
        (!app.text(&["KEYS", "lapsed:*copy:*"]).is_empty()).then_some(())
    })
    .await;
    replica.wait_synced().unwrap();
    replica.promote().unwrap();
    expire(&app);
    let mut before = 0;
    eventually("the jobs to be put back on the primary", async || {
        before += pass(&sweeper).await.reclaimed;
        (before == JOBS as u64).then_some(())
    })
    .await;

    let app = App::on(&replica);
    expire(&app);
    let promoted_ms = now_ms(&app);
    proxy.redirect(replica.port());
    proxy.close_all();
    let mut after = 0;
    eventually("the jobs to be put back on the promoted replica", async || {
        after += pass(&sweeper).await.reclaimed;
        (after == JOBS as u64).then_some(())
    })
    .await;
    pass(&sweeper).await;
    let found = receipts(&redis, &id()).await;
    let keys: BTreeSet<&str> = found.iter().map(|receipt| receipt.key.as_str()).collect();
    assert_eq!((found.len(), keys.len()), (JOBS, JOBS));
    let spared_ms = found.iter().map(|one| one.at_ms).min().unwrap() - promoted_ms;
    println!(
        "sidekiq: put back {before} before the failover and {after} after it, the first {spared_ms} ms later"
    );
    assert!(spared_ms + 500 >= GRACE.as_millis() as u64, "{spared_ms} ms");
    assert_eq!(app.number(&["LLEN", "queue:mails"]), JOBS as i64);
    assert_eq!(app.number(&["SCARD", "processes"]), 0);
}

/// A heartbeat of a process with so many jobs.
fn beat(app: &App, jobs: usize) {
    let script = "redis.call('SADD', 'queues', 'mails')
        redis.call('SADD', 'processes', 'vm:1:ab')
        for n = 1, ARGV[1] do
          local payload = cjson.encode({ class = 'Job', jid = 'j' .. n, queue = 'mails', args = { n } })
          redis.call('HSET', 'vm:1:ab:workers', 't' .. n, cjson.encode({ queue = 'mails', payload = payload, run_at = 1794926642 }))
        end
        redis.call('EXPIRE', 'vm:1:ab:workers', 60)
        redis.call('HSET', 'vm:1:ab', 'info', '{}', 'busy', ARGV[1], 'beat', '1.5')
        redis.call('EXPIRE', 'vm:1:ab', 60)";
    app.text(&["EVAL", script, "0", &jobs.to_string()]);
}

/// 60 s after its last heartbeat.
fn expire(app: &App) {
    app.text(&["DEL", "vm:1:ab", "vm:1:ab:workers"]);
}
