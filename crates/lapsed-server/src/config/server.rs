//! `[server]`: the address to listen on, tokens, limits and timeouts.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use lapsed_core::SystemId;
use serde::Deserialize;

use super::jwt::{JwtConfig, JwtSection};
use super::limit::{RateLimit, RateLimitSection};
use super::origin::{Origin, Setting, Settings};
use super::secret::Secret;
use super::token::{self, TokenConfig, TokenSection};
use super::units::{Size, Span};
use super::{ConfigError, Overrides, origin_of};
use crate::tls::TlsFiles;

/// The default address to listen on.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:7227";

/// The default limit on concurrent listeners of the event feed.
const LISTENERS_MAX_DEFAULT: usize = 1_000;

/// The section `[server]` as it is written in the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSection {
    listen: Option<String>,
    token: Option<Secret>,
    read_token: Option<Secret>,
    #[serde(default)]
    tokens: Vec<TokenSection>,
    rate_limit: Option<RateLimitSection>,
    tls: Option<TlsSection>,
    body_limit: Option<Size>,
    request_timeout: Option<Span>,
    write_timeout: Option<Span>,
    listeners_max: Option<usize>,
    jwt: Option<JwtSection>,
}

/// The table `tls = { ... }` as it is written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsSection {
    cert: PathBuf,
    key: PathBuf,
}

#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub listen: String,
    /// The plain `token`, for commands that call the daemon of this configuration. The daemon
    /// itself forgets it.
    pub token: Option<Secret>,
    /// All tokens. If there are none, everybody who can reach the daemon may do everything.
    pub tokens: Vec<TokenConfig>,
    /// How bearer JWTs are checked; `None`: there are none.
    pub jwt: Option<JwtConfig>,
    /// The rate limit of requests without a token.
    pub rate_limit: Option<RateLimit>,
    /// The certificate to listen with; `None`: plain HTTP.
    pub tls: Option<TlsFiles>,
    /// The largest request body, in bytes.
    pub body_limit: usize,
    /// The time limit of one request.
    pub request_timeout: Duration,
    /// How long a client may read nothing of what is sent before it is disconnected.
    pub write_timeout: Duration,
    /// The limit on concurrent listeners of the event feed.
    pub listeners_max: usize,
    /// The effective values and their origins.
    pub settings: Vec<Setting>,
}

impl ServerConfig {
    /// Checks the section; flags override the file.
    pub fn plan(
        section: ServerSection,
        lines: &BTreeMap<String, usize>,
        overrides: &Overrides,
    ) -> Result<ServerConfig, ConfigError> {
        let mut settings = Settings::default();
        let line = |key: &str| lines.get(key).copied();
        let flag = overrides.listen.is_some();
        let origin = origin_of(section.listen.is_some(), flag, "--listen", line("listen"));
        let listen = overrides.listen.clone().or(section.listen);
        let listen = listen.unwrap_or_else(|| LISTEN_DEFAULT.to_owned());
        settings.note("listen", &listen, origin);

        let flag = section.token.is_none() && overrides.token.is_some();
        let origin = origin_of(section.token.is_some(), flag, "--token", line("token"));
        let given = overrides.token.as_deref().map(Secret::new);
        let token = checked("server.token", section.token.or(given))?;
        settings.note("token", &shown(&token), origin);
        let read_token = checked("server.read_token", section.read_token)?;
        check_read_token(&token, &read_token, section.tokens.is_empty())?;
        let origin = origin_of(read_token.is_some(), false, "", line("read_token"));
        settings.note("read_token", &shown(&read_token), origin);
        let plain = token::PlainToken { token: token.as_ref(), read_token: read_token.as_ref() };
        let rate_limit = section.rate_limit.map(|limit| limit.plan("server.rate_limit"));
        let rate_limit = rate_limit.transpose()?;
        let tokens = token::gather(plain, section.tokens, rate_limit)?;
        settings.note("tokens", &tokens.len(), from_line(line("tokens")));
        let jwt = section.jwt.map(|section| JwtConfig::plan(section, rate_limit)).transpose()?;
        let words = jwt.as_ref().map(|jwt| jwt.algorithm.as_str().to_owned());
        settings.note("jwt", &words, from_line(line("jwt")));

        let words = rate_limit.map(|limit| limit.to_string());
        settings.note("rate_limit", &words, from_line(line("rate_limit")));
        let tls = section.tls.map(|TlsSection { cert, key }| TlsFiles { cert, key });
        let words = tls.as_ref().map(|files| files.cert.display().to_string());
        settings.note("tls", &words, from_line(line("tls")));
        let body_limit = section.body_limit.map_or(1 << 20, |size| size.0);
        settings.note("body_limit", &body_limit, from_line(line("body_limit")));
        let request_timeout = section.request_timeout.map_or(Duration::from_secs(30), |s| s.0);
        settings.note("request_timeout", &request_timeout, from_line(line("request_timeout")));
        let write_timeout = section.write_timeout.map_or(Duration::from_secs(10), |s| s.0);
        settings.note("write_timeout", &write_timeout, from_line(line("write_timeout")));
        let listeners_max = section.listeners_max.unwrap_or(LISTENERS_MAX_DEFAULT);
        settings.note("listeners_max", &listeners_max, from_line(line("listeners_max")));

        let settings = settings.finish();
        let server = ServerConfig {
            listen,
            token,
            tokens,
            jwt,
            rate_limit,
            tls,
            body_limit,
            request_timeout,
            write_timeout,
            listeners_max,
            settings,
        };
        server.check_listen()?;
        Ok(server)
    }

    /// Whether nothing restricts who may do what: there are no tokens and no JWTs.
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty() && self.jwt.is_none()
    }

    /// Refuses limits that name a system or an operation that does not exist.
    pub fn check_limits(
        &self,
        systems: &[SystemId],
        operations: &[&str],
    ) -> Result<(), ConfigError> {
        for token in &self.tokens {
            let Some(limits) = &token.limits else { continue };
            limits
                .check_names(systems, operations)
                .map_err(|what| ConfigError(format!("the token `{}`: {what}", token.name)))?;
        }
        let Some(jwt) = &self.jwt else { return Ok(()) };
        let checked = jwt.limits.check_names(systems, operations);
        checked.map_err(|what| ConfigError(format!("`server.jwt`: {what}")))
    }

    /// The addresses to which `listen` resolves.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        let wrong = |what: String| {
            ConfigError(format!(
                "`server.listen`: {:?} {what}; write it as ADDRESS:PORT, for example \
                 {LISTEN_DEFAULT:?}",
                self.listen
            ))
        };
        let found = self.listen.to_socket_addrs().map_err(|e| wrong(format!("is no address: {e}")));
        let found: Vec<_> = found?.collect();
        if found.is_empty() { Err(wrong("stands for no address".to_owned())) } else { Ok(found) }
    }

    /// The URL by which this machine reaches the daemon.
    pub fn url(&self) -> String {
        let local = match self.addresses().ok().and_then(|a| a.into_iter().next()) {
            Some(a) if a.ip().is_unspecified() => format!("127.0.0.1:{}", a.port()),
            _ => self.listen.clone(),
        };
        format!("{}://{local}", self.scheme())
    }

    /// The scheme of the daemon's URL: `https` with TLS, else `http`.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// A warning if tokens would cross a network unencrypted.
    pub fn warning(&self) -> Option<String> {
        let outside = self.addresses().ok()?.into_iter().any(|a| !a.ip().is_loopback());
        (outside && self.tls.is_none()).then(|| {
            "tokens cross the network unencrypted: set `tls` in [server], or put a proxy that speaks \
             TLS before the daemon"
                .to_owned()
        })
    }

    /// Refuses to listen on an address that is not loopback if there are no tokens.
    fn check_listen(&self) -> Result<(), ConfigError> {
        let outside = self.addresses()?.into_iter().find(|a| !a.ip().is_loopback());
        match outside {
            Some(address) if self.is_open() => Err(ConfigError(format!(
                "`server.listen`: {address} can be reached from outside this machine, and there \
                 is no token. Set `token = \"${{LAPSED_TOKEN}}\"` in [server] (or pass --token), \
                 or listen on {LISTEN_DEFAULT}"
            ))),
            _ => Ok(()),
        }
    }
}

fn from_line(line: Option<usize>) -> Origin {
    line.map_or(Origin::Default, Origin::File)
}

fn shown(secret: &Option<Secret>) -> String {
    if secret.is_some() { "set".to_owned() } else { "none".to_owned() }
}

fn checked(key: &str, secret: Option<Secret>) -> Result<Option<Secret>, ConfigError> {
    secret.as_ref().map_or(Ok(()), |secret| secret.check_token(key))?;
    Ok(secret)
}

fn check_read_token(
    token: &Option<Secret>,
    read_token: &Option<Secret>,
    alone: bool,
) -> Result<(), ConfigError> {
    match (token, read_token) {
        (None, Some(_)) if alone => Err(ConfigError(
            "`server.read_token`: needs `server.token` beside it, for those who may write".into(),
        )),
        (Some(write), Some(read)) if write == read => Err(ConfigError(
            "`server.read_token`: is the same as `server.token`, which may also write".into(),
        )),
        _ => Ok(()),
    }
}
