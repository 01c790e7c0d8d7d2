//! The `[[system]]` section of the kind `availability`: how it is written in the file, and how it
//! is checked.

use std::time::Duration;

use lapsed::availability::BEATS_EVERY;
use lapsed_availability::{BreakerPolicy, MIRROR_TIMEOUT, SNAPSHOT_MS};
use lapsed_core::Kind;
use serde::Deserialize;

use super::layout::{self, KeysSection, MirrorLayout, Tables};
use crate::config::ConfigError;
use crate::config::common::{BrakeSection, ReceiptsSection, ReconcileSection, Section};
use crate::config::origin::Settings;
use crate::config::sweep::SweepSection;
use crate::config::units::{SPAN_MAX, Span};

/// An environment variable of the original application. It takes precedence over
/// `heartbeat_mirror_every`.
pub const BEATS_ENV: &str = "HEARTBEAT_MIRROR_INTERVAL_SECONDS";

/// The section in the file. The names of keys and tables are by default those of the original
/// application.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AvailabilitySection {
    #[serde(rename = "kind")]
    _kind: Option<Kind>,
    pub name: Option<String>,
    pub store: Option<String>,
    pub mirror: Option<String>,
    tables: Option<Tables>,
    prefix: Option<String>,
    online_key: Option<String>,
    deactivated_key: Option<String>,
    capacity_key: Option<String>,
    heartbeat_key: Option<String>,
    snapshot_key: Option<String>,
    invalidate_channel: Option<String>,
    instant: Option<bool>,
    heartbeat_mirror_every: Option<Span>,
    snapshot_ttl: Option<Span>,
    mirror_timeout: Option<Span>,
    breaker: BreakerSection,
    pub sweep: SweepSection,
    pub brake: BrakeSection,
    pub receipts: ReceiptsSection,
    pub reconcile: ReconcileSection,
}

/// The table `breaker = { ... }` of the configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BreakerSection {
    failures: Option<u32>,
    rest: Option<Span>,
}

/// Durations of a system of availability, and the circuit breaker of its mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The interval of writing heartbeats to the truth.
    pub beats_every: Duration,
    /// How long a snapshot of the beacon is valid.
    pub snapshot_ttl: Duration,
    /// The time limit of a read from the mirror.
    pub mirror_timeout: Duration,
    /// After which failures reads bypass the mirror, and for how long.
    pub breaker: BreakerPolicy,
}

/// Where the truth is, and where its mirror is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TruthLayout {
    /// The truth is in a folder of this machine, and the mirror in this process's memory.
    Embedded,
    /// The truth is in tables of Postgres, and the mirror in keys of Redis.
    Postgres {
        /// The names of the tables and their columns.
        tables: Box<Tables>,
        /// The names of the mirror's keys.
        keys: Box<MirrorLayout>,
    },
}

/// Reads a number of seconds from an environment variable; `None` if it is not set.
pub fn of_env(
    section: &Section<'_>,
    name: &'static str,
) -> Result<Option<(Duration, &'static str)>, ConfigError> {
    let Some(text) = section.env(name) else { return Ok(None) };
    match text.trim().parse::<u64>() {
        Ok(seconds) if seconds > 0 && seconds <= SPAN_MAX.as_secs() => {
            Ok(Some((Duration::from_secs(seconds), name)))
        }
        _ => Err(ConfigError(format!(
            "the environment variable {name} is {text:?}; it must be a number of seconds above 0, for \
             example 30"
        ))),
    }
}

/// The store of the truth. If `store` is not given, it is the only store that can hold a truth.
pub fn plan_store(
    section: &Section<'_>,
    given: &AvailabilitySection,
) -> Result<String, ConfigError> {
    match (&given.store, section.carriers(Kind::Availability).as_slice()) {
        (None, [only]) => Ok((*only).to_owned()),
        (store, _) => section.store(store.as_deref()),
    }
}

pub fn plan_mirror(
    section: &Section<'_>,
    store: &str,
    given: Option<&str>,
) -> Result<Option<String>, ConfigError> {
    let mirrors = section.mirrors();
    match (section.is_exclusive(store), given) {
        (true, None) => Ok(None),
        (true, Some(_)) => Err(section.wrong(
            "mirror",
            "on an embedded store the mirror is this process's memory; leave it out",
        )),
        (false, None) => match mirrors.as_slice() {
            [only] => Ok(Some((*only).to_owned())),
            [] => Err(section.wrong(
                "mirror",
                "is missing: name a store on Redis or Valkey, for example [store.cache] with \
                 url = \"redis://127.0.0.1:6379/0\", and mirror = \"cache\"",
            )),
            several => Err(section
                .wrong("mirror", &format!("is missing; name one of: {}", several.join(", ")))),
        },
        (false, Some(name)) => match section.store_under("mirror", name)? {
            name if mirrors.contains(&name.as_str()) => Ok(Some(name)),
            name => Err(section.wrong(
                "mirror",
                &format!("`{name}` is not on Redis or Valkey, where the mirror is kept"),
            )),
        },
    }
}

pub fn plan_truth(
    section: &Section<'_>,
    mirror: &Option<String>,
    given: &mut AvailabilitySection,
    settings: &mut Settings,
) -> Result<TruthLayout, ConfigError> {
    let keys = KeysSection {
        prefix: given.prefix.take(),
        online: given.online_key.take(),
        deactivated: given.deactivated_key.take(),
        capacity: given.capacity_key.take(),
        heartbeat: given.heartbeat_key.take(),
        snapshot: given.snapshot_key.take(),
        invalidate: given.invalidate_channel.take(),
        instant: given.instant.take(),
    };
    if mirror.is_none() {
        if let Some(key) = keys.first().or(given.tables.as_ref().map(|_| "tables")) {
            let what = "is for a truth in Postgres with a mirror in Redis; an embedded store has \
                        neither tables nor keys that others use";
            return Err(section.wrong(key, what));
        }
        return Ok(TruthLayout::Embedded);
    }
    let tables = given.tables.take().unwrap_or_default();
    layout::check_tables(section, &tables, settings)?;
    let keys = Box::new(keys.plan(section, settings)?);
    Ok(TruthLayout::Postgres { tables: Box::new(tables), keys })
}

pub fn plan_times(
    section: &Section<'_>,
    given: &AvailabilitySection,
    settings: &mut Settings,
) -> Result<Times, ConfigError> {
    let span = |given: Option<Span>| given.map(|span| span.0);
    let mut beats_every = settings.pick(
        section,
        "heartbeat_mirror_every",
        span(given.heartbeat_mirror_every),
        BEATS_EVERY,
    );
    if let Some((every, variable)) = of_env(section, BEATS_ENV)? {
        beats_every = every;
        settings.overrule(section, "heartbeat_mirror_every", &every, variable);
    }
    let usual = BreakerPolicy::default();
    let breaker = BreakerPolicy {
        failures: settings.pick(
            section,
            "breaker.failures",
            given.breaker.failures,
            usual.failures,
        ),
        rest: settings.pick(section, "breaker.rest", span(given.breaker.rest), usual.rest),
    };
    if breaker.failures == 0 {
        return Err(section.wrong("breaker.failures", "must be above 0"));
    }
    let usual = Duration::from_millis(SNAPSHOT_MS);
    let snapshot_ttl = settings.pick(section, "snapshot_ttl", span(given.snapshot_ttl), usual);
    let timeout = span(given.mirror_timeout);
    let mirror_timeout = settings.pick(section, "mirror_timeout", timeout, MIRROR_TIMEOUT);
    Ok(Times { beats_every, snapshot_ttl, mirror_timeout, breaker })
}
