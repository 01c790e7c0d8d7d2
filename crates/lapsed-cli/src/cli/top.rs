//! `lapsed top`: the arguments and the keys.

use clap::Args;

use super::TargetArgs;

/// The arguments of `lapsed top`.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys: arrows or j/k select, Enter shows details, e explains a key, d starts a dry run, s a real pass,
h/o/a hold the brake, override it for one pass or make it automatic, / filters receipts, ? shows help, q quits.
NO_COLOR is respected. Without a terminal use `lapsed status` and `lapsed receipts --follow`.")]
pub struct Top {
    #[command(flatten)]
    pub target: TargetArgs,
}
