//! The verbs of leases: `lapsed lease` and `lapsed decision`.

mod args;
mod backend;
mod decision;
mod lease;
mod local;
mod remote;

use clap::Subcommand;

use self::backend::{LeaseBackend, lease_backend};
use crate::cli::TargetArgs;
use crate::commands;
use lapsed_server::failure::Failure;

#[derive(Debug, Subcommand)]
pub enum LeasesCommand {
    /// Acquire, renew, release or show leases; hold a lease while a command runs.
    #[command(subcommand)]
    Lease(args::LeaseCommand),
    /// Replace this process by a command that the kernel kills when its parent process ends.
    #[command(hide = true)]
    LeaseChild(args::LeaseChild),
    /// Record the decision on a transaction (commit or rollback), or show it; it cannot be changed.
    #[command(subcommand)]
    Decision(args::DecisionCommand),
}

pub fn run(command: LeasesCommand) -> Result<(), Failure> {
    match command {
        LeasesCommand::Lease(args) => lease::run(args),
        LeasesCommand::LeaseChild(args) => lease::become_command(&args),
        LeasesCommand::Decision(args) => decision::run(args),
    }
}

fn ask<T>(
    target: &TargetArgs,
    work: impl FnOnce(&dyn LeaseBackend) -> Result<T, Failure>,
) -> Result<T, Failure> {
    commands::ask(target, |backend| work(lease_backend(backend)))
}
