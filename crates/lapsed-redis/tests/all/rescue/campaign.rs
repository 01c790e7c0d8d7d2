//! Random faults over real workers for as long as one likes: `make rescue`. Workers are killed, stopped and replaced, Redis is
//! restarted, connections of lapsed are cut and its daemons end in the middle of a call, while jobs are added and the system's own
//! recovery runs. Then everything is settled, and the account must balance:
//!
//! - every job whose enqueueing was acknowledged has run, or is among the failed jobs of its system;
//! - no job was started a second time while the worker that had begun it was alive and had not been stopped;
//! - no two receipts have the same number.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use lapsed_testbed::{ByteProxy, Persistence, ServerOptions};

use super::faults::Random;
use super::*;

macro_rules! campaigns {
    ($($profile:ident),*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "takes minutes: make rescue"]
            async fn $profile() {
                Campaign::new(stringify!($profile)).run().await;
            }
        )*
    };
}
campaigns!(rq, dramatiq, bullmq, celery, sidekiq);

const WORKERS: usize = 3;

/// How long everything may take at the end. RQ gives up a job that was taken and not started after a minute.
const SETTLED_MAX: Duration = Duration::from_secs(100);

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// How often one job was begun by one worker.
#[derive(Clone, Debug)]
struct Run {
    worker: usize,
    began: Instant,
    ended: Option<Instant>,
}

/// What is known of one worker's life.
#[derive(Default)]
struct Life {
    /// From when on it may have been dead: before the signal was sent.
    killed: Option<Instant>,
    /// Its work horse was left alive.
    horse_lives: bool,
    stopped: Vec<(Instant, Option<Instant>)>,
    horse: Option<u32>,
}

#[derive(Default)]
struct Journal {
    added: BTreeMap<String, Instant>,
    runs: BTreeMap<String, Vec<Run>>,
    lives: Vec<Life>,
    restarts: Vec<Instant>,
}

struct Worker {
    number: usize,
    program: Arc<Program>,
}

struct Campaign {
    profile: &'static str,
    seed: u64,
    server: Arc<RedisServer>,
    work: Workplace,
    journal: Arc<Mutex<Journal>>,
    /// How many of each fault there were.
    faults: BTreeMap<&'static str, u64>,
    put_back: Arc<AtomicU64>,
}

/// A daemon of lapsed, whose connection goes through a proxy.
struct Daemon {
    proxy: Arc<ByteProxy>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

fn limit(profile: &str) -> Duration {
    match profile {
        "rq" => Duration::from_secs(2),
        "dramatiq" => Duration::from_secs(4),
        _ => Duration::ZERO,
    }
}

/// Workers of RQ and Celery wait for seconds before they connect again.
fn grace(profile: &str) -> Duration {
    Duration::from_secs(if matches!(profile, "rq" | "celery") { 30 } else { 5 })
}

fn start_daemon(
    profile: &'static str,
    proxy: &Arc<ByteProxy>,
    put_back: &Arc<AtomicU64>,
) -> Daemon {
    let (proxy, stop) = (proxy.clone(), Arc::new(AtomicBool::new(false)));
    let (put_back, ended) = (put_back.clone(), stop.clone());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let task = tokio::spawn(async move {
        let redis = connect(&url);
        let recovery = RecoveryPolicy { crashes_max: 0, ..RecoveryPolicy::default() };
        let layout = RescueLayout {
            limit: Some(limit(profile)),
            grace: Some(grace(profile)),
            ..RescueLayout::new(profile, recovery)
        };
        let sweep: Arc<dyn Sweep> = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
        let sweeper = sweeper(&sweep, &redis, Policy { batch: 3, ..Policy::default() });
        while !ended.load(Ordering::SeqCst) {
            put_back.fetch_add(pass(&sweeper).await.reclaimed, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    Daemon { proxy, stop, task }
}

impl Campaign {
    fn new(profile: &'static str) -> Campaign {
        let server =
            ServerOptions::new(Engine::Redis).persistence(Persistence::Aof).start().unwrap();
        let work = Workplace::new(profile, &server);
        let seed = setting("SEED", u64::from(std::process::id())).max(1);
        Campaign {
            profile,
            seed,
            server: Arc::new(server),
            work,
            journal: Arc::default(),
            faults: BTreeMap::new(),
            put_back: Arc::default(),
        }
    }

    fn start_worker(&self) -> Worker {
        let number = {
            let mut journal = self.journal.lock().unwrap();
            journal.lives.push(Life::default());
            journal.lives.len() - 1
        };
        let name = format!("w{number}");
        let fetch =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/ruby/lapsed_fetch.rb");
        let env = [
            ("LOCK", "4000"),
            ("STALLED", "1000"),
            ("TIMEOUT", "4000"),
            ("LATE", "1"),
            ("CONCURRENCY", "1"),
            // Sidekiq's own fetcher loses what no heartbeat has shown.
            ("FETCH", fetch.to_str().unwrap()),
        ];
        let program = Arc::new(self.work.start_with(&["work", &name], &env));
        let (heard, journal) = (program.clone(), self.journal.clone());
        thread::spawn(move || {
            loop {
                match heard.line(Duration::from_millis(500)) {
                    Ok(line) => note(&journal, number, &line),
                    Err(error) if error.to_string().contains("said nothing for") => {}
                    Err(_) => return,
                }
            }
        });
        Worker { number, program }
    }

    fn kill(&mut self, worker: &Worker, random: &mut Random) {
        let horse = {
            let mut journal = self.journal.lock().unwrap();
            let life = &mut journal.lives[worker.number];
            life.killed = Some(Instant::now());
            life.horse
        };
        let pid = worker.program.pid();
        worker.program.kill().unwrap();
        if let (true, Some(pid)) = (self.profile == "sidekiq", pid) {
            expire(&App::on(&self.server), pid);
        }
        let Some(horse) = horse else { return };
        // A child of Celery that outlives its parent works on unseen.
        if self.profile == "rq" && random.below(3) == 0 {
            *self.faults.entry("parents killed alone").or_default() += 1;
            self.journal.lock().unwrap().lives[worker.number].horse_lives = true;
        } else {
            // It may have ended by itself.
            let _ = std::process::Command::new("kill")
                .args(["-9", &horse.to_string()])
                .stderr(std::process::Stdio::null())
                .status();
        }
    }

    async fn run(mut self) {
        let (rounds, seconds) = (setting("ROUNDS", 30), setting("SECONDS", 0));
        println!("{}: seed {}", self.profile, self.seed);
        let mut random = Random(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let feeder = self.start_feeder();
        let proxies = [0, 1].map(|_| Arc::new(ByteProxy::start(self.server.port()).unwrap()));
        let mut daemons =
            [0, 1].map(|n: usize| start_daemon(self.profile, &proxies[n], &self.put_back));
        let cleaner = (self.profile == "rq").then(|| self.work.start(&["clean"], None));
        let mut workers: Vec<Worker> = (0..WORKERS).map(|_| self.start_worker()).collect();
        let (began, mut round) = (Instant::now(), 0);
        while round < rounds && (seconds == 0 || began.elapsed().as_secs() < seconds) {
            for n in 0..6 {
                let (ms, is_long) = (50 + random.below(350), random.below(12) == 0);
                let ms = if is_long { 7_000 } else { ms };
                let length = match self.profile {
                    "bullmq" => ms.to_string(),
                    _ => format!("{}", ms as f64 / 1_000.0),
                };
                feeder.say(&format!("{}-{round}-{n} {length}", self.profile)).unwrap();
            }
            if let Some(cleaner) = &cleaner {
                let _ = cleaner.say("clean");
            }
            tokio::time::sleep(Duration::from_millis(500 + random.below(2_000))).await;
            self.fault(&mut workers, &mut daemons, &mut random).await;
            round += 1;
        }
        drop(cleaner);
        // What a living worker was given and never heard of is put back once it is dead.
        for worker in std::mem::take(&mut workers) {
            self.kill(&worker, &mut random);
        }
        workers = (0..WORKERS).map(|_| self.start_worker()).collect();
        self.settle().await;
        for daemon in daemons {
            daemon.stop.store(true, Ordering::SeqCst);
            daemon.task.await.unwrap();
        }
        for worker in &workers {
            worker.program.kill().unwrap();
        }
        self.account(round, began.elapsed()).await;
    }

    fn start_feeder(&self) -> Arc<Program> {
        let feeder = Arc::new(self.work.start(&["feed"], None));
        let (heard, journal) = (feeder.clone(), self.journal.clone());
        thread::spawn(move || {
            while let Ok(line) = heard.line(Duration::from_secs(300)) {
                if let Some(job) = line.strip_prefix("added ") {
                    journal.lock().unwrap().added.insert(job.to_owned(), Instant::now());
                }
            }
        });
        feeder
    }

    async fn fault(
        &mut self,
        workers: &mut [Worker],
        daemons: &mut [Daemon; 2],
        random: &mut Random,
    ) {
        let one = random.below(WORKERS as u64) as usize;
        let daemon = random.below(2) as usize;
        let name = match random.below(100) {
            0..30 => {
                self.kill(&workers[one], random);
                workers[one] = self.start_worker();
                "workers killed"
            }
            30..38 => {
                for worker in workers.iter_mut() {
                    self.kill(worker, random);
                    *worker = self.start_worker();
                }
                "times all workers killed"
            }
            38..53 => {
                self.freeze(&workers[one]).await;
                "workers stopped"
            }
            53..58 => {
                self.journal.lock().unwrap().restarts.push(Instant::now());
                self.server.restart().unwrap();
                "restarts of Redis"
            }
            58..80 => {
                // In the middle of whatever it does.
                daemons[daemon].task.abort();
                daemons[daemon].proxy.close_all();
                let proxy = daemons[daemon].proxy.clone();
                daemons[daemon] = start_daemon(self.profile, &proxy, &self.put_back);
                "daemons killed"
            }
            _ => {
                daemons[daemon].proxy.cut_after(1 + random.below(20_000));
                "connections cut"
            }
        };
        *self.faults.entry(name).or_default() += 1;
    }

    /// Longer than the limit, so that the others take it for dead where they may.
    async fn freeze(&self, worker: &Worker) {
        let horse = {
            let mut journal = self.journal.lock().unwrap();
            let life = &mut journal.lives[worker.number];
            life.stopped.push((Instant::now(), None));
            life.horse
        };
        let horse = |signal: &str| {
            let Some(horse) = horse else { return };
            let _ = std::process::Command::new("kill")
                .args([signal, &horse.to_string()])
                .stderr(std::process::Stdio::null())
                .status();
        };
        worker.program.freeze().unwrap();
        horse("-STOP");
        tokio::time::sleep(Duration::from_secs(6)).await;
        horse("-CONT");
        worker.program.thaw().unwrap();
        let mut journal = self.journal.lock().unwrap();
        journal.lives[worker.number].stopped.last_mut().unwrap().1 = Some(Instant::now());
    }

    /// Jobs that were acknowledged and have neither run nor failed.
    fn open_jobs(&self) -> Vec<String> {
        let app = App::on(&self.server);
        let journal = self.journal.lock().unwrap();
        let has_run = |job: &String| {
            journal.runs.get(job).is_some_and(|runs| runs.iter().any(|run| run.ended.is_some()))
        };
        let open = journal.added.keys().filter(|job| !has_run(job));
        open.filter(|job| !is_failed(&app, self.profile, job)).cloned().collect()
    }

    async fn settle(&self) {
        let began = Instant::now();
        while !self.open_jobs().is_empty() && began.elapsed() < SETTLED_MAX {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    async fn account(&self, rounds: u64, took: Duration) {
        let open = self.open_jobs();
        let redis = connect(&self.server.url());
        let _system = rescued(&redis, self.profile, limit(self.profile));
        let receipts = receipts(&redis, &id()).await;
        let app = App::on(&self.server);
        let journal = self.journal.lock().unwrap();
        let begun: usize = journal.runs.values().map(Vec::len).sum();
        let again = begun - journal.runs.len();
        let failed = journal.added.keys().filter(|job| is_failed(&app, self.profile, job)).count();
        let wrong: Vec<String> = journal
            .runs
            .iter()
            .filter_map(|(job, runs)| started_twice(&journal, self.profile, job, runs))
            .collect();
        for job in journal.added.keys().filter(|job| is_failed(&app, self.profile, job)) {
            println!("  {job} failed: {}", why_failed(&app, self.profile, job));
        }
        for job in &open {
            println!("  {job}: {:?}; {}", journal.runs.get(job), traces(&app, self.profile, job));
        }
        let mut sequence: Vec<u64> = receipts.iter().map(|receipt| receipt.id.seq).collect();
        sequence.dedup();
        println!(
            "{}: seed {}, {rounds} faults in {:.0} s: {:?}\n  jobs added {}, begun {begun}, begun again {again}, among the failed jobs {failed}, \
             receipts {}, put back as the daemons that lived report {}, lost {}, started twice while alive {}",
            self.profile,
            self.seed,
            took.as_secs_f64(),
            self.faults,
            journal.added.len(),
            receipts.len(),
            self.put_back.load(Ordering::SeqCst),
            open.len(),
            wrong.len(),
        );
        assert_eq!(sequence.len(), receipts.len(), "two receipts with one number");
        assert!(wrong.is_empty(), "seed {}: {wrong:#?}", self.seed);
        assert!(open.is_empty(), "seed {}: neither run nor failed: {open:?}", self.seed);
    }
}

/// Sidekiq takes a process for dead 60 s after its last heartbeat: its signs of life are deleted, as the expiry would.
fn expire(app: &App, pid: u32) {
    for pattern in [format!("*:{pid}:*"), format!("reliable-fetcher-heartbeat-*-{pid}-*")] {
        let keys = app.text(&["KEYS", &pattern]);
        for key in keys.lines().filter(|key| {
            !key.is_empty() && !key.starts_with("working:") && !key.starts_with("lapsed:")
        }) {
            app.call(&["DEL", key]);
        }
    }
}

/// A worker that was stopped and goes on keeps its jobs: of RQ while it is connected, of Celery because its silence decides nothing, of
/// Sidekiq because 6 s are far from the end of its sign of life.
fn keeps_while_stopped(profile: &str) -> bool {
    matches!(profile, "rq" | "celery" | "sidekiq")
}

fn note(journal: &Mutex<Journal>, worker: usize, line: &str) {
    let now = Instant::now();
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut journal = journal.lock().unwrap();
    match &words[..] {
        ["started", job, rest @ ..] => {
            journal.lives[worker].horse = rest.first().and_then(|pid| pid.parse().ok());
            let run = Run { worker, began: now, ended: None };
            journal.runs.entry((*job).to_owned()).or_default().push(run);
        }
        ["ran", job] => {
            let runs = journal.runs.entry((*job).to_owned()).or_default();
            let run = runs.iter_mut().rev().find(|run| run.worker == worker);
            run.expect("a job begins before it ends").ended = Some(now);
        }
        _ => {}
    }
}

/// Where the system keeps jobs that it will not run again.
fn is_failed(app: &App, profile: &str, job: &str) -> bool {
    let key = match profile {
        "rq" => "rq:failed:mails",
        "bullmq" => "bull:mails:failed",
        _ => return false,
    };
    app.text(&["ZSCORE", key, job]).parse::<f64>().is_ok()
}

/// Where Redis still has something of a Dramatiq message.
fn traces(app: &App, profile: &str, job: &str) -> String {
    if profile != "dramatiq" {
        return String::new();
    }
    let script = "local found = {}
        local all = redis.call('HGETALL', 'dramatiq:mails.msgs')
        for i = 1, #all, 2 do
          if string.find(all[i + 1], '\"' .. ARGV[1] .. '\"', 1, true) then
            found[#found + 1] = 'message ' .. all[i]
            found[#found + 1] = 'on the queue at ' .. tostring(redis.call('LPOS', 'dramatiq:mails', all[i]))
            for _, key in ipairs(redis.call('KEYS', 'dramatiq:__acks__*')) do
              if redis.call('SISMEMBER', key, all[i]) == 1 then
                found[#found + 1] = key .. ' with score ' .. tostring(redis.call('ZSCORE', 'dramatiq:__heartbeats__', string.sub(key, 19, 54)))
              end
            end
          end
        end
        return table.concat(found, ', ')";
    app.text(&["EVAL", script, "0", job])
}

/// What the system itself says; RQ packs it (`zlib`, then base64).
fn why_failed(app: &App, profile: &str, job: &str) -> String {
    match profile {
        "rq" => app.text(&["XREVRANGE", &format!("rq:results:{job}"), "+", "-", "COUNT", "1"]),
        _ => app.text(&["HGET", &format!("bull:mails:{job}"), "failedReason"]),
    }
}

fn stopped_between(life: &Life, from: Instant, until: Instant) -> bool {
    life.stopped.iter().any(|(began, ended)| *began < until && ended.is_none_or(|at| at > from))
}

/// Dramatiq's workers hold more messages than they run. One that was stopped goes on with what it had fetched before.
fn goes_on_with_what_it_had(journal: &Journal, job: &str, run: &Run) -> bool {
    let added = journal.added.get(job);
    added.is_none_or(|added| stopped_between(&journal.lives[run.worker], *added, run.began))
}

/// A job that was begun again although the worker that had it was alive, was not stopped, and Redis was not away.
fn started_twice(journal: &Journal, profile: &str, job: &str, runs: &[Run]) -> Option<String> {
    for (at, second) in runs.iter().enumerate() {
        for first in &runs[..at] {
            let life = &journal.lives[first.worker];
            // A job that has just ended may not have been acknowledged when its worker was killed.
            let until = first
                .ended
                .map_or(second.began, |ended| second.began.min(ended + Duration::from_secs(2)));
            let is_dead = life.killed.is_some_and(|killed| killed < until)
                && (!life.horse_lives || first.ended.is_some());
            let was_stopped = !keeps_while_stopped(profile)
                && (stopped_between(life, first.began, until)
                    || goes_on_with_what_it_had(journal, job, first)
                    || goes_on_with_what_it_had(journal, job, second));
            let was_away =
                journal.restarts.iter().any(|restart| *restart < until && *restart > first.began);
            if !is_dead && !was_stopped && !was_away {
                let after = second.began.duration_since(first.began);
                return Some(format!(
                    "{job}: begun by w{} and {after:.1?} later by w{}; the first run {}",
                    first.worker,
                    second.worker,
                    if first.ended.is_some() { "had ended" } else { "never ended" }
                ));
            }
        }
    }
    None
}
