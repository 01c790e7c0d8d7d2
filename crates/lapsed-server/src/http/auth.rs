//! Authentication: finds the token that a request shows, and checks its scopes and its rate limit.
//! Tokens are compared by their digests, in a time that does not depend on which token matches.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use lapsed_core::clock::Clock;
use serde_json::json;
use subtle::ConditionallySelectable;

use super::jwt::{JwtVerifier, is_jwt};
use super::limit::{FailureTable, TokenBucket};
use super::problem::Problem;
use super::{Shared, browser};
use crate::config::bearer_limits::BearerLimits;
use crate::config::jwt::JwtConfig;
use crate::config::secret::TOKEN_BYTES_MAX;
use crate::config::server::ServerConfig;
use crate::config::token::{Digest, LOCAL, Scope, Scopes, TokenConfig};
use crate::node::audit::AuditAction;
use crate::print::moment;

pub struct Gate {
    known: Vec<Known>,
    /// The rate limit of requests without a token; used only if no tokens are configured.
    local: Option<TokenBucket>,
    doors: FailureTable,
    clock: Arc<dyn Clock>,
    jwt: Option<Arc<JwtVerifier>>,
}

/// One configured token and its rate limit.
struct Known {
    digest: Digest,
    guessable: bool,
    bearer: Arc<Bearer>,
    bucket: Option<TokenBucket>,
}

/// Who sent a request, and what they may do.
#[derive(Debug)]
pub struct Bearer {
    /// The name that the audit shows: that of a token, or `jwt:` and the owner of a JWT.
    pub name: String,
    pub scopes: Scopes,
    /// When the token expires, in milliseconds of the wall clock; `None`: never.
    pub expires_ms: Option<u64>,
    /// What the bearer is limited to; `None`: nothing.
    pub limits: Option<Arc<BearerLimits>>,
}

/// The bearer of an admitted request.
#[derive(Debug)]
pub enum Admitted<'a> {
    /// Nothing restricts who may do what, and the request comes from this machine.
    Open,
    Known(&'a Arc<Bearer>),
    Jwt(Arc<Bearer>),
}

impl Admitted<'_> {
    pub fn bearer(&self) -> Option<&Arc<Bearer>> {
        match self {
            Admitted::Open => None,
            Admitted::Known(bearer) => Some(bearer),
            Admitted::Jwt(bearer) => Some(bearer),
        }
    }

    /// What the bearer is limited to; `None`: nothing.
    pub fn limits(&self) -> Option<&Arc<BearerLimits>> {
        self.bearer()?.limits.as_ref()
    }
}

impl Gate {
    /// Builds the check from the configured tokens and rate limits.
    pub fn new(server: &ServerConfig, clock: Arc<dyn Clock>) -> Gate {
        let known = |token: &TokenConfig| Known {
            bucket: token.rate_limit.map(TokenBucket::new),
            digest: token.digest,
            guessable: token.guessable,
            bearer: Arc::new(Bearer {
                name: token.name.clone(),
                scopes: token.scopes,
                expires_ms: token.expires_ms,
                limits: token.limits.clone(),
            }),
        };
        Gate {
            known: server.tokens.iter().map(known).collect(),
            local: server.rate_limit.map(TokenBucket::new),
            doors: FailureTable::new(),
            clock,
            jwt: server.jwt.as_ref().map(JwtVerifier::new),
        }
    }

    /// What checks JWTs, if they are configured.
    pub fn jwt(&self) -> Option<&Arc<JwtVerifier>> {
        self.jwt.as_ref()
    }

    /// The index in the table of failures under which wrong tokens from `address` are counted.
    pub fn place(&self, address: IpAddr) -> usize {
        self.doors.place(address)
    }

    /// The index of the token that was shown. The digest is always compared with every token, so
    /// that the time does not reveal which one matched.
    fn find(&self, shown: &str) -> Option<usize> {
        if shown.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let given = Digest::of(shown);
        let mut found = 0_u32;
        for (place, known) in (1..).zip(&self.known) {
            found.conditional_assign(&place, known.digest.same(&given));
        }
        found.checked_sub(1).map(|place| place as usize)
    }

    /// Admits a request from the address at index `place`, or answers why it is refused.
    pub fn check(
        &self,
        needed: Scope,
        headers: &HeaderMap,
        place: usize,
    ) -> Result<Admitted<'_>, Problem> {
        if self.known.is_empty() && self.jwt.is_none() {
            browser::check(headers)?;
            self.count(&self.local)?;
            return Ok(Admitted::Open);
        }
        let shown = bearer(headers)?;
        let Some(known) = self.recognise(shown, place)? else {
            let bearer = self.check_jwt(shown, place)?;
            demand(bearer.scopes, needed)?;
            return Ok(Admitted::Jwt(bearer));
        };
        let bearer = &known.bearer;
        if bearer.expires_ms.is_some_and(|end| self.clock.wall_ms() >= end) {
            return Err(expired(bearer));
        }
        self.count(&known.bucket)?;
        demand(bearer.scopes, needed)?;
        Ok(Admitted::Known(bearer))
    }

    /// Checks a token that is none of the configured ones as a JWT, and counts the request of its
    /// owner.
    fn check_jwt(&self, shown: &str, place: usize) -> Result<Arc<Bearer>, Problem> {
        let fail = |why: &str| {
            let now = self.clock.mono();
            self.doors.at(place).fail(now).map_err(wrong_too_often)?;
            Err(unauthorized(why.to_owned()))
        };
        let Some(jwt) = self.jwt.as_ref().filter(|_| is_jwt(shown)) else {
            return fail("the token is not known");
        };
        let verified = match jwt.verify(shown, self.clock.wall_ms()) {
            Ok(verified) => verified,
            Err(why) => return fail(why),
        };
        let name = format!("jwt:{}", verified.owner);
        jwt.count(&verified.owner, self.clock.mono()).map_err(|wait| {
            let often = "asks more often than `rate_limit` in [server.jwt] allows";
            throttled(&format!("`{name}` {often}; send several at a time, or ask less often"), wait)
        })?;
        let JwtConfig { scopes, limits, .. } = jwt.config();
        let limits = Some(Arc::new(limits.only(verified.owner)));
        let expires_ms = Some(verified.expires_ms);
        Ok(Arc::new(Bearer { name, scopes: *scopes, expires_ms, limits }))
    }

    /// The configured token that was shown; `None` if it is none of them.
    fn recognise(&self, shown: &str, place: usize) -> Result<Option<&Known>, Problem> {
        let Some(found) = self.find(shown) else { return Ok(None) };
        let known = &self.known[found];
        if known.guessable {
            let door = self.doors.at(place);
            door.pass(found, || self.clock.mono()).map_err(wrong_too_often)?;
        }
        Ok(Some(known))
    }

    fn count(&self, bucket: &Option<TokenBucket>) -> Result<(), Problem> {
        let Some(bucket) = bucket else { return Ok(()) };
        bucket.take(self.clock.mono()).map_err(|wait| {
            let detail = "this token is shown more often than `rate_limit` in [server] allows; \
                          send several at a time (the *_many forms), or ask less often";
            throttled(detail, wait)
        })
    }
}

fn wrong_too_often(wait: Duration) -> Problem {
    let detail = "too many wrong tokens came from this address; check the token and wait";
    throttled(detail, wait)
}

fn throttled(detail: &str, wait: Duration) -> Problem {
    let seconds = wait.as_millis().div_ceil(1_000).max(1);
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "throttled", "Ask less often", detail)
        .header_value(header::RETRY_AFTER, HeaderValue::from(seconds as u64))
}

/// The bearer token of the `Authorization` header. It is an error if there is none or more than
/// one.
fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let mut shown = headers.get_all(header::AUTHORIZATION).iter();
    let (first, more) = (shown.next(), shown.next().is_some());
    if more {
        return Err(unauthorized("send one `Authorization` header, not several".to_owned()));
    }
    let bearer = first.and_then(|value| value.to_str().ok()).and_then(|v| v.split_once(' '));
    match bearer {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err(unauthorized("send `Authorization: Bearer TOKEN`".to_owned())),
    }
}

fn unauthorized(detail: String) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "A token is needed", detail)
        .header(header::WWW_AUTHENTICATE, "Bearer realm=\"lapsed\"")
}

fn expired(token: &Bearer) -> Problem {
    let end = token.expires_ms.map(moment).unwrap_or_default();
    let detail = format!(
        "the token `{}` expired on {end}; make another with `lapsed token new` and put it into \
         [[server.tokens]]",
        token.name
    );
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "The token has expired", detail).header(
        header::WWW_AUTHENTICATE,
        "Bearer realm=\"lapsed\", error=\"invalid_token\", error_description=\"expired\"",
    )
}

fn demand(has: Scopes, needed: Scope) -> Result<(), Problem> {
    if has.allow(needed) {
        return Ok(());
    }
    let title = match has {
        Scopes::READ => "This token may only read",
        _ => "This token may not do that",
    };
    let detail = format!(
        "it has the scopes {has}, and this needs `{}`; use a token of [server] that has it",
        needed.as_str()
    );
    let problem = Problem::new(StatusCode::FORBIDDEN, "forbidden", title, detail);
    Err(problem.with("scope", json!(needed)))
}

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
    pub fn deed(&self, what: &str, target: impl Display) -> AuditAction {
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

/// The problem that is answered when a request took longer than the request timeout.
pub fn too_slow() -> Problem {
    Problem::new(
        StatusCode::GATEWAY_TIMEOUT,
        "timeout",
        "It took too long",
        "no answer within `request_timeout`; it may have been carried out, and repeating it is safe",
    )
}
