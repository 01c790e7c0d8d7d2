//! `lapsed init`: the arguments.

use std::path::PathBuf;

use clap::Args;

use super::Output;
use lapsed_server::preset::PresetParser;
use lapsed_server::systems::Preset;

/// The arguments of `lapsed init`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lapsed init                                           ask for everything
  lapsed init --list                                    list the presets
  lapsed init --from redis://127.0.0.1:6379/0           rescue the job systems that are found there
  lapsed init --preset registry --store redis://10.0.0.7:6379/0
  lapsed init --preset leases --store s3://my-bucket/locks -o locks.toml
  lapsed init --preset mitra --store postgres://app@db/app --mirror redis://cache:6379/0")]
pub struct Init {
    /// Preset that gives names, defaults and environment variables; asked for on a terminal if missing.
    #[arg(long, value_parser = PresetParser, value_name = "PRESET")]
    pub preset: Option<&'static Preset>,

    /// Write a configuration for the job systems that `lapsed detect` finds at this address.
    #[arg(long, value_name = "URL", conflicts_with_all = ["preset", "list"])]
    pub from: Option<String>,

    /// Address of the store; `${VARIABLE}` is written as it is and read from the environment later.
    #[arg(long, value_name = "URL", requires = "preset")]
    pub store: Option<String>,

    /// Address of the Valkey or Redis that mirrors Postgres; for the preset mitra on Postgres only.
    #[arg(long, value_name = "URL", requires = "preset")]
    pub mirror: Option<String>,

    /// Configuration file to write.
    #[arg(short, long, value_name = "FILE", default_value = "lapsed.toml")]
    pub output: PathBuf,

    /// Overwrite the file if it exists.
    #[arg(long)]
    pub force: bool,

    /// List the presets and write no file.
    #[arg(long, conflicts_with_all = ["preset", "force"])]
    pub list: bool,

    #[command(flatten)]
    pub shape: Output,
}
