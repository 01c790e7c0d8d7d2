//! What `lapsed healthcheck` takes.

use std::path::PathBuf;

use clap::Args;

/// `lapsed healthcheck`
#[derive(Debug, Args)]
pub struct Healthcheck {
    /// Only whether the process answers, whatever its stores do.
    #[arg(long)]
    pub live: bool,

    /// How long to wait for the answer.
    #[arg(long, default_value = "3s", value_name = "DURATION")]
    pub within: String,

    /// Ask the daemon at this address [env: LAPSED_URL] [default: http://127.0.0.1:7227].
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// Trust the certificates in this file (PEM), instead of those that this machine trusts.
    #[arg(long, env = "LAPSED_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}
