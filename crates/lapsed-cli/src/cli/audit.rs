//! `lapsed audit`: the arguments.

use clap::Args;

use super::{Output, TargetArgs};

#[derive(Debug, Args)]
pub struct Audit {
    /// Name of the system, as NAME, KIND or KIND/NAME; all systems if not given.
    pub system: Option<String>,

    /// Show at most N actions, newest first.
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    pub limit: usize,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}
