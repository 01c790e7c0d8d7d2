//! `lapsed lease`: acquires, renews, releases and lists leases.

mod renewer;
mod run;

use std::time::Duration;

use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::leases::{
    Acquired, Fenced, Grant, LeaseInfo, LeaseKey, LeaseState, LeaseTicket, LeaseToken, Loss,
    Namespace, PAGE_MAX,
};
use lapsed_core::{Kind, Name, SystemId};
use serde_json::{Value, json};

use super::args::{self as cli, LeaseCommand};
use super::ask;
use super::backend::{LeaseBackend, LeaseRequest};
use crate::backend::resolve;
use lapsed_server::config::units::parse_span;
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, Table, line, lines, moment, span};

pub use run::become_command;

/// The exit code when another owner holds the lease.
pub const HELD: u8 = 75;

/// The exit code when the lease is lost: the token is no longer valid.
pub const LOST: u8 = 76;

/// The time limit for an answer of the backend.
const ANSWER: Duration = Duration::from_secs(60);

/// Runs one of the subcommands.
pub fn run(args: LeaseCommand) -> Result<(), Failure> {
    match args {
        LeaseCommand::Acquire(args) => acquire(&args),
        LeaseCommand::Renew(args) => renew(&args),
        LeaseCommand::Release(args) => release(&args),
        LeaseCommand::Describe(args) => describe(&args),
        LeaseCommand::List(args) => list(&args),
        LeaseCommand::Run(args) => run::run(&args),
    }
}

/// The system of leases that `text` names; without a text, the only one.
pub fn of_leases(backend: &dyn LeaseBackend, text: Option<&str>) -> Result<SystemId, Failure> {
    let mut systems = backend.systems()?;
    systems.retain(|system| system.kind == Kind::Leases);
    if systems.is_empty() {
        return Err(Failure::usage("there is no system of kind `leases`"));
    }
    let several = systems.len() > 1 && text.is_none();
    resolve(text.unwrap_or(Kind::Leases.as_str()), &systems).map_err(|failure| match several {
        true => Failure::usage(format!("{failure}: give it with --system")),
        false => failure,
    })
}

/// Parses NAMESPACE/KEY; without a slash the namespace is `default`. With `--namespace`, the key is not split.
fn key(args: &cli::Key) -> Result<LeaseKey, Failure> {
    Ok(match &args.namespace {
        Some(namespace) => LeaseKey::new(namespace, &args.key)?,
        None => args.key.parse()?,
    })
}

/// Parses the duration of an option; `flag` is named in the error.
pub fn time(flag: &str, text: Option<&str>) -> Result<Option<Duration>, Failure> {
    let wrong = |what| Failure::usage(format!("{flag}: {what}"));
    text.map(|text| parse_span(text).map_err(wrong)).transpose()
}

/// Parses `--wait`, which may be zero.
fn wait(text: Option<&str>) -> Result<Duration, Failure> {
    match text {
        None | Some("0" | "0s") => Ok(Duration::ZERO),
        text => Ok(time("--wait", text)?.unwrap_or_default()),
    }
}

fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    if host.is_empty() { "host".to_owned() } else { host.to_owned() }
}

/// A random unique name for a request.
fn request() -> Result<Name, Failure> {
    let clock = SystemClock::new();
    Ok(Name::new(&format!("{:016x}{:016x}", clock.random(), clock.random()))?)
}

fn acquire(args: &cli::AcquireArgs) -> Result<(), Failure> {
    let request = args.request.as_deref().map(Name::new).transpose()?;
    let wanted = LeaseRequest {
        key: key(&args.key)?,
        owner: Name::new(&args.owner.clone().unwrap_or_else(host))?,
        ttl: time("--ttl", args.ttl.as_deref())?,
        request,
    };
    let wait = wait(args.wait.as_deref())?;
    let acquired = ask(&args.target, |backend| {
        let system = of_leases(backend, args.key.system.as_deref())?;
        backend.acquire(&system, &wanted, wait)
    })?;
    if args.output.json {
        print::json(&acquired)?;
    }
    match acquired {
        Acquired::Granted(_) if args.output.json => Ok(()),
        Acquired::Held(_) if args.output.json => Err(Failure::Silent(HELD)),
        Acquired::Granted(grant) => {
            line(&format!("{} is held by {}, {}", wanted.key, grant.owner, lasting(&grant)))?;
            let again = args.target.again();
            line(&format!("To keep it: lapsed lease renew {} {}{again}", wanted.key, grant.token))
        }
        Acquired::Held(grant) => Err(Failure::Told(HELD, held(&wanted.key, &grant))),
    }
}

fn lasting(grant: &Grant) -> String {
    format!("token {}, for {}", grant.token, span(grant.left().as_millis() as u64))
}

fn held(key: &LeaseKey, grant: &Grant) -> String {
    format!(
        "{key} is held by {}, token {}, for another {} unless it renews",
        grant.owner,
        grant.token,
        span(grant.left().as_millis() as u64)
    )
}

fn ticket(args: &cli::TicketArgs) -> Result<LeaseTicket, Failure> {
    Ok(LeaseTicket { key: key(&args.key)?, token: LeaseToken(args.fence) })
}

fn renew(args: &cli::Renew) -> Result<(), Failure> {
    let (ticket, ttl) = (ticket(&args.ticket)?, time("--ttl", args.ttl.as_deref())?);
    let renewed = ask(&args.ticket.target, |backend| {
        let system = of_leases(backend, args.ticket.key.system.as_deref())?;
        backend.renew(&system, &ticket, ttl, ANSWER)
    })?;
    let json = args.ticket.output.json;
    match renewed {
        Fenced::Done(grant) if json => print::json(&grant),
        Fenced::Done(grant) => {
            line(&format!("{} is held by {}, {}", ticket.key, grant.owner, lasting(&grant)))
        }
        Fenced::Lost(loss) => lost(&ticket, &loss, json),
    }
}

fn release(args: &cli::TicketArgs) -> Result<(), Failure> {
    let ticket = ticket(args)?;
    let released = ask(&args.target, |backend| {
        let system = of_leases(backend, args.key.system.as_deref())?;
        backend.release(&system, &ticket, ANSWER)
    })?;
    match released {
        Fenced::Done(()) if args.output.json => {
            let mut value = named(&ticket);
            value["outcome"] = json!("released");
            print::json(&value)
        }
        Fenced::Done(()) => line(&format!("{} is free", ticket.key)),
        Fenced::Lost(loss) => lost(&ticket, &loss, args.output.json),
    }
}

fn named(ticket: &LeaseTicket) -> Value {
    let LeaseKey { namespace, key } = &ticket.key;
    json!({ "namespace": namespace, "key": key, "token": ticket.token })
}

fn lost(ticket: &LeaseTicket, loss: &Loss, json: bool) -> Result<(), Failure> {
    if !json {
        let what = format!("{}, token {}: {}", ticket.key, ticket.token, loss.describe());
        return Err(Failure::Told(LOST, what));
    }
    let mut value = named(ticket);
    value["outcome"] = json!("lost");
    value["why"] = json!(loss.why);
    value["newest_token"] = json!(loss.token);
    value["holder"] = json!(loss.holder);
    print::json(&value)?;
    Err(Failure::Silent(LOST))
}

fn describe(args: &cli::One) -> Result<(), Failure> {
    let key = key(&args.key)?;
    let found = ask(&args.target, |backend| {
        let system = of_leases(backend, args.key.system.as_deref())?;
        backend.describe(&system, &key)
    })?;
    let Some(found) = found else {
        return Err(Failure::failed(format!("{key} was never leased")));
    };
    if args.output.json {
        return print::json(&found);
    }
    lines(&format!("{key}\n{}", facts(&found)))
}

fn facts(found: &LeaseInfo) -> String {
    let mut table = Table::bare();
    let mut fact = |name: &str, value: String| table.row(vec![format!("  {name}"), value]);
    match &found.lease {
        None => fact("holder", "nobody".to_owned()),
        Some(lease) => {
            fact("holder", lease.owner.to_string());
            fact("left", left(found));
            fact("lasts", format!("{} from each renewal", span(lease.ttl_ms)));
            fact("since", moment(lease.acquired_ms));
        }
    }
    fact("token", found.token.to_string());
    if let Some(state) = &found.state {
        fact("state", show(state));
    }
    if let Some(staged) = &found.staged {
        fact("staged", format!("for transaction {}: {}", staged.txn, show(&staged.state)));
    }
    table.text()
}

fn left(found: &LeaseInfo) -> String {
    let Some(lease) = &found.lease else { return "-".to_owned() };
    match found.expired {
        true => format!("over for {}", span(found.now_ms.saturating_sub(lease.deadline_ms))),
        false => span(lease.deadline_ms.saturating_sub(found.now_ms)),
    }
}

fn show(state: &LeaseState) -> String {
    match state {
        LeaseState::Json(value) => value.to_string(),
        LeaseState::Bytes(bytes) => print::plural(bytes.len() as u64, "byte", "bytes"),
    }
}

fn list(args: &cli::List) -> Result<(), Failure> {
    let found = ask(&args.target, |backend| {
        let system = of_leases(backend, args.system.as_deref())?;
        let namespaces = match &args.namespace {
            Some(name) => vec![Namespace::new(name)?],
            None => namespaces(backend, &system)?,
        };
        let mut found = Vec::new();
        for namespace in &namespaces {
            first(backend, &system, namespace, args.limit, &mut found)?;
        }
        Ok(found)
    })?;
    if args.output.json {
        return found.iter().try_for_each(print::json);
    }
    if found.is_empty() {
        return line("There are no leases.");
    }
    let mut table = Table::new(&["namespace", "key", "token", "holder", "left", "state"]);
    found.iter().for_each(|one| table.row(row(one)));
    lines(&table.text())
}

/// All namespaces of a system, read page by page.
fn namespaces(backend: &dyn LeaseBackend, system: &SystemId) -> Result<Vec<Namespace>, Failure> {
    let mut found: Vec<Namespace> = Vec::new();
    loop {
        let page = backend.namespaces(system, found.last(), PAGE_MAX)?;
        let is_last = page.len() < PAGE_MAX;
        found.extend(page);
        if is_last {
            return Ok(found);
        }
    }
}

/// Reads the keys of one namespace page by page, until there are `limit` keys in all.
fn first(
    backend: &dyn LeaseBackend,
    system: &SystemId,
    namespace: &Namespace,
    limit: usize,
    found: &mut Vec<LeaseInfo>,
) -> Result<(), Failure> {
    let mut after: Option<Name> = None;
    while found.len() < limit {
        let wanted = (limit - found.len()).min(PAGE_MAX);
        let page = backend.list(system, namespace, after.as_ref(), wanted)?;
        let is_last = page.len() < wanted;
        after = page.last().map(|one| one.key.clone());
        found.extend(page);
        if is_last {
            break;
        }
    }
    Ok(())
}

fn row(one: &LeaseInfo) -> Vec<String> {
    let state: String = one.state.as_ref().map(show).unwrap_or_default();
    let short: String = state.chars().take(40).collect();
    vec![
        one.namespace.to_string(),
        one.key.to_string(),
        one.token.to_string(),
        one.lease.as_ref().map_or("-".to_owned(), |lease| lease.owner.to_string()),
        left(one),
        if short.len() < state.len() { format!("{short}...") } else { short },
    ]
}
