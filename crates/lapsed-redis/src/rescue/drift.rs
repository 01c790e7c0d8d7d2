//! Drift: keys of a foreign job system that contradict each other, reported, and healed on request.
//!
//! A crash between two commands, an eviction or a deletion by hand leaves a job that is on no list, a lock without a job, or a
//! registry entry that points to nothing. The system itself finds few of these. A profile lists what may have drifted
//! (`Profile::drift`); its `drift.lua` decides in one step that reads everything again, and heals in the same step.
//!
//! **The race.** A living worker is between two steps all the time: RQ takes a job by BLPOP and registers it by the next
//! command, so that at any moment some job is on no list. A finding therefore counts only if two looks, [`APART`] from
//! each other, both find it and nothing about it has changed in between (its mark). What is left of the race: a worker that
//! stands still between the two steps for longer than that, and then goes on, runs a job that was put back meanwhile.
//! No key tells such a worker from a dead one. That is one reason why healing is for people to ask for.
//!
//! **Who heals.** `lapsed reconcile NAME` is the request: it heals, as it does for every system, and `--dry-run` only reports.
//! The scheduled run of a daemon only reports (`heals_on_schedule`), because the keys are the foreign system's, and an application may
//! do on purpose what looks like drift here. Healing is never more than this: a pointer to nothing is removed, or a job that
//! is on no list goes to its queue as a put-back would. What the system removes itself (a lock that expires) is left.
//!
//! A run has three parts, and its cursor says where it stands: `RUN:look:PLACE` goes through the keys in pages, and each finding has
//! its first look there; `RUN:wait` lets the time pass; `RUN:again:N` has the second look. The findings are in this
//! process's memory. A cursor of another process goes on at its place with a new run.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::reconcile::{IndexChange, Reconcile, Reconciled};
use lapsed_core::sweep::{Cursor, PassMode};
use lapsed_core::{Error, Result};

use super::profile::{DriftRequest, Finding};
use super::reader::Reader;
use super::{LOCK, RescuedInflight};
use crate::script::Script;
use crate::system_context::Args;

/// How long after the first look at a finding the second one follows.
const APART: Duration = Duration::from_secs(5);

/// How long one page of a run waits at most: pages have a time limit.
const WAIT_PAGE: Duration = Duration::from_millis(200);

/// How many findings one call of the script checks. A search in a list of [`SEARCH_MAX`] takes 0.1 ms, and some check two.
const STEP: usize = 10;

/// How many findings one run remembers; the next run finds the rest.
const FINDINGS_MAX: usize = 10_000;

/// How many runs may be under way in this process; the oldest is forgotten.
const RUNS_MAX: usize = 8;

/// The longest list that is searched for a job, in a look and in `drift.lua`.
pub(super) const SEARCH_MAX: u64 = 10_000;

/// Why a job was not judged.
pub(super) const TOO_LONG: &str = "its queue is too long to be searched";

/// The script of a profile that checks and heals findings.
macro_rules! drift_script {
    ($name:literal, $($file:literal),+) => {
        $crate::script::profile_script!(drift_text, $name, $($file),+)
    };
}
pub(super) use drift_script;

/// The runs that are under way.
pub(super) struct DriftSearch {
    apart: Duration,
    runs: Mutex<BTreeMap<u64, Run>>,
}

impl Default for DriftSearch {
    fn default() -> DriftSearch {
        DriftSearch { apart: APART, runs: Mutex::default() }
    }
}

/// One run: what its first looks found.
#[derive(Default)]
struct Run {
    began: Duration,
    /// This process's monotonic clock at the last of the first looks.
    looked_at: Duration,
    met: HashSet<(&'static str, String, String)>,
    found: Vec<Found>,
}

#[derive(Clone)]
struct Found {
    finding: Finding,
    /// What must not change until the second look.
    mark: Vec<u8>,
}

/// Where a run stands.
enum Position {
    Look { run: u64, after: Option<String> },
    Wait { run: u64 },
    Again { run: u64, from: usize },
}

/// What the script says about one finding.
struct Verdict {
    code: char,
    text: Vec<u8>,
}

#[async_trait]
impl Reconcile for RescuedInflight {
    async fn reconcile(&self, after: Cursor, limit: usize, act: PassMode) -> Result<Reconciled> {
        let script = self.profile.drift_script().ok_or_else(|| Error::Unsupported {
            operation: format!("looking for drift in the keys of {}", self.profile.facts().title),
            store: self.context().place(),
        })?;
        match self.position(&after)? {
            Position::Look { run, after } => self.first_look(script, run, after, limit).await,
            Position::Wait { run } => self.wait(run).await,
            Position::Again { run, from } => self.second_look(script, run, from, limit, act).await,
        }
    }

    async fn extent(&self) -> Result<u64> {
        self.context().connection.query("DBSIZE", &redis::cmd("DBSIZE")).await
    }

    fn heals_on_schedule(&self) -> bool {
        false
    }

    fn subject(&self) -> Option<String> {
        let title = self.profile.facts().title;
        Some(format!("the keys of {title}: {}", self.profile.drift_subject()))
    }
}

impl RescuedInflight {
    /// Whether drift is looked for in this system.
    pub fn finds_drift(&self) -> bool {
        self.profile.drift_script().is_some()
    }

    /// Changes how long after the first look at a finding the second one follows; 5 s by default.
    pub fn drift_looks_apart(mut self, apart: Duration) -> Self {
        self.drift.apart = apart;
        self
    }

    fn position(&self, cursor: &Cursor) -> Result<Position> {
        let Some(text) = &cursor.0 else {
            return Ok(Position::Look { run: self.begin_run(), after: None });
        };
        let wrong = || Error::Invalid(format!("{text:?} is not a place in a search for drift"));
        let (run, rest) = text.split_once(':').ok_or_else(wrong)?;
        let run: u64 = run.parse().map_err(|_| wrong())?;
        let is_known = self.drift.runs.lock().expect(LOCK).contains_key(&run);
        let (part, place) = rest.split_once(':').unwrap_or((rest, ""));
        match (part, is_known) {
            ("look", true) => Ok(Position::Look { run, after: Some(place.to_owned()) }),
            ("look", false) => {
                Ok(Position::Look { run: self.begin_run(), after: Some(place.to_owned()) })
            }
            ("wait", true) => Ok(Position::Wait { run }),
            ("again", true) => {
                Ok(Position::Again { run, from: place.parse().map_err(|_| wrong())? })
            }
            // What another process had found is not known here.
            ("wait" | "again", false) => Ok(Position::Look { run: self.begin_run(), after: None }),
            _ => Err(wrong()),
        }
    }

    fn begin_run(&self) -> u64 {
        let clock = &self.context().clock;
        let (run, began) = (clock.random(), clock.mono());
        let mut runs = self.drift.runs.lock().expect(LOCK);
        while runs.len() >= RUNS_MAX {
            let oldest = runs.iter().min_by_key(|(_, run)| run.began).map(|(number, _)| *number);
            oldest.map(|number| runs.remove(&number));
        }
        runs.insert(run, Run { began, ..Run::default() });
        run
    }

    /// One page of the keys, and the first look at what may have drifted there.
    async fn first_look(
        &self,
        script: &'static Script,
        run: u64,
        after: Option<String>,
        limit: usize,
    ) -> Result<Reconciled> {
        let context = self.context();
        let reader = Reader { connection: &context.connection, clock: &*context.clock };
        let own = &self.shard().prefix;
        let request = DriftRequest { after: after.as_deref(), limit, own };
        let mut page = self.profile.drift(&reader, request).await?;
        let queues = &self.layout.queues;
        let is_wanted = |one: &Finding| {
            queues.is_empty() || one.queue.as_ref().is_none_or(|queue| queues.contains(queue))
        };
        page.findings.retain(is_wanted);
        self.forget_known(run, &mut page.findings);
        let mut done =
            Reconciled { examined: page.examined, left: page.left, ..Reconciled::default() };
        let mut found = Vec::new();
        for some in page.findings.chunks(STEP) {
            let some: Vec<Found> =
                some.iter().map(|one| Found { finding: one.clone(), mark: Vec::new() }).collect();
            let verdicts = self.check(script, "first", &some).await?;
            for (one, verdict) in some.into_iter().zip(verdicts) {
                match verdict.code {
                    'F' => found.push(Found { mark: verdict.text, ..one }),
                    _ => leave(&mut done, &one.finding, &verdict),
                }
            }
        }
        let (count, is_full) = self.remember(run, found);
        done.next = match page.next {
            Some(next) if !is_full => at(format!("{run}:look:{next}")),
            _ if count > 0 => at(format!("{run}:wait")),
            _ => self.end(run),
        };
        Ok(done)
    }

    /// What SCAN names twice is looked at once.
    fn forget_known(&self, run: u64, findings: &mut Vec<Finding>) {
        let mut runs = self.drift.runs.lock().expect(LOCK);
        let Some(run) = runs.get_mut(&run) else { return };
        findings.retain(|one| run.met.insert((one.kind, one.key.clone(), one.member.clone())));
    }

    /// Returns how many findings there are now, and whether no more can be remembered.
    fn remember(&self, run: u64, found: Vec<Found>) -> (usize, bool) {
        let mut runs = self.drift.runs.lock().expect(LOCK);
        let Some(run) = runs.get_mut(&run) else { return (0, false) };
        if !found.is_empty() {
            run.looked_at = self.context().clock.mono();
        }
        run.found.extend(found);
        (run.found.len(), run.found.len() >= FINDINGS_MAX)
    }

    fn end(&self, run: u64) -> Option<Cursor> {
        self.drift.runs.lock().expect(LOCK).remove(&run);
        None
    }

    async fn wait(&self, run: u64) -> Result<Reconciled> {
        let clock = &self.context().clock;
        let looked_at = self.drift.runs.lock().expect(LOCK).get(&run).map(|run| run.looked_at);
        let over = looked_at.unwrap_or_default() + self.drift.apart;
        clock.sleep(over.saturating_sub(clock.mono()).min(WAIT_PAGE)).await;
        let next = match clock.mono() < over {
            true => format!("{run}:wait"),
            false => format!("{run}:again:0"),
        };
        Ok(Reconciled { next: at(next), ..Reconciled::default() })
    }

    async fn second_look(
        &self,
        script: &'static Script,
        run: u64,
        from: usize,
        limit: usize,
        act: PassMode,
    ) -> Result<Reconciled> {
        let (some, count) = {
            let runs = self.drift.runs.lock().expect(LOCK);
            let all = runs.get(&run).map_or(&[][..], |run| &run.found);
            let some: Vec<Found> = all.iter().skip(from).take(limit).cloned().collect();
            (some, all.len())
        };
        let mode = if act == PassMode::Reclaim { "heal" } else { "again" };
        let mut done = Reconciled::default();
        for some in some.chunks(STEP) {
            let verdicts = self.check(script, mode, some).await?;
            for (one, verdict) in some.iter().zip(verdicts) {
                self.report(&one.finding, &verdict, &mut done);
            }
        }
        done.next = match from + limit < count {
            true => at(format!("{run}:again:{}", from + limit)),
            false => self.end(run),
        };
        Ok(done)
    }

    fn report(&self, finding: &Finding, verdict: &Verdict, done: &mut Reconciled) {
        let (system, key, what) = (&self.context().id, &finding.key, &finding.what);
        match verdict.code {
            'F' => tracing::info!(%system, key, "{what}"),
            'H' => tracing::info!(%system, key, "healed: {what}"),
            _ => return leave(done, finding, verdict),
        }
        done.changes.push(IndexChange { key: key.clone(), what: finding.heal, why: what.clone() });
    }

    async fn check(
        &self,
        script: &'static Script,
        mode: &str,
        some: &[Found],
    ) -> Result<Vec<Verdict>> {
        let mut args = Args::default().arg(mode).arg(some.len());
        for Found { finding, mark } in some {
            args = args.arg(finding.kind).bytes(mark);
            args = args.arg(finding.keys.len()).arg(finding.words.len());
            args = finding.words.iter().fold(args, |args, word| args.arg(word));
            args = finding.keys.iter().fold(args, |args, key| args.key(key));
        }
        let words: Vec<Vec<u8>> = self.context().run_with_keys(script, args).await?;
        let verdict = |pair: &[Vec<u8>]| Verdict {
            code: pair[0].first().map_or('?', |code| char::from(*code)),
            text: pair[1].clone(),
        };
        match words.len() == 2 * some.len() {
            true => Ok(words.chunks_exact(2).map(verdict).collect()),
            false => Err(self.context().unexpected_answer(script)),
        }
    }
}

fn at(text: String) -> Option<Cursor> {
    Some(Cursor(Some(text)))
}

/// What is reported of a finding that is not healed. What is not so any more is not reported: it is how a system works.
fn leave(done: &mut Reconciled, finding: &Finding, verdict: &Verdict) {
    let text = String::from_utf8_lossy(&verdict.text);
    let why = match verdict.code {
        'L' => format!("{}: {text}", finding.what),
        'N' => TOO_LONG.to_owned(),
        'U' => format!("unreadable: {text}"),
        _ => return,
    };
    tracing::warn!(key = finding.key, "{why}");
    *done.left.entry(why).or_default() += 1;
}
