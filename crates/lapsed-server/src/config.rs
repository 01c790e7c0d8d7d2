//! Configuration: a TOML file, the environment and flags, which are checked and turned into plans.
//!
//! All errors of the configuration are found here, before any store is opened, and each error names
//! the key and its line. This module contains what all systems share; each kind of system reads its
//! own keys (`crate::systems`), and `crate::plan` assembles the whole.

pub mod common;
pub mod document;
pub mod heartbeat;
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

use std::path::PathBuf;

use self::origin::Origin;
use crate::failure::Failure;

/// An error of the configuration: where it is, what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

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
