//! The verbs that belong to one kind of system. A new kind with verbs adds its module here.

use clap::Subcommand;

use lapsed_server::failure::Failure;

pub mod availability;
pub mod inflight;
pub mod leases;

/// The verbs of every kind that has some.
#[derive(Debug, Subcommand)]
pub enum KindCommand {
    #[command(flatten)]
    Inflight(inflight::InflightCommand),
    #[command(flatten)]
    Leases(leases::LeasesCommand),
    #[command(flatten)]
    Availability(availability::AvailabilityCommand),
}

pub fn run(command: KindCommand) -> Result<(), Failure> {
    match command {
        KindCommand::Inflight(command) => inflight::run(command),
        KindCommand::Leases(command) => leases::run(command),
        KindCommand::Availability(command) => availability::run(command),
    }
}
