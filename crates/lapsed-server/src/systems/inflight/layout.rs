//! The Redis keys of queues and of jobs in flight, on a store that other applications write to as
//! well.

use std::fmt;
use std::time::Duration;

use lapsed::inflight::RedisInflight;
use lapsed_core::inflight::rules::{Backoff, RecoveryPolicy};
use lapsed_redis::{
    AdoptedInflightLayout, DeadLetterPlace, InflightLayout, QueueFormat, Template, profile_names,
    profiles,
};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::config::ConfigError;
use crate::config::common::{Access, Section, plan_key};
use crate::config::origin::{Settings, Show};
use crate::stores::plan_template;
use crate::systems::inflight::InflightTimes;
use crate::systems::inflight::rescued::{
    self, MAX_STALLED_IS_FOR, PRIORITY_STEPS_ARE_FOR, QUARANTINE_IS_FOR, QueuesSetting,
    RescueCheck, SEEN_IS_FOR,
};

pub use lapsed_redis::{ProfileInfo, RescueLayout};

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

    fn usual_key(self) -> Template {
        let text = match self {
            QueueWord::Lapsed | QueueWord::Sidekiq | QueueWord::List => "queue:{queue}",
            QueueWord::Stream => "stream:{queue}",
        };
        Template::new(text, "queue").expect("the place is in the text")
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

/// Why jobs cannot be delayed where no foreign job system has them.
const NO_DELAY: &str = "lapsed's own queues, and queues that it only pushes to, have no place for jobs that wait. Use \"back\" or \
                        { queue = \"NAME\" }; a delay goes with the preset of a job system that has delayed jobs, such as \"rq\" or \"bullmq\"";

/// Delays the jobs of dead workers, or refuses that where jobs have no place to wait.
pub fn delay(
    section: &Section<'_>,
    redis: &mut RedisInflight,
    profile: Option<&ProfileInfo>,
    backoff: Backoff,
) -> Result<(), ConfigError> {
    let why = match redis {
        RedisInflight::Rescue(layout) => match profile.and_then(|profile| profile.no_delay) {
            None => {
                layout.backoff = Some(backoff);
                return Ok(());
            }
            Some(why) => why,
        },
        _ => NO_DELAY,
    };
    Err(section.wrong("on_death", &format!("cannot delay jobs: {why}")))
}

impl LayoutSection {
    /// The store's layout, from the configuration and the defaults, but for times and recovery
    /// (see [`filled`]).
    pub fn plan(
        mut self,
        section: &Section<'_>,
        is_embedded: bool,
        settings: &mut Settings,
    ) -> Result<RedisInflight, ConfigError> {
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
        let (given, usual) = (self.queue_key.take(), (&queues.usual_key(), "queue"));
        let queue_key = plan_template(section, "queue_key", given, usual, settings)?;
        if self.access == Access::Adopt {
            let layout = self.adopt(section, queues, settings)?;
            let queues = queues.format();
            return Ok(RedisInflight::Adopt(AdoptedInflightLayout { queues, queue_key, ..layout }));
        }
        let usual = InflightLayout::new(Duration::ZERO, RecoveryPolicy::default());
        let given = self.prefix.take();
        let prefix = plan_key(section, "prefix", given, &usual.prefix, None, settings)?;
        let queues = queues.format();
        Ok(RedisInflight::Native(InflightLayout { prefix, queues, queue_key, ..usual }))
    }

    /// The keys of a foreign job system are known to its profile.
    fn rescue(
        mut self,
        section: &Section<'_>,
        profile: ProfileInfo,
        settings: &mut Settings,
    ) -> Result<RedisInflight, ConfigError> {
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
        let of = RescueCheck { section, profile };
        Ok(RedisInflight::Rescue(RescueLayout {
            queues: of.queues(self.queues.take())?,
            prefix: self.prefix.take(),
            seen: of.seen(self.seen)?,
            max_stalled: of.max_stalled(self.max_stalled_count)?,
            priority_steps: of.priority_steps(self.priority_steps.take())?,
            quarantine: of.quarantine(self.quarantine.take())?,
            heartbeat_key: of.heartbeat_key(self.heartbeat_key.take())?,
            ..RescueLayout::new(profile.name, RecoveryPolicy::default())
        }))
    }

    fn adopt(
        mut self,
        section: &Section<'_>,
        queues: QueueWord,
        settings: &mut Settings,
    ) -> Result<AdoptedInflightLayout, ConfigError> {
        let is_other = self.preset.is_none() && self.prefix.is_some();
        let usual = LayoutPreset::SidekiqAsyncHttp;
        let preset = settings.pick(section, "preset", self.preset, usual);
        let given = self.prefix.take();
        let prefix = plan_key(section, "prefix", given, preset.prefix(), None, settings)?;
        let usual = AdoptedInflightLayout::under(&prefix);
        let mut key =
            |key: &str, given, usual: &str| plan_key(section, key, given, usual, None, settings);
        let layout = AdoptedInflightLayout {
            index_key: key("index_key", self.index_key.take(), &usual.index_key)?,
            jobs_key: key("jobs_key", self.jobs_key.take(), &usual.jobs_key)?,
            gc_lock_key: key("gc_lock_key", self.gc_lock_key.take(), &usual.gc_lock_key)?,
            dead_letter: self.plan_dead_letter(section, queues, settings)?.place(),
            ..usual
        };
        // Only newer versions keep details of each job in further keys, which are removed with the job.
        if is_other || preset == LayoutPreset::SidekiqPatientHttp {
            return Ok(layout);
        }
        Ok(AdoptedInflightLayout { details_key: None, details_index_key: None, ..layout })
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

/// Whether the queues are lapsed's own, so that nobody else pushes to them or pops from them.
pub fn has_own_queues(redis: &RedisInflight) -> bool {
    matches!(redis, RedisInflight::Native(layout) if layout.queues == QueueFormat::Own)
}

/// The layout with the heartbeat and the recovery of its system.
pub fn filled(
    redis: RedisInflight,
    times: InflightTimes,
    recovery: &RecoveryPolicy,
) -> RedisInflight {
    let recovery = recovery.clone();
    match redis {
        RedisInflight::Native(layout) => {
            RedisInflight::Native(InflightLayout { heartbeat_ttl: times.ttl, recovery, ..layout })
        }
        RedisInflight::Adopt(layout) => RedisInflight::Adopt(AdoptedInflightLayout {
            orphan_threshold: times.ttl,
            heartbeat_interval: times.interval,
            recovery,
            ..layout
        }),
        RedisInflight::Rescue(layout) => {
            RedisInflight::Rescue(RescueLayout { limit: Some(times.interval), recovery, ..layout })
        }
    }
}

/// Sentences about queues and dead letters, for `lapsed check`.
pub fn describe(redis: &RedisInflight, profile: Option<&ProfileInfo>) -> Vec<String> {
    match redis {
        RedisInflight::Rescue(layout) => {
            profile.map(|profile| rescued::describe(profile, layout)).into_iter().collect()
        }
        RedisInflight::Native(layout) => vec![describe_queues(layout.queues, &layout.queue_key)],
        RedisInflight::Adopt(layout) => {
            let queues = describe_queues(layout.queues, &layout.queue_key);
            let (index, jobs) = (&layout.index_key, &layout.jobs_key);
            let letters = match layout.dead_letter {
                DeadLetterPlace::Sidekiq => {
                    "dead letters are in Sidekiq's own dead set, and in its Web UI: retry or delete \
                     them there, or with `lapsed dead`"
                }
                _ => "dead letters are kept by lapsed: see them with `lapsed dead list`",
            };
            vec![
                format!("{queues}; jobs in flight are in `{index}` and `{jobs}`"),
                letters.to_owned(),
            ]
        }
    }
}

fn describe_queues(queues: QueueFormat, key: &Template) -> String {
    let key = key.of("{queue}");
    match queues {
        QueueFormat::Sidekiq => format!("queues are Sidekiq's, `{key}`"),
        QueueFormat::List => format!("queues are lists, `{key}`"),
        QueueFormat::Stream => format!(
            "queues are streams, `{key}`: jobs are put back there, and taken by the application's \
             consumer group"
        ),
        _ => "queues are lapsed's own".to_owned(),
    }
}
