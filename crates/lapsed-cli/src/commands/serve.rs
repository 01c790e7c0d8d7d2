//! `lapsed serve`: runs the daemon.

use crate::cli::Serve;
use lapsed_server::config::{Overrides, process_env};
use lapsed_server::daemon;
use lapsed_server::failure::Failure;
use lapsed_server::node::Config;

/// Runs the daemon until it receives a termination signal.
pub fn run(args: Serve) -> Result<(), Failure> {
    if args.config.is_some() && args.data.is_some() && std::env::var_os("LAPSED_DATA").is_none() {
        return Err(Failure::usage(
            "--data goes without a configuration; with one, write `url = \"embedded:DIR\"` in the \
             section of the store",
        ));
    }
    let overrides = Overrides { listen: args.listen, data: args.data, token: args.token };
    let config = Config::load(args.config.as_deref(), &overrides, &process_env)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(daemon::run(config));
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    ended
}
