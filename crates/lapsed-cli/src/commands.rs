//! The commands: each calls a backend and prints the answer.

mod audit;
mod brake;
mod check;
mod completions;
mod dead;
mod decision;
mod explain;
mod functions;
mod healthcheck;
mod init;
mod lease;
mod man;
pub(crate) mod receipts;
mod reconcile;
mod restore;
mod schema;
mod serve;
mod status;
mod sweep;
mod token;
mod webhook;

use std::time::Duration;

use tracing_subscriber::EnvFilter;

use crate::backend::{self, Backend};
use crate::cli::{Cli, Command, LogFormat, TargetArgs};
use crate::top;
use lapsed_server::failure::Failure;

pub fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Demo(args) if args.serve => {
            lapsed_demo::show::run(args.listen.as_deref(), args.token.as_deref())
        }
        Command::Demo(args) => lapsed_demo::run(lapsed_demo::Pace::new(args.pace)?),
        Command::DemoOwner(args) => {
            lapsed_demo::owner::run(&args.name, &args.url, Duration::from_millis(args.every_ms))
        }
        Command::DemoPlayer(args) => lapsed_demo::show::actor::run(&args),
        Command::Init(args) => init::run(args),
        Command::Check(args) => check::run(args),
        Command::Top(args) => top::run(&args.target),
        Command::Status(args) => status::run(args),
        Command::Healthcheck(args) => healthcheck::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Reconcile(args) => reconcile::run(args, cli.verbose > 0),
        Command::Explain(args) => explain::run(args),
        Command::Receipts(args) => receipts::run(args),
        Command::Restore(args) => restore::run(args),
        Command::Audit(args) => audit::run(args),
        Command::Dead(args) => dead::run(args),
        Command::Webhook(args) => webhook::run(args),
        Command::Lease(args) => lease::run(args),
        Command::LeaseChild(args) => lease::become_command(&args),
        Command::Decision(args) => decision::run(args),
        Command::Brake(args) => brake::run(args),
        Command::Token(args) => token::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Functions(args) => functions::run(args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// Starts the log on stderr. The daemon logs what it does; the other commands log only problems.
pub fn log(cli: &Cli) {
    let usual = match (&cli.command, cli.verbose) {
        (Command::Serve(_), 0) | (_, 1) => "info",
        (_, 0) => "warn",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Tests may start the log twice; the second start changes nothing.
    let _ = match cli.log {
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            log.with_target(false).with_ansi(colours).try_init()
        }
        LogFormat::Json => {
            std::panic::set_hook(Box::new(log_panic));
            log.json().try_init()
        }
    };
}

/// Logs a panic as a line of the log.
fn log_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let at = panic.location().map(ToString::to_string).unwrap_or_default();
    let payload = panic.payload();
    let said = payload.downcast_ref::<&str>().copied();
    let what = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let what = what.unwrap_or("a panic without words");
    let thread = std::thread::current();
    tracing::error!(at, thread = thread.name().unwrap_or_default(), "panicked: {what}");
}

/// Opens the backend of `target`, runs `work` on it, and closes it even if the work has failed.
fn ask<T>(
    target: &TargetArgs,
    work: impl FnOnce(&dyn Backend) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let backend = backend::open(target)?;
    let answer = work(&*backend);
    let closed = backend.close();
    let answer = answer?;
    closed?;
    Ok(answer)
}
