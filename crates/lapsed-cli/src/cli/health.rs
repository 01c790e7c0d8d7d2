//! `lapsed healthcheck`: the arguments.

use std::path::PathBuf;

use clap::Args;

/// The arguments of `lapsed healthcheck`.
#[derive(Debug, Args)]
pub struct Healthcheck {
    /// Check only that the process answers; do not check its stores.
    #[arg(long)]
    pub live: bool,

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
