//! `lapsed dead`: lists, shows, puts back and deletes dead letters.

use std::collections::BTreeSet;

use lapsed_core::inflight::rules::QueueEnd;
use lapsed_core::inflight::{Job, JobPlace};
use lapsed_core::{Kind, SystemId};
use serde_json::json;

use super::args::{Dead, ListDead, OneDead, PutBackDead, QueueEndArg};
use super::backend::{JobsBackend, ask};
use crate::backend::resolve;
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, Table, line, lines, moment, plural};

/// The most dead letters in one page.
const PAGE: usize = 1_000;

/// Runs one of the subcommands.
pub fn run(args: Dead) -> Result<(), Failure> {
    match args {
        Dead::List(args) => list(&args),
        Dead::Show(args) => show(&args),
        Dead::PutBack(PutBackDead { one, end }) => put_back(&one, end),
        Dead::Delete(args) => delete(&args),
    }
}

fn list(args: &ListDead) -> Result<(), Failure> {
    let found = ask(&args.target, |backend| {
        let systems = match &args.system {
            Some(text) => vec![of_jobs(backend, Some(text))?],
            None => all_of_jobs(backend)?,
        };
        let mut found = Vec::new();
        for system in systems {
            let dead = first(backend, &system, args.limit)?;
            found.extend(dead.into_iter().map(|job| (system.clone(), job)));
        }
        Ok(found)
    })?;
    if args.output.json {
        return found.iter().try_for_each(|(system, job)| print::json(&as_json(system, job)));
    }
    if found.is_empty() {
        return line("There are no dead letters.");
    }
    let mut table = Table::new(&["system", "job", "queue", "since", "why", "crashes", "error"]);
    found.iter().for_each(|(system, job)| table.row(row(system, job)));
    lines(&table.text())?;
    let places: BTreeSet<_> =
        found.iter().filter_map(|(system, job)| Some((system, kept_in(job)?))).collect();
    for (system, place) in places {
        line(&format!("Those of {system} are in {place}; it may retry or delete them as well."))?;
    }
    let again = args.target.again();
    line(&format!(
        "To look at one: lapsed dead show SYSTEM ID{again}; then: lapsed dead put-back SYSTEM ID{again}, or \
         lapsed dead delete SYSTEM ID{again}"
    ))
}

/// Reads the first `limit` dead letters page by page.
fn first(backend: &dyn JobsBackend, system: &SystemId, limit: usize) -> Result<Vec<Job>, Failure> {
    let mut found: Vec<Job> = Vec::new();
    while found.len() < limit {
        let after = found.last().map(|job| job.id.to_string());
        let wanted = (limit - found.len()).min(PAGE);
        let page = backend.dead(system, after.as_deref(), wanted)?;
        found.extend(page.dead);
        if page.next.is_none() {
            break;
        }
    }
    Ok(found)
}

/// The row of one dead letter; the error is shortened to one line.
fn row(system: &SystemId, job: &Job) -> Vec<String> {
    let Some((why, at_ms, error)) = letter(job) else {
        return vec![system.to_string(), job.id.to_string(), job.queue.to_string()];
    };
    let error = error.lines().next().unwrap_or_default();
    let short: String = error.chars().take(60).collect();
    vec![
        system.to_string(),
        job.id.to_string(),
        job.queue.to_string(),
        moment(at_ms),
        why.to_string(),
        job.crashes.to_string(),
        if short.len() < error.len() { format!("{short}...") } else { short },
    ]
}

fn letter(job: &Job) -> Option<(lapsed_core::inflight::rules::DeadLetterReason, u64, &str)> {
    match &job.place {
        JobPlace::Dead { why, at_ms, error, .. } => {
            Some((*why, *at_ms, error.as_deref().unwrap_or("")))
        }
        _ => None,
    }
}

/// Where the application itself keeps a dead letter, in words.
fn kept_in(job: &Job) -> Option<&str> {
    match &job.place {
        JobPlace::Dead { kept_in, .. } => kept_in.as_deref(),
        _ => None,
    }
}

fn as_json(system: &SystemId, job: &Job) -> serde_json::Value {
    let mut value = json!(job);
    value["system"] = json!(system.name);
    value["kind"] = json!(system.kind);
    value
}

fn show(args: &OneDead) -> Result<(), Failure> {
    let (system, job) = ask(&args.target, |backend| {
        let (system, id) = which(backend, &args.which)?;
        let job = backend.dead_letter(&system, id)?;
        let job = job.ok_or_else(|| missing(&system, id, &args.target.again()))?;
        Ok((system, job))
    })?;
    if args.output.json {
        return print::json(&as_json(&system, &job));
    }
    let mut table = Table::bare();
    let mut fact = |name: &str, value: String| table.row(vec![format!("  {name}"), value]);
    fact("queue", job.queue.to_string());
    if let Some((why, at_ms, error)) = letter(&job) {
        fact("since", moment(at_ms));
        fact("why", why.to_string());
        if let Some(place) = kept_in(&job) {
            fact("kept in", place.to_owned());
        }
        if !error.is_empty() {
            fact("error", error.to_owned());
        }
    }
    fact("crashes", plural(u64::from(job.crashes), "worker died with it", "workers died with it"));
    fact("entered", moment(job.entered_ms));
    fact("payload", job.payload.clone());
    lines(&format!("{} of {system}\n{}", job.id, table.text()))?;
    let again = args.target.again();
    line(&format!("To try it again: lapsed dead put-back {system} {}{again}", job.id))
}

fn put_back(args: &OneDead, end: QueueEndArg) -> Result<(), Failure> {
    let end = match end {
        QueueEndArg::Front => QueueEnd::Front,
        QueueEndArg::Back => QueueEnd::Back,
    };
    let act =
        |backend: &dyn JobsBackend, system: &SystemId, id: &str| backend.put_back(system, id, end);
    change(args, "queued", "is back on its queue, its crashes forgotten", act)
}

fn delete(args: &OneDead) -> Result<(), Failure> {
    let act =
        |backend: &dyn JobsBackend, system: &SystemId, id: &str| backend.delete_dead(system, id);
    change(args, "deleted", "is deleted", act)
}

/// Changes one dead letter and prints what was done; fails if there is none.
fn change(
    args: &OneDead,
    outcome: &str,
    words: &str,
    act: impl Fn(&dyn JobsBackend, &SystemId, &str) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let (system, id) = ask(&args.target, |backend| {
        let (system, id) = which(backend, &args.which)?;
        match act(backend, &system, id)? {
            true => Ok((system, id)),
            false => Err(missing(&system, id, &args.target.again())),
        }
    })?;
    match args.output.json {
        true => print::json(&json!({
            "system": system.name, "kind": system.kind, "id": id, "outcome": outcome
        })),
        false => line(&format!("{id} {words}")),
    }
}

fn missing(system: &SystemId, id: &str, again: &str) -> Failure {
    Failure::failed(format!(
        "{system} has no dead letter `{id}`; see `lapsed dead list {system}{again}`"
    ))
}

/// Parses `[SYSTEM] ID`; the system may be omitted if there is only one of kind inflight.
fn which<'a>(
    backend: &dyn JobsBackend,
    which: &'a [String],
) -> Result<(SystemId, &'a str), Failure> {
    match which {
        [system, id] => Ok((of_jobs(backend, Some(system))?, id)),
        [id] => Ok((of_jobs(backend, None)?, id)),
        _ => Err(Failure::usage("give the system and the id of the job")),
    }
}

fn all_of_jobs(backend: &dyn JobsBackend) -> Result<Vec<SystemId>, Failure> {
    let mut systems = backend.systems()?;
    systems.retain(|system| system.kind == Kind::Inflight);
    match systems.is_empty() {
        false => Ok(systems),
        true => Err(Failure::usage(
            "there is no system of kind `inflight`: only jobs become dead letters",
        )),
    }
}

fn of_jobs(backend: &dyn JobsBackend, text: Option<&str>) -> Result<SystemId, Failure> {
    let systems = all_of_jobs(backend)?;
    resolve(text.unwrap_or(Kind::Inflight.as_str()), &systems)
}
