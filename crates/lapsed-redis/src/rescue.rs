//! Jobs that dead workers of a foreign job system left, put back in place.
//!
//! No line of the application changes: lapsed reads the keys that the job system writes, finds out which workers are dead
//! by the sign of life that the system itself has, and puts each job back as the system's own code would. The decision
//! is one script, which reads the sign of life and the job again before it moves the job and writes the receipt.
//!
//! A *profile* knows one system. It is one folder here: how the system is recognised and read (`mod.rs`), and the decisive
//! step (`put_back.lua`). `profiles.rs` lists them.
//!
//! What is not here: taking, heartbeats and completing, which are the foreign system's business.

mod classes;
mod detect;
mod drift;
mod letters;
mod message_pack;
mod observe;
mod profile;
mod profiles;
mod reader;
mod reclaim;
mod store;
mod survey;

mod asynq;
mod bullmq;
mod celery;
mod dramatiq;
mod resque;
mod rq;
mod sidekiq;
mod sidekiq_http;
mod streams;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_core::inflight::rules::{Backoff, RecoveryPolicy};
use lapsed_core::{Error, Name, Result, SystemId};

use crate::Redis;
use crate::owners::OwnerService;
use crate::system_context::{Shard, SystemContext};
use drift::DriftSearch;
use profile::Profile;
use survey::Survey;

pub use detect::{DetectOptions, Detected, FoundSystem};
pub use profiles::{ProfileInfo, profile_names, profiles};

/// Which foreign job system is rescued, and how.
#[derive(Clone, Debug)]
pub struct RescueLayout {
    /// The name of the profile, as `preset` in the configuration has it.
    pub profile: String,
    /// Only these queues; empty: all.
    pub queues: BTreeSet<Name>,
    /// The namespace or prefix of the system's keys; `None`: the system's default, or what is found.
    pub prefix: Option<String>,
    /// The key that each consumer of a stream renews, with `{consumer}` in the place of its name; `None`: it has none.
    pub heartbeat_key: Option<String>,
    /// How long a worker may show no sign of life; `None`: as the system itself has it.
    pub limit: Option<Duration>,
    /// How long everybody is spared after the server was away; `None`: as long as a living worker of the system may need to
    /// show itself again.
    pub grace: Option<Duration>,
    /// Whether a job of a dead worker gets what the system's own code would give it, `on_death = "as-rq"`. Only RQ has it.
    pub as_system: bool,
    /// How many heartbeats must have shown a job of a dead worker, 1 or 2; `None`: 1. Only for a system whose keys show what a
    /// worker ran as of its last heartbeat (Sidekiq).
    pub seen: Option<u8>,
    /// `maxStalledCount` of the application's workers; `None`: 1. Only BullMQ has it, and in no key.
    pub max_stalled: Option<u32>,
    /// `priority_steps` of the application; empty: 0, 3, 6 and 9. Only Celery has them, and in no key.
    pub priority_steps: Vec<u8>,
    /// Jobs of these classes are not put back when their worker dies, but go where the system keeps jobs that it will not run
    /// again. `*` stands for any characters.
    pub quarantine: Vec<String>,
    /// How long a job of a dead worker waits before it may run again; `None`: not at all.
    pub backoff: Option<Backoff>,
    /// What happens to the jobs of dead workers.
    pub recovery: RecoveryPolicy,
}

impl RescueLayout {
    /// All queues of a system, with the system's own limits.
    pub fn new(profile: &str, recovery: RecoveryPolicy) -> RescueLayout {
        RescueLayout {
            profile: profile.to_owned(),
            queues: BTreeSet::new(),
            prefix: None,
            heartbeat_key: None,
            limit: None,
            grace: None,
            as_system: false,
            seen: None,
            max_stalled: None,
            priority_steps: Vec::new(),
            quarantine: Vec::new(),
            backoff: None,
            recovery,
        }
    }
}

/// Jobs in flight of a foreign job system.
pub struct RescuedInflight {
    owners: OwnerService,
    layout: RescueLayout,
    profile: Box<dyn Profile>,
    limit: Duration,
    /// What the look of the last pass found.
    last: Mutex<Arc<Survey>>,
    /// What the last look found, whatever it was for.
    shown: Mutex<Arc<Survey>>,
    /// Held by the one that looks because the last look is too old.
    looking: tokio::sync::Mutex<()>,
    drift: DriftSearch,
    /// Where forgetting dead letters goes on.
    letters_at: Mutex<String>,
    /// Why jobs could not be put back, as the log has said it.
    told: Mutex<HashMap<Name, String>>,
}

const LOCK: &str = "no holder of this lock panics";

impl RescuedInflight {
    fn open(redis: &Redis, id: SystemId, layout: RescueLayout) -> Result<Self> {
        if redis.is_cluster() {
            return Err(Error::Unsupported {
                operation: format!(
                    "rescuing jobs of `{}`: its keys lie in different slots, so that no step of the cluster can move a job",
                    layout.profile
                ),
                store: redis.address().place(),
            });
        }
        let profile = profiles::open(&layout)?;
        let facts = profile.facts();
        if layout.recovery.move_to.is_some() && !profile.can_move_jobs() {
            return Err(Error::Unsupported {
                operation: format!(
                    "moving jobs of {} to another queue: its jobs belong to their queue. Use on_death = \"front\" or \"back\"",
                    facts.title
                ),
                store: redis.address().place(),
            });
        }
        if let (Some(why), Some(_)) = (facts.no_delay, &layout.backoff) {
            return Err(Error::Unsupported {
                operation: format!("delaying jobs of {}: {why}", facts.title),
                store: redis.address().place(),
            });
        }
        if let (Some(why), false) = (facts.no_class, layout.quarantine.is_empty()) {
            return Err(Error::Unsupported {
                operation: format!("putting a class of {} in quarantine: {why}", facts.title),
                store: redis.address().place(),
            });
        }
        let limit = layout.limit.unwrap_or(facts.limit);
        let context = SystemContext::new(
            redis.connection().clone(),
            redis.clock().clone(),
            id,
            layout.grace.unwrap_or(facts.grace).max(limit),
            vec![format!("rescue:{}", facts.name)],
        );
        // The decisive step itself asks whether it may write, because its keys depend on the job.
        redis.register_context(&context, Vec::new());
        let ttl_ms = context.threshold_ms();
        let owners = OwnerService { context, heartbeat: None, ttl_ms };
        let (last, shown) = (Mutex::default(), Mutex::default());
        let looking = tokio::sync::Mutex::default();
        let (drift, letters_at, told) =
            (DriftSearch::default(), Mutex::default(), Mutex::default());
        Ok(RescuedInflight {
            owners,
            layout,
            profile,
            limit,
            last,
            shown,
            looking,
            drift,
            letters_at,
            told,
        })
    }

    fn context(&self) -> &Arc<SystemContext> {
        &self.owners.context
    }

    fn shard(&self) -> &Shard {
        &self.context().shards[0]
    }

    /// A key of lapsed's own.
    fn own(&self, what: &str) -> String {
        self.shard().prefix.key(what)
    }

    fn limit_ms(&self) -> u64 {
        self.limit.as_millis() as u64
    }

    fn last(&self) -> Arc<Survey> {
        self.last.lock().expect(LOCK).clone()
    }
}

impl Redis {
    /// Jobs in flight of a foreign job system, which are put back when their worker is dead.
    pub fn rescued_inflight(&self, id: SystemId, layout: RescueLayout) -> Result<RescuedInflight> {
        RescuedInflight::open(self, id, layout)
    }
}
