//! `lapsed healthcheck`: the arguments.

use std::path::PathBuf;

use clap::Args;

/// The arguments of `lapsed healthcheck`.
#[derive(Debug, Args)]
pub struct Healthcheck {
    /// Check only that the process answers; do not check its stores.
    #[arg(long)]
    pub live: bool,

    /// Check the store of this system only. Default: the store of at least one system must answer.
    #[arg(long, value_name = "KIND/NAME", conflicts_with = "live")]
    pub system: Option<String>,

    /// Fail if no answer has arrived within this time.
    #[arg(long, default_value = "3s", value_name = "DURATION")]
    pub within: String,

    /// Ask the daemon at this address [env: LAPSED_URL] [default: http://127.0.0.1:7227].
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// Trust the certificates in this PEM file instead of the system's certificates.
    #[arg(long, env = "LAPSED_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}
