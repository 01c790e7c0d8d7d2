//! The company: a seat for each name, and the process that sits there, if any. A seat whose process was
//! killed or has left is empty for a while, so that its death is seen; then the next one takes it under
//! the same name, and has a new life.

use std::time::{Duration, Instant};

use super::super::cast::DemoProcess;
use super::config::TTL_MS;
use super::player::READY;
use crate::kinds::KINDS;
use lapsed_server::failure::Failure;

/// How long a seat stays empty.
const EMPTY: Duration = Duration::from_millis(2 * TTL_MS);

/// How long a frozen one sleeps: longer than its time.
const ASLEEP: Duration = Duration::from_millis(2 * TTL_MS);

/// Who sits there, and until when it stays so.
enum Sits {
    Playing(DemoProcess),
    Asleep(DemoProcess, Instant),
    Leaving(DemoProcess),
    Nobody(Instant),
}

struct Seat {
    role: &'static str,
    name: String,
    sits: Sits,
    /// Whether it has said that it is there. Before that it must not be frozen: it may not have told
    /// the kernel yet to end it with its parent.
    ready: bool,
}

/// Everybody on stage.
pub struct ActorGroup {
    url: String,
    token: Option<String>,
    seats: Vec<Seat>,
    turn: usize,
}

impl ActorGroup {
    /// Nobody yet.
    pub fn new(url: &str, token: Option<&str>) -> ActorGroup {
        let (url, token) = (url.to_owned(), token.map(str::to_owned));
        ActorGroup { url, token, seats: Vec::new(), turn: 0 }
    }

    /// Everybody enters.
    pub fn enter(&mut self) -> Result<(), Failure> {
        for kind in KINDS {
            for number in 1..=kind.seats {
                let name = format!("{}-{number}", kind.actor_name);
                let sits = Sits::Playing(self.start(kind.role, &name)?);
                self.seats.push(Seat { role: kind.role, name, sits, ready: false });
            }
        }
        Ok(())
    }

    /// `4 gateways, 3 chat servers, …`
    pub fn describe(&self) -> String {
        let each = KINDS.iter().map(|kind| format!("{} {}", kind.seats, kind.actors));
        each.collect::<Vec<_>>().join(", ")
    }

    /// kill -9 for the next of that role.
    pub fn kill(&mut self, role: &str, now: Instant) -> Result<Option<String>, Failure> {
        let Some(seat) = self.next(role) else { return Ok(None) };
        let Sits::Playing(player) = &mut seat.sits else { return Ok(None) };
        player.kill()?;
        let line =
            format!("{} is killed (kill -9, pid {}); nobody is told", seat.name, player.pid());
        seat.sits = Sits::Nobody(now + EMPTY);
        Ok(Some(line))
    }

    /// SIGSTOP for the next of that role.
    pub fn freeze(&mut self, role: &str, now: Instant) -> Result<Option<String>, Failure> {
        let Some(seat) = self.next(role) else { return Ok(None) };
        let Sits::Playing(mut player) = std::mem::replace(&mut seat.sits, Sits::Nobody(now)) else {
            return Ok(None);
        };
        player.freeze()?;
        let line =
            format!("{} is frozen (SIGSTOP, pid {}): alive, but silent", seat.name, player.pid());
        seat.sits = Sits::Asleep(player, now + ASLEEP);
        Ok(Some(line))
    }

    /// The next of that role is asked to leave.
    pub fn leave(&mut self, role: &str, now: Instant) -> Result<Option<String>, Failure> {
        let Some(seat) = self.next(role) else { return Ok(None) };
        let Sits::Playing(mut player) = std::mem::replace(&mut seat.sits, Sits::Nobody(now)) else {
            return Ok(None);
        };
        player.leave()?;
        seat.sits = Sits::Leaving(player);
        Ok(Some(format!("{} leaves gracefully: it says so before it goes", seat.name)))
    }

    /// Wakes who has slept long enough, fills empty seats, and hears what was said meanwhile.
    pub fn tend(&mut self, now: Instant) -> Result<Vec<String>, Failure> {
        let mut lines = Vec::new();
        for index in 0..self.seats.len() {
            lines.extend(self.seats[index].heard());
            if matches!(self.seats[index].sits, Sits::Nobody(until) if now >= until) {
                let player = self.start(self.seats[index].role, &self.seats[index].name)?;
                self.seats[index].sits = Sits::Playing(player);
                self.seats[index].ready = false;
                lines.push(format!(
                    "{} is started again, and has a new life",
                    self.seats[index].name
                ));
            }
            lines.extend(self.seats[index].turn(now)?);
        }
        Ok(lines)
    }

    fn start(&self, role: &str, name: &str) -> Result<DemoProcess, Failure> {
        let args = ["demo-player", role, name, "--url", &self.url];
        DemoProcess::start(name, &args, self.token.as_deref())
    }

    /// The next of that role that plays: everybody has a turn.
    fn next(&mut self, role: &str) -> Option<&mut Seat> {
        self.turn += 1;
        let plays = |seat: &&mut Seat| {
            seat.role == role && seat.ready && matches!(seat.sits, Sits::Playing(_))
        };
        let mut able: Vec<_> = self.seats.iter_mut().filter(plays).collect();
        (!able.is_empty()).then(|| able.remove(self.turn % able.len()))
    }
}

impl Seat {
    fn heard(&mut self) -> Vec<String> {
        let (Sits::Playing(player) | Sits::Asleep(player, _) | Sits::Leaving(player)) = &self.sits
        else {
            return Vec::new();
        };
        let mut said: Vec<String> = std::iter::from_fn(|| player.heard()).collect();
        self.ready |= said.iter().any(|line| line == READY);
        said.retain(|line| line != READY);
        said.iter().map(|line| format!("{} {line}", self.name)).collect()
    }

    /// What changes by itself: a sleeper wakes up, somebody has ended.
    fn turn(&mut self, now: Instant) -> Result<Option<String>, Failure> {
        match std::mem::replace(&mut self.sits, Sits::Nobody(now + EMPTY)) {
            Sits::Asleep(mut player, until) if now >= until => {
                player.thaw()?;
                self.sits = Sits::Playing(player);
                let name = &self.name;
                Ok(Some(format!("{name} wakes up (SIGCONT) and knows nothing of what happened")))
            }
            mut same => {
                if !same.has_ended() {
                    self.sits = same;
                }
                Ok(None)
            }
        }
    }
}

impl Sits {
    fn has_ended(&mut self) -> bool {
        match self {
            Sits::Playing(player) | Sits::Leaving(player) => player.has_ended(),
            Sits::Asleep(..) | Sits::Nobody(_) => false,
        }
    }
}
