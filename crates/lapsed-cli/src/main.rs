//! The program `lapsed`: parses the command line, runs the command, and sets the exit code.

use std::process::ExitCode;

use clap::Parser;
use lapsed_cli::cli::{Cli, LogFormat};
use lapsed_cli::commands;

fn main() -> ExitCode {
    let cli = Cli::parse();
    commands::log(&cli);
    let log = cli.log;
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let what = failure.to_string();
            match log {
                _ if what.is_empty() => {}
                // With `--log json`, the error is also a JSON line that a program can read.
                LogFormat::Json => tracing::error!("{what}"),
                LogFormat::Text => eprintln!("error: {what}"),
            }
            failure.code()
        }
    }
}
