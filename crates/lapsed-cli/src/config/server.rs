//! `[server]`: where to listen, who may ask, how much and for how long.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use serde::Deserialize;

use super::origin::{Origin, Setting, Settings};
use super::units::{Size, Span};
use super::{ConfigError, Overrides, origin_of};

/// Where to listen unless told.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:7227";

/// The longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 512;

/// As the file writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSection {
    listen: Option<String>,
    token: Option<String>,
    read_token: Option<String>,
    body_limit: Option<Size>,
    request_timeout: Option<Span>,
}

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps it.
    pub fn new(text: &str) -> Secret {
        Secret(text.to_owned())
    }

    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(...)")
    }
}

/// How to listen.
#[derive(Clone, Debug)]
pub struct Server {
    /// `host:port`.
    pub listen: String,
    /// May read and write.
    pub token: Option<Secret>,
    /// May only read.
    pub read_token: Option<Secret>,
    /// The largest request body, in bytes.
    pub body_limit: usize,
    /// How long one request may take.
    pub request_timeout: Duration,
    /// The values in force.
    pub settings: Vec<Setting>,
}

impl Server {
    /// Checks the section and lets the flags have the last word.
    pub fn plan(
        section: ServerSection,
        lines: &BTreeMap<String, usize>,
        overrides: &Overrides,
    ) -> Result<Server, ConfigError> {
        let mut settings = Settings::default();
        let line = |key: &str| lines.get(key).copied();
        let flag = overrides.listen.is_some();
        let origin = origin_of(section.listen.is_some(), flag, "--listen", line("listen"));
        let listen = overrides.listen.clone().or(section.listen);
        let listen = listen.unwrap_or_else(|| LISTEN_DEFAULT.to_owned());
        settings.note("listen", &listen, origin);

        let flag = section.token.is_none() && overrides.token.is_some();
        let origin = origin_of(section.token.is_some(), flag, "--token", line("token"));
        let token = secret("server.token", section.token.or(overrides.token.clone()))?;
        settings.note("token", &shown(&token), origin);
        let read_token = secret("server.read_token", section.read_token)?;
        check_tokens(&token, &read_token)?;
        let origin = origin_of(read_token.is_some(), false, "", line("read_token"));
        settings.note("read_token", &shown(&read_token), origin);

        let body_limit = section.body_limit.map_or(1 << 20, |size| size.0);
        settings.note("body_limit", &body_limit, from_line(line("body_limit")));
        let request_timeout = section.request_timeout.map_or(Duration::from_secs(30), |s| s.0);
        settings.note("request_timeout", &request_timeout, from_line(line("request_timeout")));

        let settings = settings.finish();
        let server = Server { listen, token, read_token, body_limit, request_timeout, settings };
        server.check_listen()?;
        Ok(server)
    }

    /// The addresses that `listen` stands for.
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

    /// The address under which this machine reaches it.
    pub fn url(&self) -> String {
        let local = match self.addresses().ok().and_then(|a| a.into_iter().next()) {
            Some(a) if a.ip().is_unspecified() => format!("127.0.0.1:{}", a.port()),
            _ => self.listen.clone(),
        };
        format!("http://{local}")
    }

    /// Whoever can reach a non-loopback address must show a token.
    fn check_listen(&self) -> Result<(), ConfigError> {
        let outside = self.addresses()?.into_iter().find(|a| !a.ip().is_loopback());
        match outside {
            Some(address) if self.token.is_none() => Err(ConfigError(format!(
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

fn secret(key: &str, text: Option<String>) -> Result<Option<Secret>, ConfigError> {
    let Some(text) = text else { return Ok(None) };
    let printable = text.chars().all(|c| c.is_ascii_graphic());
    if text.is_empty() || text.len() > TOKEN_BYTES_MAX || !printable {
        return Err(ConfigError(format!(
            "`{key}`: a token must be 1 to {TOKEN_BYTES_MAX} visible ASCII characters"
        )));
    }
    Ok(Some(Secret(text)))
}

fn check_tokens(token: &Option<Secret>, read_token: &Option<Secret>) -> Result<(), ConfigError> {
    match (token, read_token) {
        (None, Some(_)) => Err(ConfigError(
            "`server.read_token`: needs `server.token` beside it, for those who may write".into(),
        )),
        (Some(write), Some(read)) if write == read => Err(ConfigError(
            "`server.read_token`: is the same as `server.token`, which may also write".into(),
        )),
        _ => Ok(()),
    }
}
