//! Who may ask. Tokens are compared in constant time; a token without the `write` scope only reads.
//!
//! Without a token the daemon listens on loopback alone, where a web page in somebody's browser can
//! still knock: so a request from a page of another origin, or one made under a foreign host name,
//! is refused.

use axum::http::{HeaderMap, Method, StatusCode, header};
use subtle::{Choice, ConstantTimeEq};

use super::problem::Problem;
use crate::config::server::{Secret, Server, TOKEN_BYTES_MAX};

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Looking.
    Read,
    /// Looking and changing.
    Write,
}

/// The tokens.
pub struct Gate {
    write: Option<Padded>,
    read: Option<Padded>,
}

/// Tokens are compared over a fixed length, so that not even their length shows.
const PADDED: usize = TOKEN_BYTES_MAX;

struct Padded {
    bytes: [u8; PADDED],
    len: u64,
}

impl Padded {
    fn new(text: &str) -> Padded {
        let mut bytes = [0; PADDED];
        let shown = text.len().min(PADDED);
        bytes[..shown].copy_from_slice(&text.as_bytes()[..shown]);
        Padded { bytes, len: text.len() as u64 }
    }

    fn equals(&self, other: &Padded) -> Choice {
        self.bytes.ct_eq(&other.bytes) & self.len.ct_eq(&other.len)
    }
}

impl Gate {
    /// With the tokens of the configuration.
    pub fn new(server: &Server) -> Gate {
        let padded = |secret: &Option<Secret>| secret.as_ref().map(|s| Padded::new(s.reveal()));
        Gate { write: padded(&server.token), read: padded(&server.read_token) }
    }

    fn is_open(&self) -> bool {
        self.write.is_none() && self.read.is_none()
    }

    /// What the bearer of `token` may do.
    fn scope(&self, token: &str) -> Option<Scope> {
        let given = Padded::new(token);
        let matches = |known: &Option<Padded>| {
            known.as_ref().map_or(Choice::from(0), |known| known.equals(&given))
        };
        let (write, read) = (matches(&self.write), matches(&self.read));
        match (bool::from(write), bool::from(read)) {
            (true, _) => Some(Scope::Write),
            (false, true) => Some(Scope::Read),
            _ => None,
        }
    }

    /// Lets the request pass, or says why not.
    pub fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        if self.is_open() {
            return check_browser(headers);
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        let bearer = bearer.and_then(|v| v.split_once(' '));
        let token = match bearer {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => return Err(unauthorized("send `Authorization: Bearer TOKEN`")),
        };
        match (self.scope(token), needed(method, path)) {
            (None, _) => Err(unauthorized("the token is not known")),
            (Some(Scope::Read), Scope::Write) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "This token may only read",
                "use the token of `token` in [server], which may also write",
            )),
            _ => Ok(()),
        }
    }
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "A token is needed", detail)
        .header(header::WWW_AUTHENTICATE, "Bearer realm=\"lapsed\"")
}

/// Reading is what changes nothing.
fn needed(method: &Method, path: &str) -> Scope {
    let many = |path: &str| path.ends_with("/lookup_many") || path.ends_with("/get_many");
    let reads = method == Method::GET || method == Method::HEAD || many(path);
    if reads { Scope::Read } else { Scope::Write }
}

/// A page of another origin announces itself; one that lured the browser by DNS shows in `Host`.
fn check_browser(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|v: &header::HeaderValue| v.to_str().ok());
    let host = text(header::HOST).unwrap_or("");
    if !is_local_host(host) {
        return Err(stranger(
            "without a token only requests to a loopback address are answered; set `token` in [server]",
        ));
    }
    let Some(origin) = text(header::ORIGIN) else { return Ok(()) };
    match origin.split_once("://") {
        Some((_, authority)) if authority.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(stranger("without a token, pages of another origin are not answered")),
    }
}

fn stranger(detail: &str) -> Problem {
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

/// What is said when the time limit has passed.
pub fn too_slow() -> Problem {
    Problem::new(
        StatusCode::GATEWAY_TIMEOUT,
        "timeout",
        "It took too long",
        "no answer within `request_timeout`; it may have been carried out, and repeating it is safe",
    )
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

    #[test]
    fn tokens_of_other_lengths_differ() {
        for (a, b) in [("a", "b"), ("a", "a\0"), ("", "a")] {
            assert!(!bool::from(Padded::new(a).equals(&Padded::new(b))), "{a:?} {b:?}");
        }
        assert!(bool::from(Padded::new("abc").equals(&Padded::new("abc"))));
    }
}
