//! Configuration: a TOML file, the environment and flags, which are checked and turned into plans.
//!
//! All errors of the configuration are found here, before any store is opened, and each error names
//! the key and its line. This module contains what all systems share; each kind of system reads its
//! own keys (`crate::systems`), and `crate::plan` assembles the whole.

pub mod bearer_limits;
pub mod common;
pub mod document;
pub mod heartbeat;
pub mod jwt;
pub mod limit;
pub mod origin;
pub mod secret;
pub mod server;
pub mod store;
pub mod sweep;
pub mod telemetry;
pub mod token;
pub mod units;
pub mod webhook;

use std::fmt;
use std::path::PathBuf;

use self::origin::Origin;
use crate::failure::Failure;

/// An error of the configuration: where it is, what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Every error that was found in one configuration, in the order of its sections; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<&str> = self.0.iter().map(|error| error.0.as_str()).collect();
        f.write_str(&all.join("\n"))
    }
}

/// Collects errors, so that one reading of a configuration finds all of them.
#[derive(Debug, Default)]
pub struct ErrorList(Vec<ConfigError>);

impl ErrorList {
    /// The value; `None` after its error was added to the list.
    pub fn keep<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails with all errors of the list, if there are any.
    pub fn check(self) -> Result<(), ConfigErrors> {
        if self.0.is_empty() { Ok(()) } else { Err(ConfigErrors(self.0)) }
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> ConfigErrors {
        ConfigErrors(vec![error])
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Failure {
        Failure::several(errors.0.into_iter().map(Failure::from).collect())
    }
}

/// Reads an environment variable. It is a parameter, so that tests need not change the real
/// environment.
pub type Env<'e> = dyn Fn(&str) -> Option<String> + 'e;

/// Reads a variable of the process's own environment.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The values of flags (or of their environment variables), which override the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The address to listen on.
    pub listen: Option<String>,
    /// The data folder; used only without a configuration file.
    pub data: Option<PathBuf>,
    /// The token; used only if the file has none.
    pub token: Option<String>,
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::Usage(error.0)
    }
}

/// The data folder if neither a file nor a flag names one.
pub const DATA_DEFAULT: &str = "./lapsed-data";

/// The origin of a value that a flag or the file may have set, as `check` shows it.
pub fn origin_of(given: bool, flag: bool, name: &'static str, line: Option<usize>) -> Origin {
    match (flag, given, line) {
        (true, _, _) => Origin::Flag(name),
        (false, true, Some(line)) => Origin::File(line),
        _ => Origin::Default,
    }
}
