//! `lapsed adopt`: confirms the configuration of an adopted system.

use super::ask;
use crate::backend::resolve;
use crate::cli::AdoptArgs;
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, line};

/// Records in the store that the configuration is right, and prints what was seen of the owners.
pub fn run(args: AdoptArgs) -> Result<(), Failure> {
    let status = ask(&args.target, |backend| {
        let id = resolve(&args.system, &backend.systems()?)?;
        backend.adopt(&id)
    })?;
    if args.output.json {
        return print::json(&status);
    }
    let (id, again) = (format!("{}/{}", status.kind, status.system), args.target.again());
    line(&format!(
        "{id}: confirmed, so that passes reclaim what has no heartbeat; {}\nTo reclaim now: lapsed sweep {id}{again}",
        status.words
    ))
}
