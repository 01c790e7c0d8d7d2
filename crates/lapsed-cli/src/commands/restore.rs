//! `lapsed restore`

use lapsed_core::Kind;
use lapsed_core::receipt::ReceiptId;
use lapsed_core::system::Restored;

use super::ask;
use crate::cli::Restore;
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, line};

/// Puts back what a receipt removed.
pub fn run(args: Restore) -> Result<(), Failure> {
    let id: ReceiptId = args.receipt.parse()?;
    let restored = ask(&args.target, |backend| backend.restore(&id))?;
    if args.output.json {
        print::json(&restored)?;
    }
    match restored {
        Restored::Restored { key, .. } if !args.output.json && id.system.kind == Kind::Sessions => {
            line(&format!("{key} is back, disconnected, with a whole grace before it"))
        }
        Restored::Restored { key, .. } if !args.output.json && id.system.kind == Kind::Inflight => {
            line(&format!("{key} is back on its queue"))
        }
        Restored::Restored { key, owner, incarnation }
            if !args.output.json && id.system.kind == Kind::Leases =>
        {
            line(&describe_lease(&key, &owner, incarnation))
        }
        Restored::Restored { key, owner, incarnation } if !args.output.json => {
            line(&format!("{key} is back, held by {owner} (incarnation {incarnation})"))
        }
        Restored::Refused { why } if !args.output.json => {
            Err(Failure::failed(format!("not put back, and nothing changed: {why}")))
        }
        Restored::Refused { .. } => Err(Failure::Silent(1)),
        Restored::Restored { .. } => Ok(()),
    }
}

/// A decision has no token.
fn describe_lease(key: &str, owner: &str, token: u64) -> String {
    match token {
        0 => format!("{key} is decided again: {owner}"),
        token => format!(
            "{key} is held by {owner} again, by the new token {token} and for a whole TTL; the old \
             token stays dead"
        ),
    }
}
