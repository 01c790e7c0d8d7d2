//! `lapsed decision`: decides a transaction, or shows its decision.

use lapsed_core::leases::{Decision, DecisionInfo, txn};

use super::args::{self as cli, DecisionWordArg};
use super::ask;
use super::lease::{of_leases, time};
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, line, moment};

pub fn run(args: cli::DecisionCommand) -> Result<(), Failure> {
    match args {
        cli::DecisionCommand::Decide(args) => decide(&args),
        cli::DecisionCommand::Show(args) => show(&args),
    }
}

fn decide(args: &cli::Decide) -> Result<(), Failure> {
    let (id, ttl) = (txn(&args.txn)?, time("--ttl", args.ttl.as_deref())?);
    let wanted = match args.decision {
        DecisionWordArg::Commit => Decision::Commit,
        DecisionWordArg::Rollback => Decision::Rollback,
    };
    let decided = ask(&args.target, |backend| {
        let system = of_leases(backend, args.system.as_deref())?;
        backend.decide(&system, &id, wanted, ttl)
    })?;
    if args.output.json {
        print::json(&decided)?;
    } else {
        line(&describe(&decided))?;
    }
    // A script must not continue as if its decision had been accepted when an earlier one differs.
    match decided.decision == wanted {
        true => Ok(()),
        false => Err(Failure::Silent(1)),
    }
}

fn describe(decided: &DecisionInfo) -> String {
    let DecisionInfo { txn, decision, .. } = decided;
    let until = moment(decided.deadline_ms);
    match decided.first {
        true => format!("{txn} is decided: {decision}; kept until {until}"),
        false => format!(
            "{txn} was decided before, at {}: {decision}; kept until {until}",
            moment(decided.decided_ms)
        ),
    }
}

fn show(args: &cli::ShowDecision) -> Result<(), Failure> {
    let id = txn(&args.txn)?;
    let decided = ask(&args.target, |backend| {
        let system = of_leases(backend, args.system.as_deref())?;
        backend.decision(&system, &id)
    })?;
    match decided {
        None => Err(Failure::failed(format!("{id} is not decided, or no longer kept"))),
        Some(decided) if args.output.json => print::json(&decided),
        Some(decided) => line(&format!(
            "{id} was decided at {}: {}; kept until {}",
            moment(decided.decided_ms),
            decided.decision,
            moment(decided.deadline_ms)
        )),
    }
}
