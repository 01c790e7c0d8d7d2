//! `lapsed dead`: the arguments.

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::{Output, TargetArgs};

/// The subcommands of `lapsed dead`.
#[derive(Debug, Subcommand)]
pub enum Dead {
    /// List the dead letters, ordered by id.
    List(ListDead),
    /// Show one dead letter with its payload.
    Show(OneDead),
    /// Put a dead letter back on its queue and reset its count of crashes.
    PutBack(PutBackDead),
    /// Delete one dead letter permanently.
    Delete(OneDead),
}

#[derive(Debug, Args)]
pub struct ListDead {
    /// Name of the system, as NAME, KIND or KIND/NAME; all systems
    /// of kind inflight if not given.
    pub system: Option<String>,

    /// Show at most N dead letters of each system.
    #[arg(short = 'n', long, default_value_t = 100, value_name = "N")]
    pub limit: usize,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct OneDead {
    /// The system (may be omitted if there is only one of kind inflight), then the id of the job.
    #[arg(required = true, num_args = 1..=2, value_names = ["SYSTEM", "ID"])]
    pub which: Vec<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct PutBackDead {
    #[command(flatten)]
    pub one: OneDead,

    /// End of the queue to which the job returns.
    #[arg(long, value_enum, default_value = "front")]
    pub end: QueueEndArg,
}

/// An end of a queue: jobs are taken from the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QueueEndArg {
    /// It is the next job to be taken.
    Front,
    /// It is taken after all jobs that wait now.
    Back,
}
