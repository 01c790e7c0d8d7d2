//! The table `sweep = { ... }` of a system: how often passes run, and how much one pass may do.

use std::time::Duration;

use lapsed_core::sweep::policy::{Policy, SweepMode};
use serde::Deserialize;

use super::ConfigError;
use super::common::{Picker, Section, error_in};
use super::origin::Settings;
use super::units::Span;

/// After what a pass makes the pause `op_delay`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PauseAfter {
    /// One pause after every batch, whatever its size.
    #[default]
    AfterBatch,
    /// One pause per entry, made after the batch for all of its entries together.
    AfterEntry,
}

/// The table as it is written in the file. Two keys have an alias, the name that the original idle
/// sweep uses for them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepSection {
    every: Option<Span>,
    jitter: Option<f64>,
    batch: Option<usize>,
    hold: Option<Span>,
    op_delay: Option<Span>,
    share: Option<f64>,
    per_second: Option<u32>,
    #[serde(alias = "max_ops_per_run")]
    max_ops: Option<u64>,
    #[serde(alias = "max_runtime_per_run")]
    max_runtime: Option<Span>,
    idle_grace: Option<Span>,
    mode: Option<SweepMode>,
    timeout: Option<Span>,
}

/// The keys that the original idle sweep has directly in the system's section instead of in
/// `sweep`.
#[derive(Debug, Default)]
pub struct SectionSweepKeys {
    pub idle_grace: Option<Span>,
    pub op_delay: Option<Span>,
    pub max_ops_per_run: Option<u64>,
    pub max_runtime_per_run: Option<Span>,
}

impl SweepSection {
    /// Adds the keys from the system's section. A key that is given in both places is refused.
    pub fn with(
        mut self,
        beside: SectionSweepKeys,
        section: &Section<'_>,
    ) -> Result<Self, ConfigError> {
        fn merge<T>(
            section: &Section<'_>,
            key: &str,
            inside: &mut Option<T>,
            beside: Option<T>,
        ) -> Result<(), ConfigError> {
            if inside.is_some() && beside.is_some() {
                return Err(section.wrong(key, "is given twice: here, and in `sweep`"));
            }
            *inside = beside.or(inside.take());
            Ok(())
        }
        merge(section, "idle_grace", &mut self.idle_grace, beside.idle_grace)?;
        merge(section, "op_delay", &mut self.op_delay, beside.op_delay)?;
        merge(section, "max_ops_per_run", &mut self.max_ops, beside.max_ops_per_run)?;
        let runtime = beside.max_runtime_per_run;
        merge(section, "max_runtime_per_run", &mut self.max_runtime, runtime)?;
        Ok(self)
    }

    /// The policy of the passes; `default` has the values that are not given.
    pub fn plan(
        self,
        section: &Section<'_>,
        default: Policy,
        pause: PauseAfter,
        settings: &mut Settings,
    ) -> Result<Policy, ConfigError> {
        let span = |given: Option<Span>| given.map(|s| s.0);
        let optional = |given: Option<Span>| given.map(|s| Some(s.0));
        let (ops_key, runtime_key) = (
            key_of(section, "sweep.max_ops", "max_ops_per_run"),
            key_of(section, "sweep.max_runtime", "max_runtime_per_run"),
        );
        let idle_key = key_of(section, "sweep.idle_grace", "idle_grace");
        let delay_key = key_of(section, "sweep.op_delay", "op_delay");
        let mut pick = Picker { section, settings };
        let usual = default.op_delay.max(default.entry_delay);
        let delay = pick.value(&delay_key, span(self.op_delay), usual);
        let (op_delay, entry_delay) = match pause {
            PauseAfter::AfterBatch => (delay, Duration::ZERO),
            PauseAfter::AfterEntry => (Duration::ZERO, delay),
        };
        let per_second = pick.value("sweep.per_second", self.per_second.map(Some), None);
        let mut policy = Policy {
            every: pick.value("sweep.every", span(self.every), default.every),
            jitter: pick.value("sweep.jitter", self.jitter, default.jitter),
            batch: pick.value("sweep.batch", self.batch, default.batch),
            hold: pick.value("sweep.hold", span(self.hold), default.hold),
            op_delay,
            entry_delay,
            share: pick.value("sweep.share", self.share, default.share),
            max_ops: pick.value(&ops_key, self.max_ops.map(Some), default.max_ops),
            max_runtime: pick.value(&runtime_key, optional(self.max_runtime), default.max_runtime),
            idle_grace: pick.value(&idle_key, optional(self.idle_grace), default.idle_grace),
            mode: pick.value("sweep.mode", self.mode, default.mode),
            timeout: pick.value("sweep.timeout", span(self.timeout), default.timeout),
            when_capped: default.when_capped,
            term_ttl: default.term_ttl,
        };
        if let Some(entries) = per_second {
            if entries == 0 {
                let what = "must be above 0; leave it out for no limit";
                return Err(section.wrong("sweep.per_second", what));
            }
            limit_rate(&mut policy, entries);
        }
        let names = [&delay_key, &ops_key, &runtime_key, &idle_key];
        policy.check().map_err(|e| error_in(section, &as_written(&e.to_string(), names)))?;
        Ok(policy)
    }
}

/// Spreads the entries of a pass evenly: at most this many per second, in batches of a tenth of a second.
fn limit_rate(policy: &mut Policy, per_second: u32) {
    policy.entry_delay = policy.entry_delay.max(Duration::from_secs(1) / per_second);
    policy.batch = policy.batch.min(per_second.div_ceil(10) as usize);
}

/// Replaces the usual name of a key, with which an error begins, by the name that the file uses.
fn as_written(message: &str, names: [&String; 4]) -> String {
    let usual = ["sweep.op_delay", "sweep.max_ops", "sweep.max_runtime", "sweep.idle_grace"];
    let Some((key, what)) = message.split_once(' ') else { return message.to_owned() };
    match usual.iter().position(|name| *name == key) {
        Some(index) => format!("{} {what}", names[index]),
        None => message.to_owned(),
    }
}

/// The name that the file uses for a key that has several names.
fn key_of(section: &Section<'_>, usual: &str, original: &str) -> String {
    let inside = format!("sweep.{original}");
    let names = [original.to_owned(), inside];
    let given = names.into_iter().find(|name| section.line_of(name).is_some());
    given.unwrap_or_else(|| usual.to_owned())
}
