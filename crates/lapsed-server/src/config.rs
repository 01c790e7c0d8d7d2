//! Configuration: a TOML file, the environment and flags, checked and made into plans.
//!
//! Everything that can be wrong is found here, before anything is opened, and each error names the
//! key and its line. What a kind of system has of its own is read by it (`crate::systems`);
//! here is only what all of them share, and `crate::plan` puts the whole together.

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

/// What is wrong with the configuration: where, what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// How environment variables are read: given, so that tests need not touch the real ones.
pub type Env<'e> = dyn Fn(&str) -> Option<String> + 'e;

/// The process's own environment.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What flags (or their environment variables) say over the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The address to listen on.
    pub listen: Option<String>,
    /// The data folder; only without a file.
    pub data: Option<PathBuf>,
    /// The token, where the file has none.
    pub token: Option<String>,
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::Usage(error.0)
    }
}

/// The folder used when nothing else is said.
pub const DATA_DEFAULT: &str = "./lapsed-data";

/// Where the listen address came from, and the like, for `check`.
pub fn origin_of(given: bool, flag: bool, name: &'static str, line: Option<usize>) -> Origin {
    match (flag, given, line) {
        (true, _, _) => Origin::Flag(name),
        (false, true, Some(line)) => Origin::File(line),
        _ => Origin::Default,
    }
}
