//! The keys of jobs in flight, as the application that registers them names them.

use std::time::Duration;

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::inflight::{HEARTBEAT_INTERVAL_MS, ORPHAN_THRESHOLD_MS};
use lapsed_core::{Error, Result};

use crate::names::{Template, hash_tag, slot};
use crate::queues::{QueueFormat, Queues};

/// The shortest time for which the original's keys and its lock are kept.
const KEYS_TTL_MIN: Duration = Duration::from_secs(3_600);
const LOCK_TTL_MIN: Duration = Duration::from_secs(120);

/// Where a job is kept that will not be retried automatically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadLetterPlace {
    /// In Sidekiq's own set of dead jobs, in Sidekiq's format, where its users look for it. Only
    /// for Sidekiq's queues.
    #[default]
    Sidekiq,
    /// In one of lapsed's own keys.
    Lapsed,
}

impl DeadLetterPlace {
    /// The word for it in the configuration and in scripts.
    pub fn as_str(self) -> &'static str {
        match self {
            DeadLetterPlace::Sidekiq => "sidekiq",
            DeadLetterPlace::Lapsed => "lapsed",
        }
    }
}

/// The keys of jobs in flight, as the application names them.
#[derive(Clone, Debug)]
pub struct AdoptedInflightLayout {
    /// The sorted set: request → its last heartbeat, in milliseconds (or seconds).
    pub index_key: String,
    /// The hash: request → the job's JSON.
    pub jobs_key: String,
    /// The lock that a collector of orphans holds.
    pub gc_lock_key: String,
    /// A hash in which newer versions of the original keep details of each request. They are removed with it.
    pub details_key: Option<String>,
    /// The index of these details, ordered by the time of registration.
    pub details_index_key: Option<String>,
    /// The key that exists while a process lives, where requests are called `process/request`.
    pub process_key: Option<Template>,
    /// How long a job may be without a heartbeat before it is an orphan.
    pub orphan_threshold: Duration,
    /// How often the application sends heartbeats.
    pub heartbeat_interval: Duration,
    /// The format of the queues.
    pub queues: QueueFormat,
    pub queue_key: Template,
    /// What is done with orphans.
    pub recovery: RecoveryPolicy,
    /// Where dead letters are kept.
    pub dead_letter: DeadLetterPlace,
}

impl AdoptedInflightLayout {
    /// The layout of `sidekiq-async_http`.
    pub fn async_http() -> Self {
        AdoptedInflightLayout {
            details_key: None,
            details_index_key: None,
            ..Self::under("sidekiq:async_http:")
        }
    }

    /// The layout of its successor, `patient_http-sidekiq`.
    pub fn patient_http() -> Self {
        Self::under("sidekiq:patient_http:")
    }

    /// The same keys under another prefix.
    pub fn under(prefix: &str) -> Self {
        let key = |what: &str| format!("{prefix}{what}");
        let template =
            |text: &str, place: &str| Template::new(text, place).expect("the place is in the text");
        AdoptedInflightLayout {
            index_key: key("inflight_index"),
            jobs_key: key("inflight_jobs"),
            gc_lock_key: key("gc_lock"),
            details_key: Some(key("inflight_details")),
            details_index_key: Some(key("inflight_details_index")),
            process_key: Some(template(&key("processes:{owner}:max_connections"), "owner")),
            orphan_threshold: Duration::from_millis(ORPHAN_THRESHOLD_MS),
            heartbeat_interval: Duration::from_millis(HEARTBEAT_INTERVAL_MS),
            queues: QueueFormat::Sidekiq,
            queue_key: template("queue:{queue}", "queue"),
            recovery: RecoveryPolicy::default(),
            dead_letter: DeadLetterPlace::Sidekiq,
        }
    }

    /// How long the application's own keys are kept after the last heartbeat, in seconds.
    pub(super) fn keys_ttl_s(&self) -> u64 {
        (3 * self.orphan_threshold).max(KEYS_TTL_MIN).as_secs_f64().ceil() as u64
    }

    /// How long the lock is good for without being renewed, in seconds.
    pub(super) fn lock_ttl_s(&self) -> u64 {
        (2 * self.heartbeat_interval).max(LOCK_TTL_MIN).as_secs_f64().ceil() as u64
    }

    /// The two keys with the details of requests, if both are configured.
    pub(super) fn details(&self) -> Option<(&str, &str)> {
        self.details_key.as_deref().zip(self.details_index_key.as_deref())
    }

    /// Refuses a layout that cannot work; returns the queues.
    pub(super) fn check(&self, is_cluster: bool) -> Result<Queues> {
        let (interval, threshold) = (self.heartbeat_interval, self.orphan_threshold);
        if interval >= threshold {
            return Err(Error::Invalid(format!(
                "`heartbeat_interval` ({interval:?}) must be less than `orphan_threshold` \
                 ({threshold:?}): otherwise jobs would be taken for orphans between two heartbeats \
                 of a living process"
            )));
        }
        if self.queues == QueueFormat::Own {
            return Err(Error::Invalid(
                "`queues` of jobs that the application registers itself must be \"sidekiq\", \
                 \"list\" or \"stream\": lapsed's own queues are for mode = \"native\""
                    .to_owned(),
            ));
        }
        if self.dead_letter == DeadLetterPlace::Sidekiq && self.queues != QueueFormat::Sidekiq {
            return Err(Error::Invalid(
                "`dead_letter` = \"sidekiq\" goes with queues = \"sidekiq\": only Sidekiq has a set \
                 of dead jobs"
                    .to_owned(),
            ));
        }
        if self.recovery.outbox.is_some() {
            return Err(Error::Invalid(
                "an outbox is for mode = \"native\" and lapsed's own queues: nobody would deliver \
                 what goes there"
                    .to_owned(),
            ));
        }
        if self.details_key.is_some() != self.details_index_key.is_some() {
            return Err(Error::Invalid(
                "`details_key` and `details_index_key` belong together: give both, or neither"
                    .to_owned(),
            ));
        }
        if is_cluster {
            self.check_slots()?;
        }
        // Keys in several slots were refused above, for all keys at once.
        Queues::new(self.queues, self.queue_key.clone(), &self.index_key, false)
    }

    fn check_slots(&self) -> Result<()> {
        let tag = hash_tag(&self.index_key);
        let is_beside = |key: &str| slot(key) == slot(&self.index_key);
        let keys = [&self.jobs_key, &self.gc_lock_key].into_iter();
        let keys = keys.chain(&self.details_key).chain(&self.details_index_key);
        let templates = std::iter::once(&self.queue_key).chain(&self.process_key);
        if keys.into_iter().all(|key| is_beside(key))
            && templates.into_iter().all(|template| template.shared_tag() == Some(tag))
        {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "on a cluster the keys of jobs in flight ({} and those beside it) and their queues ({}) \
             must lie in one slot, so that a job leaves the one and is on the other in one step. Give \
             all of them the same hash tag, or use mode = \"native\"",
            self.index_key,
            self.queue_key.of("{queue}")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_presets_are_the_originals_keys() {
        let seed = AdoptedInflightLayout::async_http();
        assert_eq!(seed.index_key, "sidekiq:async_http:inflight_index");
        assert_eq!(seed.jobs_key, "sidekiq:async_http:inflight_jobs");
        assert_eq!(seed.gc_lock_key, "sidekiq:async_http:gc_lock");
        assert_eq!((seed.keys_ttl_s(), seed.lock_ttl_s()), (3_600, 120));
        assert_eq!(seed.check(false).unwrap().names.as_deref(), Some("queues"));
        assert_eq!(seed.details(), None);
        let newer = AdoptedInflightLayout::patient_http();
        assert!(newer.details().is_some());
        let process = newer.process_key.clone().unwrap();
        assert_eq!(process.of("h:1:f"), "sidekiq:patient_http:processes:h:1:f:max_connections");
        let slow = AdoptedInflightLayout {
            orphan_threshold: Duration::from_secs(7_200),
            heartbeat_interval: Duration::from_millis(90_500),
            ..newer
        };
        assert_eq!((slow.keys_ttl_s(), slow.lock_ttl_s()), (21_600, 181));
    }

    #[test]
    fn an_invalid_layout_is_refused_with_the_reason() {
        let refused = |layout: AdoptedInflightLayout, is_cluster| {
            layout.check(is_cluster).unwrap_err().to_string()
        };
        let seed = AdoptedInflightLayout::async_http;
        assert!(seed().check(false).is_ok());
        let words = refused(
            AdoptedInflightLayout { heartbeat_interval: Duration::from_secs(300), ..seed() },
            false,
        );
        assert!(words.contains("`heartbeat_interval` (300s) must be less than"), "{words}");
        assert!(words.contains("`orphan_threshold` (300s)"), "{words}");
        let own = AdoptedInflightLayout { queues: QueueFormat::Own, ..seed() };
        assert!(refused(own, false).contains("mode = \"native\""));
        let list = AdoptedInflightLayout { queues: QueueFormat::List, ..seed() };
        assert!(refused(list, false).contains("`dead_letter`"));
        let outbox = Some(lapsed_core::Name::new("outbox").unwrap());
        let recovery = RecoveryPolicy { outbox, ..RecoveryPolicy::default() };
        let unheard = AdoptedInflightLayout { recovery, ..seed() };
        assert!(refused(unheard, false).contains("nobody would deliver"));
        let elsewhere = Template::new("jobs:{queue}", "queue").unwrap();
        let odd = AdoptedInflightLayout { queue_key: elsewhere, ..seed() };
        assert!(refused(odd, false).contains("`queue:{queue}`"));
        assert!(refused(seed(), true).contains("one slot"));
        let tagged = AdoptedInflightLayout {
            queue_key: Template::new("{app}:queue:{queue}", "queue").unwrap(),
            ..AdoptedInflightLayout::under("{app}:")
        };
        assert!(tagged.check(true).is_ok());
    }
}
