//! Who may send a request: finds the token that it shows, checks its scopes and its rate limit, and refuses
//! what a foreign web page makes a browser send. Tokens are compared by their digests, in a time that does
//! not depend on which token matches.
//!
//! The dashboard sends its token in a header, never in a cookie, so that no other page can make the
//! browser send it. Without tokens the daemon listens on loopback only, but any web page open in a
//! browser on this machine can still send requests there. Such a request is therefore refused if
//! its `Origin` or its `Host` is not this daemon. Whether there are tokens or not, a request that
//! changes something is refused if it comes from a page of another site.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use lapsed_core::clock::Clock;
use serde_json::json;
use subtle::ConditionallySelectable;

use super::extract;
use super::jwt::{JwtVerifier, is_jwt};
use super::limit::{FailureTable, TokenBucket};
use super::problem::Problem;
use crate::config::bearer_limits::BearerLimits;
use crate::config::jwt::JwtConfig;
use crate::config::secret::TOKEN_BYTES_MAX;
use crate::config::server::ServerConfig;
use crate::config::token::{Digest, Scope, Scopes, TokenConfig};
use crate::print::moment;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

pub struct Authenticator {
    known: Vec<Known>,
    /// The rate limit of requests without a token; used only if no tokens are configured.
    local: Option<TokenBucket>,
    failures: FailureTable,
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

impl Authenticator {
    /// Builds the check from the configured tokens and rate limits.
    pub fn new(server: &ServerConfig, clock: Arc<dyn Clock>) -> Authenticator {
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
        Authenticator {
            known: server.tokens.iter().map(known).collect(),
            local: server.rate_limit.map(TokenBucket::new),
            failures: FailureTable::new(),
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
        self.failures.place(address)
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
            check_origin(headers)?;
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
            self.failures.at(place).fail(now).map_err(wrong_too_often)?;
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
            let counter = self.failures.at(place);
            counter.pass(found, || self.clock.mono()).map_err(wrong_too_often)?;
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

/// Refuses a bearer that has not the scope that is needed.
pub fn demand(has: Scopes, needed: Scope) -> Result<(), Problem> {
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

/// Whether a request with this method only reads.
pub fn looks(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// Refuses a request that changes something if it comes from a page of another site or from an HTML
/// form.
pub fn check_change(request: &Request) -> Result<(), Problem> {
    if looks(request.method()) {
        return Ok(());
    }
    // Only browsers send this header, and no page can set it. The value `none` means that a person
    // typed the address or opened a bookmark.
    let site = request.headers().get(&SITE).map(HeaderValue::as_bytes);
    if !matches!(site, None | Some(b"same-origin" | b"none")) {
        return Err(forbidden_origin("pages of another site may not change anything here"));
    }
    // A form can be sent to another site without a CORS preflight; a body of type JSON cannot.
    match request.body().is_end_stream() {
        true => Ok(()),
        false => extract::check_type(request.headers()),
    }
}

/// Refuses a request whose `Origin` is another site, or whose `Host` is a foreign name: the latter
/// happens when a page points its own DNS name at this machine.
fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    // A header that is not text is read as `?`, which matches no host.
    let text = |name| headers.get(name).map(|v: &HeaderValue| v.to_str().unwrap_or("?"));
    let host = text(header::HOST).unwrap_or("");
    if !is_local_host(host) {
        return Err(forbidden_origin(
            "without a token only requests to a loopback address are answered; set `token` in [server]",
        ));
    }
    let Some(origin) = text(header::ORIGIN) else { return Ok(()) };
    match origin.split_once("://") {
        Some((_, authority)) if authority.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(forbidden_origin("without a token, pages of another origin are not answered")),
    }
}

fn forbidden_origin(detail: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", "Not from there", detail)
}

fn is_local_host(host: &str) -> bool {
    if host.is_empty() {
        return true;
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_pass_without_a_token() {
        for good in ["", "localhost", "localhost:7227", "127.0.0.1:1", "[::1]:7227", "127.9.9.9"] {
            assert!(is_local_host(good), "{good}");
        }
        for bad in ["evil.example", "evil.example:7227", "10.0.0.1:7227", "localhost.evil.example"]
        {
            assert!(!is_local_host(bad), "{bad}");
        }
    }
}
