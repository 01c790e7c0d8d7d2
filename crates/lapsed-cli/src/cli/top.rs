//! `lapsed top`: what there is to type.

use clap::Args;

use super::TargetArgs;

/// `lapsed top`
#[derive(Debug, Args)]
#[command(after_help = "\
Keys: arrows or j/k select, Enter shows details, e explains a key, d is a dry run, s a real pass,
h/r/a hold, release or free the brake, / filters receipts, ? is help, q quits.
NO_COLOR is respected. Without a terminal use `lapsed status` and `lapsed receipts --follow`.")]
pub struct Top {
    #[command(flatten)]
    pub target: TargetArgs,
}
