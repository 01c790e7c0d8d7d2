//! `lapsed detect`: the arguments.

use clap::Args;

use super::Output;

/// The arguments of `lapsed detect`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lapsed detect redis://127.0.0.1:6379/0
  lapsed detect redis://127.0.0.1:6379/0 --json
  lapsed detect redis://127.0.0.1:6379/0 --watch")]
pub struct Detect {
    /// Address of the Redis or Valkey server, for example redis://127.0.0.1:6379/0.
    #[arg(value_name = "URL")]
    pub url: String,

    /// Look again every five seconds, until Ctrl-C.
    #[arg(long)]
    pub watch: bool,

    #[command(flatten)]
    pub output: Output,
}
