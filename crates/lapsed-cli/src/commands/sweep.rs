//! `lapsed sweep`: runs one pass and prints its report.

use lapsed_core::SystemId;
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::brake::HeldBy;
use lapsed_core::sweep::{ListedSuspect, PassMode, PassReport, Refusal, Stopped};
use serde::Serialize;

use super::ask;
use crate::backend::{Backend, resolve};
use crate::cli::SweepArgs;
use crate::hints::completed;
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, Table, count, holder, lines, plural, span, visible};
use lapsed_server::systems::{self, words::fill};

/// The most entries that the table of a real pass shows; a dry run and JSON show all.
const SHOWN: usize = 20;

pub fn run(args: SweepArgs) -> Result<(), Failure> {
    let act = if args.dry_run { PassMode::DryRun } else { PassMode::Reclaim };
    let (id, report, grace_ms) = ask(&args.target, |backend| {
        let id = resolve(&args.system, &backend.systems()?)?;
        let report = backend.pass(&id, act)?;
        let grace_ms = match args.dry_run && !args.output.json {
            true => grace_ms(backend, &id)?,
            false => None,
        };
        Ok((id, report, grace_ms))
    })?;
    match args.output.json {
        true => print_json(&report)?,
        false => lines(&describe(&id, &report, grace_ms, &args.target.again()))?,
    }
    match report.stopped {
        Stopped::Brake => Err(Failure::Silent(3)),
        Stopped::Error => Err(Failure::Silent(1)),
        _ => Ok(()),
    }
}

/// How long this system keeps a session without connections, if its kind has a grace period.
fn grace_ms(backend: &dyn Backend, id: &SystemId) -> Result<Option<u64>, Failure> {
    if !systems::of(id.kind).words().has_grace {
        return Ok(None);
    }
    let all = backend.status()?;
    let one = all.iter().find(|s| s.kind == id.kind.as_str() && s.system == *id.name);
    Ok(one.and_then(|status| status.grace_ms))
}

/// The report as JSON; the list is present even if it is empty.
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

fn describe(id: &SystemId, report: &PassReport, grace_ms: Option<u64>, again: &str) -> String {
    let did = systems::of(id.kind).words().reclaimed;
    let verb = if report.dry_run { format!("would be {did}") } else { did.to_owned() };
    let mut text = format!(
        "{id}: {} of {} {verb} in {}, stopped: {}",
        count(report.reclaimed),
        plural(report.suspects, "suspect", "suspects"),
        span(report.took_ms),
        report.stopped
    );
    if report.released > 0 {
        text.push_str(&format!("\n  {}", released(report)));
    }
    for (why, number) in &report.skipped {
        let meaning = Refusal::meaning(why).map_or(String::new(), |words| format!(": {words}"));
        text.push_str(&format!("\n  left alone: {} ({}){meaning}", count(*number), visible(why)));
    }
    if let Some(detail) = &report.detail {
        text.push_str(&format!("\n  {}", visible(&completed(detail, again))));
    }
    if !report.entries.is_empty() {
        text.push_str(&format!("\n{}", list(report, grace_ms)));
    }
    if let Some(hint) = next_step(id, report, again) {
        text.push_str(&format!("\n{hint}"));
    }
    text
}

/// The line about references that dead owners held on entries which stay.
fn released(report: &PassReport) -> String {
    let verb = if report.dry_run { "would be released" } else { "released" };
    let number = count(report.released);
    format!("{verb}: {number}{}", systems::of(report.kind).words().released)
}

fn list(report: &PassReport, grace_ms: Option<u64>) -> String {
    let last = if report.dry_run { "why" } else { "receipt" };
    let columns = systems::of(report.kind).words().columns;
    let mut table = Table::new(&[columns, &["reason", "late", last]].concat());
    let shown = if report.dry_run { report.entries.len() } else { SHOWN };
    for entry in report.entries.iter().take(shown) {
        let (owner, incarnation) = holder(&entry.key, &entry.owner, entry.incarnation);
        let mut cells = vec![entry.key.to_string(), owner, incarnation];
        cells.truncate(columns.len());
        cells.extend([entry.reason.to_string(), span(entry.late_ms)]);
        let receipt = entry.receipt.as_ref().map(ToString::to_string);
        cells.push(receipt.unwrap_or_else(|| why(entry, grace_ms)));
        table.row(cells);
    }
    let more = report.reclaimed.saturating_sub(shown.min(report.entries.len()) as u64);
    match more {
        0 => table.text(),
        more => format!("{}\n... and {} more", table.text(), count(more)),
    }
}

fn why(entry: &ListedSuspect, grace_ms: Option<u64>) -> String {
    let ended = print::moment(entry.deadline_ms);
    let since = grace_ms.map(|grace_ms| print::moment(entry.deadline_ms.saturating_sub(grace_ms)));
    match (entry.reason, since) {
        // If the application writes the keys itself, there is no incarnation, only the heartbeat.
        (Reason::OwnerDead, _) if entry.incarnation.0 == 0 => {
            "its owner has no heartbeat".to_owned()
        }
        (Reason::OwnerDead, _) => format!("its owner's deadline was {ended}"),
        (Reason::OwnerRetired, _) => "its owner has retired".to_owned(),
        (Reason::Orphaned, Some(since)) => {
            format!("no client connected since {since}; its grace was over at {ended}")
        }
        (Reason::Orphaned, None) => {
            format!("no client is connected; its grace was over at {ended}")
        }
        (Reason::NeverConnected, Some(since)) => {
            format!("activated or resumed at {since}, and no client connected until {ended}")
        }
        (Reason::NeverConnected, None) => format!("no client ever connected until {ended}"),
        (Reason::LeaseExpired, _) => format!("not renewed until {ended}"),
        (Reason::DecisionExpired, _) => format!("to be kept until {ended}"),
        (Reason::HeartbeatStale, _) => format!("silent; its deadline was {ended}"),
        _ => format!("its deadline was {ended}"),
    }
}

/// The command to run next; `again` are the options that lead it to the same daemon or store.
fn next_step(id: &SystemId, report: &PassReport, again: &str) -> Option<String> {
    match report.stopped {
        Stopped::Brake => Some(match report.held_by {
            Some(HeldBy::Observing) => format!(
                "Nothing is reclaimed while lapsed only observes. If the key names are right and those \
                 owners are really dead: lapsed adopt {id}{again}"
            ),
            Some(HeldBy::OtherPass) => {
                "Wait until that pass has ended; no other override is needed.".to_owned()
            }
            Some(HeldBy::Operator) => format!(
                "An operator holds the brake. `lapsed audit{again}` says who and when; `lapsed brake \
                 {id} auto{again}` ends it."
            ),
            Some(HeldBy::StoreAway) => format!(
                "Wait until then. If those owners are really dead: `lapsed brake {id} override \
                 --reason TEXT{again}`, then sweep again."
            ),
            _ => format!(
                "The brake holds back. If those owners are really dead: `lapsed brake {id} override \
                 --reason TEXT{again}`, then sweep again."
            ),
        }),
        Stopped::Ops | Stopped::Runtime => {
            Some("There is more to do; the next pass continues where this one stopped.".to_owned())
        }
        Stopped::Activity => Some(
            "This system sweeps only when idle (sweep.idle_grace), and it is in use.".to_owned(),
        ),
        Stopped::Done if report.dry_run && report.reclaimed > 0 => {
            Some(format!("Nothing was changed. To do it: lapsed sweep {id}{again}"))
        }
        Stopped::Done if !report.dry_run && report.reclaimed > 0 => {
            let places = [("system", id.to_string()), ("again", again.to_owned())];
            let places = places.each_ref().map(|(place, text)| (*place, text.as_str()));
            Some(fill(systems::of(id.kind).words().next_step, &places))
        }
        Stopped::Done if report.detail.is_some() => Some(format!(
            "Silent owners are spared until then. To reclaim now: lapsed brake {id} override --reason TEXT{again}"
        )),
        _ => None,
    }
}
