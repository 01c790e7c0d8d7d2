//! The actors of the show: a slot for each name, and the process that runs under this name, if any. After its
//! process was killed or has left, a slot stays empty until the daemon has declared the owner dead; then another
//! process starts under the same name, as a new incarnation.

use std::time::{Duration, Instant};

use super::super::processes::DemoProcess;
use super::actor::READY;
use super::config::TTL_MS;
use crate::kinds::KINDS;
use lapsed_server::failure::Failure;

/// How long a slot stays empty after its process has ended.
const EMPTY_FOR: Duration = Duration::from_millis(2 * TTL_MS);

/// How long a process stays frozen: longer than its TTL, so that it is declared dead.
const FROZEN_FOR: Duration = Duration::from_millis(2 * TTL_MS);

/// The process of a slot; the instants say when a frozen one is woken and an empty slot is filled.
enum SlotState {
    Running(DemoProcess),
    Frozen(DemoProcess, Instant),
    Leaving(DemoProcess),
    Empty(Instant),
}

struct ActorSlot {
    role: &'static str,
    name: String,
    state: SlotState,
    /// Whether the process has printed `READY`. A process must not be frozen before that: it may not have asked
    /// the kernel yet to kill it when its parent ends.
    ready: bool,
}

/// All actor processes of `lapsed demo --serve`.
pub struct ActorGroup {
    url: String,
    token: Option<String>,
    slots: Vec<ActorSlot>,
    turn: usize,
}

impl ActorGroup {
    /// A group without processes, for the daemon at `url`.
    pub fn new(url: &str, token: Option<&str>) -> ActorGroup {
        let (url, token) = (url.to_owned(), token.map(str::to_owned));
        ActorGroup { url, token, slots: Vec::new(), turn: 0 }
    }

    /// Starts one process for every name.
    pub fn enter(&mut self) -> Result<(), Failure> {
        for kind in KINDS {
            for number in 1..=kind.actor_count {
                let name = format!("{}-{number}", kind.actor_name);
                let state = SlotState::Running(self.start(kind.role, &name)?);
                self.slots.push(ActorSlot { role: kind.role, name, state, ready: false });
            }
        }
        Ok(())
    }

    /// `4 gateways, 3 chat servers, …`
    pub fn describe(&self) -> String {
        let each = KINDS.iter().map(|kind| format!("{} {}", kind.actor_count, kind.actors));
        each.collect::<Vec<_>>().join(", ")
    }

    /// Sends SIGKILL to the next ready process of `role`; the line that says so, or none if no process is ready.
    pub fn kill(&mut self, role: &str, now: Instant) -> Result<Option<String>, Failure> {
        let Some(slot) = self.next(role) else { return Ok(None) };
        let SlotState::Running(process) = &mut slot.state else { return Ok(None) };
        process.kill()?;
        let line =
            format!("{} is killed (kill -9, pid {}); nobody is told", slot.name, process.pid());
        slot.state = SlotState::Empty(now + EMPTY_FOR);
        Ok(Some(line))
    }

    /// Sends SIGSTOP to the next ready process of `role`, and wakes it after `FROZEN_FOR`.
    pub fn freeze(&mut self, role: &str, now: Instant) -> Result<Option<String>, Failure> {
        let Some(slot) = self.next(role) else { return Ok(None) };
        let SlotState::Running(mut process) =
            std::mem::replace(&mut slot.state, SlotState::Empty(now))
        else {
            return Ok(None);
        };
        process.freeze()?;
        let line =
            format!("{} is frozen (SIGSTOP, pid {}): alive, but silent", slot.name, process.pid());
        slot.state = SlotState::Frozen(process, now + FROZEN_FOR);
        Ok(Some(line))
    }

    /// Asks the next ready process of `role` to leave gracefully.
    pub fn leave(&mut self, role: &str, now: Instant) -> Result<Option<String>, Failure> {
        let Some(slot) = self.next(role) else { return Ok(None) };
        let SlotState::Running(mut process) =
            std::mem::replace(&mut slot.state, SlotState::Empty(now))
        else {
            return Ok(None);
        };
        process.leave()?;
        slot.state = SlotState::Leaving(process);
        Ok(Some(format!("{} leaves gracefully: it says so before it goes", slot.name)))
    }

    /// Wakes processes that were frozen for long enough, fills empty slots, and returns what the processes printed.
    pub fn advance(&mut self, now: Instant) -> Result<Vec<String>, Failure> {
        let mut lines = Vec::new();
        for index in 0..self.slots.len() {
            lines.extend(self.slots[index].heard());
            if matches!(self.slots[index].state, SlotState::Empty(until) if now >= until) {
                let process = self.start(self.slots[index].role, &self.slots[index].name)?;
                self.slots[index].state = SlotState::Running(process);
                self.slots[index].ready = false;
                lines.push(format!(
                    "{} is started again, as a new incarnation",
                    self.slots[index].name
                ));
            }
            lines.extend(self.slots[index].turn(now)?);
        }
        Ok(lines)
    }

    fn start(&self, role: &str, name: &str) -> Result<DemoProcess, Failure> {
        let args = ["demo-player", role, name, "--url", &self.url];
        DemoProcess::start(name, &args, self.token.as_deref())
    }

    /// The next running and ready process of `role`, in turn.
    fn next(&mut self, role: &str) -> Option<&mut ActorSlot> {
        self.turn += 1;
        let is_running = |slot: &&mut ActorSlot| {
            slot.role == role && slot.ready && matches!(slot.state, SlotState::Running(_))
        };
        let mut able: Vec<_> = self.slots.iter_mut().filter(is_running).collect();
        (!able.is_empty()).then(|| able.remove(self.turn % able.len()))
    }
}

impl ActorSlot {
    fn heard(&mut self) -> Vec<String> {
        let (SlotState::Running(process)
        | SlotState::Frozen(process, _)
        | SlotState::Leaving(process)) = &self.state
        else {
            return Vec::new();
        };
        let mut said: Vec<String> = std::iter::from_fn(|| process.heard()).collect();
        self.ready |= said.iter().any(|line| line == READY);
        said.retain(|line| line != READY);
        said.iter().map(|line| format!("{} {line}", self.name)).collect()
    }

    /// Wakes the process if it was frozen for long enough, and empties the slot if its process has ended.
    fn turn(&mut self, now: Instant) -> Result<Option<String>, Failure> {
        match std::mem::replace(&mut self.state, SlotState::Empty(now + EMPTY_FOR)) {
            SlotState::Frozen(mut process, until) if now >= until => {
                process.thaw()?;
                self.state = SlotState::Running(process);
                let name = &self.name;
                Ok(Some(format!("{name} wakes up (SIGCONT) and knows nothing of what happened")))
            }
            mut same => {
                if !same.has_ended() {
                    self.state = same;
                }
                Ok(None)
            }
        }
    }
}

impl SlotState {
    fn has_ended(&mut self) -> bool {
        match self {
            SlotState::Running(process) | SlotState::Leaving(process) => process.has_ended(),
            SlotState::Frozen(..) | SlotState::Empty(_) => false,
        }
    }
}
