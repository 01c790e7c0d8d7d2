//! A chat server: people connect to sessions through it, and leave again.

use serde_json::{Value, json};

use super::{DemoKind, Group};
use crate::show::player::{ActorClient, DemoActor};
use lapsed_server::failure::Failure;
use lapsed_server::print::plural;

/// Where the system is reached.
const SESSIONS: &str = "/v1/sessions/chat";

/// What the show does with `sessions`.
pub const SHOWN: DemoKind = DemoKind {
    system: "sessions/chat",
    section: include_str!("sessions.toml"),
    role: "chat",
    actor_name: "chat",
    actors: "chat servers",
    seats: 3,
    actor: || Box::new(ChatActor::default()),
    per_owner: false,
    sentence,
    prepare: |_| Ok(()),
    now_and_then: |_, _| Ok(()),
    specials: &[],
};

fn sentence(of: &Group<'_>) -> String {
    match of.number() {
        1 => format!("session {} is deleted: nobody came back to it{}", of.first.key, of.late),
        number => {
            format!("{} are deleted: nobody came back", plural(number, "session", "sessions"))
        }
    }
}

/// How many sessions it has at the most.
const SESSIONS_MAX: usize = 8;

#[derive(Default)]
pub struct ChatActor {
    life: u64,
    sessions: Vec<String>,
}

impl ChatActor {
    fn of(&self, desk: &ActorClient, session: &str) -> Value {
        let mut body = desk.claim(self.life);
        body["session"] = json!(session);
        body
    }

    /// Somebody opens a session and is connected to it.
    fn open(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        let session = format!("room-{:06}", desk.below(1_000_000));
        let broadcaster = format!("streamer-{}", desk.below(10_000));
        let made = json!({ "session": session, "broadcaster_user_id": broadcaster, "value": "{}" });
        desk.post(SESSIONS, "activate", made)?.expect()?;
        desk.post(SESSIONS, "connect", self.of(desk, &session))?;
        self.sessions.push(session);
        Ok(())
    }

    /// Somebody leaves; half of them come back before the grace is over.
    fn part(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        let index = desk.below(self.sessions.len() as u64) as usize;
        let session = self.sessions[index].clone();
        desk.post(SESSIONS, "disconnect", self.of(desk, &session))?;
        if desk.one_in(2) {
            desk.post(SESSIONS, "connect", self.of(desk, &session))?;
        } else {
            self.sessions.swap_remove(index);
        }
        Ok(())
    }
}

impl DemoActor for ChatActor {
    fn enter(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        self.life = desk.start(SESSIONS)?;
        self.sessions.clear();
        (0..SESSIONS_MAX / 2).try_for_each(|_| self.open(desk))
    }

    fn tick(&mut self, desk: &ActorClient) -> Result<bool, Failure> {
        if !desk.beat(SESSIONS, self.life)? {
            return Ok(false);
        }
        if desk.one_in(3) && !self.sessions.is_empty() {
            self.part(desk)?;
        }
        if desk.one_in(3) && self.sessions.len() < SESSIONS_MAX {
            self.open(desk)?;
        }
        Ok(true)
    }

    fn leave(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        desk.retire(SESSIONS, self.life)
    }
}
