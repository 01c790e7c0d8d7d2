//! A worker that takes one job at a time and completes it a little later. Some jobs fail, and some kill the
//! worker that has taken them.

use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};
use ureq::http::Method;

use super::{DemoKind, Group};
use crate::api::Api;
use crate::show::actor::{ActorClient, DemoActor};
use lapsed_server::failure::Failure;
use lapsed_server::print;

/// Path of the system in the daemon's HTTP API.
const INFLIGHT: &str = "/v1/inflight/jobs";

/// The part of the show that uses `inflight`.
pub const SHOWN: DemoKind = DemoKind {
    system: "inflight/jobs",
    section: include_str!("inflight.toml"),
    role: "worker",
    actor_name: "worker",
    actors: "workers",
    actor_count: 4,
    actor: || Box::new(WorkerActor::default()),
    per_owner: true,
    sentence,
    prepare,
    now_and_then: |api, number| enqueue(api, number, FINE).map(drop),
    specials: &[poison, broken],
};

/// How many jobs are enqueued before the workers start: enough for all of them.
const JOBS_FIRST: u64 = 8;

fn prepare(api: &Api) -> Result<(), Failure> {
    (1..=JOBS_FIRST).try_for_each(|number| enqueue(api, number, FINE).map(drop))
}

/// Enqueues a job that kills its workers until it becomes a dead letter.
fn poison(api: &Api, number: u64) -> Result<String, Failure> {
    let id = enqueue(api, number, POISON)?;
    Ok(format!("job {id} is put on its queue; it kills every worker that takes it"))
}

/// Enqueues a job that its worker fails.
fn broken(api: &Api, number: u64) -> Result<String, Failure> {
    let id = enqueue(api, number, BROKEN)?;
    Ok(format!("job {id} is put on its queue; nobody can do it"))
}

/// Enqueues a job; its id.
fn enqueue(api: &Api, number: u64, payload: &str) -> Result<String, Failure> {
    let queue = QUEUES[number as usize % QUEUES.len()];
    let id = format!("{queue}-{number}");
    let body = json!({ "queue": queue, "id": id, "payload": payload });
    api.send(Method::POST, &format!("{INFLIGHT}/enqueue"), body)?.expect()?;
    Ok(id)
}

fn sentence(of: &Group<'_>) -> String {
    let became = match of.effect.as_deref() {
        Some("dead letter") => "is a dead letter now: it has killed too many",
        Some("dropped") => "is dropped",
        _ => "is back on its queue",
    };
    format!("{} {}: its job {} {became}", of.first.owner, of.gone, of.first.key)
}

/// The queues that jobs are put on and taken from.
const QUEUES: &[&str] = &["mails", "thumbs", "reports"];

/// The payloads: what happens when a worker does the job.
const FINE: &str = "fine";
const BROKEN: &str = "broken";
const POISON: &str = "poison";

/// The most ticks that a job takes.
const TICKS_MAX: u64 = 4;

#[derive(Default)]
pub struct WorkerActor {
    incarnation: u64,
    job: Option<Job>,
}

struct Job {
    id: String,
    token: u64,
    payload: String,
    ticks: u64,
}

impl Job {
    fn read(told: &Value, ticks: u64) -> Option<Job> {
        let text = |member: &str| told[member].as_str().map(str::to_owned);
        Some(Job {
            id: text("id")?,
            token: told["token"].as_u64()?,
            payload: text("payload")?,
            ticks,
        })
    }

    fn ticket(&self) -> Value {
        json!({ "id": self.id, "token": self.token })
    }
}

impl WorkerActor {
    fn take(&mut self, client: &ActorClient) -> Result<(), Failure> {
        let first = client.below(QUEUES.len() as u64) as usize;
        for queue in QUEUES.iter().cycle().skip(first).take(QUEUES.len()) {
            let mut body = client.claim(self.incarnation);
            body["queue"] = json!(queue);
            let taken = client.post(INFLIGHT, "take", body)?.body;
            self.job = Job::read(&taken["jobs"][0], 1 + client.below(TICKS_MAX));
            if self.job.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Works on the job for one tick; the job if it is not finished.
    fn work(mut job: Job, client: &ActorClient) -> Result<Option<Job>, Failure> {
        job.ticks -= 1;
        match (job.ticks, job.payload.as_str()) {
            (0, BROKEN) => {
                let mut body = job.ticket();
                body["error"] = json!("the address has no such mailbox");
                client.post(INFLIGHT, "fail", body)?;
                print::line(&format!("gives up job {}: it is a dead letter now", job.id))?;
            }
            (0, POISON) => die(&job)?,
            (0, _) => drop(client.post(INFLIGHT, "complete", job.ticket())?),
            _ => return Ok(Some(job)),
        }
        Ok(None)
    }
}

/// Kills this process with SIGKILL.
fn die(job: &Job) -> Result<(), Failure> {
    print::line(&format!("dies of job {}", job.id))?;
    let killed = kill_process(getpid(), Signal::KILL);
    killed.map_err(|error| Failure::failed(format!("a worker that would not die: {error}")))
}

impl DemoActor for WorkerActor {
    fn enter(&mut self, client: &ActorClient) -> Result<(), Failure> {
        self.incarnation = client.start(INFLIGHT)?;
        self.job = None;
        Ok(())
    }

    fn tick(&mut self, client: &ActorClient) -> Result<bool, Failure> {
        if !client.beat(INFLIGHT, self.incarnation)? {
            return Ok(false);
        }
        match self.job.take() {
            Some(job) => self.job = Self::work(job, client)?,
            None => self.take(client)?,
        }
        Ok(true)
    }

    fn leave(&mut self, client: &ActorClient) -> Result<(), Failure> {
        client.retire(INFLIGHT, self.incarnation)
    }
}
