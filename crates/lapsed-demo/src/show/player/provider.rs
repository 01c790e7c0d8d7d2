//! A provider: online, with a few sessions, and a beat.

use serde_json::{Value, json};
use ureq::http::Method;

use super::super::config::AVAILABILITY;
use super::{Actor, ActorClient};
use lapsed_server::failure::Failure;

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

impl Actor for ProviderActor {
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
