//! What a profile says about one foreign job system.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::reconcile::Healed;
use lapsed_core::sweep::PassMode;
use lapsed_core::{Name, Result};

use super::letters::LetterFacts;
use super::reader::Reader;
use crate::names::Prefix;
use crate::script::Script;

/// What is the same for every server that a system runs on.
pub(crate) struct ProfileFacts {
    /// The word in the configuration.
    pub name: &'static str,
    /// The system's own name.
    pub title: &'static str,
    /// How long a worker may show no sign of life.
    pub limit: Duration,
    /// How long everybody is spared after the server was away: as long as a living worker may need to show itself again.
    pub grace: Duration,
    /// The script that checks a batch of jobs again and puts them back.
    pub script: &'static Script,
    /// How many keys and how many words the decisive step is given for each job, besides id, worker and queue.
    pub keys: usize,
    pub words: usize,
    /// Whether the system's keys show workers that live. If they do not, the share of jobs tells a mass death.
    pub shows_workers: bool,
    /// What the system itself does about jobs of a killed worker, in one sentence.
    pub own_recovery: &'static str,
    /// Whether lapsed must have watched a worker while it lived, to put back what it held.
    pub must_watch: bool,
    /// Why a job cannot be delayed, and what to use instead; `None`: it can.
    pub no_delay: Option<&'static str>,
    /// Why nobody can tell the class of a job; `None`: [`Profile::classes`] can.
    pub no_class: Option<&'static str>,
}

/// One worker, as the system's keys show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenWorker {
    /// When its last sign of life ran out or runs out, in milliseconds of the server's clock.
    pub due_ms: u64,
    /// Jobs that it holds, as far as they were counted.
    pub held: u64,
    /// Whether it shows no sign of life at this moment. Whether that makes it dead depends on how long it lasts.
    pub is_silent: bool,
    /// When it came, as its keys tell; 0: they do not. A worker that came after the server was back was not cut off by the
    /// server's absence.
    pub came_ms: u64,
    /// Whatever its sign of life says, it did something that keeps it alive until then; 0: nothing is known.
    pub active_until_ms: u64,
    /// What changes with everything that it does, besides the sign of life; empty: nothing is known. Its silence begins anew with
    /// each change, so that nobody's clock is compared.
    pub act: String,
    /// How long it may be silent, if that is another time than the system's limit.
    pub limit_ms: Option<u64>,
}

/// A job whose worker shows no sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldJob {
    /// Unique among the jobs of the system.
    pub key: Name,
    pub worker: Name,
    pub queue: Name,
    /// For the decisive step: as many as [`ProfileFacts::keys`] and [`ProfileFacts::words`] say.
    pub keys: Vec<String>,
    pub words: Vec<String>,
}

/// A job that is not an orphan, and how that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundJob {
    /// `live`, or where it is in the system's own word: `queued`, `delayed`, …
    pub state: String,
    /// How that is known, in sentences.
    pub because: Vec<String>,
}

/// What one look at a system's keys found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// What the system says about its version; empty if its keys do not tell.
    pub version: String,
    pub queues: BTreeMap<Name, u64>,
    pub in_flight: u64,
    pub workers: BTreeMap<Name, SeenWorker>,
    /// Jobs of silent workers.
    pub jobs: Vec<HeldJob>,
    /// Whether silence counts from when lapsed first noticed it, because the system's keys do not tell since when
    /// a worker is silent.
    pub silence_is_noticed: bool,
    /// What an operator should know, in sentences.
    pub notes: Vec<String>,
    /// Rows that were read.
    pub examined: u64,
}

/// How a look judges, and what it may write.
#[derive(Clone, Copy)]
pub(crate) struct LookRequest<'a> {
    /// How long a worker may show no sign of life.
    pub limit: Duration,
    /// A dry run leaves every key as it is. A pass that acts may keep notes and renew what the living hold.
    pub act: PassMode,
    /// Where lapsed's own keys of this system begin; `None` while `detect` looks, which has no keys of its own.
    pub own: Option<&'a Prefix>,
}

/// Something in the system's keys that may contradict the rest of them. `drift.lua` decides whether it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The word of its kind in the profile's `drift.lua`.
    pub kind: &'static str,
    /// The key that is wrong.
    pub key: String,
    /// What in that key: a job, a worker, a delivery tag.
    pub member: String,
    /// The queue that it concerns, if it concerns one.
    pub queue: Option<Name>,
    /// What is wrong, in the system's own words, and how it is healed.
    pub what: String,
    pub heal: Healed,
    pub keys: Vec<String>,
    pub words: Vec<String>,
}

/// Where a search for drift stands.
#[derive(Clone, Copy)]
pub(crate) struct DriftRequest<'a> {
    /// What the page before said; `None`: from the beginning.
    pub after: Option<&'a str>,
    /// About how many keys or elements to read.
    pub limit: usize,
    /// Where lapsed's own keys of this system begin.
    pub own: &'a Prefix,
}

/// One page of a search for drift.
#[derive(Debug, Default)]
pub(crate) struct DriftPage {
    pub findings: Vec<Finding>,
    pub examined: u64,
    /// What was not looked at, by reason.
    pub left: BTreeMap<String, u64>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<String>,
}

impl DriftPage {
    pub fn leave(&mut self, why: &str, count: u64) {
        *self.left.entry(why.to_owned()).or_default() += count;
    }
}

/// A prefix, as `prefix` in the configuration has it, and the profile that looks behind it.
pub(crate) type BehindPrefix = (String, Box<dyn Profile>);

#[async_trait]
pub(crate) trait Profile: Send + Sync {
    fn facts(&self) -> &'static ProfileFacts;

    /// Whether a name in the keyspace may belong to this system. Asked for every key while `detect` goes through them.
    fn may_be_key(&self, key: &[u8]) -> bool;

    /// Looks at the system's keys, in bounded steps. `None`: this server does not carry the system.
    /// `Unsupported`: it does, in a layout that is not known.
    async fn look(&self, reader: &Reader<'_>, request: LookRequest<'_>) -> Result<Option<Seen>>;

    /// The queue that a job belongs to, as people name it.
    fn queue_of<'a>(&self, job: &'a HeldJob) -> &'a str {
        job.queue.as_str()
    }

    /// What the decisive step reads of a job as a whole, although it may be large: a key, and the field of a hash.
    fn read_whole<'a>(&self, _job: &'a HeldJob) -> Option<(&'a str, Option<&'a str>)> {
        None
    }

    /// Whether a job can wait on another queue than its own. Where it can, [`other_queue`](Self::other_queue) has the key.
    fn can_move_jobs(&self) -> bool {
        false
    }

    /// The key of the list that a job is moved to by `on_death = { queue = … }`.
    fn other_queue(&self, _job: &HeldJob, _queue: &Name) -> Option<String> {
        None
    }

    /// The keys that a delayed job is written to, if it is to wait for this queue. Empty: jobs cannot be delayed.
    fn delayed_keys(&self, _job: &HeldJob, _queue: &Name) -> Vec<String> {
        Vec::new()
    }

    /// The class of each job, by the name that people give it: class, task, actor, function. `None` if it cannot be read.
    async fn classes(&self, _: &Reader<'_>, jobs: &[&HeldJob]) -> Result<Vec<Option<String>>> {
        Ok(vec![None; jobs.len()])
    }

    /// When somebody last began with each job, in milliseconds, where the system's keys do not tell since when its worker is dead.
    async fn began(&self, _: &Reader<'_>, jobs: &[&HeldJob]) -> Result<Vec<Option<u64>>> {
        Ok(vec![None; jobs.len()])
    }

    /// Where its jobs are that will not be run again; `None`: it has no jobs that are rescued.
    fn letters(&self) -> Option<&'static LetterFacts> {
        None
    }

    /// What a search for drift compares, in words.
    fn drift_subject(&self) -> &'static str {
        ""
    }

    /// Where a job is that is not an orphan: who holds it and what proves that its holder lives, or where it waits. `None`: the system
    /// has no such job, or its keys do not tell.
    async fn find(&self, _: &Reader<'_>, _: &str) -> Result<Option<FoundJob>> {
        Ok(None)
    }

    /// The script that checks findings of drift and heals them; `None`: drift is not looked for in this system.
    fn drift_script(&self) -> Option<&'static Script> {
        None
    }

    /// Looks for drift in one page of the system's keys, and writes nothing. It may name too much, because its reads
    /// are not one step: the script decides.
    async fn drift(&self, _: &Reader<'_>, _: DriftRequest<'_>) -> Result<DriftPage> {
        Ok(DriftPage::default())
    }

    /// Learns the names that [`may_be_key`](Self::may_be_key) said yes to, so that the next look needs no scan. Returns the same
    /// system behind each other prefix that they may have; `look` says whether it is there.
    fn learn(&self, _keys: &[Vec<u8>]) -> Vec<BehindPrefix> {
        Vec::new()
    }
}
