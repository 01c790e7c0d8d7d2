//! The Redis keys of queues and of jobs in flight, on a store that other applications write to as
//! well.

use std::fmt;

use lapsed::assembly::RedisInflight;
use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_redis::{AdoptedInflightLayout, InflightLayout, QueueFormat};
use serde::Deserialize;

use crate::config::ConfigError;
use crate::config::common::{Access, Section, plan_key};
use crate::config::origin::{Settings, Show};
use crate::stores::template;
use crate::systems::inflight::InflightTimes;

/// The data structure that holds a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueWord {
    Lapsed,
    /// Sidekiq's queues: lists called `queue:NAME`.
    Sidekiq,
    /// A plain list of payloads that is popped at its right end.
    List,
    Stream,
}

impl QueueWord {
    fn as_str(self) -> &'static str {
        match self {
            QueueWord::Lapsed => "lapsed",
            QueueWord::Sidekiq => "sidekiq",
            QueueWord::List => "list",
            QueueWord::Stream => "stream",
        }
    }

    fn format(self) -> QueueFormat {
        match self {
            QueueWord::Lapsed => QueueFormat::Own,
            QueueWord::Sidekiq => QueueFormat::Sidekiq,
            QueueWord::List => QueueFormat::List,
            QueueWord::Stream => QueueFormat::Stream,
        }
    }

    fn usual_key(self) -> &'static str {
        match self {
            QueueWord::Lapsed | QueueWord::Sidekiq | QueueWord::List => "queue:{queue}",
            QueueWord::Stream => "stream:{queue}",
        }
    }
}

impl Show for QueueWord {
    fn show(&self) -> String {
        self.as_str().to_owned()
    }
}

/// The application whose key names are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayoutPreset {
    SidekiqAsyncHttp,
    SidekiqPatientHttp,
}

impl LayoutPreset {
    fn prefix(self) -> &'static str {
        match self {
            LayoutPreset::SidekiqAsyncHttp => "sidekiq:async_http:",
            LayoutPreset::SidekiqPatientHttp => "sidekiq:patient_http:",
        }
    }
}

impl fmt::Display for LayoutPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LayoutPreset::SidekiqAsyncHttp => "sidekiq-async-http",
            LayoutPreset::SidekiqPatientHttp => "sidekiq-patient-http",
        })
    }
}

impl Show for LayoutPreset {
    fn show(&self) -> String {
        self.to_string()
    }
}

/// The default prefix of the keys of jobs in flight in native mode.
const PREFIX: &str = "lapsed:inflight";

/// The part of the configuration's section that is about keys.
pub struct LayoutSection {
    pub access: Access,
    pub queues: Option<QueueWord>,
    pub queue_key: Option<String>,
    pub prefix: Option<String>,
    pub preset: Option<LayoutPreset>,
    pub index_key: Option<String>,
    pub jobs_key: Option<String>,
    pub gc_lock_key: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InflightKeys {
    pub access: Access,
    /// Whether the store is embedded: then nothing has a Redis key.
    pub is_embedded: bool,
    /// The data structure that holds the queues.
    pub queues: QueueWord,
    /// The key of a queue; `{queue}` stands for its name.
    pub queue_key: String,
    /// The prefix of the keys of jobs in flight.
    pub prefix: String,
    /// The application's own keys in adopt mode, where the application registers jobs itself;
    /// `None` in native mode.
    pub adopted: Option<Adopted>,
}

/// The keys that the application writes itself in adopt mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// The sorted set that maps a job to its last heartbeat.
    pub index_key: String,
    /// The hash that maps a job to its payload.
    pub jobs_key: String,
    /// The lock of the process that collects orphans.
    pub gc_lock_key: String,
    /// Whether the application keeps details of each job in further keys, which are removed
    /// together with the job.
    pub has_details: bool,
}

impl Adopted {
    /// The Redis layout with the application's own key names; the other keys are derived from
    /// `prefix`.
    fn layout(&self, prefix: &str) -> AdoptedInflightLayout {
        let keys = AdoptedInflightLayout::under(prefix);
        let details = |key: Option<String>| key.filter(|_| self.has_details);
        AdoptedInflightLayout {
            index_key: self.index_key.clone(),
            jobs_key: self.jobs_key.clone(),
            gc_lock_key: self.gc_lock_key.clone(),
            details_key: details(keys.details_key),
            details_index_key: details(keys.details_index_key),
            ..keys
        }
    }
}

impl LayoutSection {
    /// Determines all keys from the configuration and the defaults.
    pub fn plan(
        mut self,
        section: &Section<'_>,
        is_embedded: bool,
        settings: &mut Settings,
    ) -> Result<InflightKeys, ConfigError> {
        self.check(section, is_embedded)?;
        let usual = match self.access {
            Access::Native => QueueWord::Lapsed,
            Access::Adopt => QueueWord::Sidekiq,
        };
        let queues = settings.pick(section, "queues", self.queues, usual);
        let (access, given) = (self.access, self.queue_key.take());
        let place = Some("{queue}");
        let queue_key = plan_key(section, "queue_key", given, queues.usual_key(), place, settings)?;
        let (prefix, adopted) = match access {
            Access::Native => {
                let given = self.prefix.take();
                (plan_key(section, "prefix", given, PREFIX, None, settings)?, None)
            }
            Access::Adopt => {
                let (prefix, adopted) = self.adopt(section, settings)?;
                (prefix, Some(adopted))
            }
        };
        Ok(InflightKeys { access, is_embedded, queues, queue_key, prefix, adopted })
    }

    fn adopt(
        mut self,
        section: &Section<'_>,
        settings: &mut Settings,
    ) -> Result<(String, Adopted), ConfigError> {
        let is_other = self.preset.is_none() && self.prefix.is_some();
        let usual = LayoutPreset::SidekiqAsyncHttp;
        let preset = settings.pick(section, "preset", self.preset, usual);
        let given = self.prefix.take();
        let prefix = plan_key(section, "prefix", given, preset.prefix(), None, settings)?;
        let mut key = |key: &str, given: Option<String>, name: &str| {
            plan_key(section, key, given, &format!("{prefix}{name}"), None, settings)
        };
        let adopted = Adopted {
            index_key: key("index_key", self.index_key.take(), "inflight_index")?,
            jobs_key: key("jobs_key", self.jobs_key.take(), "inflight_jobs")?,
            gc_lock_key: key("gc_lock_key", self.gc_lock_key.take(), "gc_lock")?,
            has_details: is_other || preset == LayoutPreset::SidekiqPatientHttp,
        };
        Ok((prefix, adopted))
    }

    /// Refuses settings that would have no effect or cannot work.
    fn check(&self, section: &Section<'_>, is_embedded: bool) -> Result<(), ConfigError> {
        let adopts = self.access == Access::Adopt;
        for (key, is_given) in [
            ("preset", self.preset.is_some()),
            ("index_key", self.index_key.is_some()),
            ("jobs_key", self.jobs_key.is_some()),
            ("gc_lock_key", self.gc_lock_key.is_some()),
        ] {
            if is_given && !adopts {
                return Err(section.wrong(
                    key,
                    "is for jobs that the application registers itself: it goes with mode = \
                     \"adopt\"",
                ));
            }
        }
        match self.queues {
            Some(QueueWord::Lapsed) if adopts => Err(section.wrong(
                "queues",
                "jobs that the application registers itself go back to its own queues: \
                 \"sidekiq\", \"list\" or \"stream\"",
            )),
            Some(queues) if is_embedded && queues != QueueWord::Lapsed => Err(section.wrong(
                "queues",
                "an embedded store has queues of its own only: leave it out, or use Redis",
            )),
            _ => Ok(()),
        }
    }
}

impl InflightKeys {
    /// The layout that the Redis store is opened with.
    pub fn on_redis(
        &self,
        times: InflightTimes,
        recovery: &RecoveryPolicy,
    ) -> lapsed_core::Result<RedisInflight> {
        let queue_key = template("queue_key", &self.queue_key, "queue")?;
        let (queues, recovery) = (self.queues.format(), recovery.clone());
        let Some(adopted) = &self.adopted else {
            return Ok(RedisInflight::Native(InflightLayout {
                prefix: self.prefix.clone(),
                queues,
                queue_key,
                heartbeat_ttl: times.ttl,
                recovery,
            }));
        };
        Ok(RedisInflight::Adopt(AdoptedInflightLayout {
            orphan_threshold: times.ttl,
            heartbeat_interval: times.interval,
            queues,
            queue_key,
            recovery,
            ..adopted.layout(&self.prefix)
        }))
    }

    /// A sentence about the queues, for `lapsed check`.
    pub fn describe(&self) -> String {
        let key = &self.queue_key;
        let queues = match self.queues {
            QueueWord::Lapsed => "queues are lapsed's own".to_owned(),
            QueueWord::Sidekiq => format!("queues are Sidekiq's, `{key}`"),
            QueueWord::List => format!("queues are lists, `{key}`"),
            QueueWord::Stream => format!(
                "queues are streams, `{key}`: jobs are put back there, and taken by the \
                 application's consumer group"
            ),
        };
        match &self.adopted {
            Some(adopted) => format!(
                "{queues}; jobs in flight are in `{}` and `{}`",
                adopted.index_key, adopted.jobs_key
            ),
            None => queues,
        }
    }
}
