//! A provider that is online, has a few sessions, and sends heartbeats.

use serde_json::{Value, json};
use ureq::http::Method;

use super::{DemoKind, Group};
use crate::api::Api;
use crate::show::actor::{ActorClient, DemoActor};
use lapsed_server::failure::Failure;

/// Path of the system in the daemon's HTTP API.
const AVAILABILITY: &str = "/v1/availability/mitras";

/// The part of the show that uses `availability`.
pub const SHOWN: DemoKind = DemoKind {
    system: "availability/mitras",
    section: include_str!("availability.toml"),
    role: "provider",
    actor_name: "mitra",
    actors: "providers (mitras)",
    actor_count: 4,
    actor: || Box::new(ProviderActor::default()),
    per_owner: true,
    sentence,
    prepare,
    now_and_then: |_, _| Ok(()),
    specials: &[],
};

/// A provider is set offline after this time without a heartbeat, in seconds.
const STALE_SECONDS: u64 = 4;

fn prepare(api: &Api) -> Result<(), Failure> {
    let patch = json!({ "stale_after_seconds": STALE_SECONDS, "heartbeat_cadence_seconds": 1 });
    api.send(Method::PATCH, &format!("{AVAILABILITY}/config"), patch)?.expect().map(drop)
}

fn sentence(of: &Group<'_>) -> String {
    format!("{} was silent: it is set offline{}", of.first.key, of.late)
}

/// The most sessions that a provider has at a time.
const SESSIONS_MAX: usize = 3;

#[derive(Default)]
pub struct ProviderActor {
    sessions: Vec<String>,
}

impl ProviderActor {
    fn say(client: &ActorClient, word: &str) -> Result<u16, Failure> {
        let answer =
            client.post(AVAILABILITY, &format!("providers/{}/{word}", client.name), Value::Null)?;
        Ok(answer.status)
    }

    /// Accepts a new session, or ends one.
    fn serve(&mut self, client: &ActorClient) -> Result<(), Failure> {
        if self.sessions.len() < SESSIONS_MAX && client.one_in(2) {
            let session = format!("call-{:06}", client.below(1_000_000));
            let body = json!({ "provider": client.name });
            let answer = client.post(AVAILABILITY, &format!("sessions/{session}/accept"), body)?;
            if answer.status == 200 {
                self.sessions.push(session);
            }
        } else if let Some(session) = self.sessions.pop() {
            client.post(AVAILABILITY, &format!("sessions/{session}/end"), Value::Null)?;
        }
        Ok(())
    }
}

impl DemoActor for ProviderActor {
    fn enter(&mut self, client: &ActorClient) -> Result<(), Failure> {
        let path = format!("{AVAILABILITY}/providers/{}", client.name);
        client.api.send(Method::PUT, &path, json!({ "display_name": client.name }))?.expect()?;
        Self::say(client, "online").map(|_| ())
    }

    fn tick(&mut self, client: &ActorClient) -> Result<bool, Failure> {
        if Self::say(client, "heartbeat")? == 409 {
            return Ok(false);
        }
        if client.one_in(3) {
            self.serve(client)?;
        }
        Ok(true)
    }

    fn leave(&mut self, client: &ActorClient) -> Result<(), Failure> {
        Self::say(client, "offline").map(|_| ())
    }
}
