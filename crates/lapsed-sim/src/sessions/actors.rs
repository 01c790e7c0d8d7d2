//! Who does what: an application that activates sessions, servers with clients that come and go, that
//! stall, crash and come back, two sweepers that act on what they saw a while ago; and the connection
//! between them and the store.

use lapsed_core::Name;
use lapsed_core::owner::Claim;
use lapsed_core::sessions::ReferenceStep;
use lapsed_core::sweep::Suspect;

use crate::disk::{Keep, SyncFault};
use crate::promise::Checked;
use crate::sessions::SETTLE_MS;
use crate::sessions::calls::ChangeRequest;
use crate::sessions::model::Changed;
use crate::sessions::system::{SessionSimSystem, name};

/// The number of servers. Each starts again and again under the same name.
const SERVERS: usize = 4;

/// The number of session ids and of broadcasters: few, so that ids are used again and again.
const SESSIONS: u64 = 12;
const BROADCASTERS: u64 = 4;

const SWEEPERS: [&str; 2] = ["s0", "s1"];

/// The longest delay of a request, in milliseconds.
const LATE_MS: u64 = 15_000;

/// The share of answers that are lost.
const LOST: f64 = 0.12;

/// A server process, as it sees itself.
struct Server {
    name: Name,
    claim: Option<Claim>,
    /// The session of each client that is connected.
    clients: Vec<Name>,
    /// Until when the server is frozen, in milliseconds.
    frozen_until_ms: u64,
}

/// A request that has not arrived yet.
enum Request {
    Activate { id: Name, broadcaster: Name },
    Beat { claim: Claim },
    Change { server: usize, change: ChangeRequest, attempt: u64 },
    Reclaim { sweeper: &'static str, number: u64, suspects: Vec<Suspect> },
}

pub struct SessionActors {
    servers: Vec<Server>,
    requests: Vec<(u64, Request)>,
    batches: u64,
    changes: u64,
}

impl SessionActors {
    /// All servers before their first start.
    pub fn new() -> Self {
        let server = |number: usize| Server {
            name: name(&format!("web{number}")),
            claim: None,
            clients: Vec::new(),
            frozen_until_ms: 0,
        };
        SessionActors {
            servers: (0..SERVERS).map(server).collect(),
            requests: Vec::new(),
            batches: 0,
            changes: 0,
        }
    }

    /// Carries out the requests that are due.
    pub fn deliver(&mut self, sim: &mut SessionSimSystem) -> Checked {
        let now_ms = sim.now_ms();
        let mut arrived: Vec<(u64, Request)> =
            self.requests.extract_if(.., |(due_ms, _)| *due_ms <= now_ms).collect();
        arrived.sort_by_key(|(due_ms, _)| *due_ms);
        arrived.into_iter().try_for_each(|(_, request)| self.arrive(sim, request))
    }

    fn arrive(&mut self, sim: &mut SessionSimSystem, request: Request) -> Checked {
        let is_lost = sim.random.odds(LOST);
        match request {
            Request::Activate { id, broadcaster } => {
                let heard = sim.activate(&id, &broadcaster)?;
                if !heard || is_lost {
                    self.send(sim, Request::Activate { id, broadcaster });
                }
            }
            Request::Beat { claim } => {
                if !sim.beat(&claim)? && !is_lost {
                    self.forget_lost(&claim);
                }
            }
            Request::Change { server, change, attempt } => match sim.change(&change, attempt)? {
                Some(changed) if !is_lost => self.hear(server, &change, changed),
                _ => self.send(sim, Request::Change { server, change, attempt: attempt + 1 }),
            },
            Request::Reclaim { sweeper, number, suspects } => {
                sim.reclaim(sweeper, number, suspects)?;
                if is_lost {
                    sim.settle(sweeper, number)?;
                }
            }
        }
        Ok(())
    }

    /// A server hears the answer to a connect or disconnect.
    fn hear(&mut self, server: usize, change: &ChangeRequest, changed: Changed) {
        if changed == Changed::Lost {
            return self.forget_lost(&change.claim);
        }
        let server = &mut self.servers[server];
        let connected = change.step == ReferenceStep::Connect && changed != Changed::NoSession;
        if connected && server.claim.as_ref() == Some(&change.claim) {
            server.clients.push(change.id.clone());
        }
    }

    /// Sends a request with a random delay, now and then longer than a server's TTL.
    fn send(&mut self, sim: &SessionSimSystem, request: Request) {
        let late_ms = match sim.random.odds(0.1) {
            true => sim.random.between(1_000, LATE_MS),
            false => sim.random.between(1, 800),
        };
        self.requests.push((sim.now_ms() + late_ms, request));
    }

    /// A server was answered `Lost`: its clients are gone and it starts again.
    fn forget_lost(&mut self, claim: &Claim) {
        let lost = self.servers.iter_mut().find(|server| server.claim.as_ref() == Some(claim));
        if let Some(server) = lost {
            server.claim = None;
            server.clients.clear();
        }
    }

    pub fn act(&mut self, sim: &mut SessionSimSystem) -> Checked {
        let id = name(&format!("c{}", sim.random.between(1, SESSIONS)));
        match sim.random.between(0, 99) {
            0..10 => {
                let broadcaster = name(&format!("b{}", sim.random.between(1, BROADCASTERS)));
                // A session keeps the broadcaster that it began with.
                let known = sim.model.sessions.get(&id).map(|s| s.broadcaster.clone());
                let broadcaster = known.unwrap_or(broadcaster);
                if self.has_no_activation_of(&id) {
                    self.send(sim, Request::Activate { id, broadcaster });
                }
                Ok(())
            }
            10..12 => sim.resume(&id),
            12..13 => sim.delete(&id),
            13..78 => self.serve(sim, id),
            78..92 => self.sweep(sim),
            _ => self.inject_fault(sim),
        }
    }

    /// Two activations of one session under way could disagree on its broadcaster.
    fn has_no_activation_of(&self, id: &Name) -> bool {
        !self.requests.iter().any(
            |(_, request)| matches!(request, Request::Activate { id: other, .. } if other == id),
        )
    }

    fn serve(&mut self, sim: &mut SessionSimSystem, id: Name) -> Checked {
        let at = sim.random.between(0, SERVERS as u64 - 1) as usize;
        if self.servers[at].frozen_until_ms > sim.now_ms() {
            return Ok(());
        }
        let Some(claim) = self.servers[at].claim.clone() else {
            let name = self.servers[at].name.clone();
            self.servers[at].claim = sim.start(&name)?;
            return Ok(());
        };
        match sim.random.between(0, 19) {
            0..9 => self.send(sim, Request::Beat { claim }),
            9..14 => self.request_change(sim, at, ReferenceStep::Connect, claim, id),
            14..19 => {
                let clients = self.servers[at].clients.len() as u64;
                if clients > 0 {
                    let client = sim.random.between(0, clients - 1) as usize;
                    let id = self.servers[at].clients.swap_remove(client);
                    self.request_change(sim, at, ReferenceStep::Disconnect, claim, id);
                }
            }
            _ => {
                sim.end(&claim)?;
                self.forget_lost(&claim);
            }
        }
        Ok(())
    }

    fn request_change(
        &mut self,
        sim: &SessionSimSystem,
        server: usize,
        step: ReferenceStep,
        claim: Claim,
        id: Name,
    ) {
        self.changes += 1;
        let change = ChangeRequest { key: format!("r{}", self.changes), step, claim, id };
        self.send(sim, Request::Change { server, change, attempt: 1 });
    }

    /// Reads suspects now and sends their batch, which arrives later.
    fn sweep(&mut self, sim: &mut SessionSimSystem) -> Checked {
        let mut suspects = sim.suspects()?;
        if suspects.is_empty() {
            return Ok(());
        }
        // Not always the first: the other sweeper may be at work on them.
        let skip = sim.random.between(0, suspects.len() as u64 - 1) as usize;
        suspects.drain(..skip);
        suspects.truncate(sim.random.between(1, 4) as usize);
        self.batches += 1;
        let sweeper = SWEEPERS[sim.random.between(0, 1) as usize];
        self.send(sim, Request::Reclaim { sweeper, number: self.batches, suspects });
        Ok(())
    }

    fn inject_fault(&mut self, sim: &mut SessionSimSystem) -> Checked {
        let at = sim.random.between(0, SERVERS as u64 - 1) as usize;
        let keep = match sim.random.between(0, 2) {
            0 => Keep::Nothing,
            1 => Keep::Everything,
            _ => Keep::Some(sim.random.any()),
        };
        match sim.random.between(0, 9) {
            // Killed: the server forgets everything but its name.
            0..3 => {
                self.servers[at].claim = None;
                self.servers[at].clients.clear();
            }
            3..7 => {
                let for_ms = sim.random.between(5_000, 30_000);
                self.servers[at].frozen_until_ms = sim.now_ms() + for_ms;
            }
            7 => sim.disk.set_sync_fault(Some(SyncFault::Error(keep))),
            8 => sim.disk.set_sync_fault(Some(SyncFault::Power(keep))),
            _ => return sim.crash(keep),
        }
        Ok(())
    }

    /// Ends the run: nobody is connected any more, and passes remove what is left.
    pub fn settle(&mut self, sim: &mut SessionSimSystem) -> Checked {
        self.requests.clear();
        for _ in 0..3 {
            sim.pass(SETTLE_MS);
            loop {
                let suspects = sim.suspects()?;
                if suspects.is_empty() {
                    break;
                }
                self.batches += 1;
                sim.reclaim(SWEEPERS[0], self.batches, suspects)?;
            }
        }
        Ok(())
    }
}

impl Default for SessionActors {
    fn default() -> Self {
        Self::new()
    }
}
