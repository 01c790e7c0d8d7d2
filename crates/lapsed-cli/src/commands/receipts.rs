//! `lapsed receipts`: lists receipts, and follows new ones.

use std::collections::HashSet;

use lapsed_core::SystemId;
use lapsed_core::receipt::{Receipt, ReceiptId};

use super::{ask, tell_missing};
use crate::backend::{Backend, Followed, ReceiptListing, resolve};
use crate::cli::ReceiptsArgs;
use lapsed_server::failure::Failure;
use lapsed_server::node::missing::MissingSystem;
use lapsed_server::node::page::PAGE_MAX;
use lapsed_server::print::{self, Table, holder, line, lines, moment, span};
use lapsed_server::systems;

/// Prints the newest receipts; with `--follow`, also new ones as they arrive.
pub fn run(args: ReceiptsArgs) -> Result<(), Failure> {
    ask(&args.target, |backend| {
        let system = match &args.system {
            Some(text) => Some(resolve(text, &backend.systems()?)?),
            None => None,
        };
        match args.follow {
            true => follow(backend, &args, system),
            false => list(backend, &args, system),
        }
    })
}

fn list(
    backend: &dyn Backend,
    args: &ReceiptsArgs,
    system: Option<SystemId>,
) -> Result<(), Failure> {
    let (receipts, missing) = newest(backend, args, system)?;
    tell_missing(&missing);
    if args.output.json {
        return receipts.iter().try_for_each(print::json);
    }
    if receipts.is_empty() {
        return line(match missing.is_empty() {
            true => "Nothing was reclaimed that is still remembered and fits.",
            false => {
                "In the systems that answer, nothing was reclaimed that is still remembered and fits."
            }
        });
    }
    let mut table = Table::new(&HEADINGS);
    receipts.iter().for_each(|receipt| table.row(row(receipt)));
    lines(&table.text())?;
    line(&format!("To put one back: lapsed restore RECEIPT{}", args.target.again()))
}

/// Reads pages until there are `limit` receipts, newest first; and the systems that are missing.
fn newest(
    backend: &dyn Backend,
    args: &ReceiptsArgs,
    system: Option<SystemId>,
) -> Result<(Vec<Receipt>, Vec<MissingSystem>), Failure> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let (key, owner) = (args.key.clone(), args.owner.clone());
    let mut listing = ReceiptListing { system, before: None, limit: 0, key, owner };
    while found.len() < args.limit {
        listing.limit = (args.limit - found.len()).min(PAGE_MAX);
        let page = backend.receipts(&listing)?;
        found.extend(page.receipts);
        missing = page.missing;
        match page.next {
            Some(next) => listing.before = Some(next),
            None => break,
        }
    }
    Ok((found, missing))
}

/// Prints earlier receipts, oldest first, then new ones. A receipt that is written while the earlier ones are
/// listed arrives twice and is printed once.
fn follow(
    backend: &dyn Backend,
    args: &ReceiptsArgs,
    system: Option<SystemId>,
) -> Result<(), Failure> {
    let mut seen: HashSet<ReceiptId> = HashSet::new();
    let chosen = system.clone();
    backend.follow(system.as_ref(), &mut |told| match told {
        Followed::Begun => {
            let (mut before, missing) = newest(backend, args, chosen.clone())?;
            tell_missing(&missing);
            before.reverse();
            seen.extend(before.iter().map(|receipt| receipt.id.clone()));
            before.iter().try_for_each(|receipt| tell(args, receipt))
        }
        Followed::Receipt(receipt) => match seen.remove(&receipt.id) || !fits(args, &receipt) {
            true => Ok(()),
            false => tell(args, &receipt),
        },
        Followed::Missing(missing) if missing.is_empty() => {
            print::stderr_lines("every store answers again: nothing is missing");
            Ok(())
        }
        Followed::Missing(missing) => {
            tell_missing(&missing);
            Ok(())
        }
    })
}

fn fits(args: &ReceiptsArgs, receipt: &Receipt) -> bool {
    args.key.as_ref().is_none_or(|key| receipt.key.as_str() == key)
        && args.owner.as_ref().is_none_or(|owner| receipt.owner.as_str() == owner)
}

fn tell(args: &ReceiptsArgs, receipt: &Receipt) -> Result<(), Failure> {
    match args.output.json {
        true => print::json(receipt),
        false => line(&row(receipt).join("  ")),
    }
}

const HEADINGS: [&str; 7] = ["when", "receipt", "key", "owner", "incarnation", "why", "late"];

fn row(receipt: &Receipt) -> Vec<String> {
    let mut reason = receipt.reason.to_string();
    if let Some(did) = systems::of(receipt.id.system.kind).effect(receipt) {
        reason.push_str(&format!(", {did}"));
    }
    if let Some(at) = receipt.restored_ms {
        reason.push_str(&format!(", restored {}", moment(at)));
    }
    let (owner, incarnation) = holder(&receipt.key, &receipt.owner, receipt.incarnation);
    vec![
        moment(receipt.at_ms),
        receipt.id.to_string(),
        receipt.key.to_string(),
        owner,
        incarnation,
        reason,
        span(receipt.evidence.late_ms),
    ]
}
