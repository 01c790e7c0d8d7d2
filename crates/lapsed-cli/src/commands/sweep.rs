//! `lapsed sweep`

use lapsed::SystemId;
use lapsed::sweep::{Act, Listed, PassReport, Stopped};
use serde::Serialize;

use super::ask;
use crate::backend::resolve;
use crate::cli::Sweep;
use crate::failure::Failure;
use crate::print::{self, Table, count, line, plural, span};

/// How many entries are shown to people.
const SHOWN: usize = 20;

/// One pass now.
pub fn run(args: Sweep) -> Result<(), Failure> {
    let act = if args.dry_run { Act::DryRun } else { Act::Reclaim };
    let (id, report) = ask(&args.target, |backend| {
        let id = resolve(&args.system, &backend.systems()?)?;
        let report = backend.pass(&id, act)?;
        Ok((id, report))
    })?;
    match args.output.json {
        true => print_json(&report)?,
        false => line(&describe(&id, &report))?,
    }
    match report.stopped {
        Stopped::Brake => Err(Failure::Silent(3)),
        Stopped::Error => Err(Failure::Silent(1)),
        _ => Ok(()),
    }
}

/// The list is there even when it is empty.
#[derive(Serialize)]
struct WithList<'a> {
    #[serde(flatten)]
    report: &'a PassReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<[(); 0]>,
}

fn print_json(report: &PassReport) -> Result<(), Failure> {
    let entries = report.entries.is_empty().then_some([]);
    print::json(&WithList { report, entries })
}

fn describe(id: &SystemId, report: &PassReport) -> String {
    let verb = if report.dry_run { "would be reclaimed" } else { "reclaimed" };
    let mut text = format!(
        "{id}: {} of {} {verb} in {}, stopped: {}",
        count(report.reclaimed),
        plural(report.suspects, "suspect", "suspects"),
        span(report.took_ms),
        report.stopped
    );
    for (why, number) in &report.skipped {
        text.push_str(&format!("\n  left alone: {} ({why})", count(*number)));
    }
    if let Some(detail) = &report.detail {
        text.push_str(&format!("\n  {detail}"));
    }
    if !report.entries.is_empty() {
        text.push_str(&format!("\n{}", list(report)));
    }
    if let Some(hint) = next_step(id, report) {
        text.push_str(&format!("\n{hint}"));
    }
    text
}

fn list(report: &PassReport) -> String {
    let last = if report.dry_run { "why" } else { "receipt" };
    let mut table = Table::new(&["key", "owner", "incarnation", "reason", "late", last]);
    let shown = if report.dry_run { report.entries.len() } else { SHOWN };
    for entry in report.entries.iter().take(shown) {
        table.row(vec![
            entry.key.to_string(),
            entry.owner.to_string(),
            entry.incarnation.to_string(),
            entry.reason.to_string(),
            span(entry.late_ms),
            entry.receipt.as_ref().map_or_else(|| why(entry), ToString::to_string),
        ]);
    }
    let more = report.reclaimed.saturating_sub(shown.min(report.entries.len()) as u64);
    match more {
        0 => table.text(),
        more => format!("{}\n... and {} more", table.text(), count(more)),
    }
}

fn why(entry: &Listed) -> String {
    match entry.reason {
        lapsed::receipt::Reason::OwnerDead => {
            format!("its owner's time ran out at {}", print::moment(entry.deadline_ms))
        }
        lapsed::receipt::Reason::OwnerRetired => "its owner has retired".to_owned(),
        lapsed::receipt::Reason::Orphaned => {
            format!("nobody connected again until {}", print::moment(entry.deadline_ms))
        }
        lapsed::receipt::Reason::NeverConnected => {
            format!("nobody ever connected until {}", print::moment(entry.deadline_ms))
        }
    }
}

fn next_step(id: &SystemId, report: &PassReport) -> Option<String> {
    match report.stopped {
        Stopped::Brake => Some(format!(
            "The brake holds back. If those owners are really dead: lapsed brake {id} release, \
             then sweep again."
        )),
        Stopped::Ops | Stopped::Runtime => {
            Some("There is more to do; the next pass goes on where this one stopped.".to_owned())
        }
        Stopped::Activity => Some(
            "This system sweeps only when idle (sweep.idle_grace), and it is in use.".to_owned(),
        ),
        Stopped::Done if report.dry_run && report.reclaimed > 0 => {
            Some(format!("Nothing was changed. To do it: lapsed sweep {id}"))
        }
        Stopped::Done if !report.dry_run && report.reclaimed > 0 => {
            Some("To put one back: lapsed restore RECEIPT".to_owned())
        }
        Stopped::Done if report.detail.is_some() => Some(format!(
            "Whoever is silent is spared until then; not to wait: lapsed brake {id} release"
        )),
        _ => None,
    }
}
