//! `lapsed completions`: prints a completion script.

use std::io::Write;

use clap::{Command, CommandFactory};

use crate::cli::Cli;
use crate::cli::shell::Completions;
use lapsed_server::failure::Failure;

/// Prints the script for the given shell.
pub fn run(args: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(), "lapsed", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(())
}

/// The command line without the hidden commands, which only lapsed itself starts.
pub fn visible() -> Command {
    let full = Cli::command();
    let seen = full.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut bare = Command::new("lapsed").args(full.get_arguments().cloned()).subcommands(seen);
    if let Some(about) = full.get_about() {
        bare = bare.about(about.clone());
    }
    if let Some(after) = full.get_after_help() {
        bare = bare.after_help(after.clone());
    }
    bare.version(env!("CARGO_PKG_VERSION"))
}
