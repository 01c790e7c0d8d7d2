//! The Redis keys of queues and of jobs in flight, on a store that other applications write to as
//! well.

use std::fmt;

use lapsed::inflight::RedisInflight;
use lapsed_core::inflight::rules::{Backoff, RecoveryPolicy};
use lapsed_redis::{
    AdoptedInflightLayout, DeadLetterPlace, InflightLayout, ProfileInfo, QueueFormat,
    profile_names, profiles,
};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::config::ConfigError;
use crate::config::common::{Access, Section, plan_key};
use crate::config::origin::{Settings, Show};
use crate::stores::template;
use crate::systems::inflight::InflightTimes;
use crate::systems::inflight::rescued::{
    MAX_STALLED_IS_FOR, PRIORITY_STEPS_ARE_FOR, QUARANTINE_IS_FOR, QueuesSetting, Rescued,
    SEEN_IS_FOR,
};

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

/// Where dead letters are kept in adopt mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeadLetterWord {
    /// Sidekiq's own set of dead jobs.
    Sidekiq,
    Lapsed,
}

impl DeadLetterWord {
    fn place(self) -> DeadLetterPlace {
        match self {
            DeadLetterWord::Sidekiq => DeadLetterPlace::Sidekiq,
            DeadLetterWord::Lapsed => DeadLetterPlace::Lapsed,
        }
    }
}

impl Show for DeadLetterWord {
    fn show(&self) -> String {
        self.place().as_str().to_owned()
    }
}

/// The application whose key names are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutPreset {
    SidekiqAsyncHttp,
    SidekiqPatientHttp,
    /// A foreign job system, whose keys its profile knows.
    Foreign(ProfileInfo),
}

impl<'de> Deserialize<'de> for LayoutPreset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let own = [LayoutPreset::SidekiqAsyncHttp, LayoutPreset::SidekiqPatientHttp];
        let foreign = profiles().into_iter().filter(|profile| profile.is_rescued);
        let foreign = foreign.map(LayoutPreset::Foreign);
        let found = own.into_iter().chain(foreign).find(|preset| preset.to_string() == word);
        found.ok_or_else(|| {
            D::Error::custom(format!(
                "there is no preset `{word}`; these are: {}",
                profile_names().join(", ")
            ))
        })
    }
}

impl LayoutPreset {
    fn prefix(self) -> &'static str {
        match self {
            LayoutPreset::SidekiqPatientHttp => "sidekiq:patient_http:",
            LayoutPreset::SidekiqAsyncHttp | LayoutPreset::Foreign(_) => "sidekiq:async_http:",
        }
    }

    /// The foreign job system, if it is one.
    pub fn foreign(self) -> Option<ProfileInfo> {
        match self {
            LayoutPreset::Foreign(profile) => Some(profile),
            LayoutPreset::SidekiqAsyncHttp | LayoutPreset::SidekiqPatientHttp => None,
        }
    }
}

impl fmt::Display for LayoutPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LayoutPreset::SidekiqAsyncHttp => "sidekiq-async-http",
            LayoutPreset::SidekiqPatientHttp => "sidekiq-patient-http",
            LayoutPreset::Foreign(profile) => profile.name,
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
    pub queues: Option<QueuesSetting>,
    pub queue_key: Option<String>,
    pub prefix: Option<String>,
    pub preset: Option<LayoutPreset>,
    pub heartbeat_key: Option<String>,
    pub index_key: Option<String>,
    pub jobs_key: Option<String>,
    pub gc_lock_key: Option<String>,
    pub dead_letter: Option<DeadLetterWord>,
    /// How many heartbeats must have shown a job of a foreign job system.
    pub seen: Option<u8>,
    /// What the application sets as `maxStalledCount` of BullMQ's workers.
    pub max_stalled_count: Option<u32>,
    /// What the application sets as `priority_steps` of Celery's transport.
    pub priority_steps: Option<Vec<u8>>,
    /// Classes of a foreign job system whose jobs are not put back.
    pub quarantine: Option<Vec<String>>,
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
    /// The foreign job system whose keys are read; `None` if the keys above are.
    pub rescued: Option<Rescued>,
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
    /// Where jobs are kept that will not be retried automatically.
    pub dead_letter: DeadLetterWord,
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
            dead_letter: self.dead_letter.place(),
            ..keys
        }
    }
}

/// Why jobs cannot be delayed where no foreign job system has them.
const NO_DELAY: &str = "lapsed's own queues, and queues that it only pushes to, have no place for jobs that wait. Use \"back\" or \
                        { queue = \"NAME\" }; a delay goes with the preset of a job system that has delayed jobs, such as \"rq\" or \"bullmq\"";

impl InflightKeys {
    /// Delays the jobs of dead workers, or refuses that where jobs have no place to wait.
    pub fn delay(&mut self, section: &Section<'_>, backoff: Backoff) -> Result<(), ConfigError> {
        let why = match &mut self.rescued {
            Some(rescued) => match rescued.profile.no_delay {
                None => {
                    rescued.backoff = Some(backoff);
                    return Ok(());
                }
                Some(why) => why,
            },
            None => NO_DELAY,
        };
        Err(section.wrong("on_death", &format!("cannot delay jobs: {why}")))
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
        if let Some(profile) = self.preset.and_then(LayoutPreset::foreign) {
            return self.rescue(section, profile, settings);
        }
        if self.seen.is_some() {
            return Err(section.wrong("seen", SEEN_IS_FOR));
        }
        if self.max_stalled_count.is_some() {
            return Err(section.wrong("max_stalled_count", MAX_STALLED_IS_FOR));
        }
        if self.priority_steps.is_some() {
            return Err(section.wrong("priority_steps", PRIORITY_STEPS_ARE_FOR));
        }
        if self.quarantine.is_some() {
            return Err(section.wrong("quarantine", QUARANTINE_IS_FOR));
        }
        if self.heartbeat_key.is_some() {
            return Err(section.wrong("heartbeat_key", "goes with preset = \"streams\""));
        }
        let usual = match self.access {
            Access::Native => QueueWord::Lapsed,
            Access::Adopt => QueueWord::Sidekiq,
        };
        let given = match self.queues.take() {
            Some(QueuesSetting::Named(_)) => {
                let what = "a list of queues goes with the preset of a job system, such as preset = \"rq\"";
                return Err(section.wrong("queues", what));
            }
            Some(QueuesSetting::Stored(word)) => Some(word),
            None => None,
        };
        let queues = settings.pick(section, "queues", given, usual);
        let (access, given) = (self.access, self.queue_key.take());
        let place = Some("{queue}");
        let queue_key = plan_key(section, "queue_key", given, queues.usual_key(), place, settings)?;
        let (prefix, adopted) = match access {
            Access::Native => {
                let given = self.prefix.take();
                (plan_key(section, "prefix", given, PREFIX, None, settings)?, None)
            }
            Access::Adopt => {
                let (prefix, adopted) = self.adopt(section, queues, settings)?;
                (prefix, Some(adopted))
            }
        };
        let rescued = None;
        Ok(InflightKeys { access, is_embedded, queues, queue_key, prefix, adopted, rescued })
    }

    /// The keys of a foreign job system are known to its profile.
    fn rescue(
        mut self,
        section: &Section<'_>,
        profile: ProfileInfo,
        settings: &mut Settings,
    ) -> Result<InflightKeys, ConfigError> {
        for (key, is_given) in [
            ("index_key", self.index_key.is_some()),
            ("jobs_key", self.jobs_key.is_some()),
            ("gc_lock_key", self.gc_lock_key.is_some()),
            ("queue_key", self.queue_key.is_some()),
            ("dead_letter", self.dead_letter.is_some()),
        ] {
            if is_given {
                let name = profile.name;
                let what = format!("has no effect with preset = \"{name}\", which knows the keys");
                return Err(section.wrong(key, &what));
            }
        }
        let preset = LayoutPreset::Foreign(profile);
        settings.pick(section, "preset", Some(preset), preset);
        let (queues, prefix) = (self.queues.take(), self.prefix.take());
        Ok(InflightKeys {
            access: self.access,
            is_embedded: false,
            queues: QueueWord::List,
            queue_key: String::new(),
            prefix: prefix.clone().unwrap_or_default(),
            adopted: None,
            rescued: Some(
                Rescued::new(section, profile, queues, prefix)?
                    .seen(section, self.seen)?
                    .max_stalled(section, self.max_stalled_count)?
                    .priority_steps(section, self.priority_steps.take())?
                    .with_quarantine(section, self.quarantine.take())?
                    .with_heartbeat_key(section, self.heartbeat_key.take())?,
            ),
        })
    }

    fn adopt(
        mut self,
        section: &Section<'_>,
        queues: QueueWord,
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
            dead_letter: self.plan_dead_letter(section, queues, settings)?,
        };
        Ok((prefix, adopted))
    }

    /// Sidekiq's users look for dead jobs in Sidekiq's own set.
    fn plan_dead_letter(
        &self,
        section: &Section<'_>,
        queues: QueueWord,
        settings: &mut Settings,
    ) -> Result<DeadLetterWord, ConfigError> {
        let usual = match queues {
            QueueWord::Sidekiq => DeadLetterWord::Sidekiq,
            _ => DeadLetterWord::Lapsed,
        };
        if self.dead_letter == Some(DeadLetterWord::Sidekiq) && usual == DeadLetterWord::Lapsed {
            return Err(section.wrong(
                "dead_letter",
                "\"sidekiq\" goes with queues = \"sidekiq\": only Sidekiq has a set of dead jobs",
            ));
        }
        Ok(settings.pick(section, "dead_letter", self.dead_letter, usual))
    }

    /// Refuses settings that would have no effect or cannot work.
    fn check(&self, section: &Section<'_>, is_embedded: bool) -> Result<(), ConfigError> {
        let adopts = self.access == Access::Adopt;
        for (key, is_given) in [
            ("preset", self.preset.is_some()),
            ("index_key", self.index_key.is_some()),
            ("jobs_key", self.jobs_key.is_some()),
            ("gc_lock_key", self.gc_lock_key.is_some()),
            ("dead_letter", self.dead_letter.is_some()),
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
            Some(QueuesSetting::Stored(QueueWord::Lapsed)) if adopts => Err(section.wrong(
                "queues",
                "jobs that the application registers itself go back to its own queues: \
                 \"sidekiq\", \"list\" or \"stream\"",
            )),
            Some(QueuesSetting::Stored(queues)) if is_embedded && queues != QueueWord::Lapsed => {
                Err(section.wrong(
                    "queues",
                    "an embedded store has queues of its own only: leave it out, or use Redis",
                ))
            }
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
        if let Some(rescued) = &self.rescued {
            return Ok(RedisInflight::Rescue(rescued.layout(times.interval, recovery)));
        }
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

    /// A sentence about where dead letters are, for `lapsed check`.
    pub fn describe_dead_letters(&self) -> Option<String> {
        Some(match self.adopted.as_ref()?.dead_letter {
            DeadLetterWord::Sidekiq => {
                "dead letters are in Sidekiq's own dead set, and in its Web \
                                        UI: retry or delete them there, or with `lapsed dead`"
                    .to_owned()
            }
            DeadLetterWord::Lapsed => {
                "dead letters are kept by lapsed: see them with `lapsed dead list`".to_owned()
            }
        })
    }

    /// A sentence about the queues, for `lapsed check`.
    pub fn describe(&self) -> String {
        if let Some(rescued) = &self.rescued {
            return rescued.describe();
        }
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
