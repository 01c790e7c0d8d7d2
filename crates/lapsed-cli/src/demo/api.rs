//! What the demo asks of the daemon.

use std::time::Duration;

use lapsed::owner::OwnerInfo;
use lapsed::receipt::Receipt;
use lapsed::sweep::Census;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::Agent;

use crate::failure::Failure;
use crate::node::shapes::{ReceiptPage, SystemStatus};

const REGISTRY: &str = "/v1/registry/default";

/// The answer to a call that may be refused: the status, and the body.
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

pub struct Api {
    url: String,
    agent: Agent,
}

/// One look at everything.
pub struct View {
    pub status: SystemStatus,
    pub owners: Vec<OwnerInfo>,
    pub newest: Vec<Receipt>,
}

#[derive(Deserialize)]
struct Owners {
    owners: Vec<OwnerInfo>,
}

impl Api {
    pub fn new(url: &str) -> Api {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(10)));
        Api { url: url.to_owned(), agent: config.build().into() }
    }

    pub fn view(&self) -> Result<View, Failure> {
        let owners: Owners = self.get(&format!("{REGISTRY}/owners?limit=100"))?;
        let page: ReceiptPage = self.get("/v1/receipts?limit=6")?;
        Ok(View { status: self.status()?, owners: owners.owners, newest: page.receipts })
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

    /// Registers `keys` to the newest life of `owner`; how many it holds of them then.
    pub fn register(&self, owner: &str, keys: &[String]) -> Result<u64, Failure> {
        let answer = self.post("register_many", json!({ "owner": owner, "keys": keys }))?;
        if answer.status != 200 {
            return Err(Failure::failed(format!("registering for {owner}: {}", answer.body)));
        }
        Ok(keys.len() as u64)
    }

    /// One operation of the registry.
    pub fn post(&self, operation: &str, body: Value) -> Result<Answer, Failure> {
        let url = format!("{}{REGISTRY}/{operation}", self.url);
        let mut answer = self.agent.post(url).send_json(body).map_err(unreachable)?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(64 << 20).read_json();
        Ok(Answer { status, body: body.map_err(unreachable)? })
    }

    pub fn text(&self, path: &str) -> Result<String, Failure> {
        let mut answer =
            self.agent.get(format!("{}{path}", self.url)).call().map_err(unreachable)?;
        answer.body_mut().read_to_string().map_err(unreachable)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let mut answer =
            self.agent.get(format!("{}{path}", self.url)).call().map_err(unreachable)?;
        answer.body_mut().with_config().limit(64 << 20).read_json().map_err(unreachable)
    }
}

fn unreachable(error: ureq::Error) -> Failure {
    Failure::failed(format!("the demo's daemon does not answer: {error}"))
}
