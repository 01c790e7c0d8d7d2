//! The answers that the load got, in order: the account of a campaign is checked against them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::caller::CallSpan;

/// How many signs of life of one owner are kept: more than fit between a reclaim and its account.
const SIGNS_MAX: usize = 512;

/// What is known of one job.
#[derive(Clone, Debug, Default)]
pub struct JobRecord {
    /// Whether its enqueueing was acknowledged.
    pub entered: bool,
    /// The tokens of all claims that workers got.
    pub taken: BTreeSet<u64>,
    /// The tokens with which a completion was sent, answered or not.
    pub completing: BTreeSet<u64>,
    /// The tokens of acknowledged completions, as often as they were acknowledged.
    pub completed: Vec<u64>,
}

/// An owner, by its incarnation, and its acknowledged signs of life.
#[derive(Clone, Debug, Default)]
pub struct OwnerRecord {
    pub ttl_ms: u64,
    pub signs: VecDeque<CallSpan>,
}

/// A lease, by its token: every acknowledged acquisition and renewal.
#[derive(Clone, Debug, Default)]
pub struct GrantRecord {
    pub ttl_ms: u64,
    pub held: Vec<CallSpan>,
    /// When its release was sent, acknowledged or not.
    pub released_ms: Option<u64>,
}

/// All answers that the load got.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Jobs that are not known to be settled.
    pub jobs: BTreeMap<String, JobRecord>,
    /// How many jobs were enqueued with an acknowledgement, and how many were tried.
    pub entered: u64,
    pub tried: u64,
    pub completed: u64,
    pub refused: u64,
    /// By kind of system (or provider) and incarnation.
    pub owners: BTreeMap<(String, u64), OwnerRecord>,
    /// Providers beat by their name, whatever their epoch.
    pub providers: BTreeMap<String, OwnerRecord>,
    /// The keys that the live owner of the registry holds by the answers it got, and its incarnation.
    pub registered: BTreeMap<String, u64>,
    /// Sessions to which a living owner is connected, and its incarnation.
    pub connected: BTreeMap<String, u64>,
    pub grants: BTreeMap<String, BTreeMap<u64, GrantRecord>>,
    /// The reclaims that were seen, by kind, key and incarnation.
    pub reclaims: BTreeMap<(String, String, u64), String>,
}

impl Ledger {
    pub fn job(&mut self, id: &str) -> &mut JobRecord {
        self.jobs.entry(id.to_owned()).or_default()
    }

    /// An acknowledged sign of life of an owner.
    pub fn sign(&mut self, kind: &str, incarnation: u64, ttl_ms: u64, span: CallSpan) {
        let owner = self.owners.entry((kind.to_owned(), incarnation)).or_default();
        owner.note(ttl_ms, span);
    }

    /// A heartbeat of a provider that was noted.
    pub fn provider_sign(&mut self, id: &str, ttl_ms: u64, span: CallSpan) {
        self.providers.entry(id.to_owned()).or_default().note(ttl_ms, span);
    }

    /// One line of a worker process.
    pub fn worker_line(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().unwrap();
        match words[..] {
            ["beat", incarnation, ttl_ms, sent, done] => {
                let span = CallSpan { sent_ms: number(sent), done_ms: number(done) };
                self.sign("inflight", number(incarnation), number(ttl_ms), span);
            }
            ["took", id, token] => drop(self.job(id).taken.insert(number(token))),
            ["completing", id, token] => drop(self.job(id).completing.insert(number(token))),
            ["done", id, token] => {
                self.job(id).completed.push(number(token));
                self.completed += 1;
            }
            ["refused", _, _] => self.refused += 1,
            _ => panic!("a worker said {line:?}"),
        }
    }
}

impl OwnerRecord {
    fn note(&mut self, ttl_ms: u64, span: CallSpan) {
        self.ttl_ms = ttl_ms;
        self.signs.push_back(span);
        if self.signs.len() > SIGNS_MAX {
            self.signs.pop_front();
        }
    }

    /// The sign of life that an owner declared dead at `at_ms` had given in time: answered before, and
    /// sent less than a TTL before.
    pub fn alive_at(&self, at_ms: u64) -> Option<CallSpan> {
        let in_time =
            |span: &&CallSpan| span.done_ms <= at_ms && span.sent_ms + self.ttl_ms > at_ms + 1;
        self.signs.iter().find(in_time).copied()
    }
}
