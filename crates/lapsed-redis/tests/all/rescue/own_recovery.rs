//! Others who put the same jobs back at the same moment: the system's own recovery, a second daemon, a daemon that ended in the
//! middle of a call.

use std::collections::BTreeMap;

use lapsed_core::sweep::{PassMode, Sweeper};
use lapsed_testbed::ByteProxy;

use super::faults::{PROFILES, Random, ids, leave_many, now_ms, short_limit, waiting};
use super::many_orphans::leave;
use super::*;

lapsed_testbed::steady_async_tests! {
    trap_f10_bullmqs_own_check_and_lapsed_put_each_job_back_once,
    trap_f10_rqs_own_cleanup_and_lapsed_put_each_job_back_once,
    trap_f10_dramatiqs_own_maintenance_and_lapsed_put_each_message_back_once,
    trap_f10_celerys_own_restoring_and_lapsed_put_each_task_back_once,
    trap_f10_sidekiqs_own_cleanup_hides_no_job_from_lapsed,
    calls_cut_in_the_middle_put_each_job_back_once,
}

/// Two daemons that pass at the same time.
struct Daemons {
    redis: [Redis; 2],
    sweeps: [Arc<dyn Sweep>; 2],
    sweepers: [Sweeper; 2],
}

impl Daemons {
    /// Starts them; the server is not new to them any more.
    async fn new(server: &RedisServer, profile: &str, limit: Duration) -> Daemons {
        let redis = [connect(&server.url()), connect(&server.url())];
        let sweeps = redis.each_ref().map(|redis| {
            let sweep: Arc<dyn Sweep> = rescued(redis, profile, limit);
            sweep
        });
        let app = App::on(server);
        let over_ms = now_ms(&app) + limit.as_millis() as u64 + 500;
        eventually("the end of the grace", async || {
            let mut is_over = now_ms(&app) > over_ms;
            for sweep in &sweeps {
                let census = sweep.survey(PassMode::Reclaim).await.unwrap().unwrap();
                is_over &= census.back_ms == 0;
            }
            is_over.then_some(())
        })
        .await;
        // Small steps with pauses: the system itself comes in between.
        let small = Policy { batch: 13, op_delay: Duration::from_millis(10), ..Policy::default() };
        let sweepers = [0, 1].map(|n| sweeper(&sweeps[n], &redis[n], small.clone()));
        Daemons { redis, sweeps, sweepers }
    }

    /// Waits until nothing says that the server was away.
    async fn contact(&self) {
        eventually("the server to count as present", async || {
            let census = self.sweeps[0].survey(PassMode::DryRun).await.unwrap();
            (census.unwrap().back_ms == 0).then_some(())
        })
        .await;
    }

    /// Passes until `done`. Returns how many receipts there are for each job.
    async fn pass_until(&self, mut done: impl FnMut() -> bool) -> BTreeMap<String, usize> {
        eventually("all jobs to be put back", async || {
            tokio::join!(pass(&self.sweepers[0]), pass(&self.sweepers[1]));
            done().then_some(())
        })
        .await;
        let mut count = BTreeMap::new();
        for receipt in receipts(&self.redis[0], &id()).await {
            *count.entry(receipt.key.to_string()).or_default() += 1;
        }
        count
    }

    /// The same, while the system's own recovery goes on as soon as the first jobs are back.
    fn pass_until_beside(
        &self,
        server: &RedisServer,
        put_back: impl Fn(&App) -> usize + Send,
        own: impl FnOnce() + Send,
        done: impl FnMut() -> bool,
    ) -> BTreeMap<String, usize> {
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let app = App::on(server);
                let begun = || Ok((put_back(&app) > 50).then_some(()));
                lapsed_testbed::until("the first jobs", LIMIT, begun).unwrap();
                own();
            });
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(self.pass_until(done))
            })
        })
    }
}

async fn trap_f10_bullmqs_own_check_and_lapsed_put_each_job_back_once() {
    const JOBS: usize = 300;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("bullmq", &server), App::on(&server));
    let names = ids(JOBS);
    let first = work.start_with(
        &["work", "w1"],
        &[("SLOW", "600000"), ("CONCURRENCY", "300"), ("LOCK", "3000"), ("STALLED", "20")],
    );
    work.add(&names.iter().map(String::as_str).collect::<Vec<_>>());
    (0..JOBS).for_each(|_| drop(has_started(&first)));
    let daemons = Daemons::new(&server, "bullmq", Duration::ZERO).await;
    let own = work.start_with(
        &["work", "w2"],
        &[("STALLED", "20"), ("CONCURRENCY", "50"), ("LOCK", "30000")],
    );
    assert_eq!(own.line(LIMIT).unwrap(), "ready");
    own.freeze().unwrap();
    first.kill().unwrap();
    let is_done = || app.number(&["ZCARD", "bull:mails:completed"]) == JOBS as i64;
    let receipts = daemons.pass_until_beside(
        &server,
        |app| waiting(app, "bullmq").len(),
        || own.thaw().unwrap(),
        is_done,
    );
    // `stc` counts how often a job was put back, by whomever.
    let stalls: Vec<String> =
        names.iter().map(|id| app.text(&["HGET", &format!("bull:mails:{id}"), "stc"])).collect();
    assert!(stalls.iter().all(|stalls| stalls == "1"), "{stalls:?}");
    assert!(receipts.values().all(|n| *n == 1), "{receipts:?}");
    assert_eq!(app.number(&["LLEN", "bull:mails:active"]), 0);
    assert!(waiting(&app, "bullmq").is_empty());
    let mut started: Vec<String> = (0..JOBS).map(|_| has_started(&own).0).collect();
    started.sort();
    assert_eq!(started, names);
    println!("of {JOBS} jobs lapsed put {} back, BullMQ itself the others", receipts.len());
}

/// RQ's cleanup is no transaction: it reads what has expired, and acts later on what it has read.
async fn trap_f10_rqs_own_cleanup_and_lapsed_put_each_job_back_once() {
    const JOBS: usize = 200;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    let names = ids(JOBS);
    let leave = |retries: &'static str, part: &[String]| {
        let args = ["orphans", retries].into_iter().chain(part.iter().map(String::as_str));
        let client = work.start(&args.collect::<Vec<_>>(), None);
        assert_eq!(client.line(LIMIT).unwrap(), "added");
    };
    let daemons = Daemons::new(&server, "rq", Duration::ZERO).await;
    let own = work.start(&["clean"], None);
    assert_eq!(own.line(LIMIT).unwrap(), "ready");
    let mut receipts = BTreeMap::new();
    // In the first half RQ begins, in the second half lapsed.
    for (part, rq_begins) in names.chunks(JOBS / 2).zip([true, false]) {
        let (retried, failed) = part.split_at(JOBS / 4);
        leave("3", retried);
        leave("0", failed);
        if rq_begins {
            own.say("clean").unwrap();
        }
        receipts = daemons
            .pass_until(|| {
                let _ = own.say("clean");
                app.number(&["ZCARD", "rq:wip:mails"]) == 0
            })
            .await;
    }
    // The cleanup that was asked for last has ended, too.
    own.finish(LIMIT).unwrap();
    let waiting = waiting(&app, "rq");
    let mut wrong = Vec::new();
    for id in &names {
        let on_queue = waiting.iter().filter(|one| *one == id).count();
        let is_failed = app.text(&["ZSCORE", "rq:failed:mails", id]).parse::<f64>().is_ok();
        let status = app.text(&["HGET", &format!("rq:job:{id}"), "status"]);
        let put_back = receipts.get(&format!("mails/{id}")).copied().unwrap_or(0);
        let right = if is_failed { (0, "failed", 0) } else { (1, "queued", put_back.min(1)) };
        let found = (on_queue, status.as_str(), put_back);
        if found != right {
            wrong.push(format!("{id}: on the queue {on_queue} times, {status}, {put_back} receipts, failed: {is_failed}"));
        }
    }
    println!("of {JOBS} jobs lapsed put {} back, RQ recovered the others", receipts.len());
    assert!(wrong.is_empty(), "{} jobs: {:?}", wrong.len(), wrong.first());
}

async fn trap_f10_dramatiqs_own_maintenance_and_lapsed_put_each_message_back_once() {
    const JOBS: usize = 1_000;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("dramatiq", &server), App::on(&server));
    // Each of its commands does maintenance.
    let own = work.start_with(&["work"], &[("TIMEOUT", "5000"), ("SLOW", "0")]);
    assert_eq!(own.line(LIMIT).unwrap(), "ready");
    let message = |n: &str| {
        format!(
            "{{\"queue_name\":\"mails\",\"actor_name\":\"work_on\",\"args\":[\"{n}\"],\"kwargs\":{{}},\"options\":{{\"redis_message_id\":\"{n}\"}},\"message_id\":\"{n}\",\"message_timestamp\":1}}"
        )
    };
    let daemons = Daemons::new(&server, "dramatiq", Duration::from_secs(5)).await;
    own.freeze().unwrap();
    leave_many(&app, "dramatiq", JOBS, b"");
    for id in ids(JOBS) {
        app.text(&["HSET", "dramatiq:mails.msgs", &id, &message(&id)]);
    }
    let messages = || app.number(&["HLEN", "dramatiq:mails.msgs"]);
    let receipts = daemons.pass_until_beside(
        &server,
        |app| waiting(app, "dramatiq").len(),
        || own.thaw().unwrap(),
        || messages() == 0,
    );
    assert!(receipts.values().all(|n| *n == 1), "{receipts:?}");
    let mut started: Vec<String> = (0..JOBS).map(|_| has_started(&own).0).collect();
    started.sort();
    assert_eq!(started, ids(JOBS));
    assert!(waiting(&app, "dramatiq").is_empty());
    println!("of {JOBS} messages lapsed put {} back, Dramatiq itself the others", receipts.len());
}

/// What a living worker does from its timer: it restores what nobody has acknowledged for the visibility timeout, newest first.
async fn trap_f10_celerys_own_restoring_and_lapsed_put_each_task_back_once() {
    const JOBS: usize = 600;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("celery", &server), App::on(&server));
    let daemons = Daemons::new(&server, "celery", Duration::ZERO).await;
    leave(&app, "celery", JOBS, "x");
    let own = work.start_with(&["restore"], &[("VISIBILITY", "1")]);
    assert_eq!(own.line(LIMIT).unwrap(), "ready");
    let queued = |app: &App| app.number(&["LLEN", "mails"]) as usize;
    let receipts = daemons.pass_until_beside(
        &server,
        queued,
        || own.say("restore").unwrap(),
        || app.number(&["HLEN", "unacked"]) == 0,
    );
    assert!(receipts.values().all(|n| *n == 1), "{receipts:?}");
    assert_eq!(app.number(&["ZCARD", "unacked_index"]), 0);
    let messages = app.text(&["LRANGE", "mails", "0", "-1"]);
    let mut tasks: Vec<&str> = messages
        .lines()
        .map(|line| line.split(r#""id": ""#).nth(1).unwrap().split('"').next().unwrap())
        .collect();
    tasks.sort_unstable();
    let on_queue = tasks.len();
    tasks.dedup();
    println!("of {JOBS} tasks lapsed put {} back, Celery itself the others", receipts.len());
    assert_eq!((on_queue, tasks.len()), (JOBS, JOBS));
    assert!(receipts.len() < JOBS, "Celery's own restoring had its share");
}

/// Sidekiq puts nothing back. Its cleanup removes dead processes from the list that lapsed reads, while lapsed puts back what they ran.
async fn trap_f10_sidekiqs_own_cleanup_hides_no_job_from_lapsed() {
    // Half of them die: that is no mass death, and the brake does not hold.
    const PROCESSES: usize = 8;
    const JOBS: usize = 320;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("sidekiq", &server), App::on(&server));
    let own = work.start(&["clean"], None);
    assert_eq!(own.line(LIMIT).unwrap(), "ready");
    let daemons = Daemons::new(&server, "sidekiq", Duration::ZERO).await;
    let beat = "redis.call('SADD', 'queues', 'mails')
        for n = 1, ARGV[1] do
          local id = 'vm:' .. n % ARGV[2] .. ':ab'
          local payload = cjson.encode({ class = 'Job', jid = 'j' .. n, queue = 'mails', args = { n } })
          redis.call('HSET', id .. ':workers', 't' .. n, cjson.encode({ queue = 'mails', payload = payload, run_at = 1794926642 }))
          redis.call('SADD', 'processes', id)
          redis.call('HSET', id, 'info', '{}', 'beat', '1.5')
        end";
    app.text(&["EVAL", beat, "0", &JOBS.to_string(), &PROCESSES.to_string()]);
    daemons.pass_until(|| app.text(&["KEYS", "lapsed:*copy:*"]).lines().count() == PROCESSES).await;
    for n in 0..PROCESSES / 2 {
        app.text(&["DEL", &format!("vm:{n}:ab"), &format!("vm:{n}:ab:workers")]);
    }
    let queued = |app: &App| app.number(&["LLEN", "queue:mails"]) as usize;
    let receipts = daemons.pass_until_beside(
        &server,
        queued,
        || {
            own.say("clean").unwrap();
            assert_eq!(own.line(LIMIT).unwrap(), "cleaned");
            println!("cleaned when {} of {} jobs were back", queued(&App::on(&server)), JOBS / 2);
        },
        || queued(&app) >= JOBS / 2,
    );
    assert_eq!((receipts.len(), receipts.values().sum::<usize>()), (JOBS / 2, JOBS / 2));
    let living = app.number(&["SCARD", "processes"]) as usize;
    assert_eq!((queued(&app), living), (JOBS / 2, PROCESSES / 2));
}

/// A daemon that is killed in the middle of a call, fifty times: its connection ends after a random byte, and another one begins.
async fn calls_cut_in_the_middle_put_each_job_back_once() {
    const JOBS: usize = 600;
    let mut random = Random(17);
    for profile in PROFILES {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let app = App::on(&server);
        // Another daemon that reaches the server: otherwise fifty that do not are taken for its absence.
        let beside = Daemons::new(&server, profile, short_limit(profile)).await;
        leave_many(&app, profile, JOBS, b"{}");
        let proxy = ByteProxy::start(server.port()).unwrap();
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        // All workers seem to die at once: the brake holds at first, for longer than fifty passes take on a fast machine.
        let until = std::time::Instant::now() + LIMIT;
        let mut round = 0;
        while round < 50 || waiting(&app, profile).is_empty() {
            assert!(std::time::Instant::now() < until, "{profile}: nothing was put back");
            round += 1;
            let redis = connect(&url);
            let sweep: Arc<dyn Sweep> = rescued(&redis, profile, short_limit(profile));
            let sweeper = sweeper(&sweep, &redis, Policy { batch: 11, ..Policy::default() });
            let scale = 1_000 << random.below(9);
            proxy.cut_after(scale + random.below(scale));
            beside.contact().await;
            pass(&sweeper).await;
            proxy.close_all();
        }
        let (cuts, before) = (proxy.cuts(), waiting(&app, profile).len());
        let daemons = Daemons::new(&server, profile, short_limit(profile)).await;
        let done = daemons.pass_until(|| waiting(&app, profile).len() >= JOBS).await;
        println!("{profile}: {cuts} connections cut while {before} of {JOBS} jobs were put back");
        assert!(cuts >= 10 && before > 0, "{profile}: {cuts} cuts, {before} jobs");
        assert_eq!(waiting(&app, profile), ids(JOBS), "{profile}");
        assert_eq!((done.len(), done.values().sum::<usize>()), (JOBS, JOBS), "{profile}");
    }
}
