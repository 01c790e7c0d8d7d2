//! The labels and sentences that people read about availability.

use crate::node::shapes::SystemStatus;
use crate::print::count;
use crate::systems::words::{GENERAL, KindWords};

pub const WORDS: KindWords = KindWords {
    tag: "Providers, who of them can take work now, and their sessions",
    entries: "online",
    entries_shown: "online",
    owners: Some("providers"),
    died: "set offline",
    reclaimed: "set offline",
    // A provider is its own owner, so that the columns for the owner would repeat it.
    columns: &["provider"],
    next_step: "To set one online again: lapsed restore RECEIPT{again}",
    dead_after: "set offline after {threshold} of silence",
    promise: "{key} is set online again in {system}.",
    ..GENERAL
};

/// The numbers of providers and the state of the mirror, for the status.
pub fn facts(status: &SystemStatus) -> Vec<(&'static str, String)> {
    let Some(of) = &status.availability else { return Vec::new() };
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
        number => format!("; {} changes not in the mirror yet", count(number)),
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
    facts.extend(of.mass_heartbeats.as_ref().map(|mass| ("warning", mass.describe())));
    facts
}
