//! `lapsed brake`: shows or sets a system's brake.

use std::io::{BufRead, IsTerminal};

use lapsed_core::SystemId;
use lapsed_core::sweep::brake::HeldBy;

use super::ask;
use crate::backend::{Backend, resolve};
use crate::cli::{BrakeArgs, BrakeCommand};
use crate::hints::completed;
use lapsed_server::failure::Failure;
use lapsed_server::node::BrakeOrder;
use lapsed_server::node::shapes::{BrakeStatus, SystemStatus};
use lapsed_server::print::{self, lines, plural, stderr_lines, visible};

/// Sets the brake as `order` says, or shows its state.
pub fn run(args: BrakeArgs) -> Result<(), Failure> {
    let order = order(&args)?;
    let status = ask(&args.target, |backend| {
        let id = resolve(&args.system, &backend.systems()?)?;
        match order {
            None => backend.brake(&id),
            Some(BrakeOrder::Override { .. }) if !is_agreed(backend, &id, args.yes)? => {
                Err(Failure::usage("nothing was changed"))
            }
            Some(order) => backend.set_brake(&id, order),
        }
    })?;
    match args.output.json {
        true => print::json(&status),
        false => lines(&describe(&status, &args.target.again())),
    }
}

fn order(args: &BrakeArgs) -> Result<Option<BrakeOrder>, Failure> {
    let is_override = args.order == Some(BrakeCommand::Override);
    if !is_override && (args.reason.is_some() || args.yes) {
        return Err(Failure::usage("--reason and --yes go with `override` only"));
    }
    Ok(Some(match args.order {
        None => return Ok(None),
        Some(BrakeCommand::Auto) => BrakeOrder::Auto,
        Some(BrakeCommand::Hold) => BrakeOrder::Hold,
        Some(BrakeCommand::Override) => BrakeOrder::Override { reason: reason(args)? },
        Some(BrakeCommand::Release) => {
            return Err(Failure::usage(
                "`release` is gone: `auto` lets the brake decide and opens a hold in steps, \
                 `override --reason TEXT` lets one pass reclaim everything that is dead",
            ));
        }
    }))
}

fn reason(args: &BrakeArgs) -> Result<String, Failure> {
    if let Some(reason) = args.reason.as_ref().filter(|reason| !reason.trim().is_empty()) {
        if !args.yes && !can_ask() {
            return Err(Failure::usage(
                "`override` asks for a confirmation, and there is no terminal; look at `lapsed sweep \
                 SYSTEM --dry-run`, then add --yes",
            ));
        }
        return Ok(reason.clone());
    }
    Err(Failure::usage("`override` needs --reason TEXT, which is kept in the audit log"))
}

fn can_ask() -> bool {
    std::io::stdin().is_terminal()
}

/// Shows what the next pass would reclaim, and asks whether it may, unless that was said already (`yes`).
fn is_agreed(backend: &dyn Backend, id: &SystemId, yes: bool) -> Result<bool, Failure> {
    let all = backend.status()?;
    let mine = |s: &&SystemStatus| s.kind == id.kind.as_str() && s.system == id.name.to_string();
    let mine = all.iter().find(mine);
    let held_by = mine.and_then(|status| status.brake.as_ref()?.held_by.as_deref());
    if held_by == Some(HeldBy::Observing.as_str()) {
        // It is refused, with what to do instead: no use in asking.
        return Ok(true);
    }
    let would = mine.map_or_else(String::new, would_reclaim);
    if yes {
        stderr_lines(&would);
        return Ok(true);
    }
    stderr_lines(&format!("{would} Override the brake of {id} for one pass? [y/N]"));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::Failed(format!("the answer could not be read: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// How much the next pass would reclaim without a brake.
pub fn would_reclaim(status: &SystemStatus) -> String {
    let Some(census) = status.census.as_ref().filter(|census| !census.uncounted) else {
        return "How much the next pass would reclaim is not known.".to_owned();
    };
    let owners = census.owners_overdue + census.owners_spared;
    let entries = census.suspects + census.orphans_spared;
    let spared = match census.owners_spared {
        0 => String::new(),
        owners => format!(
            ", and what {} hold that are spared because the store was away",
            plural(owners, "owner", "owners")
        ),
    };
    format!(
        "The next pass would declare {} dead and reclaim {} of {}{spared}.",
        plural(owners, "owner", "owners"),
        plural(entries, "entry", "entries"),
        census.population
    )
}

fn describe(status: &BrakeStatus, again: &str) -> String {
    let id = format!("{}/{}", status.kind, status.system);
    let said = match status.setting.as_str() {
        "auto" => "decides by itself; it is ",
        _ => "",
    };
    let next = match status.setting.as_str() {
        "hold" => format!("\nTo let it decide again: lapsed brake {id} auto{again}"),
        "override" => format!("\nTo reclaim now: lapsed sweep {id}{again}"),
        _ => String::new(),
    };
    format!("{id}: {said}{}{next}", visible(&completed(&status.words, again)))
}
