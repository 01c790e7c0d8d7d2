//! The client that sent a request, for the routes that check its scopes again or record it in the audit.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;

use super::Shared;
use super::auth::{Bearer, demand};
use super::problem::Problem;
use crate::config::bearer_limits::BearerLimits;
use crate::config::token::{LOCAL, Scope, Scopes};
use crate::node::audit::AuditAction;

/// The client that sent a request, for the routes that check or record it.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Whose token the request showed; `None` if nothing is configured.
    token: Option<Arc<Bearer>>,
    /// The client's address, as the connection reports it.
    peer: SocketAddr,
    /// The request's `x-request-id`, if it has one.
    request: Option<String>,
}

/// The longest request id that is recorded, in bytes; a longer one is ignored.
const REQUEST_ID_MAX: usize = 128;

impl Caller {
    /// The client at `peer` that showed `token`.
    pub fn new(token: Option<&Arc<Bearer>>, peer: SocketAddr, headers: &HeaderMap) -> Caller {
        let request = headers.get("x-request-id").and_then(|value| value.to_str().ok());
        let request = request.filter(|id| !id.is_empty() && id.len() <= REQUEST_ID_MAX);
        Caller { token: token.cloned(), peer, request: request.map(str::to_owned) }
    }

    /// The audit entry for the action `what` on `target`, which the client is about to perform.
    pub fn audit_action(&self, what: &str, target: impl Display) -> AuditAction {
        AuditAction {
            who: self.name().unwrap_or(LOCAL).to_owned(),
            from: Some(self.peer.to_string()),
            what: what.to_owned(),
            target: target.to_string(),
            request: self.request.clone(),
        }
    }

    /// The name of the client's token; `None` if no tokens are configured.
    pub fn name(&self) -> Option<&str> {
        self.token.as_ref().map(|token| &*token.name)
    }

    /// When the client's token expires, in milliseconds since 1970; `None` if it does not.
    pub fn expires_ms(&self) -> Option<u64> {
        self.token.as_ref().and_then(|token| token.expires_ms)
    }

    /// The scopes of the client's token; all scopes if no tokens are configured.
    pub fn scopes(&self) -> Scopes {
        self.token.as_ref().map_or(Scopes::ALL, |token| token.scopes)
    }

    /// What the client is limited to; `None`: nothing.
    pub fn limits(&self) -> Option<&BearerLimits> {
        self.token.as_ref()?.limits.as_deref()
    }

    /// Refuses the request with a problem unless the client has `scope`.
    pub fn demand(&self, scope: Scope) -> Result<(), Problem> {
        demand(self.scopes(), scope)
    }
}

impl FromRequestParts<Shared> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Caller>().cloned();
        caller.ok_or_else(|| Problem::internal("the client of this request is not known"))
    }
}
