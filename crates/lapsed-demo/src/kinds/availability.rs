//! A provider: online, with a few sessions, and a beat.

use serde_json::{Value, json};
use ureq::http::Method;

use super::{DemoKind, Group};
use crate::api::Api;
use crate::show::player::{ActorClient, DemoActor};
use lapsed_server::failure::Failure;

/// Where the system is reached.
const AVAILABILITY: &str = "/v1/availability/mitras";

/// What the show does with `availability`.
pub const SHOWN: DemoKind = DemoKind {
    system: "availability/mitras",
    section: include_str!("availability.toml"),
    role: "provider",
    actor_name: "mitra",
    actors: "providers (mitras)",
    seats: 4,
    actor: || Box::new(ProviderActor::default()),
    per_owner: true,
    sentence,
    prepare: prepare,
    now_and_then: |_, _| Ok(()),
    specials: &[],
};

/// How long the silence of a provider lasts before it means death.
const STALE_SECONDS: u64 = 4;

fn prepare(api: &Api) -> Result<(), Failure> {
    let patch = json!({ "stale_after_seconds": STALE_SECONDS, "heartbeat_cadence_seconds": 1 });
    api.send(Method::PATCH, &format!("{AVAILABILITY}/config"), patch)?.expect().map(drop)
}

fn sentence(of: &Group<'_>) -> String {
    format!("{} was silent: it is set offline{}", of.first.key, of.late)
}

/// How many customers it has at the most.
const SESSIONS_MAX: usize = 3;

#[derive(Default)]
pub struct ProviderActor {
    sessions: Vec<String>,
}

impl ProviderActor {
    fn say(desk: &ActorClient, word: &str) -> Result<u16, Failure> {
        let answer =
            desk.post(AVAILABILITY, &format!("providers/{}/{word}", desk.name), Value::Null)?;
        Ok(answer.status)
    }

    /// A customer comes, or one goes.
    fn serve(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        if self.sessions.len() < SESSIONS_MAX && desk.one_in(2) {
            let session = format!("call-{:06}", desk.below(1_000_000));
            let body = json!({ "provider": desk.name });
            let answer = desk.post(AVAILABILITY, &format!("sessions/{session}/accept"), body)?;
            if answer.status == 200 {
                self.sessions.push(session);
            }
        } else if let Some(session) = self.sessions.pop() {
            desk.post(AVAILABILITY, &format!("sessions/{session}/end"), Value::Null)?;
        }
        Ok(())
    }
}

impl DemoActor for ProviderActor {
    fn enter(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        let path = format!("{AVAILABILITY}/providers/{}", desk.name);
        desk.api.send(Method::PUT, &path, json!({ "display_name": desk.name }))?.expect()?;
        Self::say(desk, "online").map(|_| ())
    }

    fn tick(&mut self, desk: &ActorClient) -> Result<bool, Failure> {
        if Self::say(desk, "heartbeat")? == 409 {
            return Ok(false);
        }
        if desk.one_in(3) {
            self.serve(desk)?;
        }
        Ok(true)
    }

    fn leave(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        Self::say(desk, "offline").map(|_| ())
    }
}
