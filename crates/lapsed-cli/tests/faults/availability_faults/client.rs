//! A caller that sends each call to the next daemon, as a load balancer would.

use std::time::Duration;

use serde_json::{Value, json};

use super::history::{BeatAnswer, Change, History, Outcome, Source, Span, now_us};
use super::world::{SYSTEM, World};

/// How long a caller waits for an answer. It is shorter than the silence threshold, so that there
/// is time to ask another daemon.
const PATIENCE: Duration = Duration::from_millis(1_000);

pub struct Client<'a> {
    world: &'a World,
    agent: ureq::Agent,
    turn: usize,
    pub history: History,
}

/// What a call was answered.
pub enum CallResult {
    /// With success, and from where.
    Fine(Value, Source),
    /// A clear no: nothing was changed.
    Refused(Value),
    Unknown,
}

impl<'a> Client<'a> {
    pub fn new(world: &'a World, turn: usize) -> Client<'a> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(PATIENCE));
        let agent = config.build().new_agent();
        Client { world, agent, turn, history: History::default() }
    }

    /// Sends one call to the next daemon.
    pub fn call(&mut self, method: &str, path: &str, body: Option<Value>) -> (CallResult, Span) {
        self.turn += 1;
        let uri = format!("{}/v1/availability/{SYSTEM}/{path}", self.world.url(self.turn));
        let request = ureq::http::Request::builder().method(method).uri(uri);
        let request = request.header("content-type", "application/json");
        let request = request.body(body.map_or_else(String::new, |body| body.to_string())).unwrap();
        let sent_us = now_us();
        let told = self.agent.run(request).map_or(CallResult::Unknown, |response| {
            let status = response.status().as_u16();
            let source = match response.headers().get("lapsed-source").map(|v| v.as_bytes()) {
                Some(b"mirror") => Source::Mirror,
                _ => Source::Truth,
            };
            let text = response.into_body().read_to_string();
            match text.ok().and_then(|text| serde_json::from_str(&text).ok()) {
                Some(body) if status == 200 => CallResult::Fine(body, source),
                Some(body) if (400..500).contains(&status) => CallResult::Refused(body),
                _ => CallResult::Unknown,
            }
        });
        (told, Span { sent_us, done_us: now_us() })
    }

    /// Sends one beat for all of these providers; returns those that are answered as not online.
    pub fn beat(&mut self, ids: &[String]) -> Vec<String> {
        let (told, span) = self.call("POST", "heartbeats", Some(json!({ "providers": ids })));
        let CallResult::Fine(body, source) = told else {
            ids.iter().for_each(|id| self.history.beat(id, span, BeatAnswer::Unknown));
            return Vec::new();
        };
        let results = body["results"].as_array().unwrap();
        assert_eq!(results.len(), ids.len(), "one answer each");
        let mut offline = Vec::new();
        for (id, result) in ids.iter().zip(results) {
            assert_eq!(result["provider"], id.as_str(), "in the same order");
            let said = match result["outcome"].as_str() {
                Some("noted") => BeatAnswer::Noted(source),
                Some("offline") => BeatAnswer::Offline(source),
                Some("deactivated") => BeatAnswer::Deactivated(source),
                // Only the truth could have said, and it did not answer.
                Some("unavailable") => BeatAnswer::Unknown,
                _ => panic!("{result}"),
            };
            if matches!(said, BeatAnswer::Offline(_)) {
                offline.push(id.clone());
            }
            self.history.beat(id, span, said);
        }
        offline
    }

    /// Changes one provider; whether it is known to be so now.
    pub fn change(&mut self, id: &str, change: Change) -> bool {
        let verb = match change {
            Change::Online => "online",
            Change::Offline => "offline",
            Change::Activate => "activate",
            Change::Deactivate => "deactivate",
        };
        let (told, span) = self.call("POST", &format!("providers/{id}/{verb}"), None);
        let outcome = match told {
            CallResult::Fine(body, _) => Outcome::Done { changed: body["changed"] == true },
            CallResult::Refused(body) => panic!("{verb} of {id} was refused: {body}"),
            CallResult::Unknown => Outcome::Unknown,
        };
        self.history.toggle(id, change, span, outcome);
        outcome != Outcome::Unknown
    }

    pub fn list(&mut self) {
        let (told, span) = self.call("GET", "available?limit=1000", None);
        let CallResult::Fine(body, source) = told else { return };
        assert!(body["next"].is_null(), "all fit into one page: {body}");
        let id = |one: &Value| one["id"].as_str().unwrap().to_owned();
        let ids = body["available"].as_array().unwrap().iter().map(id).collect();
        self.history.listings.push(super::history::Listing { span, source, ids });
    }
}
