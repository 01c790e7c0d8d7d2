//! A caller that sends each call to the next daemon, as a load balancer would, and knows whether a call was
//! carried out, refused, or neither for certain.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// How long a caller waits for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Reached only when something is wrong: every fault is shorter, on however slow a machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The answer to one call.
#[derive(Debug)]
pub enum Told {
    Fine(Value),
    /// A clear no, with its status: nothing was changed.
    Refused(u16),
    /// No answer, or one that leaves open whether it was carried out.
    Unknown,
}

/// When a call was sent and answered, in milliseconds of this machine's clock, which all stores share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSpan {
    pub sent_ms: u64,
    pub done_ms: u64,
}

pub struct Caller {
    urls: Vec<String>,
    agent: ureq::Agent,
    turn: usize,
}

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

impl Caller {
    /// Begins with the daemon of number `turn`.
    pub fn new(urls: &[String], turn: usize) -> Caller {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(ANSWER_LIMIT));
        Caller { urls: urls.to_vec(), agent: config.build().new_agent(), turn }
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Told {
        self.timed("POST", path, Some(body), None).0
    }

    /// The same with a key by which the request may be repeated.
    pub fn post_once(&mut self, path: &str, body: &Value, key: &str) -> Told {
        self.timed("POST", path, Some(body), Some(key)).0
    }

    pub fn timed(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        key: Option<&str>,
    ) -> (Told, CallSpan) {
        self.turn += 1;
        let uri = format!("{}/v1/{path}", self.urls[self.turn % self.urls.len()]);
        let request = ureq::http::Request::builder().method(method).uri(uri);
        let request = request.header("content-type", "application/json");
        let request = key.into_iter().fold(request, |r, key| r.header("idempotency-key", key));
        let request = request.body(body.map_or_else(String::new, Value::to_string)).unwrap();
        let sent_ms = now_ms();
        let told = self.agent.run(request).map_or(Told::Unknown, |response| {
            let status = response.status().as_u16();
            let text = response.into_body().read_to_string();
            match text.ok().and_then(|text| serde_json::from_str(&text).ok()) {
                Some(body) if (200..300).contains(&status) => Told::Fine(body),
                Some(_) if (400..500).contains(&status) && status != 429 => Told::Refused(status),
                _ => Told::Unknown,
            }
        });
        (told, CallSpan { sent_ms, done_ms: now_ms() })
    }

    /// Asks until there is a clear answer; `None` if that is a no.
    pub fn look(&mut self, path: &str, body: Option<&Value>) -> Option<Value> {
        let deadline = Instant::now() + PATIENCE;
        let method = if body.is_some() { "POST" } else { "GET" };
        loop {
            match self.timed(method, path, body, None).0 {
                Told::Fine(answer) => return Some(answer),
                Told::Refused(404) => return None,
                told => assert!(Instant::now() < deadline, "waited in vain for {path}: {told:?}"),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
