//! The arguments of `lapsed demo`, and of the processes that it starts.

use clap::Args;

/// The arguments of `lapsed demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Factor for all times of the demonstration: 1.8 takes about a minute, 0.9 half of that.
    #[arg(long, default_value_t = 1.8, value_name = "FACTOR", conflicts_with = "serve")]
    pub pace: f64,

    /// Serve the dashboard on a temporary folder, and keep all five systems busy until Ctrl-C.
    #[arg(long)]
    pub serve: bool,

    /// With --serve: address to listen on [default: 127.0.0.1:7227, or a free port if that is in use].
    #[arg(long, value_name = "ADDRESS:PORT", requires = "serve")]
    pub listen: Option<String>,

    /// With --serve: token that clients must send; required on an address that other machines reach.
    #[arg(long, value_name = "TOKEN", requires = "serve")]
    pub token: Option<String>,
}

/// The arguments of `lapsed demo-owner`, which `lapsed demo` starts.
#[derive(Debug, Args)]
pub struct DemoOwner {
    /// Name of the owner.
    pub name: String,
    /// Address of the demonstration's daemon.
    #[arg(long)]
    pub url: String,
    /// Milliseconds between two heartbeats.
    #[arg(long)]
    pub every_ms: u64,
}

/// The arguments of `lapsed demo-player`, which `lapsed demo --serve` starts.
#[derive(Debug, Args)]
pub struct DemoPlayer {
    /// Role of the actor, for example gateway.
    pub role: String,
    /// Name of the owner.
    pub name: String,
    /// Address of the demonstration's daemon.
    #[arg(long)]
    pub url: String,
    /// Token to send to the daemon.
    #[arg(long, env = "LAPSED_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}
