//! `lapsed restore`: restores a reclaimed entry.

use lapsed_core::receipt::ReceiptId;
use lapsed_core::system::Restored;

use super::ask;
use crate::cli::Restore;
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, line, visible};
use lapsed_server::systems;

/// Restores the entry that the receipt records as removed, and prints what happened.
pub fn run(args: Restore) -> Result<(), Failure> {
    let id: ReceiptId = args.receipt.parse()?;
    let restored = ask(&args.target, |backend| backend.restore(&id))?;
    if args.output.json {
        print::json(&restored)?;
    }
    match restored {
        Restored::Restored { key, owner, incarnation } if !args.output.json => {
            line(&systems::of(id.system.kind).restored(&key, &owner, incarnation))
        }
        Restored::Refused { why } if !args.output.json => {
            Err(Failure::failed(format!("not put back, and nothing changed: {}", visible(&why))))
        }
        Restored::Refused { .. } => Err(Failure::Silent(1)),
        _ => Ok(()),
    }
}
