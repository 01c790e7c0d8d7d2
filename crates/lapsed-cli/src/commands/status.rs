//! `lapsed status`

use lapsed_core::Kind;
use lapsed_core::sweep::Census;

use super::ask;
use crate::backend::resolve;
use crate::cli::Status;
use lapsed_server::failure::Failure;
use lapsed_server::node::shapes::{AvailabilityStatus, Sweeps, SystemStatus};
use lapsed_server::print::{self, Table, ago, count, line, plural, span};

/// All systems in a table, or one in detail. Exit code 1, after all that could be read, when something
/// could not.
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
            false => line(&table(&all)),
        }?;
        return verdict(failed);
    };
    let one = all.iter().find(|s| s.kind == id.kind.as_str() && s.system == *id.name);
    let one = one.ok_or_else(|| Failure::failed(format!("{id} has just gone")))?;
    match args.output.json {
        true => print::json(one),
        false => line(&detail(one)),
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
        s.error.as_ref().map(|error| format!("\n{}/{}: {error}", s.kind, s.system))
    });
    [table.text()].into_iter().chain(errors).collect()
}

/// Leases have none: they end by themselves.
fn owners(status: &SystemStatus, pick: fn(&Census) -> u64) -> String {
    match &status.census {
        _ if is_leases(status) => "-".to_owned(),
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
            true => {
                fact(things(status), format!("{}, of them {suspects}", count(census.population)))
            }
            false => {
                fact(things(status), "not counted: that would list every one of them".to_owned())
            }
        }
        if !is_leases(status) {
            let died = if is_providers(status) { "set offline" } else { "died" };
            fact(
                owners_are(status),
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
    if let Some(jobs) = &status.jobs {
        fact("queued", count(jobs.queued));
        fact("dead letters", count(jobs.dead));
        fact(
            "account",
            format!(
                "{} entered, {} completed, {} dropped",
                count(jobs.entered),
                count(jobs.completed),
                count(jobs.dropped)
            ),
        );
    }
    if let Some(availability) = &status.availability {
        for (name, value) in providers(availability) {
            fact(name, value);
        }
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
        Some(grace_ms) => format!(" once nobody used it for {}", span(grace_ms)),
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

/// In an object store nobody keeps count, and counting has its price.
fn is_counted(status: &SystemStatus) -> bool {
    status.census.as_ref().is_none_or(|census| !census.uncounted)
}

fn is_leases(status: &SystemStatus) -> bool {
    status.kind == Kind::Leases.as_str()
}

/// What its entries are called.
fn things(status: &SystemStatus) -> &'static str {
    match status.kind.as_str() {
        kind if kind == Kind::Sessions.as_str() => "sessions",
        kind if kind == Kind::Inflight.as_str() => "in flight",
        kind if kind == Kind::Leases.as_str() => "leases",
        kind if kind == Kind::Availability.as_str() => "online",
        _ => "entries",
    }
}

/// What its owners are called.
fn owners_are(status: &SystemStatus) -> &'static str {
    if is_providers(status) { "providers" } else { "owners" }
}

fn is_providers(status: &SystemStatus) -> bool {
    status.kind == Kind::Availability.as_str()
}

/// Who can take work, and how the mirror stands.
fn providers(of: &AvailabilityStatus) -> Vec<(&'static str, String)> {
    let said = |source: &String| match source.as_str() {
        "mirror" => "says the mirror".to_owned(),
        "cache" => "said the truth a moment ago".to_owned(),
        other => format!("says the {other}"),
    };
    let available = match (of.available, &of.source) {
        (Some(available), Some(source)) => format!("{}, {}", count(available), said(source)),
        _ => "unknown: neither store answers".to_owned(),
    };
    let mirror = match (&of.mirror_error, of.mirror_seeded) {
        (Some(error), _) => format!("does not answer: {error}"),
        (None, true) => "answers, seeded: reads and heartbeats go there".to_owned(),
        (None, false) => "answers, not seeded: reads and heartbeats go to the truth".to_owned(),
    };
    let behind = match of.mirror_behind {
        0 => String::new(),
        number => format!("; {} changes not told yet", count(number)),
    };
    let place = of.mirror_name.as_ref().map_or("memory".to_owned(), |name| format!("`{name}`"));
    let mut facts = vec![
        ("available", available),
        ("mirror", format!("{place} {mirror}{behind}")),
        ("breaker", of.breaker.clone()),
    ];
    if let Some(settings) = &of.settings {
        let silence = match settings.require_ping {
            true => format!("silent after {} s", settings.stale_after_seconds),
            false => "silence means nothing (require_ping is false)".to_owned(),
        };
        let max = settings.max_customers_per_mitra;
        facts.push(("settings", format!("{silence}, at most {max} sessions each")));
    }
    facts
}

fn dead_after(status: &SystemStatus) -> String {
    match status.grace_ms {
        Some(grace_ms) => {
            format!("a session is deleted when nobody was connected for {}", span(grace_ms))
        }
        None if is_leases(status) => {
            format!("a lease lasts {} from each renewal unless told", span(status.threshold_ms))
        }
        None if is_providers(status) => {
            format!("set offline after {} of silence", span(status.threshold_ms))
        }
        None => format!("dead after {}", span(status.threshold_ms)),
    }
}

fn describe_pass(status: &SystemStatus) -> String {
    let Some(pass) = &status.last_pass else {
        return "none in this process yet".to_owned();
    };
    let released = match pass.released {
        0 => String::new(),
        number => format!(", {} let go from dead owners", count(number)),
    };
    let detail = pass.detail.as_ref().map_or(String::new(), |words| format!(" ({words})"));
    format!(
        "{}: {} of {} reclaimed{released} in {}, stopped: {}{detail}",
        ago(pass.started_ms),
        count(pass.reclaimed),
        plural(pass.suspects, "suspect", "suspects"),
        span(pass.took_ms),
        pass.stopped
    )
}
