//! The address of a server: its URL, TLS, and the time limits of its calls.

use std::path::PathBuf;
use std::time::Duration;

use lapsed_core::{Error, Result};
use percent_encoding::percent_decode_str;
use tokio_postgres::config::{Host, SslMode};

use crate::tls::Trust;

/// The address of a server and the time limits of its calls.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresAddress {
    /// `postgres://user:password@host:port/database?…`, as libpq reads it. Of its parameters these are
    /// understood beside those of the client library (`connect_timeout`, `target_session_attrs`, …):
    ///
    /// - `sslmode`: in libpq's words. `disable`: never TLS. `prefer` (the default): TLS if the server can,
    ///   and whoever it is. `require`: TLS, whoever it is; with `sslrootcert` as `verify-ca`. `verify-ca`:
    ///   only with a certificate of an authority that is trusted. `verify-full`: and only if it names the
    ///   host. Over a network that others use, anything below `verify-full` can be listened to.
    /// - `sslrootcert`: a file of certificates in PEM to trust, or `system`. Without it those of the
    ///   system are trusted.
    pub url: String,
    /// The time limit for connecting.
    pub connect_timeout: Duration,
    /// The time limit of one call, which is one statement or one transaction. It is enforced here, and for
    /// each statement also by the server.
    pub call_timeout: Duration,
    /// The most connections at a time.
    pub connections: usize,
    /// What the names of lapsed's own tables begin with, with their schema if it is not the usual one:
    /// `lapsed_`, `ops.lapsed_`.
    pub prefix: String,
}

/// Shows the address without its password.
impl std::fmt::Debug for PostgresAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Address").field(&self.place()).finish()
    }
}

impl PostgresAddress {
    /// The address `url` with the default limits.
    pub fn new(url: &str) -> PostgresAddress {
        PostgresAddress {
            url: url.to_owned(),
            connect_timeout: Duration::from_secs(2),
            call_timeout: Duration::from_secs(5),
            connections: 8,
            prefix: "lapsed_".to_owned(),
        }
    }

    /// The host, port and database, without secrets.
    pub fn place(&self) -> String {
        let Ok(read) = self.read() else { return "postgres".to_owned() };
        let port = |n: usize| read.config.get_ports().get(n).or(read.config.get_ports().first());
        let host = |(n, host): (usize, &Host)| {
            let port = port(n).copied().unwrap_or(5_432);
            match host {
                Host::Tcp(name) if name.contains(':') => format!("[{name}]:{port}"),
                Host::Tcp(name) => format!("{name}:{port}"),
                Host::Unix(path) => format!("{}:{port}", path.display()),
            }
        };
        let hosts: Vec<String> = read.config.get_hosts().iter().enumerate().map(host).collect();
        let database = read.config.get_dbname().or(read.config.get_user()).unwrap_or_default();
        format!("postgres://{}/{database}", hosts.join(","))
    }

    /// Refuses what cannot be an address, without repeating it: it may hold a password.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.read().map(|_| ())
    }

    /// The address as the client library's configuration, and which certificates to trust.
    pub(crate) fn config(&self) -> Result<(tokio_postgres::Config, Option<Trust>)> {
        let ParsedUrl { mut config, mode, root } = self.read().map_err(Error::Invalid)?;
        config.connect_timeout(self.connect_timeout);
        // Data that the server has not acknowledged for this long counts as lost.
        config.tcp_user_timeout(self.connect_timeout + self.call_timeout);
        config.keepalives_idle(Duration::from_secs(30));
        if config.get_application_name().is_none() {
            config.application_name("lapsed");
        }
        let trust = match mode.as_str() {
            "disable" => None,
            "prefer" => Some(Trust::Anybody),
            "require" if root.is_none() => Some(Trust::Anybody),
            "require" | "verify-ca" => Some(Trust::Authority(root)),
            _ => Some(Trust::Host(root)),
        };
        config.ssl_mode(match mode.as_str() {
            "disable" => SslMode::Disable,
            "prefer" => SslMode::Prefer,
            _ => SslMode::Require,
        });
        Ok((config, trust))
    }

    /// Splits the parameters that only lapsed understands from the URL.
    fn read(&self) -> std::result::Result<ParsedUrl, String> {
        let (mut mode, mut root) = ("prefer".to_owned(), None);
        let (base, query) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let mut others = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=').unwrap_or((parameter, "")) {
                ("sslmode", value) => mode = value.to_owned(),
                ("sslrootcert", "system") => root = None,
                ("sslrootcert", value) => {
                    let path = percent_decode_str(value).decode_utf8();
                    let path = path.map_err(|_| "sslrootcert is not UTF-8".to_owned())?;
                    root = Some(PathBuf::from(path.into_owned()));
                }
                _ => others.push(parameter),
            }
        }
        if !["disable", "prefer", "require", "verify-ca", "verify-full"].contains(&mode.as_str()) {
            return Err(format!(
                "sslmode must be one of disable, prefer, require, verify-ca, verify-full; not {mode:?}"
            ));
        }
        let url = match others.is_empty() {
            true => base.to_owned(),
            false => format!("{base}?{}", others.join("&")),
        };
        if !base.starts_with("postgres://") && !base.starts_with("postgresql://") {
            return Err("it must begin with postgres:// or postgresql://".to_owned());
        }
        let config: tokio_postgres::Config =
            url.parse().map_err(|error: tokio_postgres::Error| parse_error(&error))?;
        if config.get_hosts().is_empty() {
            return Err("it names no host".to_owned());
        }
        Ok(ParsedUrl { config, mode, root })
    }
}

struct ParsedUrl {
    config: tokio_postgres::Config,
    mode: String,
    root: Option<PathBuf>,
}

/// The library's error about an address, with its cause. It repeats names of parameters only, no values.
fn parse_error(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(url: &str) -> (SslMode, Option<Trust>) {
        let (config, trust) = PostgresAddress::new(url).config().unwrap();
        (config.get_ssl_mode(), trust)
    }

    #[test]
    fn the_mode_is_in_libpqs_words() {
        let host = "postgres://me@db/app";
        assert_eq!(mode(host), (SslMode::Prefer, Some(Trust::Anybody)));
        assert_eq!(mode(&format!("{host}?sslmode=disable")), (SslMode::Disable, None));
        let require = format!("{host}?connect_timeout=3&sslmode=require");
        assert_eq!(mode(&require), (SslMode::Require, Some(Trust::Anybody)));
        let root = Some(PathBuf::from("/etc/my ca.pem"));
        let trust = format!("{require}&sslrootcert=/etc/my%20ca.pem");
        assert_eq!(mode(&trust), (SslMode::Require, Some(Trust::Authority(root.clone()))));
        let full = format!("{host}?sslmode=verify-full&sslrootcert=%2Fetc%2Fmy%20ca.pem");
        assert_eq!(mode(&full), (SslMode::Require, Some(Trust::Host(root))));
        let system = format!("{host}?sslmode=verify-ca&sslrootcert=system");
        assert_eq!(mode(&system), (SslMode::Require, Some(Trust::Authority(None))));
    }

    #[test]
    fn secrets_are_not_shown() {
        let address = PostgresAddress::new("postgres://me:secret@a:1,b:2/app?sslmode=require");
        assert_eq!(address.place(), "postgres://a:1,b:2/app");
        assert!(!format!("{address:?}").contains("secret"));
        for bad in [
            "redis://me:secret@h/",
            "postgres://me:secret@/app",
            "postgres://me:secret@h/app?sslmode=allow",
            "postgres://me:secret@h/app?nonsense=1",
            "postgres://me:secret@h:x/app",
        ] {
            let why = PostgresAddress::new(bad).check().unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
