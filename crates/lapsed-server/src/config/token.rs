//! Tokens: names, scopes and expiry.
//!
//! A token is kept only as its SHA-256 digest, so that the process's plans, its log and its errors
//! do not reveal it. One round of a fast hash is enough for long random tokens, as `lapsed token
//! new` makes them; it does not protect a short word from a dictionary attack.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use ring::digest;
use serde::{Deserialize, Serialize};
use subtle::{Choice, ConstantTimeEq};
use utoipa::ToSchema;

use super::ConfigError;
use super::bearer_limits::{BearerLimits, LimitLists};
use super::limit::{RateLimit, RateLimitSection};
use super::secret::Secret;
use crate::print::{moment, span};

/// The most tokens: a request is compared with all of them, so more would make every request slow.
const TOKENS_MAX: usize = 1_000;

/// A warning is given for a token that expires sooner than this, in milliseconds.
const SOON_MS: u64 = 14 * 24 * 3_600 * 1_000;

/// The names of the tokens `server.token` and `server.read_token`.
const PLAIN_NAMES: [&str; 2] = ["token", "read_token"];

/// The name, in the audit, of a client without a token.
pub const LOCAL: &str = "local";

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Reading, and dry runs.
    Read,
    /// The operations of an application: register, send heartbeats, take jobs, ...
    Write,
    /// The actions of an operator: brakes, a pass on demand, restores, dead letters.
    Act,
}

impl Scope {
    /// The name of the scope in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
            Scope::Act => "act",
        }
    }
}

/// A set of scopes. Every set includes `read`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scopes {
    write: bool,
    act: bool,
}

impl Scopes {
    /// The scopes `read`, `write` and `act`.
    pub const ALL: Scopes = Scopes { write: true, act: true };
    /// The scope `read` only.
    pub const READ: Scopes = Scopes { write: false, act: false };

    /// The scopes of the list, and `read`.
    pub fn of(list: &[Scope]) -> Scopes {
        Scopes { write: list.contains(&Scope::Write), act: list.contains(&Scope::Act) }
    }

    /// Whether the set includes `scope`.
    pub fn allow(self, scope: Scope) -> bool {
        match scope {
            Scope::Read => true,
            Scope::Write => self.write,
            Scope::Act => self.act,
        }
    }

    /// The scopes of the set as a list.
    pub fn list(self) -> Vec<Scope> {
        let all = [Scope::Read, Scope::Write, Scope::Act];
        all.into_iter().filter(|scope| self.allow(*scope)).collect()
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.list().into_iter().map(Scope::as_str).collect();
        f.write_str(&words.join(", "))
    }
}

/// The SHA-256 digest of a token.
#[derive(Clone, Copy)]
pub struct Digest([u8; 32]);

const HASH_PREFIX: &str = "sha256:";

impl Digest {
    /// Computes the digest of a token.
    pub fn of(token: &str) -> Digest {
        let digest = digest::digest(&digest::SHA256, token.as_bytes());
        Digest(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Parses `sha256:` followed by 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Digest> {
        let hex = text.strip_prefix(HASH_PREFIX)?;
        if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).ok()?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(Digest(bytes))
    }

    /// The digest as the configuration writes it: `sha256:` and 64 hexadecimal digits.
    pub fn text(&self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{HASH_PREFIX}{hex}")
    }

    /// Compares in constant time.
    pub fn same(&self, other: &Digest) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(...)")
    }
}

/// One `[[server.tokens]]` as it is written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenSection {
    name: String,
    hash: Option<String>,
    token: Option<Secret>,
    scopes: Vec<Scope>,
    expires: Option<Moment>,
    rate_limit: Option<RateLimitSection>,
    systems: Option<Vec<String>>,
    operations: Option<Vec<String>>,
    owners: Option<Vec<String>>,
}

/// A point in time, as a string or as a TOML date-time.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "is no moment; write it like \"2027-01-01T00:00:00Z\"")]
enum Moment {
    Text(String),
    Toml(toml::value::Datetime),
}

impl Moment {
    fn ms(&self) -> Result<u64, String> {
        let text = match self {
            Moment::Text(text) => text.clone(),
            Moment::Toml(moment) => moment.to_string(),
        };
        let whole = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.clone() };
        let moment = whole.parse::<Timestamp>().map(|moment| moment.as_millisecond());
        let wrong = "is no moment; write it like \"2027-01-01T00:00:00Z\"";
        u64::try_from(moment.map_err(|_| format!("{text:?} {wrong}"))?)
            .map_err(|_| format!("{text:?} is before 1970"))
    }
}

/// One token, ready to be compared with the token of a request.
#[derive(Clone, Debug)]
pub struct TokenConfig {
    /// The name of the token, as the audit shows it.
    pub name: String,
    /// The digest that is compared with that of a shown token.
    pub digest: Digest,
    /// The scopes of the token.
    pub scopes: Scopes,
    /// When the token expires, in milliseconds of the wall clock; `None`: never.
    pub expires_ms: Option<u64>,
    /// The rate limit of requests with this token.
    pub rate_limit: Option<RateLimit>,
    /// Whether the token is so short that it could be guessed.
    pub guessable: bool,
    /// The systems, operations and owners that the token is limited to; `None`: no limits.
    pub limits: Option<Arc<BearerLimits>>,
}

/// The length in bytes below which a token counts as guessable.
const LONG: usize = 20;

impl TokenConfig {
    fn plain(name: &str, secret: &Secret, scopes: Scopes) -> TokenConfig {
        let digest = Digest::of(secret.reveal());
        let guessable = secret.reveal().len() < LONG;
        let (expires_ms, rate_limit) = (None, None);
        let (name, limits) = (name.to_owned(), None);
        TokenConfig { name, digest, scopes, expires_ms, rate_limit, guessable, limits }
    }

    fn plan(section: TokenSection) -> Result<TokenConfig, String> {
        check_name(&section.name)?;
        let digest = match (&section.hash, &section.token) {
            (Some(hash), None) => Digest::parse(hash).ok_or(
                "`hash` must be `sha256:` and 64 hexadecimal digits; `lapsed token new` and \
                 `lapsed token hash` print it",
            )?,
            (None, Some(token)) => {
                token.check_token("token").map_err(|e| e.0)?;
                Digest::of(token.reveal())
            }
            _ => return Err("give `hash` or `token`, one of them".to_owned()),
        };
        if section.scopes.is_empty() {
            return Err("`scopes` is empty; any of: read, write, act".to_owned());
        }
        let expires_ms = section.expires.map(|moment| moment.ms()).transpose();
        let expires_ms = expires_ms.map_err(|e| format!("`expires`: {e}"))?;
        let scopes = Scopes::of(&section.scopes);
        let rate_limit = section.rate_limit.map(|limit| limit.plan("rate_limit")).transpose();
        let rate_limit = rate_limit.map_err(|e| e.0)?;
        // The length of a token that is given as a digest is unknown; those from `lapsed token new`
        // are long.
        let guessable = section.token.as_ref().is_some_and(|token| token.reveal().len() < LONG);
        let TokenSection { name, systems, operations, owners, .. } = section;
        let limits = limits(scopes, LimitLists { systems, operations, owners })?;
        Ok(TokenConfig { name, digest, scopes, expires_ms, rate_limit, guessable, limits })
    }

    /// Whether the token has expired at `now_ms`.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|end| now_ms >= end)
    }

    /// A warning if the token has expired, or will soon.
    pub fn warning(&self, now_ms: u64) -> Option<String> {
        let end = self.expires_ms.filter(|end| *end < now_ms.saturating_add(SOON_MS))?;
        let name = &self.name;
        Some(match end.checked_sub(now_ms).filter(|left| *left > 0) {
            Some(left) => {
                format!("the token `{name}` expires in {}, on {}", span(left), moment(end))
            }
            None => format!("the token `{name}` has expired on {} and is refused", moment(end)),
        })
    }

    /// A description of the token for `check`.
    pub fn describe(&self) -> String {
        let end = self.expires_ms.map(|end| format!(", until {}", moment(end)));
        let limits = self.limits.as_ref().map(ToString::to_string).unwrap_or_default();
        format!("token {}: {}{limits}{}", self.name, self.scopes, end.unwrap_or_default())
    }
}

/// The limits of a token. What `act` allows is about all owners of a system, so that a token for some
/// owners cannot have it.
fn limits(scopes: Scopes, lists: LimitLists) -> Result<Option<Arc<BearerLimits>>, String> {
    let limits = BearerLimits::plan(lists)?;
    if limits.limits_owners() && scopes.allow(Scope::Act) {
        return Err("`owners` and the scope `act` exclude each other: what `act` allows is about \
                    all owners"
            .to_owned());
    }
    Ok(limits.is_limited().then(|| Arc::new(limits)))
}

/// Checks the name of a token, which the audit shows, so it must be short and plain.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
        return Err(format!("{name:?} is no name: 1 to 64 letters, digits, `.`, `_` or `-`"));
    }
    match PLAIN_NAMES.contains(&name) || name == LOCAL {
        true => Err(format!("the name `{name}` is taken by lapsed itself; choose another")),
        false => Ok(()),
    }
}

/// The tokens that are given directly in `[server]`.
#[derive(Clone, Copy, Debug)]
pub struct PlainToken<'a> {
    /// The token `server.token`, which has all scopes.
    pub token: Option<&'a Secret>,
    /// The token `server.read_token`, which has the scope `read`.
    pub read_token: Option<&'a Secret>,
}

/// Collects and checks all tokens of the configuration. No two may have the same name or be the
/// same token.
pub fn gather(
    plain: PlainToken<'_>,
    sections: Vec<TokenSection>,
    rate_limit: Option<RateLimit>,
) -> Result<Vec<TokenConfig>, ConfigError> {
    if sections.len() > TOKENS_MAX {
        return Err(ConfigError(format!("`server.tokens`: more than {TOKENS_MAX} tokens")));
    }
    let mut tokens = Vec::new();
    tokens
        .extend(plain.token.map(|secret| TokenConfig::plain(PLAIN_NAMES[0], secret, Scopes::ALL)));
    tokens.extend(
        plain.read_token.map(|secret| TokenConfig::plain(PLAIN_NAMES[1], secret, Scopes::READ)),
    );
    for (index, section) in sections.into_iter().enumerate() {
        let wrong = |what: String| ConfigError(format!("`server.tokens[{index}]`: {what}"));
        let token = TokenConfig::plan(section).map_err(wrong)?;
        if tokens.iter().any(|known| known.name == token.name) {
            return Err(wrong(format!("there are two tokens `{}`", token.name)));
        }
        if let Some(twin) = tokens.iter().find(|known| known.digest.same(&token.digest).into()) {
            let what = format!("`{}` and `{}` are the same token", token.name, twin.name);
            return Err(wrong(format!("{what}; give each its own")));
        }
        tokens.push(token);
    }
    for token in &mut tokens {
        token.rate_limit = token.rate_limit.or(rate_limit);
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written_and_never_shown() {
        let digest = Digest::of("abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.text(), text);
        assert!(bool::from(Digest::parse(text).unwrap().same(&digest)));
        assert!(!bool::from(Digest::of("abd").same(&digest)));
        for bad in ["", "abc", "sha256:", &text[..70], &text.replace('b', "g"), &text[7..]] {
            assert!(Digest::parse(bad).is_none(), "{bad}");
        }
        let token = TokenConfig::plain("token", &Secret::new("abc"), Scopes::ALL);
        assert!(!format!("{token:?}").contains("ba78"), "{token:?}");
    }

    #[test]
    fn a_token_that_ends_soon_is_worth_a_word() {
        let ends = |expires_ms| TokenConfig {
            expires_ms,
            ..TokenConfig::plain("ops", &Secret::new("abc"), Scopes::READ)
        };
        let now = 1_700_000_000_000;
        assert_eq!(ends(None).warning(now), None);
        assert_eq!(ends(Some(now + SOON_MS)).warning(now), None);
        assert!(ends(Some(now + 60_000)).warning(now).unwrap().contains("expires in 1m"));
        let over = ends(Some(now));
        assert!(over.is_expired(now) && over.warning(now).unwrap().contains("has expired"));
        assert!(!ends(Some(now + 1)).is_expired(now));
    }
}
