//! The series of webhooks: deliveries and their lag. They are registered with the first webhook.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lapsed_core::{Name, SystemId};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByOutcome {
    webhook: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfRoute {
    webhook: String,
    system: String,
    kind: &'static str,
}

/// The series of all webhooks. Clones share their counts.
#[derive(Default)]
pub struct WebhooksSeries {
    shown: OnceLock<()>,
    deliveries: Family<ByOutcome, Counter>,
    lag_seconds: Family<OfRoute, Gauge<f64, AtomicU64>>,
}

impl WebhooksSeries {
    /// Makes the series of one webhook appear at zero. The encoder appends `_total` to the names of
    /// counters.
    pub fn introduce(&self, webhook: &Name, to: &mut Registry) {
        self.shown.get_or_init(|| {
            let help = "Tries at deliveries to webhooks, and deliveries that were given up";
            to.register("lapsed_webhook_deliveries", help, self.deliveries.clone());
            let help =
                "How long the oldest receipt that is being delivered to a webhook has waited";
            to.register("lapsed_webhook_lag_seconds", help, self.lag_seconds.clone());
        });
        for outcome in ["delivered", "failed", "dead"] {
            let labels = ByOutcome { webhook: webhook.to_string(), outcome };
            drop(self.deliveries.get_or_create(&labels));
        }
    }

    pub fn of(&self, webhook: &Name) -> WebhookSeries {
        WebhookSeries {
            webhook: webhook.to_string(),
            deliveries: self.deliveries.clone(),
            lag_seconds: self.lag_seconds.clone(),
        }
    }
}

/// The series of one webhook.
pub struct WebhookSeries {
    webhook: String,
    deliveries: Family<ByOutcome, Counter>,
    lag_seconds: Family<OfRoute, Gauge<f64, AtomicU64>>,
}

impl WebhookSeries {
    pub fn count(&self, outcome: &'static str) {
        let labels = ByOutcome { webhook: self.webhook.clone(), outcome };
        self.deliveries.get_or_create(&labels).inc();
    }

    /// Sets how late the webhook is with the receipts of one system.
    pub fn lag(&self, system: &SystemId, lag: Duration) {
        let SystemId { kind, name } = system;
        let labels = OfRoute {
            webhook: self.webhook.clone(),
            system: name.to_string(),
            kind: kind.as_str(),
        };
        self.lag_seconds.get_or_create(&labels).set(lag.as_secs_f64());
    }
}
