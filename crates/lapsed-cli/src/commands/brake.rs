//! `lapsed brake`: shows or sets a system's brake.

use super::ask;
use crate::backend::resolve;
use crate::cli::{BrakeArgs, BrakeCommand};
use lapsed_server::config::units::parse_span;
use lapsed_server::failure::Failure;
use lapsed_server::node::BrakeOrder;
use lapsed_server::node::shapes::BrakeStatus;
use lapsed_server::print::{self, line, moment};

/// Sets the brake as `order` says, or shows its state.
pub fn run(args: BrakeArgs) -> Result<(), Failure> {
    let order = order(&args)?;
    let status = ask(&args.target, |backend| {
        let id = resolve(&args.system, &backend.systems()?)?;
        match order {
            Some(order) => backend.set_brake(&id, order),
            None => backend.brake(&id),
        }
    })?;
    match args.output.json {
        true => print::json(&status),
        false => line(&describe(&status, &args.target.again())),
    }
}

fn order(args: &BrakeArgs) -> Result<Option<BrakeOrder>, Failure> {
    let span = match (&args.span, args.order) {
        (None, _) => None,
        (Some(text), Some(BrakeCommand::Release)) => {
            Some(parse_span(text).map_err(|what| Failure::usage(format!("--for: {what}")))?)
        }
        _ => return Err(Failure::usage("--for goes with `release` only")),
    };
    Ok(args.order.map(|order| match order {
        BrakeCommand::Release => BrakeOrder::Release(span),
        BrakeCommand::Hold => BrakeOrder::Hold,
        BrakeCommand::Auto => BrakeOrder::Auto,
    }))
}

fn describe(status: &BrakeStatus, again: &str) -> String {
    let id = format!("{}/{}", status.kind, status.system);
    let said = match status.released_until_ms {
        Some(until) => format!("released by the operator until {}; it is ", moment(until)),
        None if status.setting == "hold" => String::new(),
        None => "decides by itself; it is ".to_owned(),
    };
    let next = match status.setting.as_str() {
        "hold" => format!("\nTo let it go: lapsed brake {id} release{again}, or auto"),
        "release" => format!("\nTo reclaim now: lapsed sweep {id}{again}"),
        _ => String::new(),
    };
    format!("{id}: {said}{}{next}", status.words)
}
