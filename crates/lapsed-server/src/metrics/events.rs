//! The series of the event feed: its listeners.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The series of the event feed. Clones share their counts.
#[derive(Clone, Default)]
pub struct EventSeries {
    pub listeners: Gauge,
    /// Listeners that were disconnected because they read too slowly.
    pub dropped: Counter,
}

impl EventSeries {
    /// Registers the series. The encoder appends `_total` to the names of counters.
    pub fn register(&self, to: &mut Registry) {
        let help = "Listeners to the event feed";
        to.register("lapsed_events_listeners", help, self.listeners.clone());
        let help = "Listeners that were dropped because they did not take what was sent";
        to.register("lapsed_events_dropped", help, self.dropped.clone());
    }
}
