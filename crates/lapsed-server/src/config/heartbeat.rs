//! The keys of heartbeats: how long one lasts, and how often owners send one.

use std::time::Duration;

use super::ConfigError;
use super::common::Section;
use super::origin::Settings;
use super::units::{Span, show_span};

/// The heartbeat settings of a system, with the defaults of its kind.
pub struct Heartbeat<'k> {
    /// The name in the file of the key for how long a heartbeat lasts.
    pub key: &'k str,
    /// How long a heartbeat lasts, if the file says so.
    pub ttl: Option<Span>,
    /// The interval between two heartbeats, if the file says so.
    pub interval: Option<Span>,
    /// How long a heartbeat lasts by default.
    pub usual_ttl: Duration,
    /// The longest default interval between two heartbeats; a third of the TTL if that is shorter.
    pub usual_interval: Duration,
}

impl Heartbeat<'_> {
    /// The settings as most kinds have them: the key is `heartbeat_ttl`, and the default interval
    /// is a third of it.
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
