//! The HTTP requests that the demonstration sends to its daemon.

use std::time::Duration;

use lapsed_core::owner::OwnerInfo;
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::Census;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::http::request::Builder;
use ureq::http::{Method, Request, Response};
use ureq::{Agent, Body};

use lapsed_server::failure::Failure;
use lapsed_server::node::shapes::{ReceiptPage, SystemStatus};

const REGISTRY: &str = "/v1/registry/default";

/// The answer to a call that may be refused: the status, and the body.
pub struct DemoAnswer {
    pub status: u16,
    pub body: Value,
}

impl DemoAnswer {
    /// Whether the daemon answered that the caller has lost its incarnation or its claim.
    pub fn is_lost(&self) -> bool {
        self.status == 409
    }

    /// The body of a successful answer; any other status is a failure.
    pub fn expect(self) -> Result<Value, Failure> {
        if (200..300).contains(&self.status) {
            return Ok(self.body);
        }
        Err(Failure::failed(format!("{}: {}", self.status, self.body)))
    }
}

pub struct Api {
    url: String,
    bearer: Option<String>,
    agent: Agent,
}

/// What the screen shows: status, owners and newest receipts.
pub struct StatusView {
    pub status: SystemStatus,
    pub owners: Vec<OwnerInfo>,
    pub newest: Vec<Receipt>,
}

#[derive(Deserialize)]
struct Owners {
    owners: Vec<OwnerInfo>,
}

impl Api {
    pub fn new(url: &str, token: Option<&str>) -> Api {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(Duration::from_secs(10)));
        let bearer = token.map(|token| format!("Bearer {token}"));
        Api { url: url.to_owned(), bearer, agent: config.build().into() }
    }

    pub fn view(&self) -> Result<StatusView, Failure> {
        let owners: Owners = self.get(&format!("{REGISTRY}/owners?limit=100"))?;
        let page: ReceiptPage = self.get("/v1/receipts?limit=6")?;
        Ok(StatusView { status: self.status()?, owners: owners.owners, newest: page.receipts })
    }

    pub fn status(&self) -> Result<SystemStatus, Failure> {
        self.get("/v1/sweeps/registry/default")
    }

    pub fn census(&self) -> Result<Census, Failure> {
        self.status()?.census.ok_or_else(|| Failure::failed("the store does not answer"))
    }

    /// All receipts of one owner for one reason.
    pub fn receipts_of(&self, owner: &str, reason: &str) -> Result<Vec<Receipt>, Failure> {
        let all = self.receipts()?.into_iter();
        Ok(all.filter(|r| r.owner.as_str() == owner && r.reason.as_str() == reason).collect())
    }

    /// All receipts, oldest first.
    pub fn receipts(&self) -> Result<Vec<Receipt>, Failure> {
        let mut all: Vec<Receipt> = Vec::new();
        loop {
            let after = all.last().map_or(0, |r| r.id.seq);
            let page: ReceiptPage = self
                .get(&format!("/v1/receipts?system=registry/default&after={after}&limit=10000"))?;
            if page.receipts.is_empty() {
                return Ok(all);
            }
            all.extend(page.receipts);
        }
    }

    /// Registers `keys` to the newest incarnation of `owner`; the number of keys.
    pub fn register(&self, owner: &str, keys: &[String]) -> Result<u64, Failure> {
        let answer = self.post("register_many", json!({ "owner": owner, "keys": keys }))?;
        if answer.status != 200 {
            return Err(Failure::failed(format!("registering for {owner}: {}", answer.body)));
        }
        Ok(keys.len() as u64)
    }

    /// Sends an operation to the registry.
    pub fn post(&self, operation: &str, body: Value) -> Result<DemoAnswer, Failure> {
        self.send(Method::POST, &format!("{REGISTRY}/{operation}"), body)
    }

    /// Sends a request and returns its answer, whatever the status is. A null body sends no body.
    pub fn send(&self, method: Method, path: &str, body: Value) -> Result<DemoAnswer, Failure> {
        let request = self.request(method, path).header("content-type", "application/json");
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let request = request.body(text).map_err(|e| unreachable(e.into()))?;
        let mut answer = self.agent.run(request).map_err(unreachable)?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(64 << 20).read_json();
        Ok(DemoAnswer { status, body: body.map_err(unreachable)? })
    }

    pub fn text(&self, path: &str) -> Result<String, Failure> {
        self.look(path)?.body_mut().read_to_string().map_err(unreachable)
    }

    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let mut answer = self.look(path)?;
        answer.body_mut().with_config().limit(64 << 20).read_json().map_err(unreachable)
    }

    fn look(&self, path: &str) -> Result<Response<Body>, Failure> {
        let request =
            self.request(Method::GET, path).body(()).map_err(|e| unreachable(e.into()))?;
        self.agent.run(request).map_err(unreachable)
    }

    fn request(&self, method: Method, path: &str) -> Builder {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        match &self.bearer {
            Some(bearer) => request.header("authorization", bearer),
            None => request,
        }
    }
}

fn unreachable(error: ureq::Error) -> Failure {
    Failure::failed(format!("the demo's daemon does not answer: {error}"))
}
