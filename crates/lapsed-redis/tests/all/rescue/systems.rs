//! What a story of real workers needs to know of each system: how its worker is set up, when it is seen, and how its death shows before
//! the usual time is over.

use lapsed_core::owner::OwnerStore;

use super::*;
use crate::rescue::asynq::end_lease;
use crate::rescue::resque::date_back;
use crate::rescue::streams::by_heartbeat;

/// A worker takes one job at a time and nothing in advance, shows quickly what it does, and acknowledges what it has done.
const ONE_AT_A_TIME: [(&str, &str); 5] = [
    ("CONCURRENCY", "1"),
    ("BEAT", "0.2"),
    ("LATE", "1"),
    ("LOCK", "3000"),
    ("dramatiq_queue_prefetch", "1"),
];

/// One system with its own server.
pub struct System {
    pub profile: &'static str,
    pub server: RedisServer,
    pub work: Workplace,
    pub redis: Redis,
}

/// A worker that was given a job.
pub struct Held {
    pub worker: Program,
    pub job: String,
    name: &'static str,
    horse: Option<u32>,
    pid: u32,
}

impl System {
    /// `None` where the program cannot be had.
    pub fn on(profile: &'static str, server: RedisServer) -> Option<System> {
        if profile == "asynq" && paths::rescue_asynq().unwrap().is_none() {
            eprintln!("SKIPPED: there is no `go` here, so that nothing of asynq is tested");
            return None;
        }
        let (work, redis) = (Workplace::new(profile, &server), connect(&server.url()));
        Some(System { profile, server, work, redis })
    }

    pub fn app(&self) -> App {
        App::on(&self.server)
    }

    /// How long silence lasts until a worker is dead. Dramatiq connects again after 3 s.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(if self.profile == "dramatiq" { 6 } else { 0 })
    }

    pub fn inflight(&self, grace: Duration) -> Arc<RescuedInflight> {
        let usual = match self.profile {
            "streams" => by_heartbeat(self.limit()),
            other => layout(other, self.limit()),
        };
        let layout = RescueLayout { grace: Some(grace), ..usual };
        Arc::new(self.redis.rescued_inflight(id(), layout).unwrap())
    }

    /// A worker that begins with a job and needs `seconds` for it.
    pub fn works(&self, name: &'static str, seconds: u32) -> Held {
        let is_node = matches!(self.profile, "bullmq" | "resque");
        let slow = (seconds * if is_node { 1_000 } else { 1 }).to_string();
        let env = [&ONE_AT_A_TIME[..], &[("SLOW", slow.as_str())]].concat();
        let worker = self.work.start_with(&["work", name], &env);
        let (job, horse) = has_started(&worker);
        let pid = worker.pid().unwrap();
        Held { worker, job, name, horse, pid }
    }

    /// A worker that runs all that there is.
    pub fn runs_all(&self, jobs: &[&str]) -> Program {
        let worker = self.work.start_with(&["work", "last"], &ONE_AT_A_TIME);
        let mut left: Vec<String> = jobs.iter().map(|job| format!("ran {job}")).collect();
        while !left.is_empty() {
            let line = worker.line(LIMIT).unwrap();
            left.retain(|one| *one != line);
        }
        worker
    }

    /// Passes until lapsed has seen so many workers with a job, where it must see them alive.
    pub async fn seen_alive(&self, inflight: &Arc<RescuedInflight>, workers: usize) {
        let sweep: Arc<dyn Sweep> = inflight.clone();
        let sweeper = sweeper(&sweep, &self.redis, Policy::default());
        let app = self.app();
        eventually("the workers to be seen", async || {
            let report = pass(&sweeper).await;
            assert_eq!(report.reclaimed, 0, "{}: they live: {report:?}", self.profile);
            let seen = match self.profile {
                "sidekiq" => app.text(&["KEYS", "lapsed:*copy:*"]).lines().count(),
                "celery" => {
                    let owners = inflight.owners(None, 100).await.ok()?;
                    owners.iter().filter(|one| one.owner.as_str().ends_with("@host")).count()
                }
                _ => workers,
            };
            (report.stopped == Stopped::Done && seen >= workers).then_some(())
        })
        .await;
    }

    /// As if the time had passed after which the system itself takes that worker for dead.
    pub fn overdue(&self, held: &Held) {
        let app = self.app();
        match self.profile {
            "asynq" => end_lease(&app, &held.job),
            "resque" => date_back(&app, held.name),
            "streams" => drop(app.call(&["DEL", &format!("alive:{}", held.name)])),
            "sidekiq" => {
                // HOST:PID:NONCE
                let own = format!(":{}:", held.pid);
                let processes = app.text(&["SMEMBERS", "processes"]);
                for id in processes.lines().filter(|id| id.contains(&own)) {
                    app.call(&["DEL", id, &format!("{id}:workers")]);
                }
            }
            _ => {}
        }
    }
}

impl Held {
    /// `kill -9` of the worker, and of its child, if it has one.
    pub fn kill(&self) {
        self.worker.kill().unwrap();
        if let Some(horse) = self.horse {
            // A child that dies with its parent may be gone already.
            let _ = std::process::Command::new("kill")
                .args(["-9", &horse.to_string()])
                .stderr(std::process::Stdio::null())
                .status();
        }
    }
}
