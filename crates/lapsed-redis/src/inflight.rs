//! `inflight` on Redis and Valkey: a server, or one slot of a cluster.
//!
//! A job is one record in a hash, whatever its state; beside it are the list of its queue, what its
//! worker's incarnation holds, or the set of dead letters. Each step that moves it is one script.

mod adopt;
mod adopt_dead_letters;
mod adopt_layout;
mod adopt_observe;
mod adopt_owners;
mod adopt_reads;
mod adopt_reclaim;
mod batching;
mod index;
mod jobs;
mod native;
mod operations;
mod queue_waiter;
mod reclaim;
mod records;
mod taking;

use std::time::Duration;

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::{Error, Result, SystemId};

use crate::Redis;
use crate::names::Template;
use crate::queues::QueueFormat;

pub use adopt::AdoptedInflight;
pub use adopt_layout::{AdoptedInflightLayout, DeadLetterPlace};
pub(crate) use adopt_reclaim::log_recovery;
pub use native::NativeInflight;
pub(crate) use records::{policy_way, recovered};

/// The keys of jobs in flight that are written through lapsed.
#[derive(Clone, Debug)]
pub struct InflightLayout {
    /// The prefix of lapsed's own keys. They also have its hash tag, if it has one.
    pub prefix: String,
    /// The format of the queues.
    pub queues: QueueFormat,
    /// The key of a queue, with a place `{queue}`; of lapsed's own format it is not used.
    ///
    /// On queues that are the application's, `enqueue` is the application's business too, and a job
    /// that was put back there is no longer tracked until it is taken again: the account counts it
    /// as queued for good, and what is taken as entered.
    pub queue_key: Template,
    /// How long a heartbeat lasts, by default.
    pub heartbeat_ttl: Duration,
    /// What is done with the jobs of dead workers.
    pub recovery: RecoveryPolicy,
}

impl InflightLayout {
    /// The key names that the configuration file has by default, on queues of lapsed's own.
    pub fn new(heartbeat_ttl: Duration, recovery: RecoveryPolicy) -> InflightLayout {
        InflightLayout {
            prefix: "lapsed:inflight".to_owned(),
            queues: QueueFormat::Own,
            queue_key: Template::new("queue:{queue}", "queue").expect("the place is in the text"),
            heartbeat_ttl,
            recovery,
        }
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::Invalid(what.to_owned()));
        if self.prefix.is_empty() {
            return wrong("`prefix` must not be empty");
        }
        if self.queues != QueueFormat::Own && self.recovery.outbox.is_some() {
            return wrong("an outbox is a queue of lapsed's own: it goes with queues = \"own\"");
        }
        Ok(())
    }
}

impl Redis {
    /// Opens a system of jobs that are written through lapsed.
    pub fn inflight(&self, id: SystemId, layout: InflightLayout) -> Result<NativeInflight> {
        layout.check()?;
        NativeInflight::open(self, id, layout)
    }

    /// Opens a system of jobs that the application registers itself.
    pub fn adopted_inflight(
        &self,
        id: SystemId,
        layout: AdoptedInflightLayout,
    ) -> Result<AdoptedInflight> {
        AdoptedInflight::open(self, id, layout)
    }
}
