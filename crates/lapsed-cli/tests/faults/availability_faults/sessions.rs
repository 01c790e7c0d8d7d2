//! One mutator's sessions: what may become of them, at random, and how each must be in the end.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::client::{CallResult, Client};
use super::history::{History, SessionIs};
use super::random::SeededRandom;

/// How many run at a time.
const RUNNING_MAX: usize = 60;

pub struct Sessions {
    mutator: usize,
    made: usize,
    running: Vec<String>,
    known: BTreeMap<String, Option<SessionIs>>,
}

impl Sessions {
    pub fn new(mutator: usize) -> Sessions {
        Sessions { mutator, made: 0, running: Vec::new(), known: BTreeMap::new() }
    }

    /// One step of one of them; `provider` and `other` may get it.
    pub fn step(
        &mut self,
        client: &mut Client<'_>,
        random: &mut SeededRandom,
        provider: &str,
        other: &str,
    ) {
        if self.running.is_empty() || (self.running.len() < RUNNING_MAX && random.percent(40)) {
            self.made += 1;
            let id = format!("00000000-0000-4000-9{:03}-{:012}", self.mutator, self.made);
            self.running.push(id.clone());
            return self.change(client, &id, "accept", json!({ "provider": provider }));
        }
        let id = random.pick(&self.running).clone();
        let (verb, body) = match random.below(8) {
            0 | 1 => ("extend", json!({})),
            2 | 3 => ("resume", json!({})),
            4 => ("end", json!({})),
            5 => ("expire", json!({})),
            6 => ("cancel", json!({})),
            _ => ("reroute", json!({ "to": other })),
        };
        self.change(client, &id, verb, body);
    }

    fn change(&mut self, client: &mut Client<'_>, id: &str, verb: &str, body: Value) {
        let body = (body != json!({})).then_some(body);
        let (told, _) = client.call("POST", &format!("sessions/{id}/{verb}"), body);
        match told {
            CallResult::Fine(body, _) => {
                let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
                let is = SessionIs { provider: text("provider"), status: text("status") };
                if ["ended", "expired", "cancelled"].contains(&is.status.as_str()) {
                    self.running.retain(|one| one != id);
                }
                self.known.insert(id.to_owned(), Some(is));
            }
            // Nothing was changed; one that nobody accepted was never there.
            CallResult::Refused(_) => {
                if !self.known.contains_key(id) {
                    self.running.retain(|one| one != id);
                }
            }
            // It may be carried out at any later time: left alone from now on.
            CallResult::Unknown => {
                self.running.retain(|one| one != id);
                self.known.insert(id.to_owned(), None);
            }
        }
    }

    pub fn tell(self, history: &mut History) {
        history.sessions.extend(self.known);
    }
}
