//! Who does what: producers that repeat themselves, workers that stall, die and come back, sweepers
//! that act on what they saw a while ago; and the connection between them and the store.

use lapsed_core::Name;
use lapsed_core::inflight::rules::{OnDeath, QueueEnd};
use lapsed_core::inflight::{Claimed, Finish, JobTicket};
use lapsed_core::owner::Claim;
use lapsed_core::sweep::Suspect;

use crate::disk::{Keep, SyncFault};
use crate::jobs::SETTLE_MS;
use crate::jobs::model::ModelPlace;
use crate::jobs::system::JobSimSystem;
use crate::promise::Checked;

/// The number of workers. Each starts again and again under the same name.
const WORKERS: usize = 5;

/// The longest delay of a request, in milliseconds.
const LATE_MS: u64 = 15_000;

/// The share of answers that are lost.
const LOST: f64 = 0.12;

/// A worker process, as it sees itself.
struct Worker {
    name: Name,
    claim: Option<Claim>,
    held: Vec<Claimed>,
    /// A `take` had no answer.
    in_doubt: bool,
    /// Until when the worker is frozen, in milliseconds.
    frozen_until_ms: u64,
}

/// A request that has not arrived yet.
enum Request {
    Enqueue { id: Name, on_death: Option<OnDeath> },
    Beat { claim: Claim },
    Finish { worker: usize, ticket: JobTicket, how: Finish },
    Reclaim { number: u64, suspects: Vec<Suspect> },
}

pub struct JobActors {
    workers: Vec<Worker>,
    request: Vec<(u64, Request)>,
    jobs: u64,
    batches: u64,
    attempts: u64,
}

impl JobActors {
    /// All workers before their first start.
    pub fn new() -> Self {
        let worker = |number: usize| Worker {
            name: Name::new(&format!("w{number}")).expect("it is a valid name"),
            claim: None,
            held: Vec::new(),
            in_doubt: false,
            frozen_until_ms: 0,
        };
        JobActors {
            workers: (0..WORKERS).map(worker).collect(),
            request: Vec::new(),
            jobs: 0,
            batches: 0,
            attempts: 0,
        }
    }

    /// Carries out the requests that are due.
    pub fn deliver(&mut self, sim: &mut JobSimSystem) -> Checked {
        let now_ms = sim.now_ms();
        let mut arrived: Vec<(u64, Request)> =
            self.request.extract_if(.., |(due_ms, _)| *due_ms <= now_ms).collect();
        arrived.sort_by_key(|(due_ms, _)| *due_ms);
        arrived.into_iter().try_for_each(|(_, request)| self.arrive(sim, request))
    }

    fn arrive(&mut self, sim: &mut JobSimSystem, request: Request) -> Checked {
        let is_lost = sim.random.odds(LOST);
        match request {
            Request::Enqueue { id, on_death } => {
                let heard = sim.enqueue(&id, on_death)?;
                if !heard || is_lost {
                    self.send(sim, Request::Enqueue { id, on_death });
                }
            }
            Request::Beat { claim } => {
                if !sim.beat(&claim)? && !is_lost {
                    self.forget_lost(&claim);
                }
            }
            Request::Finish { worker, ticket, how } => {
                let answer = sim.finish(&ticket, &how)?;
                if answer.is_some() && !is_lost {
                    let held = &mut self.workers[worker].held;
                    held.retain(|job| (&job.id, job.token) != (&ticket.id, ticket.token));
                }
            }
            Request::Reclaim { number, suspects } => {
                sim.reclaim(number, suspects)?;
                if is_lost {
                    sim.settle(number)?;
                }
            }
        }
        Ok(())
    }

    /// Sends a request with a random delay, now and then longer than a worker's TTL.
    fn send(&mut self, sim: &JobSimSystem, request: Request) {
        let late_ms = match sim.random.odds(0.1) {
            true => sim.random.between(1_000, LATE_MS),
            false => sim.random.between(1, 800),
        };
        self.request.push((sim.now_ms() + late_ms, request));
    }

    /// A worker was answered `Lost`: it drops what it held and starts again.
    fn forget_lost(&mut self, claim: &Claim) {
        let lost = self.workers.iter_mut().find(|worker| worker.claim.as_ref() == Some(claim));
        if let Some(worker) = lost {
            (worker.claim, worker.in_doubt) = (None, false);
            worker.held.clear();
        }
    }

    pub fn act(&mut self, sim: &mut JobSimSystem) -> Checked {
        match sim.random.between(0, 99) {
            0..12 => self.produce(sim),
            12..80 => self.work(sim)?,
            80..88 => self.sweep(sim)?,
            88..92 => self.put_back_a_dead_letter(sim)?,
            _ => self.inject_fault(sim)?,
        }
        Ok(())
    }

    fn produce(&mut self, sim: &JobSimSystem) {
        for _ in 0..sim.random.between(1, 4) {
            self.jobs += 1;
            let id = Name::new(&format!("j{:04}", self.jobs)).expect("it is a valid name");
            let on_death = match sim.random.between(0, 19) {
                0 => Some(OnDeath::Drop),
                1 => Some(OnDeath::DeadLetter),
                2 | 3 => Some(OnDeath::Back),
                _ => None,
            };
            self.send(sim, Request::Enqueue { id, on_death });
        }
    }

    fn work(&mut self, sim: &mut JobSimSystem) -> Checked {
        let at = sim.random.between(0, WORKERS as u64 - 1) as usize;
        if self.workers[at].frozen_until_ms > sim.now_ms() {
            return Ok(());
        }
        let Some(claim) = self.workers[at].claim.clone() else {
            let name = self.workers[at].name.clone();
            self.workers[at].claim = sim.start(&name)?;
            return Ok(());
        };
        match sim.random.between(0, 9) {
            0..4 => {
                self.send(sim, Request::Beat { claim });
                Ok(())
            }
            4..7 => self.take(sim, at, &claim),
            _ => {
                self.finish(sim, at, &claim);
                Ok(())
            }
        }
    }

    fn take(&mut self, sim: &mut JobSimSystem, at: usize, claim: &Claim) -> Checked {
        if self.workers[at].in_doubt {
            let strays = sim.strays(claim);
            let worker = &mut self.workers[at];
            worker.in_doubt = false;
            let held: Vec<Name> = worker.held.iter().map(|job| job.id.clone()).collect();
            worker.held.extend(strays.into_iter().filter(|job| !held.contains(&job.id)));
        }
        let limit = sim.random.between(1, 3) as usize;
        if sim.random.odds(LOST) {
            self.attempts += 1;
            return sim.take_undelivered(self.attempts, claim, limit);
        }
        match sim.take(claim, limit)? {
            Ok(_) if sim.random.odds(LOST) => self.workers[at].in_doubt = true,
            Ok(jobs) => self.workers[at].held.extend(jobs),
            Err(lapsed_core::Error::Lost(_)) => self.forget_lost(claim),
            Err(_) => self.workers[at].in_doubt = true,
        }
        Ok(())
    }

    fn finish(&mut self, sim: &JobSimSystem, at: usize, claim: &Claim) {
        let Some(job) = sim.random.pick(&self.workers[at].held) else { return };
        let how = match sim.random.between(0, 19) {
            0 => Finish::Fail { error: "no".to_owned() },
            1 => Finish::GiveBack(QueueEnd::Front),
            2 => Finish::GiveBack(QueueEnd::Back),
            _ => Finish::Complete,
        };
        let incarnation = claim.incarnation.filter(|_| sim.random.odds(0.5));
        let ticket = JobTicket { id: job.id.clone(), token: job.token, incarnation };
        self.send(sim, Request::Finish { worker: at, ticket, how });
    }

    /// Reads suspects now and sends their batch, which arrives later.
    fn sweep(&mut self, sim: &mut JobSimSystem) -> Checked {
        let mut suspects = sim.suspects()?;
        if suspects.is_empty() {
            return Ok(());
        }
        suspects.truncate(sim.random.between(1, 4) as usize);
        self.batches += 1;
        self.send(sim, Request::Reclaim { number: self.batches, suspects });
        Ok(())
    }

    fn put_back_a_dead_letter(&mut self, sim: &mut JobSimSystem) -> Checked {
        let is_letter = |place: ModelPlace| matches!(place, ModelPlace::Dead(_));
        let jobs = sim.model.jobs.iter();
        let letters: Vec<Name> =
            jobs.filter(|(_, job)| is_letter(job.place)).map(|(id, _)| id.clone()).collect();
        match sim.random.pick(&letters).cloned() {
            Some(id) => sim.put_back(&id),
            None => Ok(()),
        }
    }

    fn inject_fault(&mut self, sim: &mut JobSimSystem) -> Checked {
        let at = sim.random.between(0, WORKERS as u64 - 1) as usize;
        let keep = match sim.random.between(0, 2) {
            0 => Keep::Nothing,
            1 => Keep::Everything,
            _ => Keep::Some(sim.random.any()),
        };
        match sim.random.between(0, 9) {
            // Killed: the worker forgets everything but its name.
            0..3 => {
                let worker = &mut self.workers[at];
                (worker.claim, worker.in_doubt) = (None, false);
                worker.held.clear();
            }
            3..7 => {
                let for_ms = sim.random.between(5_000, 30_000);
                self.workers[at].frozen_until_ms = sim.now_ms() + for_ms;
            }
            7 => sim.disk.set_sync_fault(Some(SyncFault::Error(keep))),
            8 => sim.disk.set_sync_fault(Some(SyncFault::Power(keep))),
            _ => return sim.crash(keep),
        }
        Ok(())
    }

    /// Ends the run: all workers are gone, their jobs are reclaimed, and one last worker completes
    /// all jobs.
    pub fn settle(&mut self, sim: &mut JobSimSystem) -> Checked {
        for (_, request) in std::mem::take(&mut self.request) {
            if let Request::Enqueue { id, on_death } = request {
                sim.enqueue(&id, on_death)?;
            }
        }
        sim.pass(SETTLE_MS);
        loop {
            let suspects = sim.suspects()?;
            if suspects.is_empty() {
                break;
            }
            self.batches += 1;
            sim.reclaim(self.batches, suspects)?;
        }
        let name = Name::new("last").expect("it is a valid name");
        let Some(claim) = sim.start(&name)? else { return Ok(()) };
        while let Ok(jobs) = sim.take(&claim, 50)?
            && !jobs.is_empty()
        {
            for job in jobs {
                let ticket = JobTicket { id: job.id, token: job.token, incarnation: None };
                sim.finish(&ticket, &Finish::Complete)?;
            }
        }
        Ok(())
    }
}

impl Default for JobActors {
    fn default() -> Self {
        Self::new()
    }
}
