//! Tokens: who may ask, what for, and until when.
//!
//! A token is kept as its SHA-256 digest and as nothing else: whoever sees this process's plans, its
//! log or its errors cannot ask in somebody's name. One round of a fast hash is enough for tokens that
//! are long and random, as `lapsed token new` makes them; it does not protect a word from a dictionary.

use std::fmt;

use jiff::Timestamp;
use ring::digest;
use serde::{Deserialize, Serialize};
use subtle::{Choice, ConstantTimeEq};
use utoipa::ToSchema;

use super::ConfigError;
use super::limit::{RateLimit, RateLimitSection};
use super::secret::Secret;
use crate::print::{moment, span};

/// More would make every request compare for too long.
const TOKENS_MAX: usize = 1_000;

/// A token that ends sooner than this is worth a word.
const SOON_MS: u64 = 14 * 24 * 3_600 * 1_000;

/// What `server.token` and `server.read_token` are called.
const PLAIN_NAMES: [&str; 2] = ["token", "read_token"];

/// What stands for asking without a token.
pub const LOCAL: &str = "local";

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Looking, and dry runs.
    Read,
    /// What an application does: register, beat, take, ...
    Write,
    /// What an operator does: brakes, a pass by hand, restoring, dead letters.
    Act,
}

impl Scope {
    /// As the configuration writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
            Scope::Act => "act",
        }
    }
}

/// Several of them. Whoever may do something may also look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scopes {
    write: bool,
    act: bool,
}

impl Scopes {
    /// Everything.
    pub const ALL: Scopes = Scopes { write: true, act: true };
    /// Looking only.
    pub const READ: Scopes = Scopes { write: false, act: false };

    /// Those of the list.
    pub fn of(list: &[Scope]) -> Scopes {
        Scopes { write: list.contains(&Scope::Write), act: list.contains(&Scope::Act) }
    }

    /// Whether `scope` is among them.
    pub fn allow(self, scope: Scope) -> bool {
        match scope {
            Scope::Read => true,
            Scope::Write => self.write,
            Scope::Act => self.act,
        }
    }

    /// As a list.
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

/// The SHA-256 of a token.
#[derive(Clone, Copy)]
pub struct Digest([u8; 32]);

const HASH_PREFIX: &str = "sha256:";

impl Digest {
    /// Of a token.
    pub fn of(token: &str) -> Digest {
        let digest = digest::digest(&digest::SHA256, token.as_bytes());
        Digest(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// From `sha256:` and 64 hexadecimal digits.
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

    /// As the configuration writes it.
    pub fn text(&self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{HASH_PREFIX}{hex}")
    }

    /// Compares without telling by its time where they differ.
    pub fn same(&self, other: &Digest) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(...)")
    }
}

/// One `[[server.tokens]]`, as the file writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenSection {
    name: String,
    hash: Option<String>,
    token: Option<Secret>,
    scopes: Vec<Scope>,
    expires: Option<Moment>,
    rate_limit: Option<RateLimitSection>,
}

/// A moment: in quotes, or as TOML writes one.
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

/// One token, ready to be compared with.
#[derive(Clone, Debug)]
pub struct TokenConfig {
    /// Who has it, for the audit.
    pub name: String,
    /// What is compared.
    pub digest: Digest,
    /// What it allows.
    pub scopes: Scopes,
    /// Until when it is valid, on the wall clock.
    pub expires_ms: Option<u64>,
    /// How often it may be shown.
    pub rate_limit: Option<RateLimit>,
    /// Whether somebody could find it by trying.
    pub guessable: bool,
}

/// What is shorter could be found by trying.
const LONG: usize = 20;

impl TokenConfig {
    fn plain(name: &str, secret: &Secret, scopes: Scopes) -> TokenConfig {
        let digest = Digest::of(secret.reveal());
        let guessable = secret.reveal().len() < LONG;
        let (expires_ms, rate_limit) = (None, None);
        TokenConfig { name: name.to_owned(), digest, scopes, expires_ms, rate_limit, guessable }
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
        // Of a digest nobody knows; those that `lapsed token new` prints are of long ones.
        let guessable = section.token.is_some_and(|token| token.reveal().len() < LONG);
        Ok(TokenConfig { name: section.name, digest, scopes, expires_ms, rate_limit, guessable })
    }

    /// Whether it is over.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|end| now_ms >= end)
    }

    /// What is worth a word: it is over, or soon will be.
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

    /// In plain words, for `check`.
    pub fn describe(&self) -> String {
        let end = self.expires_ms.map(|end| format!(", until {}", moment(end)));
        format!("token {}: {}{}", self.name, self.scopes, end.unwrap_or_default())
    }
}

/// Names go into the audit, so they are short and plain.
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

/// The tokens that have no section of their own.
#[derive(Clone, Copy, Debug)]
pub struct PlainToken<'a> {
    /// `server.token`
    pub token: Option<&'a Secret>,
    /// `server.read_token`
    pub read_token: Option<&'a Secret>,
}

/// All tokens of the configuration. No two have the same name or are the same.
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
