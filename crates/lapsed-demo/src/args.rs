//! `lapsed demo`: what there is to type, and what its processes are told.

use clap::Args;

/// `lapsed demo`
#[derive(Debug, Args)]
pub struct Demo {
    /// How long everything takes: 1.8 is about a minute, 0.9 half of it.
    #[arg(long, default_value_t = 1.8, value_name = "FACTOR", conflicts_with = "serve")]
    pub pace: f64,

    /// Serve the dashboard on a throw-away folder, and keep all five systems busy until Ctrl-C.
    #[arg(long)]
    pub serve: bool,

    /// With --serve: where to listen [default: 127.0.0.1:7227, or a free port where that is taken].
    #[arg(long, value_name = "ADDRESS:PORT", requires = "serve")]
    pub listen: Option<String>,

    /// With --serve: the token that clients must show; needed on an address that others reach.
    #[arg(long, value_name = "TOKEN", requires = "serve")]
    pub token: Option<String>,
}

/// `lapsed demo-owner`, started by the demo.
#[derive(Debug, Args)]
pub struct DemoOwner {
    /// Its name.
    pub name: String,
    /// The demo's daemon.
    #[arg(long)]
    pub url: String,
    /// How often it beats.
    #[arg(long)]
    pub every_ms: u64,
}

/// `lapsed demo-player`, started by `lapsed demo --serve`.
#[derive(Debug, Args)]
pub struct DemoPlayer {
    /// What it plays.
    pub role: String,
    /// Its name.
    pub name: String,
    /// The demo's daemon.
    #[arg(long)]
    pub url: String,
    /// The daemon's token.
    #[arg(long, env = "LAPSED_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}
