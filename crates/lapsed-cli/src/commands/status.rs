//! `lapsed status`: prints the state of all systems, or of one in detail.

use lapsed_core::sweep::Census;

use super::ask;
use crate::backend::resolve;
use crate::cli::Status;
use crate::hints::completed;
use lapsed_server::failure::Failure;
use lapsed_server::node::shapes::{Sweeps, SystemStatus};
use lapsed_server::print::{self, Table, ago, count, lines, plural, span, visible};
use lapsed_server::systems;
use lapsed_server::systems::words::{KindWords, fill};

/// Prints all systems as a table, or one in detail. If the state of a system could not be read, the others are
/// printed first, and the exit code is 1.
pub fn run(args: Status) -> Result<(), Failure> {
    let (all, chosen) = ask(&args.target, |backend| {
        let chosen = match &args.system {
            Some(text) => Some(resolve(text, &backend.systems()?)?),
            None => None,
        };
        Ok((backend.status()?, chosen))
    })?;
    let Some(id) = chosen else {
        let failed = all.iter().any(|status| status.error.is_some());
        match args.output.json {
            true => print::json(&Sweeps { systems: all }),
            false => lines(&table(&all)),
        }?;
        return verdict(failed);
    };
    let one = all.iter().find(|s| s.kind == id.kind.as_str() && s.system == *id.name);
    let one = one.ok_or_else(|| Failure::failed(format!("{id} has just gone")))?;
    match args.output.json {
        true => print::json(one),
        false => lines(&completed(&detail(one), &args.target.again())),
    }?;
    verdict(one.error.is_some())
}

fn verdict(failed: bool) -> Result<(), Failure> {
    match failed {
        true => Err(Failure::Silent(1)),
        false => Ok(()),
    }
}

fn table(all: &[SystemStatus]) -> String {
    let headings =
        ["system", "entries", "suspects", "alive", "overdue", "brake", "lag p50/p99", "last pass"];
    let mut table = Table::new(&headings);
    for status in all {
        let census = |pick: fn(&Census) -> u64| {
            let census = status.census.as_ref().filter(|_| is_counted(status));
            census.map_or("?".to_owned(), |c| count(pick(c)))
        };
        table.row(vec![
            format!("{}/{}", status.kind, status.system),
            census(|c| c.population),
            census(|c| c.suspects),
            owners(status, |c| c.owners_live),
            owners(status, |c| c.owners_overdue),
            status.brake.as_ref().map_or("?".to_owned(), |b| b.state.clone()),
            lag(status),
            last_pass(status),
        ]);
    }
    let errors = all.iter().filter_map(|s| {
        s.error.as_ref().map(|error| format!("\n{}/{}: {}", s.kind, s.system, visible(error)))
    });
    [table.text()].into_iter().chain(errors).collect()
}

/// A number of owners: `-` if the kind has no owners, `?` if it could not be read.
fn owners(status: &SystemStatus, pick: fn(&Census) -> u64) -> String {
    match &status.census {
        _ if words(status).owners.is_none() => "-".to_owned(),
        Some(census) => count(pick(census)),
        None => "?".to_owned(),
    }
}

fn lag(status: &SystemStatus) -> String {
    match &status.lag {
        Some(lag) => format!("{} / {}", span(lag.p50_ms), span(lag.p99_ms)),
        None => "-".to_owned(),
    }
}

fn last_pass(status: &SystemStatus) -> String {
    match &status.last_pass {
        Some(pass) => format!("{}, {}", ago(pass.started_ms), pass.stopped),
        None => "none yet".to_owned(),
    }
}

fn detail(status: &SystemStatus) -> String {
    let mut table = Table::bare();
    let mut fact = |name: &str, value: String| table.row(vec![format!("  {name}"), value]);
    if let Some(census) = &status.census {
        let suspects = plural(census.suspects, "suspect", "suspects");
        match is_counted(status) {
            true => fact(
                words(status).entries,
                format!("{}, of them {suspects}", count(census.population)),
            ),
            false => fact(
                words(status).entries,
                "not counted: that would list every one of them".to_owned(),
            ),
        }
        if let Some(owners) = words(status).owners {
            let died = words(status).died;
            fact(
                owners,
                format!(
                    "{} alive, {} overdue, {} {died} lately",
                    count(census.owners_live),
                    count(census.owners_overdue),
                    count(census.owners_died_recently)
                ),
            );
        }
        if census.suspects > 0 {
            fact("oldest", format!("{} past its deadline", span(census.oldest_late_ms)));
        }
    }
    let own = systems::named(&status.kind).map(|kind| kind.facts(status));
    for (name, value) in own.into_iter().flatten() {
        fact(name, value);
    }
    let observation = status.census.as_ref().and_then(|census| census.observation.as_ref());
    if let Some(observation) = observation {
        fact("adopted", observation.describe());
    }
    if let Some(brake) = &status.brake {
        fact("brake", brake.words.clone());
    }
    if let Some(lag) = &status.lag {
        let of = plural(lag.samples, "receipt", "receipts");
        let (p50, p99) = (span(lag.p50_ms), span(lag.p99_ms));
        fact("reclaim lag", format!("p50 {p50}, p99 {p99} (newest {of})"));
    }
    fact("last pass", describe_pass(status));
    let leads = match status.leads {
        Some(true) => ", this daemon leads".to_owned(),
        Some(false) => match &status.leader {
            Some(leader) => format!(", {leader} leads"),
            None => ", nobody leads".to_owned(),
        },
        None => String::new(),
    };
    let every = span(status.every_ms);
    let idle = match status.idle_grace_ms {
        Some(grace_ms) => format!(" once it was unused for {}", span(grace_ms)),
        None => String::new(),
    };
    fact("schedule", format!("a pass every {every}{idle}, {}{leads}", dead_after(status)));
    if let Some(store) = &status.store {
        fact("store", format!("`{}`: {}", status.store_name, store.place));
    }
    if let Some(error) = &status.error {
        fact("error", error.clone());
    }
    format!("{}/{}\n{}", status.kind, status.system, table.text())
}

/// Whether the store counts its entries. An object store does not, because counting costs requests.
fn is_counted(status: &SystemStatus) -> bool {
    status.census.as_ref().is_none_or(|census| !census.uncounted)
}

fn dead_after(status: &SystemStatus) -> String {
    let threshold = span(status.threshold_ms);
    let grace = span(status.grace_ms.unwrap_or(status.threshold_ms));
    fill(words(status).dead_after, &[("threshold", &threshold), ("grace", &grace)])
}

fn words(status: &SystemStatus) -> &'static KindWords {
    systems::words_of(&status.kind)
}

fn describe_pass(status: &SystemStatus) -> String {
    let Some(pass) = &status.last_pass else {
        return "none in this process yet".to_owned();
    };
    let released = match pass.released {
        0 => String::new(),
        number => format!(", {} released from dead owners", count(number)),
    };
    let left_alone = match pass.left_alone() {
        none if none.is_empty() => none,
        some => format!(", left alone: {some}"),
    };
    let detail = pass.detail.as_ref().map_or(String::new(), |words| format!(" ({words})"));
    format!(
        "{}: {} of {} reclaimed{released}{left_alone} in {}, stopped: {}{detail}",
        ago(pass.started_ms),
        count(pass.reclaimed),
        plural(pass.suspects, "suspect", "suspects"),
        span(pass.took_ms),
        pass.stopped
    )
}
