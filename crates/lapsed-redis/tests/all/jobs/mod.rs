//! What the stories of jobs in flight have in common: a server with jobs on it, workers, the account.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::inflight::{
    Claimed, Finish, Finished, Inflight, InflightParts, InflightStore, JobCounts, JobOutcome,
    NewJob, RecoveredJob, Worker,
};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Sweep, Sweeper};
use lapsed_core::{Error, Kind, SystemId};
use lapsed_redis::{InflightLayout, NativeInflight, QueueFormat, Redis, Template};
use lapsed_testbed::resp::Reply;
use lapsed_testbed::{RedisServer, ServerOptions};

use crate::story::{self, App, TTL, connect, eventually, name, pass, suspects};

pub fn id() -> SystemId {
    SystemId::new(Kind::Inflight, "mail").unwrap()
}

pub fn layout(queues: QueueFormat) -> InflightLayout {
    InflightLayout {
        prefix: "lapsed:inflight".to_owned(),
        queues,
        queue_key: Template::new("queue:{queue}", "queue").unwrap(),
        heartbeat_ttl: TTL,
        recovery: RecoveryPolicy::default(),
    }
}

/// How many workers may die with a job here: as many as there are.
pub fn patient() -> InflightLayout {
    let recovery = RecoveryPolicy { crashes_max: 0, ..RecoveryPolicy::default() };
    InflightLayout { recovery, ..layout(QueueFormat::Own) }
}

/// A server with a system of jobs.
pub struct World {
    pub server: RedisServer,
    pub redis: Redis,
    pub jobs: NativeInflight,
    pub sweep: Arc<dyn Sweep>,
}

impl World {
    pub fn new(options: ServerOptions, layout: InflightLayout) -> World {
        let server = options.start().unwrap();
        let url = server.url();
        World::by(server, &url, layout)
    }

    /// Reached by another address than its own.
    pub fn by(server: RedisServer, url: &str, layout: InflightLayout) -> World {
        let redis = connect(url);
        let jobs = redis.inflight(id(), layout).unwrap();
        World { server, redis, sweep: Arc::new(jobs.clone()), jobs }
    }

    pub fn app(&self) -> App {
        App::on(&self.server)
    }

    pub fn sweeper(&self, policy: Policy) -> Sweeper {
        story::sweeper(&self.sweep, &self.redis, policy)
    }

    pub async fn receipts(&self) -> Vec<Receipt> {
        story::receipts(&self.redis, &id()).await
    }

    pub async fn enqueue(&self, prefix: &str, count: usize) {
        for from in (0..count).step_by(500) {
            let ids = from..count.min(from + 500);
            let jobs: Vec<NewJob> = ids.map(|i| job(&format!("{prefix}{i:05}"))).collect();
            // A disk that is busy with somebody else's writes may keep the answer: it is safe to ask again.
            eventually("jobs on their queues", async || self.jobs.enqueue(&jobs).await.ok()).await;
        }
    }

    /// Starts a life; it beats no more.
    pub async fn start(&self, owner: &str) -> Claim {
        let beat = self.jobs.start(&name(owner), TTL.as_millis() as u64).await.unwrap();
        Claim::exact(name(owner), beat.incarnation)
    }

    /// Takes all jobs of the queue with a worker that sends no further heartbeat.
    pub async fn dying_worker(&self, owner: &str, limit: usize) -> (Claim, Vec<Claimed>) {
        let claim = self.start(owner).await;
        let mut taken = Vec::new();
        while taken.len() < limit {
            let some = self.jobs.take(&claim, &name("q"), (limit - taken.len()).min(1_000)).await;
            let some = some.unwrap().jobs;
            assert!(!some.is_empty(), "there were too few");
            taken.extend(some);
            self.jobs.beat(&claim).await.unwrap();
        }
        (claim, taken)
    }

    /// Waits until this many jobs of dead workers are suspects.
    pub async fn suspect(&self, count: usize) {
        eventually("the end of the dying owners", async || {
            (suspects(&self.jobs).await.len() >= count.min(10_000)).then_some(())
        })
        .await;
    }

    /// Sweeps until nothing is in flight.
    pub async fn sweep_all(&self, policy: Policy) {
        let sweeper = self.sweeper(policy);
        eventually("the end of all that is in flight", async || {
            pass(&sweeper).await;
            (self.jobs.counts().await.ok()?.in_flight == 0).then_some(())
        })
        .await;
    }

    pub fn system(&self) -> Arc<Inflight> {
        Arc::new(system(&self.redis, &self.jobs))
    }

    /// Completes all jobs of the queue, each once, by the worker that holds it.
    pub async fn complete_all(&self) -> u64 {
        let claim = self.start("the last").await;
        let incarnation = claim.incarnation.unwrap();
        let mut completed = 0;
        loop {
            self.jobs.beat(&claim).await.unwrap();
            let jobs = self.jobs.take(&claim, &name("q"), 500).await.unwrap().jobs;
            if jobs.is_empty() {
                return completed;
            }
            let tickets: Vec<_> = jobs.iter().map(|job| job.ticket(incarnation)).collect();
            let done = self.jobs.finish(&tickets, &Finish::Complete).await.unwrap();
            assert!(done.iter().all(|one| *one == Finished::Done), "{done:?}");
            completed += done.len() as u64;
        }
    }

    /// The account, printed and balanced; and there is one receipt for each claim that was taken back.
    pub async fn audit(&self, story: &str) -> JobCounts {
        let counts = eventually("the account", async || self.jobs.counts().await.ok()).await;
        println!("{story}: {counts:?}");
        assert!(counts.balances(), "{story}: {counts:?}");
        let mut claims: BTreeMap<(String, u64), u64> = BTreeMap::new();
        for receipt in self.receipts().await {
            let recovered: RecoveredJob = serde_json::from_value(receipt.removed).unwrap();
            *claims.entry((receipt.key.to_string(), recovered.token.0)).or_default() += 1;
        }
        let twice: Vec<_> = claims.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "{story}: taken back twice: {twice:?}");
        self.no_key_expires();
        counts
    }

    /// Trap E4: what lapsed has recorded stays until it is changed.
    pub fn no_key_expires(&self) {
        let app = self.app();
        let Reply::List(keys) = app.call(&["KEYS", "lapsed:*"]) else { panic!("no list") };
        for key in keys.iter().map(ToString::to_string) {
            assert_eq!(app.number(&["PTTL", &key]), -1, "{key} goes by itself");
        }
    }
}

pub fn job(id: &str) -> NewJob {
    NewJob::new(name(id), name("q"), &format!("payload of {id}"))
}

pub fn system(redis: &Redis, jobs: &NativeInflight) -> Inflight {
    Inflight::new(
        InflightParts::new(Arc::new(jobs.clone()), Arc::new(redis.clone()), TTL)
            .timeout(Duration::from_secs(5))
            .batch(100)
            .sweeper(format!("retiring-{}", std::process::id())),
    )
}

#[derive(Default)]
pub struct Ledger(Mutex<BTreeMap<String, Vec<String>>>);

impl Ledger {
    pub fn note(&self, id: &str, who: &str) {
        self.0.lock().unwrap().entry(id.to_owned()).or_default().push(who.to_owned());
    }

    pub fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    /// No worker completed a job that another worker held.
    pub fn audit(&self) {
        let ledger = self.0.lock().unwrap();
        let twice: Vec<_> = ledger.iter().filter(|(_, who)| who.len() > 1).collect();
        assert!(twice.is_empty(), "completed twice: {twice:?}");
    }
}

/// Works until `done`, beginning a new life whenever the last one was lost. What is taken and not
/// answered is given back.
pub async fn keep_working(
    system: Arc<Inflight>,
    who: String,
    ledger: Arc<Ledger>,
    done: impl Fn() -> bool,
) {
    let work = |_: &Claimed| async { Ok::<(), String>(()) };
    while !done() {
        let Ok(worker) = Worker::start(system.clone(), &who).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        while !done() && worker.owner().is_live() {
            let jobs = match worker.take(&name("q"), 5, Duration::from_millis(50)).await {
                Ok(jobs) => jobs,
                // What this call may have taken is given back in the background, or by a sweep.
                Err(Error::Unavailable { .. } | Error::Lost(_)) => break,
                Err(error) => panic!("{error}"),
            };
            for job in jobs {
                match worker.work(&job, work(&job)).await {
                    Ok(JobOutcome::Completed) => ledger.note(job.id.as_str(), &who),
                    Ok(_) => {}
                    Err(Error::Lost(_)) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}
