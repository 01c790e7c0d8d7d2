//! The queues that jobs come from and go back to: which format, and under which keys.

use lapsed_core::{Error, Name, Result};

use crate::names::{Template, slot};

/// The format of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueFormat {
    /// lapsed's own: a list of ids, whose records are in a hash.
    #[default]
    Own,
    /// Sidekiq's: a list of job JSON, pushed left and popped right, its name in the set `queues`.
    Sidekiq,
    /// A plain list of payloads, pushed left and popped right.
    List,
    /// A stream, one field `payload` an item. Jobs are only put back to it: its readers have a consumer
    /// group, and registers what it reads.
    Stream,
}

impl QueueFormat {
    /// All formats of queues.
    pub const ALL: &[QueueFormat] =
        &[QueueFormat::Own, QueueFormat::Sidekiq, QueueFormat::List, QueueFormat::Stream];

    /// The word for it in the configuration and in scripts.
    pub fn as_str(self) -> &'static str {
        match self {
            QueueFormat::Own => "own",
            QueueFormat::Sidekiq => "sidekiq",
            QueueFormat::List => "list",
            QueueFormat::Stream => "stream",
        }
    }
}

impl std::str::FromStr for QueueFormat {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|one| one.as_str() == text).copied();
        found.ok_or_else(|| {
            let words: Vec<&str> = Self::ALL.iter().map(|one| one.as_str()).collect();
            Error::Invalid(format!("{text:?} is none of {}", words.join(", ")))
        })
    }
}

/// The keys of the application's queues.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    pub format: QueueFormat,
    pub key: Template,
    /// Sidekiq's set of the names of its queues.
    pub names: Option<String>,
    /// Sidekiq's set of dead jobs.
    pub dead: Option<String>,
}

/// What Sidekiq calls a queue, the set of their names and the set of its dead jobs, after whatever
/// namespace it was given.
const SIDEKIQ_QUEUE: &str = "queue:";
const SIDEKIQ_QUEUES: &str = "queues";
const SIDEKIQ_DEAD: &str = "dead";

impl Queues {
    /// The keys for a format. `anchor`: the key beside which lapsed's own keys are.
    pub fn new(format: QueueFormat, key: Template, anchor: &str, cluster: bool) -> Result<Queues> {
        let namespace = match format {
            QueueFormat::Sidekiq => Some(namespace_of(&key)?),
            _ => None,
        };
        let beside = |name: &str| namespace.as_ref().map(|space| format!("{space}{name}"));
        let (names, dead) = (beside(SIDEKIQ_QUEUES), beside(SIDEKIQ_DEAD));
        let queues = Queues { format, key, names, dead };
        if cluster && format != QueueFormat::Own {
            queues.check_slot(anchor)?;
        }
        Ok(queues)
    }

    /// On a cluster a job leaves the in-flight set and is on its queue in one step only if both lie
    /// in one slot.
    fn check_slot(&self, anchor: &str) -> Result<()> {
        let key = self.key.of("{queue}");
        let together = |key: &str| slot(key) == slot(anchor);
        let shared = self.key.shared_tag().is_some() && together(&self.key.of("x"));
        if shared && self.names.as_deref().is_none_or(together) {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "on a cluster, `prefix` ({anchor}) and `queue_key` ({key}) must lie in one slot, so that a \
             job is taken and put back in one step. Give both the same hash tag, for example \
             `{{jobs}}:inflight` and `{{jobs}}:queue:{{queue}}`"
        )))
    }

    /// The key of one queue.
    pub fn key_of(&self, queue: &Name) -> String {
        self.key.of(queue.as_str())
    }
}

/// The namespace of Sidekiq's keys: what comes before `queue:` in the key of a queue.
fn namespace_of(key: &Template) -> Result<String> {
    let text = key.of("");
    let namespace = text.strip_suffix(SIDEKIQ_QUEUE).ok_or_else(|| {
        Error::Invalid(format!(
            "the queues of Sidekiq are called `queue:{{queue}}`, perhaps after a namespace; \
             `queue_key` is `{}`",
            key.of("{queue}")
        ))
    })?;
    Ok(namespace.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(format: QueueFormat, key: &str, anchor: &str) -> Result<Queues> {
        Queues::new(format, Template::new(key, "queue").unwrap(), anchor, true)
    }

    #[test]
    fn sidekiq_keeps_its_namespace() {
        let plain = Template::new("queue:{queue}", "queue").unwrap();
        let found = Queues::new(QueueFormat::Sidekiq, plain, "lapsed:inflight", false).unwrap();
        assert_eq!(found.names.as_deref(), Some("queues"));
        let spaced = queues(QueueFormat::Sidekiq, "{app}:queue:{queue}", "{app}:inflight").unwrap();
        assert_eq!(spaced.names.as_deref(), Some("{app}:queues"));
        assert_eq!(spaced.dead.as_deref(), Some("{app}:dead"));
        let wrong = queues(QueueFormat::Sidekiq, "jobs:{queue}", "jobs").unwrap_err();
        assert!(wrong.to_string().contains("queue:{queue}"), "{wrong}");
    }

    #[test]
    fn on_a_cluster_queues_must_share_the_slot_of_the_in_flight_set() {
        assert!(queues(QueueFormat::List, "{jobs}:{queue}", "{jobs}:inflight").is_ok());
        let apart = queues(QueueFormat::List, "jobs:{queue}", "lapsed:inflight").unwrap_err();
        assert!(apart.to_string().contains("one slot"), "{apart}");
        assert!(queues(QueueFormat::Own, "queue:{queue}", "lapsed:inflight").is_ok());
    }
}
