//! What is broken, and mended again: real signals to real processes, and connections cut in the middle of a byte
//! stream.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::worker::TTL_MS;
use super::world::World;
use crate::availability_faults::random::SeededRandom;

/// Longer than the threshold of workers and than the silence that counts as an absence of a store.
const FREEZE: Duration = Duration::from_millis(TTL_MS + 500);

/// How long something that was killed stays away, at most.
const AWAY_MAX_MS: usize = 300;

/// How many bytes pass before a connection is cut, at most.
const CUT_AFTER_MAX: usize = 20_000;

/// How long a cut may take to come: the load is always there.
const CUT_LIMIT: Duration = Duration::from_secs(30);

/// The processes that are killed and frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    Daemon,
    Worker,
    Redis,
    Valkey,
    Postgres,
    SeaweedFs,
}

/// Whom to kill, in turns: a start of SeaweedFS takes seconds, that of PostgreSQL about one.
const KILLED: [(Victim, u64); 6] = [
    (Victim::Daemon, 30),
    (Victim::Worker, 28),
    (Victim::Redis, 16),
    (Victim::Valkey, 16),
    (Victim::Postgres, 8),
    (Victim::SeaweedFs, 2),
];

const FROZEN: [Victim; 6] = [
    Victim::Worker,
    Victim::Daemon,
    Victim::Redis,
    Victim::Valkey,
    Victim::Postgres,
    Victim::SeaweedFs,
];

/// One fault; the number says which victim it meets.
#[derive(Clone, Copy, Debug)]
pub enum Strike {
    Kill(Victim),
    Freeze(Victim),
    Cut(u64),
}

/// So many of each, in random order.
pub fn mixed(kills: u64, freezes: u64, cuts: u64, random: &mut SeededRandom) -> Vec<Strike> {
    let kills = (0..kills).map(|nth| Strike::Kill(killed(nth)));
    let freezes = (0..freezes).map(|nth| Strike::Freeze(frozen(nth)));
    let mut all: Vec<Strike> = kills.chain(freezes).chain((0..cuts).map(Strike::Cut)).collect();
    for place in (1..all.len()).rev() {
        all.swap(place, random.below(place + 1));
    }
    all
}

/// The victim of a kill: over a hundred consecutive numbers each has its share, spread evenly.
fn killed(nth: u64) -> Victim {
    // 37 and 100 have no common divisor.
    let mut place = (nth * 37) % 100;
    for (victim, share) in KILLED {
        if place < share {
            return victim;
        }
        place -= share;
    }
    Victim::Daemon
}

fn frozen(nth: u64) -> Victim {
    FROZEN[nth as usize % FROZEN.len()]
}

impl World {
    /// Breaks something and mends it; what it was.
    pub fn strike(&mut self, strike: Strike, random: &mut SeededRandom) -> String {
        match strike {
            Strike::Kill(victim) => {
                self.kill(victim, random);
                format!("kill {victim:?}")
            }
            Strike::Freeze(victim) => {
                self.freeze(victim, random);
                format!("freeze {victim:?}")
            }
            Strike::Cut(nth) => format!("cut {}", self.cut(nth, random)),
        }
    }

    /// SIGKILL, a moment of absence, and a new process.
    fn kill(&mut self, victim: Victim, random: &mut SeededRandom) {
        let away = Duration::from_millis(random.below(AWAY_MAX_MS) as u64);
        match victim {
            Victim::Daemon => {
                let nth = random.below(self.fleet.daemons());
                self.fleet.kill_daemon(nth);
                thread::sleep(away);
                self.fleet.start_daemon(nth);
            }
            Victim::Worker => {
                let nth = random.below(self.fleet.workers().len());
                self.fleet.replace_worker(nth);
            }
            Victim::Redis | Victim::Valkey => {
                let server = if victim == Victim::Redis { &self.redis } else { &self.valkey };
                server.kill().unwrap();
                thread::sleep(away);
                server.restart().unwrap();
            }
            Victim::Postgres => {
                self.postgres.kill().unwrap();
                thread::sleep(away);
                self.postgres.restart().unwrap();
            }
            Victim::SeaweedFs => {
                self.objects.kill().unwrap();
                thread::sleep(away);
                self.objects.restart().unwrap();
            }
        }
    }

    /// SIGSTOP for longer than the threshold, and SIGCONT.
    fn freeze(&self, victim: Victim, random: &mut SeededRandom) {
        let hold = || thread::sleep(FREEZE);
        match victim {
            Victim::Daemon => {
                let nth = random.below(self.fleet.daemons());
                let pid = Pid::from_raw(self.fleet.daemon_pid(nth) as i32).unwrap();
                kill_process(pid, Signal::STOP).unwrap();
                hold();
                kill_process(pid, Signal::CONT).unwrap();
            }
            Victim::Worker => {
                let workers = self.fleet.workers();
                let program = &workers[random.below(workers.len())].program;
                program.freeze().unwrap();
                hold();
                program.thaw().unwrap();
            }
            Victim::Redis | Victim::Valkey => {
                let server = if victim == Victim::Redis { &self.redis } else { &self.valkey };
                server.freeze().unwrap();
                hold();
                server.thaw().unwrap();
            }
            Victim::Postgres => {
                self.postgres.freeze().unwrap();
                hold();
                self.postgres.thaw().unwrap();
            }
            Victim::SeaweedFs => {
                self.objects.freeze().unwrap();
                hold();
                self.objects.thaw().unwrap();
            }
        }
    }

    /// Cuts a connection to one of the stores after a random number of bytes; which store it was.
    fn cut(&self, nth: u64, random: &mut SeededRandom) -> &'static str {
        let proxies = self.proxies();
        let (name, proxy) = proxies[nth as usize % proxies.len()];
        let (before, deadline) = (proxy.cuts(), Instant::now() + CUT_LIMIT);
        proxy.cut_after(1 + random.below(CUT_AFTER_MAX) as u64);
        while proxy.cuts() == before {
            assert!(Instant::now() < deadline, "nothing is said to {name}");
            thread::sleep(Duration::from_millis(5));
        }
        name
    }
}
