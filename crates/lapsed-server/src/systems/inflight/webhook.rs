//! The configuration key `webhook`: the address that jobs are delivered to when the store cannot
//! reach their queues.

use std::sync::LazyLock;
use std::time::Duration;

use lapsed::inflight::RedisInflight;
use lapsed_core::Name;
use lapsed_core::clock::backoff;
use serde::Deserialize;

use super::layout;
use crate::config::ConfigError;
use crate::config::common::Section;
use crate::config::origin::Settings;
use crate::config::units::{Span, show_span};
use crate::outbound::OutboundUrl;

/// The queue on which jobs wait to be delivered.
pub static OUTBOX: LazyLock<Name> =
    LazyLock::new(|| Name::new("lapsed:outbox").expect("it is a name"));

/// The table `delivery = { ... }` of the configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeliverySection {
    timeout: Option<Span>,
    attempts: Option<u32>,
    backoff: Option<Span>,
    backoff_max: Option<Span>,
    at_once: Option<usize>,
}

/// The receiver of deliveries, and how often deliveries are attempted.
#[derive(Clone, Debug)]
pub struct DeliveryWebhook {
    pub address: OutboundUrl,
    /// The time limit of one attempt.
    pub timeout: Duration,
    /// The number of attempts after which a job becomes a dead letter.
    pub attempts: u32,
    /// The pause after the first attempt; it doubles after each further one.
    pub backoff: Duration,
    pub backoff_max: Duration,
    /// How many deliveries run concurrently.
    pub at_once: usize,
}

impl DeliverySection {
    /// Reads the settings; `None` if no webhook is configured.
    pub fn plan(
        self,
        section: &Section<'_>,
        webhook: Option<String>,
        redis: &RedisInflight,
        settings: &mut Settings,
    ) -> Result<Option<DeliveryWebhook>, ConfigError> {
        let Some(webhook) = webhook else {
            return match section.line_of("delivery") {
                Some(_) => Err(section.wrong("delivery", "is for a `webhook`, and there is none")),
                None => Ok(None),
            };
        };
        if !layout::has_own_queues(redis) {
            return Err(section.wrong(
                "webhook",
                "goes with mode = \"native\" and lapsed's own queues: where the queues are in the \
                 store, jobs are put back there",
            ));
        }
        let address =
            OutboundUrl::parse(&webhook).map_err(|what| section.wrong("webhook", what))?;
        let second = Duration::from_secs(1);
        let mut pick = |key: &str, given: Option<Span>, usual: Duration| {
            settings.pick(section, key, given.map(|span| span.0), usual)
        };
        let timeout = pick("delivery.timeout", self.timeout, 10 * second);
        let backoff = pick("delivery.backoff", self.backoff, second);
        let backoff_max = pick("delivery.backoff_max", self.backoff_max, 300 * second);
        let attempts = settings.pick(section, "delivery.attempts", self.attempts, 10);
        let at_once = settings.pick(section, "delivery.at_once", self.at_once, 4);
        if attempts == 0 {
            return Err(section.wrong("delivery.attempts", "must be above 0"));
        }
        if !(1..=AT_ONCE_MAX).contains(&at_once) {
            let what = format!("must be 1 to {AT_ONCE_MAX}");
            return Err(section.wrong("delivery.at_once", &what));
        }
        settings.pick(section, "webhook", Some(address.to_string()), String::new());
        Ok(Some(DeliveryWebhook { address, timeout, attempts, backoff, backoff_max, at_once }))
    }
}

/// The largest allowed `at_once`: each delivery occupies a thread while it waits for the answer.
const AT_ONCE_MAX: usize = 64;

impl DeliveryWebhook {
    pub fn describe(&self) -> String {
        format!(
            "what goes back is sent to {} instead of a queue, at least once, {} tries of {} each, \
             {} to {} apart; then it is a dead letter",
            self.address,
            self.attempts,
            show_span(self.timeout),
            show_span(self.backoff),
            show_span(self.backoff_max)
        )
    }

    /// The pause after attempt number `attempt`, counted from 1.
    pub fn pause(&self, attempt: u32) -> Duration {
        backoff(self.backoff, 2, attempt.saturating_sub(1), self.backoff_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let webhook = DeliveryWebhook {
            address: OutboundUrl::parse("http://a").unwrap(),
            timeout: Duration::from_secs(1),
            attempts: 3,
            backoff: Duration::from_secs(2),
            backoff_max: Duration::from_secs(60),
            at_once: 1,
        };
        let pauses: Vec<u64> = (1..=7).map(|n| webhook.pause(n).as_secs()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(webhook.pause(u32::MAX), Duration::from_secs(60));
    }
}
