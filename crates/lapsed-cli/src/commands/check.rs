//! `lapsed check`: validates a configuration, and tries its stores.

mod report;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::SystemId;
use lapsed_core::clock::SystemClock;
use lapsed_core::receipt::NoObserver;
use lapsed_core::store::StoreInfo;
use lapsed_core::sweep::AdoptObservation;
use lapsed_object::{ObjectConfig, Offset};
use serde::Serialize;
use tokio::runtime::Builder;

use crate::cli::Check;
use crate::hints;
use lapsed_server::config::store::{EmbeddedFolder, StoreConfig};
use lapsed_server::config::{Overrides, process_env};
use lapsed_server::failure::Failure;
use lapsed_server::http::jwt::KeySet;
use lapsed_server::node::Config;
use lapsed_server::node::{Journal, LiveContext, LiveSystem, used_stores};
use lapsed_server::print::{self, lines, visible};
use lapsed_server::stores::{OpenObject, OpenStore};
use lapsed_server::systems::{self, words::fill};

/// Validates the configuration, connects to each store, and prints what the daemon would do; or every fault that it
/// finds.
pub fn run(args: Check) -> Result<(), Failure> {
    let overrides = Overrides {
        listen: process_env("LAPSED_LISTEN"),
        data: process_env("LAPSED_DATA").map(Into::into),
        token: process_env("LAPSED_TOKEN"),
    };
    let config = Config::load(args.config.as_deref(), &overrides, &process_env)?;
    let mut faults = Vec::new();
    if let Some(Err(what)) = config.server.tls.as_ref().map(|files| files.read()) {
        faults.push(Failure::usage(format!("`server.tls`: {what}")));
    }
    if let Some(Err(what)) = config.server.jwt.as_ref().map(KeySet::read) {
        faults.push(Failure::usage(format!("`server.jwt`: {what}")));
    }
    let again = hints::file(&args.config);
    let mut stores = Vec::new();
    for store in used_stores(&config) {
        let state = connect(&config, store, &again, &mut faults);
        stores.extend(state.map(|state| (store, state)));
    }
    if !faults.is_empty() {
        return Err(Failure::several(faults));
    }
    match args.output.json {
        true => print::json(&report::as_json(&config, &stores)),
        false => lines(&report::describe(&config, &stores)),
    }
}

/// Connects to a store and reads what its systems would work on. No data of a system change. What is wrong is added
/// to `faults`; `again` are the options of a further command that reaches the same stores.
fn connect(
    config: &Config,
    store: &StoreConfig,
    again: &str,
    faults: &mut Vec<Failure>,
) -> Option<State> {
    let state = if let Some(folder) = store.place.get::<EmbeddedFolder>() {
        open_folder(store, &folder.dir, again)
    } else if store.place.get::<ObjectConfig>().is_some() {
        try_objects(config, store, again, faults)
    } else {
        ask_server(config, store, again, faults)
    };
    state.map_err(|failure| faults.push(failure.name_store(|_| Some(store.name.clone())))).ok()
}

/// The result of connecting to a store.
struct State {
    words: String,
    /// The operations that were tried; empty unless it is an object store.
    tried: Vec<Tried>,
    /// Warnings that do not prevent operation.
    notes: Vec<String>,
}

/// The result of one operation that was tried.
#[derive(Serialize)]
struct Tried {
    what: &'static str,
    ok: bool,
    needed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

impl From<String> for State {
    fn from(words: String) -> State {
        State { words, tried: Vec::new(), notes: Vec::new() }
    }
}

impl State {
    fn describe(&self) -> String {
        let mut text = self.words.clone();
        for Tried { what, needed, failed, .. } in &self.tried {
            let line = match (failed, needed) {
                (None, _) => format!("holds: {what}"),
                (Some(why), true) => format!("FAILS: {what} ({})", visible(why)),
                (Some(why), false) => {
                    format!("without: {what} ({}; nothing depends on it)", visible(why))
                }
            };
            text.push_str(&format!("\n    {line}"));
        }
        for note in &self.notes {
            text.push_str(&format!("\n    {}", visible(note)));
        }
        text
    }
}

/// Opens and closes an embedded store. A missing folder is not created.
fn open_folder(store: &StoreConfig, dir: &Path, again: &str) -> Result<State, Failure> {
    if !dir.exists() {
        return Ok(format!("does not exist yet; `lapsed serve{again}` makes it").into());
    }
    match store.open(SystemClock::shared()) {
        Ok(opened) => {
            opened.close()?;
            Ok("opened and closed: it works".to_owned().into())
        }
        Err(lapsed_core::Error::InUse { holder, .. }) => {
            Ok(format!("it is in use by {holder}; one folder serves one process").into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads the version of the server, and counts the entries of each system on it: this reveals a wrong layout, a
/// key of the wrong type or a missing permission. Tries whether the user may write.
fn ask_server(
    config: &Config,
    store: &StoreConfig,
    again: &str,
    faults: &mut Vec<Failure>,
) -> Result<State, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let opened = store.open(SystemClock::shared())?;
        let looked = look(config, store, &opened, again, faults).await;
        // A user with few rights may fail at both, and each names what is missing.
        match refused_writes(store, &opened).await {
            Ok(refused) => faults.extend(refused),
            Err(failure) if looked.is_ok() => return Err(failure),
            Err(_) => {}
        }
        let (info, adopted) = looked?;
        let ahead_ms = info.now_ms as i64 - SystemClock::shared().wall_ms() as i64;
        let up = Duration::from_millis(info.now_ms.saturating_sub(info.back_ms));
        let words = format!(
            "{} answers, up for {}, its clock is {} ms {} this one",
            info.engine,
            print::span(up.as_millis() as u64),
            ahead_ms.abs(),
            if ahead_ms < 0 { "behind" } else { "ahead of" },
        );
        let mut notes = adopted;
        notes.extend(eviction_note(config, store, &opened).await?);
        for kind in systems::KINDS {
            let advice = kind.store_notes(&config.systems, store, &opened).await?;
            notes.extend(advice.iter().map(|note| fill(note, &[("again", again)])));
        }
        Ok(State { notes, ..words.into() })
    })
}

/// What this user may not write of the systems that were opened on the store.
async fn refused_writes(store: &StoreConfig, opened: &OpenStore) -> Result<Vec<Failure>, Failure> {
    let named = |error| Failure::of_store(error, &store.name);
    let refused = opened.write_faults().await.map_err(named)?;
    let at = format!("[store.{}] {}", store.name, store.describe());
    Ok(refused.into_iter().map(|what| Failure::failed(format!("{at}: {what}"))).collect())
}

/// A warning if the server would remove entries of systems that are on it when its memory is full.
async fn eviction_note(
    config: &Config,
    store: &StoreConfig,
    opened: &OpenStore,
) -> Result<Option<String>, Failure> {
    let on_it = config.systems.iter().filter(|plan| plan.common().store == store.name);
    let on_it: Vec<String> = on_it.map(|plan| plan.common().id.to_string()).collect();
    if on_it.is_empty() {
        return Ok(None);
    }
    Ok(opened.eviction_policy().await?.map(|policy| {
        format!(
            "warning: its maxmemory-policy is {policy}: when its memory is full, it throws away heartbeats, \
             entries and receipts of {}, and the living look dead; set it to noeviction",
            on_it.join(", ")
        )
    }))
}

/// Tries the operations that lapsed needs on an object store, under a prefix that is emptied afterwards, and reads
/// the systems there.
fn try_objects(
    config: &Config,
    store: &StoreConfig,
    again: &str,
    faults: &mut Vec<Failure>,
) -> Result<State, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let opened = store.open(SystemClock::shared())?;
        let Some(object) = opened.object() else {
            return Err(Failure::failed("it is no object store"));
        };
        let report = object.probe().await?;
        let tried = report.lines.iter().map(|line| Tried {
            what: line.what,
            ok: line.failed.is_none(),
            needed: line.needed,
            failed: line.failed.clone(),
        });
        let mut state = State { words: String::new(), tried: tried.collect(), notes: Vec::new() };
        if let Err(error) = report.verdict(&store.name) {
            let state = state.describe();
            print::stderr_lines(&format!("store {}: {}{state}", store.name, store.describe()));
            return Err(error.into());
        }
        let (info, _) = look(config, store, &opened, again, faults).await?;
        state.words = format!("{} answers{}", info.engine, clock_words(object));
        Ok(state)
    })
}

/// The bounds within which the store's clock is known; leases are expired only beyond them.
fn clock_words(object: &OpenObject) -> String {
    let Some(Offset { lo_ms, hi_ms }) = object.store().offset() else { return String::new() };
    let (middle, give) = ((lo_ms + hi_ms) / 2, (hi_ms - lo_ms) / 2);
    let whither = if middle < 0 { "behind" } else { "ahead of" };
    format!(", its clock is {} ms {whither} this one, give or take {give} ms", middle.abs())
}

/// Reads the version of the server, and counts the entries of every system on it. A system that fails is added to
/// `faults`. Also answers what was found under the key names of each adopted system.
async fn look(
    config: &Config,
    store: &StoreConfig,
    opened: &OpenStore,
    again: &str,
    faults: &mut Vec<Failure>,
) -> Result<(StoreInfo, Vec<String>), Failure> {
    let clock = SystemClock::shared();
    let mut built = Vec::new();
    for plan in config.systems.iter().filter(|plan| plan.common().store == store.name) {
        let mirror = match &plan.common().mirror {
            Some(name) => Some(config.stores[name].open(clock.clone())?),
            None => None,
        };
        let context = LiveContext {
            store: opened,
            mirror: mirror.as_ref(),
            clock: clock.clone(),
            journal: Arc::new(Journal::new(Arc::new(NoObserver), clock.clone())),
            process: "check",
            by_hand: true,
        };
        match LiveSystem::build(&**plan, context) {
            Ok(live) => built.push(live),
            Err(error) => faults.push(Failure::of_store(error, &store.name)),
        }
        // An error of a mirror that does not answer is reported when it is connected to itself.
        if let (Some(name), Some(mirror)) = (&plan.common().mirror, &mirror) {
            let refused = refused_writes(&config.stores[name], mirror).await;
            faults.extend(refused.unwrap_or_default());
        }
    }
    let info = opened.store().info().await?;
    let mut adopted = Vec::new();
    for live in built {
        let status = live.status().await;
        faults.extend(status.error.map(|error| Failure::failed(format!("{}: {error}", live.id()))));
        let observation = status.census.and_then(|census| census.observation);
        adopted.extend(observation.map(|seen| describe_observation(live.id(), &seen, again)));
    }
    Ok((info, adopted))
}

/// What was found under the key names of an adopted system, and what that leads to.
fn describe_observation(id: &SystemId, seen: &AdoptObservation, again: &str) -> String {
    let found = seen.describe();
    match seen.is_observing() {
        false => format!("{id}: {found}"),
        true => format!(
            "warning: {id}: {found}; until half of them {}, lapsed only observes and \
             reclaims nothing. Check the key names and the dry run; if they are right, confirm once \
             with `lapsed adopt {id}{again}`, or with adopt = \"now\" in the file",
            seen.wanted()
        ),
    }
}
