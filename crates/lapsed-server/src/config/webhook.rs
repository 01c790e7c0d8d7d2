//! `[[webhook]]`: the receiver of events, the events that it gets, and the retries of deliveries.

use std::time::Duration;

use lapsed_core::clock::backoff;
use lapsed_core::receipt::Reason;
use lapsed_core::{Name, SystemId};
use serde::Deserialize;

use super::document::{Document, TomlNode, unknown};
use super::secret::Secret;
use super::units::{Span, show_span};
use super::{ConfigError, ErrorList};
use crate::outbound::OutboundUrl;

/// The shortest secret, in bytes: a shorter one could be guessed.
const SECRET_BYTES_MIN: usize = 16;

const NAME_BYTES_MAX: usize = 64;

/// The most events in one delivery.
const BATCH_MAX: usize = 1_000;

/// The word in `events` that stands for all receipts.
const RECEIPT: &str = "receipt";

/// A `[[webhook]]` as it is written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WebhookSection {
    name: String,
    url: String,
    secret: String,
    systems: Option<Vec<String>>,
    events: Option<Vec<String>>,
    timeout: Option<Span>,
    attempts: Option<u32>,
    backoff: Option<Span>,
    backoff_max: Option<Span>,
    batch: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// The name of the webhook.
    pub name: Name,
    pub address: OutboundUrl,
    /// The secret with which deliveries are signed.
    pub secret: Secret,
    pub systems: Vec<SystemId>,
    /// The reasons of the reclaims that it gets; `None`: all of them.
    pub reasons: Option<Vec<Reason>>,
    /// The time limit of one attempt.
    pub timeout: Duration,
    /// The number of attempts after which a delivery becomes a dead letter.
    pub attempts: u32,
    /// The pause after the first attempt; it doubles after each further one.
    pub backoff: Duration,
    pub backoff_max: Duration,
    /// The most events in one delivery.
    pub batch: usize,
}

impl WebhookConfig {
    /// How long to wait after attempt number `attempt`, counted from 1.
    pub fn pause(&self, attempt: u32) -> Duration {
        backoff(self.backoff, 2, attempt.saturating_sub(1), self.backoff_max)
    }

    /// Whether it gets receipts with this reason.
    pub fn wants(&self, reason: Reason) -> bool {
        self.reasons.as_ref().is_none_or(|wanted| wanted.contains(&reason))
    }

    /// The webhook as `check --json` shows it.
    pub fn as_json(&self) -> serde_json::Value {
        serde_json::json!({
            "name": self.name,
            "url": self.address.to_string(),
            "systems": self.systems.iter().map(SystemId::to_string).collect::<Vec<_>>(),
            "plan": self.describe(),
        })
    }

    pub fn describe(&self) -> String {
        let systems: Vec<String> = self.systems.iter().map(SystemId::to_string).collect();
        format!(
            "webhook {}: receipts of {} go to {}, signed, at least once, up to {} at a time; {} tries \
             of {} each, {} to {} apart; then the delivery is a dead letter",
            self.name,
            systems.join(", "),
            self.address,
            self.batch,
            self.attempts,
            show_span(self.timeout),
            show_span(self.backoff),
            show_span(self.backoff_max)
        )
    }
}

/// Reads and checks all webhooks. `systems` are the configured systems that they may name.
pub fn read(
    document: &Document,
    nodes: &[TomlNode<'_>],
    systems: &[SystemId],
    errors: &mut ErrorList,
) -> Vec<WebhookConfig> {
    let mut all: Vec<WebhookConfig> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let place = WebhookNode { document, node, index };
        let planned = place.plan(systems).and_then(|webhook| {
            match all.iter().any(|other| other.name == webhook.name) {
                true => Err(place.wrong(
                    "name",
                    &format!("there are two webhooks `{}`; give each its own name", webhook.name),
                )),
                false => Ok(webhook),
            }
        });
        all.extend(errors.keep(planned));
    }
    all
}

/// One `[[webhook]]` and its place in the file.
struct WebhookNode<'a> {
    document: &'a Document,
    node: &'a TomlNode<'a>,
    index: usize,
}

impl WebhookNode<'_> {
    fn path(&self) -> String {
        match self.node.get_ref().get("name").and_then(|name| name.get_ref().as_str()) {
            Some(name) => format!("webhook[{name}]"),
            None => format!("webhook[{}]", self.index),
        }
    }

    fn wrong(&self, key: &str, what: &str) -> ConfigError {
        let span = self.node.get_ref().get(key).map_or(self.node.span(), |value| value.span());
        self.document.wrong(Some(span), &format!("{}.{key}", self.path()), what)
    }

    fn plan(&self, systems: &[SystemId]) -> Result<WebhookConfig, ConfigError> {
        let given: WebhookSection = self.document.read(&self.path(), self.node)?;
        let second = Duration::from_secs(1);
        let span = |given: Option<Span>, usual: Duration| given.map_or(usual, |span| span.0);
        let webhook = WebhookConfig {
            name: self.name(&given.name)?,
            address: OutboundUrl::parse(&given.url).map_err(|what| self.wrong("url", what))?,
            secret: self.secret(&given.secret)?,
            systems: self.systems(given.systems, systems)?,
            reasons: self.reasons(given.events)?,
            timeout: span(given.timeout, 10 * second),
            attempts: given.attempts.unwrap_or(10),
            backoff: span(given.backoff, second),
            backoff_max: span(given.backoff_max, 300 * second),
            batch: given.batch.unwrap_or(100),
        };
        if webhook.attempts == 0 {
            return Err(self.wrong("attempts", "must be above 0"));
        }
        if !(1..=BATCH_MAX).contains(&webhook.batch) {
            return Err(self.wrong("batch", &format!("must be 1 to {BATCH_MAX}")));
        }
        Ok(webhook)
    }

    fn name(&self, text: &str) -> Result<Name, ConfigError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        match Name::new(text) {
            Ok(name) if text.len() <= NAME_BYTES_MAX && text.chars().all(plain) => Ok(name),
            _ => Err(self.wrong("name", "must be letters, digits, `-`, `_` or `.`, 64 at most")),
        }
    }

    fn secret(&self, text: &str) -> Result<Secret, ConfigError> {
        if text.len() >= SECRET_BYTES_MIN {
            return Ok(Secret::new(text));
        }
        let what = format!(
            "must have at least {SECRET_BYTES_MIN} characters; `openssl rand -hex 32` makes a good one"
        );
        Err(self.wrong("secret", &what))
    }

    fn systems(
        &self,
        given: Option<Vec<String>>,
        all: &[SystemId],
    ) -> Result<Vec<SystemId>, ConfigError> {
        let Some(given) = given else { return Ok(all.to_vec()) };
        let is_meant = |id: &SystemId, text: &str| id.to_string() == text || *id.name == *text;
        if let Some(text) = given.iter().find(|text| !all.iter().any(|id| is_meant(id, text))) {
            let names: Vec<String> = all.iter().map(SystemId::to_string).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            return Err(self.wrong("systems", &unknown("system", text, &names)));
        }
        let chosen = |id: &&SystemId| given.iter().any(|text| is_meant(id, text));
        let chosen: Vec<SystemId> = all.iter().filter(chosen).cloned().collect();
        if chosen.is_empty() {
            return Err(self.wrong("systems", "names none; leave it out for all of them"));
        }
        Ok(chosen)
    }

    fn reasons(&self, given: Option<Vec<String>>) -> Result<Option<Vec<Reason>>, ConfigError> {
        let Some(given) = given.filter(|words| !words.iter().any(|word| word == RECEIPT)) else {
            return Ok(None);
        };
        let reason = |word: &String| {
            let found = Reason::ALL.iter().find(|reason| reason.as_str() == word).copied();
            found.ok_or_else(|| {
                let mut words = vec![RECEIPT];
                words.extend(Reason::ALL.iter().map(|reason| reason.as_str()));
                self.wrong("events", &unknown("event", word, &words))
            })
        };
        if given.is_empty() {
            return Err(self.wrong("events", "names none; leave it out for all of them"));
        }
        given.iter().map(reason).collect::<Result<_, _>>().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigErrors, Overrides};
    use crate::node::Config;

    fn load(webhook: &str) -> Result<Config, ConfigErrors> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lapsed.toml");
        let text = format!(
            "[[system]]\nkind = \"registry\"\nname = \"devices\"\n\n[[system]]\nkind = \"sessions\"\n\
             name = \"chat\"\n\n{webhook}"
        );
        std::fs::write(&file, text).unwrap();
        Config::load(Some(&file), &Overrides::default(), &|_| None)
    }

    const PAGER: &str = "[[webhook]]\nname = \"pager\"\nurl = \"https://hooks.example/s3cret\"\n\
        secret = \"0123456789abcdef\"\n";

    #[test]
    fn a_webhook_is_told_of_everything_unless_said_otherwise() {
        let config = load(PAGER).unwrap();
        let [pager] = &config.webhooks[..] else { panic!("{:?}", config.webhooks) };
        assert_eq!(pager.systems.len(), 2);
        assert!(Reason::ALL.iter().all(|reason| pager.wants(*reason)));
        assert_eq!((pager.attempts, pager.batch), (10, 100));
        let told = format!("{} {pager:?}", pager.describe());
        assert!(!told.contains("s3cret") && !told.contains("0123456789abcdef"), "{told}");
    }

    #[test]
    fn a_webhook_may_be_told_of_some() {
        let some = format!("{PAGER}systems = [\"chat\"]\nevents = [\"orphaned\"]\n");
        let config = load(&some).unwrap();
        let pager = &config.webhooks[0];
        assert_eq!(pager.systems[0].to_string(), "sessions/chat");
        assert!(pager.wants(Reason::Orphaned) && !pager.wants(Reason::OwnerDead));
    }

    #[test]
    fn mistakes_in_a_webhook_are_named() {
        for (line, wanted) in [
            ("systems = [\"chats\"]", "unknown system `chats`"),
            ("systems = []", "names none"),
            ("events = [\"orphan\"]", "`orphaned`"),
            ("batch = 0", "must be 1 to 1000"),
            ("attempts = 0", "must be above 0"),
            ("retries = 3", "unknown key `retries`"),
        ] {
            let error = load(&format!("{PAGER}{line}\n")).unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains("webhook[pager]"), "{line}: {error}");
        }
        let short = PAGER.replace("0123456789abcdef", "short");
        assert!(load(&short).unwrap_err().to_string().contains("at least 16"));
        assert!(load(&format!("{PAGER}{PAGER}")).unwrap_err().to_string().contains("two webhooks"));
    }
}
