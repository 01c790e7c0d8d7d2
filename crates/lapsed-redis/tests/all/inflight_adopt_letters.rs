//! What becomes of orphans besides being put back, and how it is undone; queues of other formats; what
//! is not for lapsed to do while the application registers its jobs itself.

use std::sync::Arc;
use std::time::Duration;

use crate::inflight_app::{
    App, AppFixture, GC_LOCK, INDEX, JOBS, THRESHOLD, layout, name, payload, uuid,
};
use lapsed_core::inflight::rules::{DeadLetterReason, OnDeath, QueueEnd, RecoveryPolicy};
use lapsed_core::inflight::{
    Finish, Inflight, InflightParts, InflightStore, JobPlace, NewJob, RecoveredJob, RecoveryAction,
};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::sweep::Sweep;
use lapsed_core::system::{Restored, System};
use lapsed_core::{Error, Result};
use lapsed_redis::{
    AdoptedInflightLayout, DeadLetterPlace, QueueFormat, Redis, RedisAddress, Template,
};
use lapsed_testbed::{Cluster, Engine, RedisServer};

crate::inflight_app::on_both! {
    a_dropped_job_is_restored_from_its_receipt,
    a_dead_letter_is_restored_by_its_receipt,
    a_letter_whose_queue_does_not_take_it_stays,
    a_letter_is_not_overwritten_by_another_job,
    lists_and_streams_take_jobs_too,
    operations_of_the_application_are_refused_with_the_reason,
    jobs_explain_themselves,
    crashes_are_forgotten_after_their_window,
}

lapsed_testbed::steady_async_tests! {
    a_layout_of_one_slot_works_on_a_cluster,
    an_empty_application_stays_empty,
}

fn with(recovery: RecoveryPolicy) -> AdoptedInflightLayout {
    AdoptedInflightLayout { recovery, ..layout() }
}

fn on_death(on_death: OnDeath) -> AdoptedInflightLayout {
    with(RecoveryPolicy { on_death, ..RecoveryPolicy::default() })
}

fn why(restored: Restored) -> String {
    match restored {
        Restored::Refused { why } => why,
        other => panic!("{other:?}"),
    }
}

async fn a_dropped_job_is_restored_from_its_receipt(beside: AppFixture) {
    let app = &beside.app;
    let beside = beside.with(on_death(OnDeath::Drop));
    let odd: &[u8] = b"{\"class\":\"A\",\"args\":[\"\xff\",1.0,[]],\"queue\":\"slow\"}";
    app.orphan(&uuid(1), odd);
    assert_eq!(beside.sweep().await.reclaimed, 1);
    assert!(!app.is_registered(&uuid(1)) && app.queued("slow") == 0);
    assert_eq!(beside.inflight.counts().await.unwrap().dropped, 1);
    let receipt = beside.receipts().await.remove(0);
    let removed: RecoveredJob = serde_json::from_value(receipt.removed).unwrap();
    assert_eq!((removed.did, removed.queue.as_str()), (RecoveryAction::Dropped, "slow"));
    assert!(removed.payload.unwrap().starts_with("{\"class\":\"A\""));

    // Somebody has registered that id meanwhile.
    app.register(&uuid(1), payload(1, "slow"));
    let refused = beside.inflight.restore(receipt.id.seq).await.unwrap();
    assert!(why(refused).contains("registered anew"));
    app.unregister(&uuid(1));
    let restored = beside.inflight.restore(receipt.id.seq).await.unwrap();
    assert!(matches!(&restored, Restored::Restored { key, .. } if *key == uuid(1)), "{restored:?}");
    let lrem: [&[u8]; 4] = [b"LREM", b"queue:slow", b"0", odd];
    assert_eq!(app.call(&lrem), "1", "byte for byte");
    let again = beside.inflight.restore(receipt.id.seq).await.unwrap();
    assert!(why(again).contains("before"));
    assert_eq!(app.queued("slow"), 0);
    assert_eq!(beside.inflight.counts().await.unwrap().dropped, 0);
    assert!(why(beside.inflight.restore(7).await.unwrap()).contains("there is no receipt"));
}

async fn a_dead_letter_is_restored_by_its_receipt(beside: AppFixture) {
    let app = &beside.app;
    let beside = beside.with(on_death(OnDeath::DeadLetter));
    app.orphan(&uuid(1), payload(1, "default"));
    app.orphan(&uuid(2), payload(2, "default"));
    assert_eq!(beside.sweep().await.reclaimed, 2);
    let dead = beside.inflight.dead(None, 10).await.unwrap();
    assert!(
        dead.iter()
            .all(|job| matches!(job.place, JobPlace::Dead { why: DeadLetterReason::Asked, .. }))
    );
    let receipts = beside.receipts().await;
    beside.inflight.delete(&receipts[1].key).await.unwrap();
    let gone = beside.inflight.restore(receipts[1].id.seq).await.unwrap();
    assert!(why(gone).contains("not where the receipt says"));
    let restored = beside.inflight.restore(receipts[0].id.seq).await.unwrap();
    assert!(matches!(restored, Restored::Restored { .. }), "{restored:?}");
    assert_eq!(app.queue("default"), [payload(1, "default")]);
    assert!(beside.receipts().await[0].restored_ms.is_some());
    assert!(why(beside.inflight.restore(receipts[0].id.seq).await.unwrap()).contains("before"));

    let front = beside.with(layout());
    app.orphan(&uuid(3), payload(3, "default"));
    assert_eq!(front.sweep().await.reclaimed, 1);
    let seq = front.receipts().await[2].id.seq;
    assert!(why(front.inflight.restore(seq).await.unwrap()).contains("was put back on queue"));
    assert_eq!(app.queued("default"), 2);
}

async fn a_letter_whose_queue_does_not_take_it_stays(beside: AppFixture) {
    let app = &beside.app;
    let beside = beside.with(on_death(OnDeath::Fail));
    app.orphan(&uuid(1), payload(1, "bad"));
    app.call(&["SET", "queue:bad", "another program's"]);
    assert_eq!(beside.sweep().await.reclaimed, 1);
    let id = name(&uuid(1));
    let error = beside.inflight.put_back(&id, QueueEnd::Front).await.unwrap_err().to_string();
    assert!(error.contains("`queue:bad` is a string, not a list"), "{error}");
    let dead = beside.inflight.dead(None, 10).await.unwrap();
    assert!(
        matches!(dead[0].place, JobPlace::Dead { why: DeadLetterReason::Failed, .. }),
        "{dead:?}"
    );
    let seq = beside.receipts().await[0].id.seq;
    assert!(why(beside.inflight.restore(seq).await.unwrap()).contains("not a list"));
    assert_eq!(beside.inflight.dead(None, 10).await.unwrap().len(), 1);
}

/// Ids are unique, unless the application makes them otherwise: then nothing is lost.
async fn a_letter_is_not_overwritten_by_another_job(beside: AppFixture) {
    let app = &beside.app;
    let beside = beside.with(on_death(OnDeath::DeadLetter));
    app.orphan(&uuid(1), payload(1, "default"));
    assert_eq!(beside.sweep().await.reclaimed, 1);
    app.orphan(&uuid(1), payload(2, "default"));
    let report = beside.sweep().await;
    assert_eq!((report.reclaimed, crate::inflight_app::skipped(&report, "not_taken")), (0, 1));
    assert!(app.is_registered(&uuid(1)));
    assert_eq!(beside.inflight.dead(None, 10).await.unwrap()[0].payload, payload(1, "default"));
}

async fn lists_and_streams_take_jobs_too(beside: AppFixture) {
    let app = &beside.app;
    let format = |queues, key: &str| AdoptedInflightLayout {
        queues,
        queue_key: Template::new(key, "queue").unwrap(),
        dead_letter: DeadLetterPlace::Lapsed,
        ..layout()
    };
    // Any JSON object will do where no Sidekiq reads it.
    let job = "{\"queue\":\"mail\",\"to\":[]}";
    let list = beside.with(format(QueueFormat::List, "list:{queue}"));
    app.orphan(&uuid(1), job);
    assert_eq!(list.sweep().await.reclaimed, 1);
    assert_eq!(app.call(&["RPOP", "list:mail"]), job);
    assert!(!app.has("queues"));
    let stream = beside.with(format(QueueFormat::Stream, "stream:{queue}"));
    let another = "{\"queue\":\"mail\",\"to\":[1]}";
    app.orphan(&uuid(2), job);
    app.orphan(&uuid(3), another);
    assert_eq!(stream.sweep().await.reclaimed, 2);
    assert_eq!(app.number(&["XLEN", "stream:mail"]), 2);
    let items = app.call(&["XRANGE", "stream:mail", "-", "+", "COUNT", "1"]);
    assert!(items.ends_with(&format!("payload\n{job}")), "{items}");
    assert_eq!(stream.inflight.queues(None, 10).await.unwrap(), [(name("mail"), 2)]);
}

async fn operations_of_the_application_are_refused_with_the_reason(beside: AppFixture) {
    fn refused<T>(result: Result<T>) {
        match result.err().unwrap() {
            error @ Error::Unsupported { .. } => {
                let words = error.to_string();
                assert!(words.contains("use mode = \"native\""), "{words}");
            }
            other => panic!("{other}"),
        }
    }
    let (store, claim) = (&beside.inflight, Claim::newest(name("web-1")));
    let job = NewJob::new(name("a"), name("default"), "{}");
    refused(store.enqueue(std::slice::from_ref(&job)).await);
    refused(store.take(&claim, &name("default"), 1).await);
    refused(store.register(&claim, &[job]).await);
    refused(store.finish(&[], &Finish::Complete).await);
    refused(store.start(&name("web-1"), 1_000).await);
    refused(store.beat(&claim).await);
    refused(store.end(&claim).await);
    assert!(store.waiter(&name("default")).is_none());
    assert_eq!(store.held_by(&claim, 10).await.unwrap(), []);
    assert_eq!(beside.app.keys().len(), 0);
}

async fn jobs_explain_themselves(beside: AppFixture) {
    let app = &beside.app;
    let system = Inflight::new(
        InflightParts::new(beside.inflight.clone(), Arc::new(beside.redis.clone()), THRESHOLD)
            .timeout(Duration::from_secs(5))
            .batch(100)
            .sweeper("s".to_owned()),
    );
    let id = format!("web-1:41:00112233aabbccdd/{}", uuid(1));
    app.register_at(&id, payload(1, "default"), &(app.now_ms() + 600_000).to_string());
    let explained = system.explain(&id).await.unwrap();
    assert_eq!(explained.verdict, "live", "{explained:?}");
    let owners = beside.inflight.owners(None, 10).await.unwrap();
    assert_eq!((owners[0].owner.as_str(), owners[0].held), ("web-1:41:00112233aabbccdd", 1));
    assert_eq!(beside.inflight.owner(&Claim::newest(name("web-2"))).await.unwrap(), None);
    app.orphan(&id, payload(1, "default"));
    beside.settle().await;
    let explained = system.explain(&id).await.unwrap();
    assert_eq!(explained.verdict, "overdue", "{explained:?}");
    assert_eq!(beside.sweep().await.reclaimed, 1);
    let explained = system.explain(&id).await.unwrap();
    assert_eq!(explained.verdict, "reclaimed", "{explained:?}");
    assert!(explained.because[0].contains("put back on its queue"), "{explained:?}");
}

async fn crashes_are_forgotten_after_their_window(beside: AppFixture) {
    let app = &beside.app;
    let short = RecoveryPolicy { crash_window_ms: 50, crashes_max: 2, ..RecoveryPolicy::default() };
    let beside = beside.with(with(short));
    for n in 1..=3 {
        app.orphan(&uuid(n), payload(1, "default"));
        assert_eq!(beside.sweep().await.reclaimed, 1);
        beside.until_ms(app.now_ms() + 60).await;
    }
    assert_eq!(app.queued("default"), 3, "each is the first within its window");
    beside.sweep().await;
    let keys = app.call(&["KEYS", "lapsed:*crashes*"]);
    assert_eq!(keys, "", "and the log of them is gone");
}

/// Sidekiq knows no cluster, but a layout with one tag is of one slot.
async fn a_layout_of_one_slot_works_on_a_cluster() {
    let cluster = Cluster::start(Engine::Redis, 3).unwrap();
    let redis = Redis::new(&RedisAddress::new(&cluster.url())).unwrap();
    let spread = redis.adopted_inflight(crate::inflight_app::id(), layout()).err().unwrap();
    assert!(spread.to_string().contains("one slot"), "{spread}");
    let tagged = AdoptedInflightLayout {
        orphan_threshold: THRESHOLD,
        heartbeat_interval: Duration::from_millis(200),
        queue_key: Template::new("{app}:queue:{queue}", "queue").unwrap(),
        ..AdoptedInflightLayout::under("{app}:")
    };
    let node = cluster.master_of_slot(cluster.slot_of("{app}:inflight_index")).unwrap();
    let app = App::connect(cluster.nodes()[node].port(), 0);
    let beside = AppFixture::at(app, &cluster.url(), tagged);
    let app = &beside.app;
    let of = |n| format!("web-1:41:00112233aabbccdd/{}", uuid(n));
    let recently = (app.now_ms() - crate::inflight_app::LONG_AGO_MS).to_string();
    for (n, at) in [(1, "1700000000000"), (2, recently.as_str())] {
        app.call(&["ZADD", "{app}:inflight_index", at, &of(n)]);
        app.call(&["HSET", "{app}:inflight_jobs", &of(n), &payload(n, "default")]);
    }
    assert_eq!(beside.sweep().await.reclaimed, 2);
    assert_eq!(app.call(&["RPOP", "{app}:queue:default"]), payload(2, "default"));
    assert_eq!(beside.inflight.dead(None, 10).await.unwrap()[0].id.as_str(), of(1));
    assert!(beside.inflight.put_back(&name(&of(1)), QueueEnd::Front).await.unwrap());
    assert_eq!(app.call(&["RPOP", "{app}:queue:default"]), payload(1, "default"));
    assert_eq!(app.call(&["SMEMBERS", "{app}:queues"]), "default");
}

/// The application's own keys, and nothing else, are what a pass leaves behind.
async fn an_empty_application_stays_empty() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let beside = AppFixture::at(App::connect(server.port(), 0), &server.url(), layout());
    let report = beside.sweep().await;
    assert_eq!((report.suspects, report.errors), (0, 0));
    for key in [INDEX, JOBS, GC_LOCK, "queues"] {
        assert!(!beside.app.has(key), "{key}");
    }
}
