//! The verbs of inflight: `lapsed dead`.

mod args;
mod backend;
mod dead;

use clap::Subcommand;

use lapsed_server::failure::Failure;

#[derive(Debug, Subcommand)]
pub enum InflightCommand {
    /// List, show, put back or delete dead letters: jobs that will not be retried automatically.
    // The help lists it directly behind `audit`.
    #[command(subcommand, display_order = 12)]
    Dead(args::Dead),
}

pub fn run(InflightCommand::Dead(args): InflightCommand) -> Result<(), Failure> {
    dead::run(args)
}
