//! `lapsed reconcile`: compares an index with the stored data, and repairs it.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lapsed_core::SystemId;
use lapsed_core::reconcile::{Healed, ReconcileReport};
use lapsed_core::sweep::{Cursor, PassMode};

use super::{ask, ask_of};
use crate::backend::{self, Backend, Progress, resolve};
use crate::cli::ReconcileArgs;
use lapsed_server::failure::Failure;
use lapsed_server::node::shapes::{Estimate, Reconciliation};
use lapsed_server::node::{LIST_MAX, ReconcileOrder};
use lapsed_server::print::{self, Table, count, lines, plural, span, stderr_lines, visible};

/// The progress bar appears after this time.
const BAR_AFTER: Duration = Duration::from_secs(1);

/// Compares the index with the stored data, and repairs it unless `--dry-run` or `--compare` is given.
pub fn run(args: ReconcileArgs, verbose: bool) -> Result<(), Failure> {
    let act = if args.dry_run || args.compare { PassMode::DryRun } else { PassMode::Reclaim };
    let order = ReconcileOrder {
        act,
        after: Cursor(args.from.clone()),
        list: if verbose { LIST_MAX } else { 0 },
    };
    let bar = Bar::default();
    let work = |backend: &dyn Backend| {
        let id = resolve(&args.system, &backend.systems()?)?;
        print_estimate(backend, &id);
        let done = backend.reconcile(&id, order, &mut |progress| bar.show(progress));
        bar.clear();
        Ok((id, done?))
    };
    let (id, done) = match &args.redis {
        Some(url) => ask_of(backend::open_at(url, &args.system)?, work)?,
        None => ask(&args.target, work)?,
    };
    let again = match &args.redis {
        // The address may contain a password.
        Some(_) => " --redis URL".to_owned(),
        None => args.target.again(),
    };
    match args.output.json {
        true => print::json(&done)?,
        false => lines(&describe(&id, &done, args.compare, &again))?,
    }
    let differs = args.compare && !done.report.agree;
    match done.report.finished && !differs {
        true => Ok(()),
        false => Err(Failure::Silent(1)),
    }
}

/// Prints to stderr how many requests the work takes, if the store can estimate it.
fn print_estimate(backend: &dyn Backend, id: &SystemId) {
    match backend.estimate(id) {
        Ok(Estimate { requests: Some(requests) }) => {
            let requests = plural(requests, "request", "requests");
            stderr_lines(&format!("{id}: this takes about {requests}"));
        }
        Ok(Estimate { requests: None }) => {}
        Err(failure) => {
            stderr_lines(&format!("{id}: the number of requests cannot be estimated: {failure}"))
        }
    }
}

/// The progress bar; drawn on a terminal only, and only after `BAR_AFTER`.
struct Bar {
    began: std::time::Instant,
    bar: ProgressBar,
}

impl Default for Bar {
    fn default() -> Bar {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Bar { began: std::time::Instant::now(), bar }
    }
}

impl Bar {
    fn show(&self, progress: Progress) {
        if self.began.elapsed() < BAR_AFTER {
            return;
        }
        if self.bar.is_hidden() && std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            let words = "{bar:30} {human_pos} of about {human_len} rows, {per_sec}, {eta} left";
            let style = ProgressStyle::with_template(words);
            self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        }
        if let Some(extent) = progress.extent {
            self.bar.set_length(extent.max(progress.examined));
        }
        self.bar.set_position(progress.examined);
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// `again`: the options that lead a further command to the same daemon or store.
fn describe(id: &SystemId, done: &Reconciliation, compare: bool, again: &str) -> String {
    let report = &done.report;
    let mut text = match compare {
        true => compared(id, report),
        false => account(id, report),
    };
    if !report.left.is_empty() {
        text.push_str(&format!("\n  left as they are: {}", visible(&left(&report.left))));
    }
    if !done.changes.is_empty() {
        text.push_str(&format!("\n{}", list(done)));
    }
    if let Some(error) = &done.error {
        text.push_str(&format!("\n  it broke off: {}", visible(error)));
    }
    for hint in hints(id, report, again) {
        text.push_str(&format!("\n{}", visible(&hint)));
    }
    text
}

fn account(id: &SystemId, report: &ReconcileReport) -> String {
    let would = if report.dry_run { "would be " } else { "" };
    format!(
        "{id}: {} examined in {}: {} {would}added, {} {would}removed, {} {would}corrected; {}",
        plural(report.examined, "row", "rows"),
        span(report.took_ms),
        count(report.added),
        count(report.removed),
        count(report.corrected),
        agreement(report)
    )
}

fn agreement(report: &ReconcileReport) -> String {
    let so_far = if report.finished { "" } else { " so far" };
    if let Some(subject) = &report.subject {
        return match (report.agree, report.dry_run) {
            (true, _) => format!("nothing contradicts itself{so_far} in {}", visible(subject)),
            (false, true) => format!("contradictions were found{so_far} in {}", visible(subject)),
            (false, false) => format!("healed{so_far}: {}", visible(subject)),
        };
    }
    match (report.agree, report.dry_run) {
        (true, _) => format!("index and truth agree{so_far}"),
        (false, true) => format!("index and truth differ{so_far}"),
        (false, false) if report.finished => "index and truth agree now".to_owned(),
        (false, false) => format!("healed{so_far}"),
    }
}

fn compared(id: &SystemId, report: &ReconcileReport) -> String {
    let rows = plural(report.examined, "row", "rows");
    let so_far = if report.finished { "" } else { " so far" };
    if report.agree {
        return format!("{id}: the scan and the index agree{so_far}: {rows}, no difference");
    }
    format!(
        "{id}: the scan and the index do not agree{so_far}: of {rows}, {} missing from the index, {} \
         in it without reason, {} in it with something wrong",
        count(report.added),
        count(report.removed),
        count(report.corrected)
    )
}

fn left(left: &BTreeMap<String, u64>) -> String {
    let each = left.iter().map(|(why, number)| format!("{} ({why})", count(*number)));
    each.collect::<Vec<_>>().join(", ")
}

fn list(done: &Reconciliation) -> String {
    let mut table = Table::new(&["change", "key", "why"]);
    for change in &done.changes {
        let what = word(change.what, done.report.dry_run);
        table.row(vec![what.to_owned(), change.key.clone(), change.why.clone()]);
    }
    match done.report.drift().saturating_sub(done.changes.len() as u64) {
        0 => table.text(),
        more => format!("{}\n... and {} more", table.text(), count(more)),
    }
}

fn word(what: Healed, dry_run: bool) -> &'static str {
    match (what, dry_run) {
        (Healed::Added, true) => "add",
        (Healed::Removed, true) => "remove",
        (Healed::Corrected, true) => "correct",
        (what, _) => what.as_str(),
    }
}

fn hints(id: &SystemId, report: &ReconcileReport, again: &str) -> Vec<String> {
    let mut hints = Vec::new();
    let dry = if report.dry_run { " --dry-run" } else { "" };
    if !report.finished {
        let from = report.next.as_ref().and_then(|cursor| cursor.0.as_deref());
        let from = from.map_or(String::new(), |cursor| format!(" --from '{cursor}'"));
        hints.push(format!(
            "Stopped before the end. To go on: lapsed reconcile {id}{dry}{from}{again}"
        ));
    }
    if report.dry_run && !report.agree {
        hints.push(format!("Nothing was changed. To heal it: lapsed reconcile {id}{again}"));
    }
    hints
}

#[cfg(test)]
mod tests;
