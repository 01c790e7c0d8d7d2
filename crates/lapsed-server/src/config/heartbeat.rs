//! How long a beat lasts, and how often owners beat.

use std::time::Duration;

use super::ConfigError;
use super::common::Section;
use super::origin::Settings;
use super::units::{Span, show_span};

/// How long a beat lasts and how often owners beat, as one kind of system has it.
pub struct Heartbeat<'k> {
    /// What the file calls how long a beat lasts.
    pub key: &'k str,
    /// As the file says.
    pub ttl: Option<Span>,
    /// As the file says.
    pub interval: Option<Span>,
    /// How long a beat lasts unless told.
    pub usual_ttl: Duration,
    /// The longest pause between two beats unless told; a third of the TTL if that is shorter.
    pub usual_interval: Duration,
}

impl Heartbeat<'_> {
    /// As most kinds have it: a third of `heartbeat_ttl` unless told.
    pub fn given(ttl: Option<Span>, interval: Option<Span>, usual_ttl: Duration) -> Self {
        let usual_interval = Duration::MAX;
        Heartbeat { key: "heartbeat_ttl", ttl, interval, usual_ttl, usual_interval }
    }

    pub fn plan(
        self,
        section: &Section<'_>,
        settings: &mut Settings,
    ) -> Result<(Duration, Duration), ConfigError> {
        let key = self.key;
        let ttl = settings.pick(section, key, self.ttl.map(|s| s.0), self.usual_ttl);
        if ttl < Duration::from_millis(3) {
            return Err(section.wrong(key, "must be at least 3ms"));
        }
        let usual = self.usual_interval.min(ttl / 3);
        let interval = self.interval.map(|s| s.0);
        let interval = settings.pick(section, "heartbeat_interval", interval, usual);
        if interval >= ttl {
            let what = format!(
                "{} must be below {key} ({}), or the living would look dead between two beats; a \
                 third of it is usual",
                show_span(interval),
                show_span(ttl)
            );
            return Err(section.wrong("heartbeat_interval", &what));
        }
        Ok((ttl, interval))
    }
}
