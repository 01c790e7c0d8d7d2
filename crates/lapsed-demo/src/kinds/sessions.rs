//! A chat server through which people connect to sessions and leave them again.

use serde_json::{Value, json};

use super::{DemoKind, Group};
use crate::show::actor::{ActorClient, DemoActor};
use lapsed_server::failure::Failure;
use lapsed_server::print::plural;

/// Path of the system in the daemon's HTTP API.
const SESSIONS: &str = "/v1/sessions/chat";

/// The part of the show that uses `sessions`.
pub const SHOWN: DemoKind = DemoKind {
    system: "sessions/chat",
    section: include_str!("sessions.toml"),
    role: "chat",
    actor_name: "chat",
    actors: "chat servers",
    actor_count: 3,
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

/// The most sessions that a chat server has at a time.
const SESSIONS_MAX: usize = 8;

#[derive(Default)]
pub struct ChatActor {
    incarnation: u64,
    sessions: Vec<String>,
}

impl ChatActor {
    fn of(&self, client: &ActorClient, session: &str) -> Value {
        let mut body = client.claim(self.incarnation);
        body["session"] = json!(session);
        body
    }

    /// Opens a session and connects to it.
    fn open(&mut self, client: &ActorClient) -> Result<(), Failure> {
        let session = format!("room-{:06}", client.below(1_000_000));
        let broadcaster = format!("streamer-{}", client.below(10_000));
        let made = json!({ "session": session, "broadcaster_user_id": broadcaster, "value": "{}" });
        client.post(SESSIONS, "activate", made)?.expect()?;
        client.post(SESSIONS, "connect", self.of(client, &session))?;
        self.sessions.push(session);
        Ok(())
    }

    /// Disconnects from a session; in half of the cases it connects again before the grace period is over.
    fn part(&mut self, client: &ActorClient) -> Result<(), Failure> {
        let index = client.below(self.sessions.len() as u64) as usize;
        let session = self.sessions[index].clone();
        client.post(SESSIONS, "disconnect", self.of(client, &session))?;
        if client.one_in(2) {
            client.post(SESSIONS, "connect", self.of(client, &session))?;
        } else {
            self.sessions.swap_remove(index);
        }
        Ok(())
    }
}

impl DemoActor for ChatActor {
    fn enter(&mut self, client: &ActorClient) -> Result<(), Failure> {
        self.incarnation = client.start(SESSIONS)?;
        self.sessions.clear();
        (0..SESSIONS_MAX / 2).try_for_each(|_| self.open(client))
    }

    fn tick(&mut self, client: &ActorClient) -> Result<bool, Failure> {
        if !client.beat(SESSIONS, self.incarnation)? {
            return Ok(false);
        }
        if client.one_in(3) && !self.sessions.is_empty() {
            self.part(client)?;
        }
        if client.one_in(3) && self.sessions.len() < SESSIONS_MAX {
            self.open(client)?;
        }
        Ok(true)
    }

    fn leave(&mut self, client: &ActorClient) -> Result<(), Failure> {
        client.retire(SESSIONS, self.incarnation)
    }
}
