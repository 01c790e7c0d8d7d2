//! The lease operations, carried out by a daemon over HTTP.

use std::time::{Duration, Instant};

use lapsed_core::leases::{
    Acquired, Decision, DecisionInfo, Fenced, Grant, LeaseInfo, LeaseKey, LeaseTicket, Loss,
    Namespace,
};
use lapsed_core::{Name, SystemId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::Body;
use ureq::http::Response;

use super::backend::{LeaseBackend, LeaseRequest};
use crate::backend::remote::{ANSWER, RemoteBackend, RequestLimit, read, refused, segment};
use lapsed_server::failure::Failure;
use lapsed_server::systems::leases::routes::{
    AcquireBody, DecideBody, LeaseTicketBody, LeasesPage, Namespaces, RenewBody,
};

/// The longest wait that a daemon allows in one request.
const PIECE: Duration = Duration::from_secs(60);

impl RemoteBackend {
    /// Sends a POST; the inner error is the problem of a 409, for example that another owner holds the lease.
    fn try_post(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<Result<Response<Body>, Value>, Failure> {
        let answer = self.ask_within(path, Some(&json!(body)), RequestLimit::For(limit))?;
        if answer.status().is_success() {
            return Ok(Ok(answer));
        }
        if answer.status() != 409 {
            return Err(refused(answer));
        }
        Ok(Err(read(answer)?))
    }

    fn fenced<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<Fenced<T>, Failure> {
        match self.try_post(path, body, limit)? {
            Ok(answer) => Ok(Fenced::Done(read(answer)?)),
            Err(problem) => {
                let loss: Result<Loss, _> = serde_json::from_value(problem);
                loss.map(Fenced::Lost).map_err(|error| unreadable_answer(&error))
            }
        }
    }

    /// Sends a GET; none if the daemon answers 404.
    fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Failure> {
        let answer = self.look(path)?;
        match answer.status().as_u16() {
            404 => Ok(None),
            200 => Ok(Some(read(answer)?)),
            _ => Err(refused(answer)),
        }
    }
}

fn unreadable_answer(error: &serde_json::Error) -> Failure {
    Failure::failed(format!("the daemon's answer makes no sense: {error}"))
}

/// The present grant of the lease, as the problem of a 409 describes it.
fn holder(problem: &Value) -> Result<Grant, Failure> {
    let grant = json!({
        "namespace": problem["namespace"],
        "key": problem["key"],
        "owner": problem["holder"],
        "token": problem["token"],
        "ttl_ms": problem["ttl_ms"],
        "deadline_ms": problem["deadline_ms"],
        "now_ms": problem["now_ms"],
    });
    serde_json::from_value(grant).map_err(|error| unreadable_answer(&error))
}

impl LeaseBackend for RemoteBackend {
    /// A wait that is longer than the daemon allows is split into several requests.
    fn acquire(
        &self,
        of: &SystemId,
        wanted: &LeaseRequest,
        wait: Duration,
    ) -> Result<Acquired, Failure> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let piece = left.min(PIECE);
            let body = AcquireBody {
                namespace: wanted.key.namespace.to_string(),
                key: wanted.key.key.to_string(),
                owner: wanted.owner.to_string(),
                ttl_ms: wanted.ttl.map(|ttl| ttl.as_millis() as u64),
                wait_ms: Some(piece.as_millis() as u64),
                request: wanted.request.as_ref().map(ToString::to_string),
            };
            let path = format!("/v1/{of}/acquire");
            match self.try_post(&path, &body, piece + ANSWER)? {
                Ok(answer) => return Ok(Acquired::Granted(read(answer)?)),
                Err(problem) if left <= piece => return Ok(Acquired::Held(holder(&problem)?)),
                Err(_) => {}
            }
        }
    }

    fn renew(
        &self,
        of: &SystemId,
        ticket: &LeaseTicket,
        ttl: Option<Duration>,
        limit: Duration,
    ) -> Result<Fenced<Grant>, Failure> {
        let ttl_ms = ttl.map(|ttl| ttl.as_millis() as u64);
        let body = RenewBody { ticket: LeaseTicketBody::of(ticket), ttl_ms };
        self.fenced(&format!("/v1/{of}/renew"), &body, limit)
    }

    fn release(
        &self,
        of: &SystemId,
        ticket: &LeaseTicket,
        limit: Duration,
    ) -> Result<Fenced<()>, Failure> {
        let path = format!("/v1/{of}/release");
        let done: Fenced<Value> = self.fenced(&path, &LeaseTicketBody::of(ticket), limit)?;
        Ok(match done {
            Fenced::Done(_) => Fenced::Done(()),
            Fenced::Lost(loss) => Fenced::Lost(loss),
        })
    }

    fn describe(&self, of: &SystemId, key: &LeaseKey) -> Result<Option<LeaseInfo>, Failure> {
        let (namespace, key) = (key.namespace.as_str(), segment(key.key.as_str()));
        self.find(&format!("/v1/{of}/describe/{namespace}/{key}"))
    }

    fn list(
        &self,
        of: &SystemId,
        namespace: &Namespace,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<LeaseInfo>, Failure> {
        let mut path = format!("/v1/{of}/list/{namespace}?limit={limit}");
        if let Some(after) = after {
            path.push_str(&format!("&after={}", segment(after.as_str())));
        }
        Ok(self.get::<LeasesPage>(&path)?.leases)
    }

    fn namespaces(
        &self,
        of: &SystemId,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Vec<Namespace>, Failure> {
        let mut path = format!("/v1/{of}/namespaces?limit={limit}");
        if let Some(after) = after {
            path.push_str(&format!("&after={after}"));
        }
        let found = self.get::<Namespaces>(&path)?.namespaces;
        Ok(found.iter().map(|name| Namespace::new(name)).collect::<lapsed_core::Result<_>>()?)
    }

    fn decide(
        &self,
        of: &SystemId,
        txn: &Name,
        decision: Decision,
        ttl: Option<Duration>,
    ) -> Result<DecisionInfo, Failure> {
        let ttl_ms = ttl.map(|ttl| ttl.as_millis() as u64);
        let body = DecideBody { txn: txn.to_string(), decision: decision.into(), ttl_ms };
        let answer = self.ask(&format!("/v1/{of}/decide"), Some(&json!(body)))?;
        if answer.status().is_success() { read(answer) } else { Err(refused(answer)) }
    }

    fn decision(&self, of: &SystemId, txn: &Name) -> Result<Option<DecisionInfo>, Failure> {
        self.find(&format!("/v1/{of}/decision/{}", segment(txn.as_str())))
    }
}
