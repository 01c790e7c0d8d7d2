//! What was sent when, and what was answered: by the clock of this machine, which is that of all servers
//! here. In microseconds since 1970.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time in microseconds since 1970, on the clock that all servers here share.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// From just before something was sent to just after it was answered, or given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub sent_us: u64,
    pub done_us: u64,
}

/// Where an answer is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Mirror,
    Truth,
}

/// What a beat was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeatAnswer {
    Noted(Source),
    Offline(Source),
    Deactivated(Source),
    /// Nothing, or that it failed: it may be carried out, also later.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
pub struct Beat {
    pub span: Span,
    pub said: BeatAnswer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    Online,
    Offline,
    Activate,
    Deactivate,
}

/// What a change of a provider was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done { changed: bool },
    Unknown,
}

#[derive(Clone, Copy, Debug)]
pub struct Toggle {
    pub change: Change,
    pub span: Span,
    pub outcome: Outcome,
}

/// One list of those available.
#[derive(Clone, Debug)]
pub struct Listing {
    pub span: Span,
    pub source: Source,
    pub ids: Vec<String>,
}

/// How a session must be at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionIs {
    pub provider: String,
    pub status: String,
}

/// Everything that was sent, with its answers.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub beats: BTreeMap<String, Vec<Beat>>,
    pub toggles: BTreeMap<String, Vec<Toggle>>,
    pub listings: Vec<Listing>,
    /// Sessions of which every answer is known; `None`: not of all.
    pub sessions: BTreeMap<String, Option<SessionIs>>,
    /// When what had been broken ran again.
    pub heals_us: Vec<u64>,
}

impl History {
    pub fn merge(&mut self, other: History) {
        for (id, beats) in other.beats {
            self.beats.entry(id).or_default().extend(beats);
        }
        for (id, toggles) in other.toggles {
            self.toggles.entry(id).or_default().extend(toggles);
        }
        self.listings.extend(other.listings);
        self.sessions.extend(other.sessions);
        self.heals_us.extend(other.heals_us);
    }

    pub fn beat(&mut self, id: &str, span: Span, said: BeatAnswer) {
        self.beats.entry(id.to_owned()).or_default().push(Beat { span, said });
    }

    pub fn toggle(&mut self, id: &str, change: Change, span: Span, outcome: Outcome) {
        let toggle = Toggle { change, span, outcome };
        self.toggles.entry(id.to_owned()).or_default().push(toggle);
    }

    pub fn beats_of(&self, id: &str) -> &[Beat] {
        self.beats.get(id).map_or(&[], Vec::as_slice)
    }

    pub fn toggles_of(&self, id: &str) -> &[Toggle] {
        self.toggles.get(id).map_or(&[], Vec::as_slice)
    }

    /// What went on, in a few numbers.
    pub fn summary(&self) -> String {
        let mut said: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut first, mut last) = (u64::MAX, 0);
        for beat in self.beats.values().flatten() {
            first = first.min(beat.span.sent_us);
            last = last.max(beat.span.done_us);
            *said
                .entry(match beat.said {
                    BeatAnswer::Noted(Source::Mirror) => "noted by the mirror",
                    BeatAnswer::Noted(Source::Truth) => "noted by the truth",
                    BeatAnswer::Offline(_) => "told offline",
                    BeatAnswer::Deactivated(_) => "told deactivated",
                    BeatAnswer::Unknown => "unknown",
                })
                .or_default() += 1;
        }
        let seconds = last.saturating_sub(first).max(1) as f64 / 1e6;
        let sent: usize = said.values().sum();
        let toggles = self.toggles.values().flatten();
        let done = toggles.clone().filter(|one| one.outcome != Outcome::Unknown).count();
        let truth = self.listings.iter().filter(|one| one.source == Source::Truth).count();
        format!(
            "{:.0} beats a second for {seconds:.1} s: {said:?}; {} changes of providers, {done} known; \
             {} sessions; {} lists, {truth} from the truth",
            sent as f64 / seconds,
            toggles.count(),
            self.sessions.len(),
            self.listings.len(),
        )
    }
}
