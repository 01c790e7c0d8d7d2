//! asynq, as a program in Go that `scripts/servers.sh` builds. Its lease of 30 s is no option, so most stories let a lease end
//! early by setting its score: to Redis that is the same as time that has passed.

use super::*;

lapsed_testbed::steady_async_tests! {
    a_task_of_a_killed_server_runs_on_another_server,
    a_lease_of_30_s_and_the_usual_limit_are_waited_for,
    trap_f1_a_living_server_keeps_its_task_even_without_a_lease,
    an_active_task_without_a_lease_is_put_back,
    trap_f10_asynqs_own_recoverer_at_the_same_instant_leaves_each_task_once,
    two_sweepers_put_each_task_back_once,
    trap_f12_a_task_that_kills_its_servers_is_archived_as_asynq_archives,
    a_wrong_type_and_a_deleted_task_are_left_alone,
    trap_f11_asynq_without_leases_is_refused,
    detect_finds_asynqs_orphans,
}

const ACTIVE: &str = "asynq:{mails}:active";
const LEASE: &str = "asynq:{mails}:lease";
const PENDING: &str = "asynq:{mails}:pending";

/// A minute ago, as leases have it: asynq's own recoverer acts 30 s after the end of a lease.
fn a_minute_ago() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    (now.as_secs() - 60).to_string()
}

/// As if 60 s more had passed.
pub(super) fn end_lease(app: &App, task: &str) {
    app.text(&["ZADD", LEASE, "XX", &a_minute_ago(), task]);
}

/// The program beside the test, where `go` is there to build it.
pub(super) struct Asynq {
    program: PathBuf,
    url: String,
}

impl Asynq {
    pub(super) fn on(server: &RedisServer) -> Option<Asynq> {
        let program = paths::rescue_asynq().unwrap();
        if program.is_none() {
            eprintln!("SKIPPED: there is no `go` here, so that nothing of asynq is tested");
        }
        Some(Asynq { program: program?, url: server.url() })
    }

    pub(super) fn start(&self, args: &[&str], slow: Option<&str>) -> Program {
        Program::start(&self.program, |command| {
            command.args(args).env("REDIS_URL", &self.url);
            command.envs(slow.map(|slow| ("SLOW", slow)));
        })
        .unwrap()
    }

    pub(super) fn add(&self, ids: &[&str]) {
        let client = self.start(&[&["add"], ids].concat(), None);
        assert_eq!(client.line(LIMIT).unwrap(), "added");
    }

    /// A server that has begun with a task and does not end it.
    pub(super) fn stuck(&self) -> (Program, String) {
        let server = self.start(&["work"], Some("600"));
        let line = server.line(LIMIT).unwrap();
        (server, line.strip_prefix("started ").unwrap().to_owned())
    }

    pub(super) fn runs(&self, server: &Program, task: &str) {
        let ran = format!("ran {task}");
        while server.line(LIMIT).unwrap() != ran {}
    }

    /// What asynq's own inspector says of archived tasks.
    fn archived(&self) -> Vec<String> {
        let inspector = self.start(&["archived"], None);
        let mut lines = Vec::new();
        loop {
            match inspector.line(LIMIT).unwrap() {
                line if line == "end" => return lines,
                line => lines.push(line),
            }
        }
    }
}

/// Waits until a server shows its task in its list, which it does every 5 s.
async fn shown(app: &App) {
    let is_shown = || app.text(&["KEYS", "asynq:workers:{*"]);
    eventually("the server to show its task", async || (!is_shown().is_empty()).then_some(()))
        .await;
}

async fn a_task_of_a_killed_server_runs_on_another_server() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let Some(asynq) = Asynq::on(&server) else { return };
    asynq.add(&["a", "b"]);
    let app = App::on(&server);
    let before = app.text(&["HGET", "asynq:{mails}:t:a", "msg"]);
    let (worker, task) = asynq.stuck();
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "asynq", SOON);
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let report = pass(&sweeper(&sweep, &redis, Policy::default())).await;
    assert_eq!((report.reclaimed, report.suspects), (0, 0), "its server lives: {report:?}");
    worker.kill().unwrap();
    end_lease(&app, &task);
    put_back(&inflight, &redis, 1).await;
    let found = receipts(&redis, &id()).await;
    assert_eq!((found.len(), found[0].key.as_str()), (1, &*format!("mails/{task}")));
    assert_eq!(app.text(&["HGET", &format!("asynq:{{mails}}:t:{task}"), "state"]), "pending");
    assert_eq!(app.text(&["HGET", "asynq:{mails}:t:a", "msg"]), before, "byte for byte");
    assert_eq!(app.text(&["LINDEX", PENDING, "-1"]), task, "it is next");
    let other = asynq.start(&["work"], None);
    asynq.runs(&other, &task);
    eventually("nothing to be in flight", async || {
        (app.text(&["EXISTS", ACTIVE, LEASE]) == "0").then_some(())
    })
    .await;
}

async fn a_lease_of_30_s_and_the_usual_limit_are_waited_for() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let Some(asynq) = Asynq::on(&server) else { return };
    asynq.add(&["a"]);
    let (worker, _) = asynq.stuck();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let sweep: Arc<dyn Sweep> = rescued(&redis, "asynq", Duration::from_secs(5));
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    shown(&app).await;
    let lease_s: u64 = app.text(&["ZSCORE", LEASE, "a"]).parse().unwrap();
    worker.kill().unwrap();
    let killed = std::time::Instant::now();
    while pass(&sweeper).await.reclaimed == 0 {
        assert!(killed.elapsed() < LIMIT, "it was not put back");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    eprintln!("the task was on its queue {:.1} s after the kill", killed.elapsed().as_secs_f64());
    let found = receipts(&redis, &id()).await;
    assert!(found[0].at_ms >= (lease_s + 5) * 1_000, "not before the end of the lease: {found:?}");
    assert!(found[0].owner.as_str().split(':').count() == 3, "HOST:PID:ID: {found:?}");
}

async fn trap_f1_a_living_server_keeps_its_task_even_without_a_lease() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let Some(asynq) = Asynq::on(&server) else { return };
    asynq.add(&["a"]);
    let (_worker, task) = asynq.stuck();
    let app = App::on(&server);
    shown(&app).await;
    app.text(&["ZREM", LEASE, &task]);
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = rescued(&redis, "asynq", Duration::ZERO);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    for _ in 0..5 {
        let report = pass(&sweeper).await;
        assert_eq!((report.reclaimed, report.suspects), (0, 0), "its server lives: {report:?}");
    }
    assert_eq!(app.text(&["LLEN", ACTIVE]), "1");
}

async fn an_active_task_without_a_lease_is_put_back() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let Some(asynq) = Asynq::on(&server) else { return };
    asynq.add(&["a"]);
    let (worker, task) = asynq.stuck();
    worker.kill().unwrap();
    let app = App::on(&server);
    app.text(&["ZREM", LEASE, &task]);
    let redis = connect(&server.url());
    put_back(&rescued(&redis, "asynq", SOON), &redis, 1).await;
    let found = receipts(&redis, &id()).await;
    assert_eq!(found[0].owner.as_str(), format!("no lease:mails/{task}"));
    assert!(found[0].evidence.deadline_ms <= found[0].at_ms);
    let other = asynq.start(&["work"], None);
    asynq.runs(&other, &task);
}

/// Tasks that a killed server left, with a lease that ended long ago. The queue is paused, so that no server takes them.
fn leave_tasks(asynq: &Asynq, app: &App, tasks: std::ops::Range<usize>) {
    let ids: Vec<String> = tasks.map(|n| format!("t{n}")).collect();
    asynq.add(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    app.text(&["SET", "asynq:{mails}:paused", "1"]);
    for id in &ids {
        app.text(&["LREM", PENDING, "0", id]);
        app.text(&["LPUSH", ACTIVE, id]);
        app.text(&["HSET", &format!("asynq:{{mails}}:t:{id}"), "state", "active"]);
        app.text(&["ZADD", LEASE, &a_minute_ago(), id]);
    }
}

/// Every id on the queue and among those that asynq retries, in order.
fn on_queue_and_retried(app: &App) -> (Vec<String>, usize) {
    let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let retried = lines(app.text(&["ZRANGE", "asynq:{mails}:retry", "0", "-1"]));
    let mut all = lines(app.text(&["LRANGE", PENDING, "0", "-1"]));
    all.extend(retried.iter().cloned());
    all.sort();
    (all, retried.len())
}

async fn trap_f10_asynqs_own_recoverer_at_the_same_instant_leaves_each_task_once() {
    const TASKS: usize = 600;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let Some(asynq) = Asynq::on(&server) else { return };
    let app = App::on(&server);
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "asynq", Duration::ZERO);
    leave_tasks(&asynq, &app, 0..1);
    // From then on nobody is spared because the server has just been found.
    put_back(&inflight, &redis, 1).await;
    leave_tasks(&asynq, &app, 1..TASKS);
    let sweep: Arc<dyn Sweep> = inflight;
    let sweeper = sweeper(&sweep, &redis, bit_by_bit());
    let sweeping = eventually("nothing to be active", async || {
        assert!(pass(&sweeper).await.stopped != Stopped::Error);
        (app.text(&["LLEN", ACTIVE]) == "0").then_some(())
    });
    // asynq's recoverer acts when a server starts.
    let recovering = async {
        eventually("lapsed to begin", async || (app.number(&["LLEN", PENDING]) > 5).then_some(()))
            .await;
        [asynq.start(&["work"], None), asynq.start(&["work"], None)]
    };
    let (_, _servers) = tokio::join!(sweeping, recovering);
    let (mut all, retried) = on_queue_and_retried(&app);
    let put_back = receipts(&redis, &id()).await.len();
    eprintln!("{put_back} tasks were put back by lapsed, {retried} were retried by asynq");
    assert_eq!((all.len(), put_back + retried), (TASKS, TASKS));
    assert!(retried > 0, "asynq's recoverer had its share");
    all.dedup();
    assert_eq!(all.len(), TASKS, "no task is there twice");
}

async fn two_sweepers_put_each_task_back_once() {
    const TASKS: usize = 200;
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let Some(asynq) = Asynq::on(&server) else { return };
    let app = App::on(&server);
    leave_tasks(&asynq, &app, 0..TASKS);
    let (one, other) = (connect(&server.url()), connect(&server.url()));
    let both =
        [&one, &other].map(|redis| rescued(redis, "asynq", Duration::ZERO) as Arc<dyn Sweep>);
    let small = Policy { batch: 7, ..Policy::default() };
    let sweepers = [sweeper(&both[0], &one, small.clone()), sweeper(&both[1], &other, small)];
    eventually("all to be put back", async || {
        let (left, right) = tokio::join!(pass(&sweepers[0]), pass(&sweepers[1]));
        assert!(left.stopped != Stopped::Error && right.stopped != Stopped::Error);
        (app.text(&["LLEN", ACTIVE]) == "0").then_some(())
    })
    .await;
    let (mut all, _) = on_queue_and_retried(&app);
    assert_eq!((all.len(), receipts(&one, &id()).await.len()), (TASKS, TASKS));
    all.dedup();
    assert_eq!(all.len(), TASKS);
}

async fn trap_f12_a_task_that_kills_its_servers_is_archived_as_asynq_archives() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let Some(asynq) = Asynq::on(&server) else { return };
    asynq.add(&["poison"]);
    let app = App::on(&server);
    let redis = connect(&server.url());
    let recovery = RecoveryPolicy { crashes_max: 2, ..RecoveryPolicy::default() };
    let layout = RescueLayout { recovery, ..layout("asynq", Duration::ZERO) };
    let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
    for _ in 0..2 {
        let (worker, task) = asynq.stuck();
        worker.kill().unwrap();
        app.text(&["ZADD", LEASE, "XX", &a_minute_ago(), &task]);
        put_back(&inflight, &redis, 1).await;
    }
    assert_eq!(asynq.archived(), ["poison asynq: task lease expired"]);
    assert_eq!(app.text(&["HGET", "asynq:{mails}:t:poison", "state"]), "archived");
    assert_eq!(app.text(&["GET", "asynq:{mails}:failed"]), "1");
    assert_eq!(app.text(&["EXISTS", ACTIVE, LEASE, PENDING]), "0");
}

async fn a_wrong_type_and_a_deleted_task_are_left_alone() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let Some(asynq) = Asynq::on(&server) else { return };
    let app = App::on(&server);
    leave_tasks(&asynq, &app, 0..3);
    app.text(&["SET", "asynq:{mails}:archived", "not a sorted set"]);
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = rescued(&redis, "asynq", Duration::ZERO);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let report = eventually("a pass", async || {
        Some(pass(&sweeper).await).filter(|report| report.suspects == 3)
    })
    .await;
    assert_eq!((report.reclaimed, report.skipped.values().sum()), (0, 3u64), "{report:?}");
    assert_eq!(app.text(&["LLEN", ACTIVE]), "3");
    app.text(&["DEL", "asynq:{mails}:archived", "asynq:{mails}:t:t0"]);
    app.text(&["HSET", "asynq:{mails}:t:t1", "state", "completed"]);
    eventually("the one that is whole to be put back", async || {
        pass(&sweeper).await;
        (app.text(&["LRANGE", PENDING, "0", "-1"]) == "t2").then_some(())
    })
    .await;
    assert_eq!(app.text(&["LRANGE", ACTIVE, "0", "-1"]), "t1", "half-written: it is reported");
    assert_eq!(app.text(&["ZRANGE", LEASE, "0", "-1"]), "t1");
}

async fn trap_f11_asynq_without_leases_is_refused() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    app.text(&["SADD", "asynq:queues", "mails"]);
    app.text(&["LPUSH", ACTIVE, "a"]);
    app.text(&["ZADD", "asynq:{mails}:deadlines", &a_minute_ago(), "a"]);
    let redis = connect(&server.url());
    let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    assert_eq!((found[0].preset.as_str(), found[0].version.as_str()), ("asynq", "unknown"));
    assert!(found[0].notes[0].contains("asynq:{mails}:deadlines"), "{found:?}");
    let inflight = rescued(&redis, "asynq", SOON);
    let error = inflight.survey(lapsed_core::sweep::PassMode::Reclaim).await.unwrap_err();
    assert!(matches!(error, lapsed_core::Error::Unsupported { .. }), "{error}");
}

async fn detect_finds_asynqs_orphans() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let Some(asynq) = Asynq::on(&server) else { return };
    asynq.add(&["a", "b"]);
    let app = App::on(&server);
    let (worker, task) = asynq.stuck();
    shown(&app).await;
    let redis = connect(&server.url());
    let look = async || redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    let found = look().await;
    assert_eq!((found.len(), found[0].preset.as_str()), (1, "asynq"));
    assert_eq!((found[0].in_flight, found[0].workers_alive, found[0].orphans), (1, 1, 0));
    worker.kill().unwrap();
    app.text(&["ZADD", LEASE, "XX", &a_minute_ago(), &task]);
    let found = eventually("the orphan", async || {
        Some(look().await).filter(|found| found[0].orphans == 1 && found[0].workers_alive == 0)
    })
    .await;
    assert_eq!((found[0].in_flight, &found[0].queues[..]), (1, &["mails".to_owned()][..]));
}
