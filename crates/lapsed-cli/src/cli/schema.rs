//! `lapsed schema`: what there is to type.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Output;

/// `lapsed schema`
#[derive(Debug, Subcommand)]
pub enum Schema {
    /// Print the tables as SQL, to be read and run by whoever runs the database. Asks no database.
    Print(SchemaArgs),
    /// Make the tables that are missing. What is there stays as it is.
    Apply(SchemaArgs),
}

#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// NAME, KIND or KIND/NAME; without it, all systems whose truth is in Postgres.
    pub system: Option<String>,

    /// The configuration; `print` without it shows the usual names.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Also triggers that tell what an application changes in its tables by itself, so that the mirror
    /// follows at once.
    #[arg(long)]
    pub triggers: bool,

    #[command(flatten)]
    pub output: Output,
}
