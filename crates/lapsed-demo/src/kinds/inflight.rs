//! A worker: takes one job at a time, and completes it a little later. Some jobs cannot be done, some
//! kill whoever works on them.

use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};
use ureq::http::Method;

use super::{DemoKind, Group};
use crate::api::Api;
use crate::show::player::{ActorClient, DemoActor};
use lapsed_server::failure::Failure;
use lapsed_server::print;

/// Where the system is reached.
const INFLIGHT: &str = "/v1/inflight/jobs";

/// What the show does with `inflight`.
pub const SHOWN: DemoKind = DemoKind {
    system: "inflight/jobs",
    section: include_str!("inflight.toml"),
    role: "worker",
    actor_name: "worker",
    actors: "workers",
    seats: 4,
    actor: || Box::new(WorkerActor::default()),
    per_owner: true,
    sentence,
    prepare: prepare,
    now_and_then: |api, number| enqueue(api, number, FINE).map(drop),
    specials: &[poison, broken],
};

/// How many jobs there are at the beginning: something to do for everybody.
const JOBS_FIRST: u64 = 8;

fn prepare(api: &Api) -> Result<(), Failure> {
    (1..=JOBS_FIRST).try_for_each(|number| enqueue(api, number, FINE).map(drop))
}

/// A job that kills its workers, until it is a dead letter.
fn poison(api: &Api, number: u64) -> Result<String, Failure> {
    let id = enqueue(api, number, POISON)?;
    Ok(format!("job {id} is put on its queue; it kills whoever works on it"))
}

/// A job that its worker gives up.
fn broken(api: &Api, number: u64) -> Result<String, Failure> {
    let id = enqueue(api, number, BROKEN)?;
    Ok(format!("job {id} is put on its queue; nobody can do it"))
}

/// One more job; its id.
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

/// Where jobs are taken from.
const QUEUES: &[&str] = &["mails", "thumbs", "reports"];

/// What a job carries.
const FINE: &str = "fine";
const BROKEN: &str = "broken";
const POISON: &str = "poison";

/// How many ticks a job takes at the most.
const TICKS_MAX: u64 = 4;

#[derive(Default)]
pub struct WorkerActor {
    life: u64,
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
    fn take(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        let first = desk.below(QUEUES.len() as u64) as usize;
        for queue in QUEUES.iter().cycle().skip(first).take(QUEUES.len()) {
            let mut body = desk.claim(self.life);
            body["queue"] = json!(queue);
            let taken = desk.post(INFLIGHT, "take", body)?.body;
            self.job = Job::read(&taken["jobs"][0], 1 + desk.below(TICKS_MAX));
            if self.job.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// One tick of work on it; what is left of it.
    fn work(mut job: Job, desk: &ActorClient) -> Result<Option<Job>, Failure> {
        job.ticks -= 1;
        match (job.ticks, job.payload.as_str()) {
            (0, BROKEN) => {
                let mut body = job.ticket();
                body["error"] = json!("the address has no such mailbox");
                desk.post(INFLIGHT, "fail", body)?;
                print::line(&format!("gives up job {}: it is a dead letter now", job.id))?;
            }
            (0, POISON) => die(&job)?,
            (0, _) => drop(desk.post(INFLIGHT, "complete", job.ticket())?),
            _ => return Ok(Some(job)),
        }
        Ok(None)
    }
}

/// As sudden as it gets.
fn die(job: &Job) -> Result<(), Failure> {
    print::line(&format!("dies of job {}", job.id))?;
    let killed = kill_process(getpid(), Signal::KILL);
    killed.map_err(|error| Failure::failed(format!("a worker that would not die: {error}")))
}

impl DemoActor for WorkerActor {
    fn enter(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        self.life = desk.start(INFLIGHT)?;
        self.job = None;
        Ok(())
    }

    fn tick(&mut self, desk: &ActorClient) -> Result<bool, Failure> {
        if !desk.beat(INFLIGHT, self.life)? {
            return Ok(false);
        }
        match self.job.take() {
            Some(job) => self.job = Self::work(job, desk)?,
            None => self.take(desk)?,
        }
        Ok(true)
    }

    fn leave(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        desk.retire(INFLIGHT, self.life)
    }
}
