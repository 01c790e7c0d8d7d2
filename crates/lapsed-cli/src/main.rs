//! `lapsed`: parse, call, print.

use std::process::ExitCode;

use clap::Parser;
use lapsed_cli::cli::Cli;
use lapsed_cli::commands;

fn main() -> ExitCode {
    let cli = Cli::parse();
    commands::log(&cli);
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let what = failure.to_string();
            if !what.is_empty() {
                eprintln!("error: {what}");
            }
            failure.code()
        }
    }
}
