//! Dead letters of an application with Sidekiq are in Sidekiq's own set of dead jobs: in its format, put
//! there in the step that takes the job from its process, and Sidekiq's users retry or delete them there.

use lapsed_core::inflight::rules::{OnDeath, QueueEnd, RecoveryPolicy};
use lapsed_core::inflight::{InflightStore, JobPlace, RecoveredJob};
use lapsed_core::system::Restored;
use lapsed_redis::{AdoptedInflightLayout, DeadLetterPlace};
use lapsed_testbed::{Engine, RedisServer};
use serde_json::Value;

use crate::inflight_app::{App, AppFixture, THRESHOLD, jid, layout, name, payload, skipped, uuid};
use crate::ruby::{LIMIT, QUEUE, dead_jobs, enqueue};

crate::inflight_app::on_both! {
    trap_f7_only_what_sidekiq_writes_about_a_failure_changes,
    a_job_that_sidekiq_would_not_keep_is_a_letter_of_lapsed,
    a_dead_set_of_another_type_leaves_the_job_registered,
    letters_that_left_the_dead_set_do_not_end_the_list,
    dead_letters_may_stay_with_lapsed,
}

lapsed_testbed::steady_async_tests! {
    sidekiq_lists_and_retries_what_lapsed_gives_up,
}

fn giving_up() -> AdoptedInflightLayout {
    let recovery = RecoveryPolicy { on_death: OnDeath::DeadLetter, ..RecoveryPolicy::default() };
    AdoptedInflightLayout { recovery, ..layout() }
}

/// Every member of Sidekiq's set, the oldest first.
fn dead_set(app: &App) -> Vec<String> {
    let members = app.call(&["ZRANGE", "dead", "0", "-1"]);
    members.lines().map(str::to_owned).collect()
}

/// The gem itself: it lists the job with its error, and its `retry` puts the job on its queue. lapsed then
/// knows that it is gone from there, and counts its crashes from 0.
async fn sidekiq_lists_and_retries_what_lapsed_gives_up() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let jids = enqueue(&server, 2);
    let recovery = RecoveryPolicy { crashes_max: 1, ..RecoveryPolicy::default() };
    let beside = AppFixture::at(App::connect(server.port(), 0), &server.url(), layout())
        .with(AdoptedInflightLayout { recovery, ..layout() });
    let app = &beside.app;
    for n in 0..2 {
        let job = app.call(&["RPOP", &format!("queue:{QUEUE}")]);
        app.orphan(&uuid(n), job);
    }
    let before_ms = app.now_ms();
    assert_eq!(beside.sweep().await.reclaimed, 2);

    let (sidekiq, dead) = dead_jobs(&server);
    assert_eq!(dead.len(), 2, "{dead:?}");
    let of = |jid: &str| dead.iter().find(|job| job["jid"] == jid).unwrap();
    for (n, jid) in jids.iter().enumerate() {
        let job = of(jid);
        assert_eq!((&job["queue"], &job["args"]), (&QUEUE.into(), &serde_json::json!([n])));
        let item = &job["item"];
        let message = item["error_message"].as_str().unwrap();
        assert!(message.starts_with("1 worker died with this job"), "{message}");
        assert!(message.contains(&uuid(n)), "{message}");
        let at_s = job["at"].as_f64().unwrap();
        assert!((before_ms as f64 / 1e3..=app.now_ms() as f64 / 1e3).contains(&at_s), "{at_s}");
        assert_eq!((&job["error"], &item["retry_count"]), (&true.into(), &0.into()));
        assert_eq!(item["error_class"], "Lapsed::WorkerDied");
        assert_eq!(item["failed_at"].as_f64(), Some(at_s));
    }
    let letters = beside.inflight.dead(None, 10).await.unwrap();
    let place = |job: &JobPlace| match job {
        JobPlace::Dead { kept_in, .. } => kept_in.clone().unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(letters.len(), 2);
    assert_eq!(place(&letters[0].place), "Sidekiq's dead set");

    sidekiq.say(&format!("retry {}", jids[1])).unwrap();
    assert_eq!(sidekiq.line(LIMIT).unwrap(), "retried");
    let back: Value = serde_json::from_str(&app.queue(QUEUE)[0]).unwrap();
    assert_eq!((&back["jid"], app.queued(QUEUE)), (&jids[1].as_str().into(), 1));
    assert_eq!(app.number(&["ZCARD", "dead"]), 1);

    // It is not lapsed's to put back any more, by no way.
    let retried = name(&uuid(1));
    let left = beside.inflight.dead(None, 10).await.unwrap();
    assert_eq!((left.len(), &left[0].id), (1, &letters[0].id));
    assert_eq!(beside.inflight.job(&retried).await.unwrap(), None);
    let receipts = beside.receipts().await;
    let receipt = receipts.iter().find(|receipt| receipt.key == retried).unwrap();
    let removed: RecoveredJob = serde_json::from_value(receipt.removed.clone()).unwrap();
    assert_eq!(removed.kept_in.as_deref(), Some("Sidekiq's dead set"));
    let Restored::Refused { why } = beside.inflight.restore(receipt.id.seq).await.unwrap() else {
        panic!("it was put back twice")
    };
    assert!(why.contains("not in Sidekiq's dead set any more"), "{why}");
    assert_eq!(app.queued(QUEUE), 1);

    let other = receipts.iter().find(|receipt| receipt.key.as_str() == uuid(0)).unwrap();
    let restored = beside.inflight.restore(other.id.seq).await.unwrap();
    assert!(matches!(restored, Restored::Restored { .. }), "{restored:?}");
    assert_eq!((app.queued(QUEUE), app.has("dead")), (2, false));
    assert!(sidekiq.finish(LIMIT).unwrap().success());
}

/// What Sidekiq's `attempt_retry` writes, and nothing else: large numbers, `1.0`, empty arrays, escapes,
/// order and blanks are as they were. Put back, it is the job as it was.
async fn trap_f7_only_what_sidekiq_writes_about_a_failure_changes(beside: AppFixture) {
    let beside = beside.with(giving_up());
    let app = &beside.app;
    let message = |n: usize| {
        format!("\"its worker died; lapsed does not put it back again (request {})\"", uuid(n))
    };
    let class = "\"Lapsed::WorkerDied\"";
    let first = |n, [head, end]: [&str; 2], at: &str| {
        let message = message(n);
        format!(
            "{head},\"error_message\":{message},\"error_class\":{class},\"failed_at\":{at},\
             \"retry_count\":0{end}"
        )
    };
    let again = |[a, b, c, d, e]: [&str; 5], [message, class, at, count]: [&str; 4]| {
        [a, message, b, class, c, at, d, count, e].concat()
    };
    let plain = ["{\"class\":\"A\",\"args\":[1.0,[],{},12345678901234567890,1e300]", "}"];
    let odd = [
        " { \"class\" : \"A\\u0042\" ,\r\t\"args\":[\"}\\\\\\\"\",{\"retry_count\":5,\"a\":\"]\"}] , \"bare\" : 7 ",
        "} ",
    ];
    let failed = [
        "{\"error_message\":",
        ",\"args\":[{\"error_class\":\"mine\"}],\"class\":\"A\",\"error_class\": ",
        ",\"failed_at\":1.50,\"retried_at\":",
        ",\"retry_count\":",
        ",\"retry\":25}",
    ];
    let before = again(failed, ["\"x\\\"y\"", "null", "2.5", "11"]);
    let jobs = [plain.concat(), odd.concat(), before];
    for (n, job) in jobs.iter().enumerate() {
        app.orphan(&uuid(n), job);
    }
    assert_eq!(beside.sweep().await.reclaimed, 3);
    for place in ["0", "1", "2"] {
        let found = app.call(&["ZRANGE", "dead", place, place, "WITHSCORES"]);
        let (member, score) = found.rsplit_once('\n').unwrap();
        let at = format!("{:.6}", score.parse::<f64>().unwrap());
        let n = (0..3).find(|n| member.contains(&uuid(*n))).unwrap();
        let expected = match n {
            0 => first(0, plain, &at),
            1 => first(1, odd, &at),
            _ => again(failed, [&message(2), class, &at, "12"]),
        };
        assert_eq!(member, expected);
    }
    for (n, job) in jobs.iter().enumerate() {
        assert!(beside.inflight.put_back(&name(&uuid(n)), QueueEnd::Front).await.unwrap());
        assert_eq!(app.queue("default")[0], *job);
    }
    assert!(!app.has("dead"));
}

/// With `dead: false` Sidekiq throws a job away that it gives up. lapsed throws nothing away.
async fn a_job_that_sidekiq_would_not_keep_is_a_letter_of_lapsed(beside: AppFixture) {
    let beside = beside.with(giving_up());
    let job = "{\"class\":\"A\",\"args\":[],\"dead\":false,\"queue\":\"default\"}";
    beside.app.orphan(&uuid(1), job);
    assert_eq!(beside.sweep().await.reclaimed, 1);
    assert!(!beside.app.has("dead"));
    let letters = beside.inflight.dead(None, 10).await.unwrap();
    assert!(matches!(letters[0].place, JobPlace::Dead { kept_in: None, .. }), "{letters:?}");
    assert!(beside.inflight.put_back(&letters[0].id, QueueEnd::Front).await.unwrap());
    assert_eq!(beside.app.queue("default"), [job]);
}

async fn a_dead_set_of_another_type_leaves_the_job_registered(beside: AppFixture) {
    let (front, beside) = (beside.clone(), beside.with(giving_up()));
    let app = &beside.app;
    app.call(&["SET", "dead", "another program's"]);
    app.orphan(&uuid(1), payload(1, "default"));
    let report = beside.sweep().await;
    assert_eq!((report.reclaimed, skipped(&report, "not_taken")), (0, 1), "{report:?}");
    assert!(app.is_registered(&uuid(1)));
    assert_eq!(app.call(&["GET", "dead"]), "another program's");
    // Who gives nothing up does not need the set.
    assert_eq!(front.sweep().await.reclaimed, 1);
    assert_eq!(app.queue("default"), [payload(1, "default")]);
}

async fn letters_that_left_the_dead_set_do_not_end_the_list(beside: AppFixture) {
    let beside = beside.with(giving_up());
    let app = &beside.app;
    (0..6).for_each(|n| app.orphan(&uuid(n), payload(n, "default")));
    assert_eq!(beside.sweep().await.reclaimed, 6);
    let members = dead_set(app);
    assert_eq!(members.len(), 6, "{members:?}");
    // As `delete` of Sidekiq's entries does it, with the first four.
    for member in &members[..4] {
        app.call(&["ZREM", "dead", member]);
    }
    let shown = beside.inflight.dead(None, 2).await.unwrap();
    assert_eq!(shown.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), [uuid(4), uuid(5)]);
    assert!(!beside.inflight.delete(&name(&uuid(0))).await.unwrap());
    assert!(!beside.inflight.put_back(&name(&uuid(1)), QueueEnd::Front).await.unwrap());
    assert!(!app.has("queue:default"));
    assert!(beside.inflight.delete(&name(&uuid(4))).await.unwrap());
    assert!(beside.inflight.put_back(&name(&uuid(5)), QueueEnd::Front).await.unwrap());
    assert!(!app.has("dead"));
    // The end of a pass finds those that somebody settled in Sidekiq, and forgets how often they crashed.
    beside.sweep().await;
    assert_eq!(beside.inflight.counts().await.unwrap().dead, 0);
    app.orphan(&uuid(9), payload(2, "default"));
    let lenient = RecoveryPolicy { crashes_max: 2, ..RecoveryPolicy::default() };
    let lenient = beside.with(AdoptedInflightLayout { recovery: lenient, ..layout() });
    beside.until_ms(app.now_ms() + THRESHOLD.as_millis() as u64 / 2 + 1).await;
    assert_eq!(lenient.sweep().await.reclaimed, 1);
    assert_eq!(app.queue("default")[0], payload(2, "default"), "{}", jid(2));
}

async fn dead_letters_may_stay_with_lapsed(beside: AppFixture) {
    let there = beside.with(giving_up());
    let here =
        beside.with(AdoptedInflightLayout { dead_letter: DeadLetterPlace::Lapsed, ..giving_up() });
    let app = &beside.app;
    app.orphan(&uuid(1), payload(1, "default"));
    assert_eq!(here.sweep().await.reclaimed, 1);
    assert!(!app.has("dead"));
    app.orphan(&uuid(2), payload(2, "default"));
    assert_eq!(there.sweep().await.reclaimed, 1);
    // Both are dead letters, whatever the setting is by then.
    assert_eq!(here.inflight.dead(None, 10).await.unwrap().len(), 2);
    for n in 1..=2 {
        assert!(here.inflight.put_back(&name(&uuid(n)), QueueEnd::Front).await.unwrap());
    }
    assert_eq!((app.queued("default"), app.has("dead")), (2, false));
}
