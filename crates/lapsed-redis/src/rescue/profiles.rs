//! The list of profiles.

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::{Error, Result};

use super::profile::{Profile, ProfileFacts};
use super::{
    RescueLayout, asynq, bullmq, celery, dramatiq, resque, rq, sidekiq, sidekiq_http, streams,
};

/// A profile, and how it is made for a layout.
struct Registered {
    facts: &'static ProfileFacts,
    open: fn(&RescueLayout) -> Box<dyn Profile>,
    /// Whether its jobs are put back by [`RescuedInflight`](super::RescuedInflight). Those that the application registers itself are
    /// put back by the system of adopted jobs.
    is_rescued: bool,
}

const fn rescued(
    facts: &'static ProfileFacts,
    open: fn(&RescueLayout) -> Box<dyn Profile>,
) -> Registered {
    Registered { facts, open, is_rescued: true }
}

const fn adopted(
    facts: &'static ProfileFacts,
    open: fn(&RescueLayout) -> Box<dyn Profile>,
) -> Registered {
    Registered { facts, open, is_rescued: false }
}

/// Every foreign job system that can be rescued, in the order of the documentation.
static PROFILES: &[Registered] = &[
    rescued(&rq::FACTS, rq::open),
    rescued(&dramatiq::FACTS, dramatiq::open),
    rescued(&bullmq::FACTS, bullmq::open),
    rescued(&celery::FACTS, celery::open),
    rescued(&sidekiq::FACTS, sidekiq::open),
    rescued(&asynq::FACTS, asynq::open),
    rescued(&resque::FACTS, resque::open),
    rescued(&streams::FACTS, streams::open),
    adopted(&sidekiq_http::ASYNC_HTTP, sidekiq_http::open_async_http),
    adopted(&sidekiq_http::PATIENT_HTTP, sidekiq_http::open_patient_http),
];

/// What people are told about a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileInfo {
    /// The word in the configuration.
    pub name: &'static str,
    /// The system's own name.
    pub title: &'static str,
    /// What the system itself does about jobs of a killed worker.
    pub own_recovery: &'static str,
    /// How long a worker may show no sign of life, in milliseconds.
    pub limit_ms: u64,
    /// How long everybody is spared after the server was away, in milliseconds.
    pub grace_ms: u64,
    /// Whether its keys show workers that live.
    pub shows_workers: bool,
    /// Whether lapsed must run before a worker dies, to put back what it held.
    pub must_watch: bool,
    /// Why its jobs cannot be delayed, and what to use instead; `None`: they can.
    pub no_delay: Option<&'static str>,
    /// Why the class of its jobs is not known; `None`: it is.
    pub no_class: Option<&'static str>,
    /// Whether lapsed reads all that it needs in the system's own keys. If not, the application registers its jobs, and they are
    /// adopted.
    pub is_rescued: bool,
}

/// What people are told about every profile, in the order of the documentation.
pub fn profiles() -> Vec<ProfileInfo> {
    let info = |one: &Registered| ProfileInfo {
        name: one.facts.name,
        title: one.facts.title,
        own_recovery: one.facts.own_recovery,
        limit_ms: one.facts.limit.as_millis() as u64,
        grace_ms: one.facts.grace.as_millis() as u64,
        shows_workers: one.facts.shows_workers,
        must_watch: one.facts.must_watch,
        no_delay: one.facts.no_delay,
        no_class: one.facts.no_class,
        is_rescued: one.is_rescued,
    };
    PROFILES.iter().map(info).collect()
}

/// The words that `preset` accepts.
pub fn profile_names() -> Vec<&'static str> {
    PROFILES.iter().map(|one| one.facts.name).collect()
}

/// The profile of a layout.
pub(super) fn open(layout: &RescueLayout) -> Result<Box<dyn Profile>> {
    match PROFILES.iter().find(|one| one.facts.name == layout.profile) {
        Some(found) if found.is_rescued => Ok((found.open)(layout)),
        Some(found) => Err(Error::Invalid(format!(
            "jobs of {} are adopted, because the application registers them itself",
            found.facts.title
        ))),
        None => Err(Error::Invalid(format!(
            "there is no preset `{}`; these are: {}",
            layout.profile,
            profile_names().join(", ")
        ))),
    }
}

/// Every profile with its usual layout, to look at a server.
pub(super) fn open_all() -> Vec<Box<dyn Profile>> {
    let usual = |one: &Registered| {
        (one.open)(&RescueLayout::new(one.facts.name, RecoveryPolicy::default()))
    };
    PROFILES.iter().map(usual).collect()
}
