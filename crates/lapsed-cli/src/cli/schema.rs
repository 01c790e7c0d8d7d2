//! `lapsed schema`: the arguments.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Output;

/// The subcommands of `lapsed schema`.
#[derive(Debug, Subcommand)]
pub enum Schema {
    /// Print the SQL that creates the tables, for a database administrator; no database is contacted.
    Print(SchemaArgs),
    /// Create the tables that are missing; existing tables are not changed.
    Apply(SchemaArgs),
}

#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Name of the system, as NAME, KIND or KIND/NAME; all systems
    /// that keep their data in Postgres if not given.
    pub system: Option<String>,

    /// Configuration file; without it, `print` uses the default table names.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Also create triggers that announce changes which an application makes to the tables directly,
    /// so that the mirror is updated at once.
    #[arg(long)]
    pub triggers: bool,

    #[command(flatten)]
    pub output: Output,
}
