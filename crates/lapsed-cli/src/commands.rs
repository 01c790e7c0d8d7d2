//! The commands: each calls a backend and prints the answer.

mod adopt;
mod audit;
mod brake;
pub use brake::would_reclaim;
mod check;
mod completions;
mod detect;
mod explain;
mod functions;
mod healthcheck;
mod init;
mod man;
pub(crate) mod receipts;
mod reconcile;
mod restore;
mod serve;
mod status;
mod sweep;
mod token;
mod webhook;

use std::time::Duration;

use crate::backend::{self, Backend};
use crate::cli::{Cli, Command, TargetArgs};
use crate::{kinds, top};
use lapsed_server::failure::Failure;
use lapsed_server::node::missing::MissingSystem;
use lapsed_server::print;

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
        Command::Detect(args) => detect::run(args),
        Command::Top(args) => top::run(&args.target),
        Command::Status(args) => status::run(args),
        Command::Healthcheck(args) => healthcheck::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Reconcile(args) => reconcile::run(args, cli.verbose > 0),
        Command::Explain(args) => explain::run(args),
        Command::Receipts(args) => receipts::run(args),
        Command::Restore(args) => restore::run(args),
        Command::Audit(args) => audit::run(args),
        Command::Webhook(args) => webhook::run(args),
        Command::OfKind(command) => kinds::run(command),
        Command::Adopt(args) => adopt::run(args),
        Command::Brake(args) => brake::run(args),
        Command::Token(args) => token::run(args),
        Command::Functions(args) => functions::run(args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// Names the systems that an answer lacks, on stderr, so that the output stays what a program reads.
pub(crate) fn tell_missing(missing: &[MissingSystem]) {
    for MissingSystem { system, error } in missing {
        let error = print::visible(error);
        print::stderr_lines(&format!(
            "missing: {system}, because its store does not answer: {error}"
        ));
    }
}

/// Opens the backend of `target`, runs `work` on it, and closes it even if the work has failed.
pub(crate) fn ask<T>(
    target: &TargetArgs,
    work: impl FnOnce(&dyn Backend) -> Result<T, Failure>,
) -> Result<T, Failure> {
    ask_of(backend::open(target)?, work)
}

/// Runs `work` on a backend, and closes it even if the work has failed.
pub(crate) fn ask_of<T>(
    backend: Box<dyn Backend>,
    work: impl FnOnce(&dyn Backend) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let answer = work(&*backend).map_err(|failure| backend.name_store(failure));
    let closed = backend.close();
    let answer = answer?;
    closed?;
    Ok(answer)
}
