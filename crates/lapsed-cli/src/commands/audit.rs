//! `lapsed audit`: lists the actions of operators.

use super::{ask, tell_missing};
use crate::backend::{Backend, resolve};
use crate::cli::audit::Audit;
use lapsed_server::failure::Failure;
use lapsed_server::node::audit::{AUDIT_PAGE_MAX, AuditEntry};
use lapsed_server::node::missing::MissingSystem;
use lapsed_server::print::{self, Table, line, lines, moment};

/// Prints the actions of operators, newest first.
pub fn run(args: Audit) -> Result<(), Failure> {
    if args.limit == 0 {
        return Err(Failure::usage("-n must be above 0"));
    }
    let (entries, missing) = ask(&args.target, |backend| newest(backend, &args))?;
    tell_missing(&missing);
    if args.output.json {
        return entries.iter().try_for_each(print::json);
    }
    match (entries.is_empty(), missing.is_empty()) {
        (true, true) => line("No operator actions are recorded."),
        (true, false) => line("No operator actions are recorded in the systems that answered."),
        (false, _) => lines(&table(&entries)),
    }
}

fn newest(
    backend: &dyn Backend,
    args: &Audit,
) -> Result<(Vec<AuditEntry>, Vec<MissingSystem>), Failure> {
    let system = match &args.system {
        Some(text) => Some(resolve(text, &backend.systems()?)?),
        None => None,
    };
    let mut all: Vec<AuditEntry> = Vec::new();
    let (mut before, mut missing) = (None, Vec::new());
    while all.len() < args.limit {
        let limit = (args.limit - all.len()).min(AUDIT_PAGE_MAX);
        let page = backend.audit(system.as_ref(), before.as_deref(), limit)?;
        all.extend(page.entries);
        missing = page.missing;
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    Ok((all, missing))
}

fn table(entries: &[AuditEntry]) -> String {
    let mut table = Table::new(&["when", "who", "from", "what", "to what", "outcome"]);
    for entry in entries {
        table.row(vec![
            moment(entry.at_ms),
            entry.who.clone(),
            entry.from.clone().unwrap_or_else(|| "-".to_owned()),
            entry.what.clone(),
            entry.target.clone(),
            entry
                .outcome
                .clone()
                .unwrap_or_else(|| "not known: it began, and was not ended".to_owned()),
        ]);
    }
    table.text()
}
