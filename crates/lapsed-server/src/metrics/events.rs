//! Who listens to the event feed.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The series of the feed. Clones count together.
#[derive(Clone, Default)]
pub struct EventSeries {
    pub listeners: Gauge,
    /// Those that did not take what was sent.
    pub dropped: Counter,
}

impl EventSeries {
    /// The encoder appends `_total` to the name of a counter by itself.
    pub fn register(&self, to: &mut Registry) {
        let help = "Listeners to the event feed";
        to.register("lapsed_events_listeners", help, self.listeners.clone());
        let help = "Listeners that were dropped because they did not take what was sent";
        to.register("lapsed_events_dropped", help, self.dropped.clone());
    }
}
