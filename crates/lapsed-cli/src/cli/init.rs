//! `lapsed init`: what there is to type.

use std::path::PathBuf;

use clap::Args;

use super::Output;
use lapsed_server::systems::Preset;

/// `lapsed init`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lapsed init                                           asks
  lapsed init --list                                    what there is to choose from
  lapsed init --preset registry --store redis://10.0.0.7:6379/0
  lapsed init --preset lockd --store s3://my-bucket/locks -o locks.toml
  lapsed init --preset mitra --store postgres://app@db/app --mirror redis://cache:6379/0")]
pub struct Init {
    /// Whose names, defaults and variables; on a terminal it is asked for.
    #[arg(long, value_enum, value_name = "PRESET")]
    pub preset: Option<&'static Preset>,

    /// Where its data is; `${VARIABLE}` is kept and read from the environment later.
    #[arg(long, value_name = "URL", requires = "preset")]
    pub store: Option<String>,

    /// For mitra on Postgres: the Valkey or Redis that mirrors it.
    #[arg(long, value_name = "URL", requires = "preset")]
    pub mirror: Option<String>,

    /// The file to write.
    #[arg(short, long, value_name = "FILE", default_value = "lapsed.toml")]
    pub output: PathBuf,

    /// Also in place of a file that is there.
    #[arg(long)]
    pub force: bool,

    /// List the presets, and write nothing.
    #[arg(long, conflicts_with_all = ["preset", "force"])]
    pub list: bool,

    #[command(flatten)]
    pub shape: Output,
}
