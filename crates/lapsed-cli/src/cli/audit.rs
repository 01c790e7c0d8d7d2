//! `lapsed audit`: what there is to type.

use clap::Args;

use super::{Output, TargetArgs};

#[derive(Debug, Args)]
pub struct Audit {
    /// NAME, KIND or KIND/NAME; all systems without it.
    pub system: Option<String>,

    /// The newest so many.
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    pub limit: usize,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}
