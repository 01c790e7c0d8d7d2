//! The program `lapsed`: parses the command line, runs the command, and sets the exit code.

use std::process::ExitCode;

use clap::Parser;
use lapsed_cli::cli::{Cli, LogFormat};
use lapsed_cli::{commands, hints, log};
use lapsed_server::print;

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| refuse(&error));
    log::start(&cli);
    let (format, again) = (cli.log, cli.command.again());
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            for what in failure.messages().iter().filter(|what| !what.is_empty()) {
                let what = &hints::completed(what, &again);
                match format {
                    // With `--log json`, the error is also a JSON line that a program can read.
                    LogFormat::Json => tracing::error!("{what}"),
                    LogFormat::Text => {
                        print::stderr_lines(&format!("error: {}", print::visible(what)))
                    }
                }
            }
            failure.code()
        }
    }
}

/// Prints help, the version or what is wrong with the command line, and exits. The message quotes
/// arguments, so they are escaped and parsed once more for it.
fn refuse(error: &clap::Error) -> ! {
    let args = std::env::args_os();
    let escaped = args.map(|arg| print::visible(&arg.to_string_lossy()).into_owned());
    if let Err(error) = Cli::try_parse_from(escaped) {
        error.exit();
    }
    // Only an argument that was wrong because of its hidden characters comes here.
    print::stderr_lines(error.render().to_string().trim_end());
    std::process::exit(error.exit_code())
}
