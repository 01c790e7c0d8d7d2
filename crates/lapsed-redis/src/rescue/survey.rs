//! One look at a foreign system's keys, and the suspects that follow from it.
//!
//! Where the system's keys do not say since when a worker is silent (a lost connection leaves no time behind), lapsed notes
//! when it first found the worker silent, on the server, so that several daemons and single commands share it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::{
    AdoptObservation, Census, Cursor, PageRequest, PassMode, Suspect, SuspectPage,
};
use lapsed_core::{Error, Name, Result};

use super::profile::{HeldJob, LookRequest, Seen};
use super::reader::Reader;
use super::{LOCK, RescuedInflight};

/// How much the clock of a worker's host and the server's clock may differ, in milliseconds.
const CLOCKS_DIFFER_MS: u64 = 250;

/// How much a batch may carry of what the decisive step compares and writes: some systems need the whole message for that.
const PAGE_BYTES: usize = 128 << 10;

/// What one look found.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    /// The server's clock; 0: there was no look yet.
    pub now_ms: u64,
    /// This process's monotonic clock when the look was over.
    over: Duration,
    pub seen: Seen,
    /// Jobs whose worker has been silent for the limit, by deadline and worker. Those of one worker are in the order in which the
    /// profile found them, because a job that is first in its list is found and removed at once.
    suspects: Vec<Suspect>,
    /// Where each of them is in `suspects`.
    ranks: HashMap<Name, usize>,
    /// How many different workers there are up to each suspect.
    workers: Vec<usize>,
    /// Where each job of a silent worker is in `seen.jobs`.
    places: HashMap<Name, usize>,
    /// How many bytes the decisive step reads of each job, where that is much.
    sizes: HashMap<Name, usize>,
    /// Who was seen alive, if the configuration says where signs of life are.
    pub observation: Option<AdoptObservation>,
}

/// Since when a worker is silent, and the last that it did before, as lapsed notes it on the server: `MS` or `MS ACT`.
struct Silence<'a> {
    since_ms: u64,
    act: &'a str,
}

impl<'a> Silence<'a> {
    /// A time that cannot be read is never over.
    fn parse(noted: &'a str) -> Silence<'a> {
        let (since, act) = noted.split_once(' ').unwrap_or((noted, ""));
        Silence { since_ms: since.parse().unwrap_or(u64::MAX / 2), act }
    }
}

impl std::fmt::Display for Silence<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.act {
            "" => write!(f, "{}", self.since_ms),
            act => write!(f, "{} {act}", self.since_ms),
        }
    }
}

fn group(suspect: &Suspect) -> (u64, &str) {
    (suspect.deadline_ms, suspect.owner.as_str())
}

/// `deadline worker key`: names have no control characters, so this one separates them.
pub(super) fn after(suspect: &Suspect) -> Cursor {
    Cursor(Some(format!("{}\u{1}{}\u{1}{}", suspect.deadline_ms, suspect.owner, suspect.key)))
}

/// Where to go on; from the beginning if it cannot be understood.
fn parse_cursor(cursor: &Cursor) -> Option<(u64, &str, &str)> {
    let mut parts = cursor.0.as_deref()?.splitn(3, '\u{1}');
    Some((parts.next()?.parse().ok()?, parts.next()?, parts.next()?))
}

/// For how long a look counts as recent at least, so that one pass does not look twice.
const RECENT_MIN: Duration = Duration::from_secs(1);

impl Survey {
    fn new(now_ms: u64, seen: Seen) -> Survey {
        let due = |job: &HeldJob| seen.workers.get(&job.worker).map_or(now_ms, |w| w.due_ms);
        let mut suspects: Vec<Suspect> = seen
            .jobs
            .iter()
            .map(|job| Suspect {
                key: job.key.clone(),
                owner: job.worker.clone(),
                incarnation: Incarnation(0),
                deadline_ms: due(job),
                reason: Reason::OwnerDead,
            })
            .filter(|suspect| suspect.deadline_ms <= now_ms)
            .collect();
        suspects.sort_by(|one, other| group(one).cmp(&group(other)));
        let mut met = HashSet::new();
        let workers = suspects.iter().map(|one| {
            met.insert(&one.owner);
            met.len()
        });
        let workers = workers.collect();
        let places = seen.jobs.iter().enumerate().map(|(at, job)| (job.key.clone(), at)).collect();
        let ranks = suspects.iter().enumerate().map(|(at, one)| (one.key.clone(), at)).collect();
        Survey {
            now_ms,
            seen,
            suspects,
            ranks,
            workers,
            places,
            sizes: HashMap::new(),
            observation: None,
            over: Duration::ZERO,
        }
    }

    /// What the decisive step needs to know of a job, if its worker was silent.
    pub fn job(&self, key: &Name) -> Option<&HeldJob> {
        self.seen.jobs.get(*self.places.get(key)?)
    }

    pub fn suspects(&self) -> &[Suspect] {
        &self.suspects
    }

    /// One page of suspects. The brake's word counts workers.
    pub fn page(&self, request: &PageRequest) -> SuspectPage {
        let examined = if request.after.0.is_none() { self.seen.examined } else { 0 };
        let first = parse_cursor(&request.after).map_or(0, |from| self.first_after(from));
        let most = request.undeclared_max.unwrap_or(usize::MAX);
        let allowed = self.workers.partition_point(|workers| *workers <= most).max(first);
        let most = allowed.min(first.saturating_add(request.limit));
        let end = self.end_by_bytes(first, most);
        SuspectPage { suspects: self.suspects[first..end].to_vec(), examined, last: end == allowed }
    }

    /// How far a page from `first` to `most` may go, so that it carries at most [`PAGE_BYTES`], or one suspect.
    fn end_by_bytes(&self, first: usize, most: usize) -> usize {
        let mut bytes = 0;
        let is_within = |suspect: &&Suspect| {
            let words = self.job(&suspect.key).map_or(&[][..], |job| &job.words);
            bytes += words.iter().map(String::len).sum::<usize>();
            bytes += self.sizes.get(&suspect.key).copied().unwrap_or(0);
            bytes <= PAGE_BYTES
        };
        let within = self.suspects[first..most].iter().take_while(is_within).count();
        most.min(first + within.max(1))
    }

    /// Where to go on. If that suspect is not there any more: with the first of its worker.
    fn first_after(&self, (deadline_ms, owner, key): (u64, &str, &str)) -> usize {
        let from = (deadline_ms, owner);
        match self.ranks.get(key).filter(|rank| group(&self.suspects[**rank]) == from) {
            Some(rank) => rank + 1,
            None => self.suspects.partition_point(|one| group(one) < from),
        }
    }

    /// Whether the worker of every suspect is known to have come after `back_ms`.
    fn all_came_after(&self, back_ms: u64) -> bool {
        let came_ms = |one: &Suspect| self.seen.workers.get(&one.owner).map_or(0, |w| w.came_ms);
        self.suspects.iter().all(|one| came_ms(one) > back_ms + CLOCKS_DIFFER_MS)
    }

    /// Workers whose silence has lasted for the limit and who hold something.
    fn dead_workers(&self) -> BTreeSet<&str> {
        self.suspects.iter().map(|one| one.owner.as_str()).collect()
    }

    /// Workers that show life, or have not been silent for the limit.
    fn live_workers(&self) -> u64 {
        let workers = self.seen.workers.values();
        workers.filter(|one| !one.is_silent || one.due_ms > self.now_ms).count() as u64
    }
}

impl RescuedInflight {
    /// Looks at the system's keys. Only a pass that acts notes on the server who is silent.
    pub(super) async fn look(&self, act: PassMode) -> Result<Arc<Survey>> {
        let connection = &self.context().connection;
        let reader = Reader { connection, clock: &**self.context_clock() };
        let facts = self.profile.facts();
        let own = Some(&self.shard().prefix);
        let seen = self.profile.look(&reader, LookRequest { limit: self.limit, act, own }).await?;
        let now_ms = reader.now_ms().await?;
        let mut seen = seen.unwrap_or_else(|| self.nothing_found());
        let queues = &self.layout.queues;
        let is_ours = |job: &HeldJob| {
            let queue = self.profile.queue_of(job);
            queues.is_empty() || queues.iter().any(|one| one.as_str() == queue || *one == job.queue)
        };
        seen.jobs.retain(is_ours);
        if seen.silence_is_noticed {
            self.note_silence(&mut seen, now_ms, act).await?;
        }
        let wrong = seen
            .jobs
            .iter()
            .find(|job| job.keys.len() != facts.keys || job.words.len() != facts.words);
        if let Some(job) = wrong {
            return Err(Error::Corrupt {
                store: self.context().place(),
                what: format!(
                    "the profile {} says too much or too little of `{}`",
                    facts.name, job.key
                ),
            });
        }
        if act == PassMode::Reclaim {
            let (system, before) = (&self.context().id, self.last());
            for note in seen.notes.iter().filter(|note| !before.seen.notes.contains(note)) {
                tracing::info!(%system, "{note}");
            }
        }
        let observation = self.observe(&seen, act).await?;
        let sizes = self.read_sizes(&reader, &seen.jobs).await?;
        let over = self.context_clock().mono();
        let survey = Arc::new(Survey { observation, sizes, over, ..Survey::new(now_ms, seen) });
        *self.shown.lock().expect(LOCK) = survey.clone();
        Ok(survey)
    }

    /// A look whose suspects a pass works on. Looks for other purposes do not take its place: a dry run notes nothing, so that
    /// the decisive step would refuse what it says.
    pub(super) async fn look_for_pass(&self, act: PassMode) -> Result<Arc<Survey>> {
        let survey = self.look(act).await?;
        *self.last.lock().expect(LOCK) = survey.clone();
        Ok(survey)
    }

    /// How many bytes the decisive step reads of each job, by what the server says of their length.
    async fn read_sizes(
        &self,
        reader: &Reader<'_>,
        jobs: &[HeldJob],
    ) -> Result<HashMap<Name, usize>> {
        let (mut texts, mut fields) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for job in jobs {
            let (list, mut asked) = match self.profile.read_whole(job) {
                Some((key, None)) => (&mut texts, vec![key]),
                Some((key, Some(field))) => (&mut fields, vec![key, field]),
                None => continue,
            };
            list.0.push(&job.key);
            list.1.push(asked.drain(..).map(|word| word.as_bytes().to_vec()).collect());
        }
        let mut sizes = HashMap::new();
        for (verb, (names, asked)) in [("STRLEN", texts), ("HSTRLEN", fields)] {
            let lengths: Vec<Option<usize>> = reader.each(verb, &asked).await?;
            let lengths = lengths.into_iter().map(Option::unwrap_or_default);
            sizes.extend(names.into_iter().cloned().zip(lengths));
        }
        Ok(sizes)
    }

    /// What is said while the system's keys are not there: a wrong prefix must not look like a system without dead workers.
    fn nothing_found(&self) -> Seen {
        let title = self.profile.facts().title;
        let note = match &self.layout.prefix {
            Some(prefix) => format!("no keys of {title} were found behind the prefix `{prefix}`"),
            None => format!("no keys of {title} were found; `lapsed detect` finds other prefixes"),
        };
        Seen { notes: vec![note], ..Seen::default() }
    }

    fn context_clock(&self) -> &Arc<dyn lapsed_core::clock::Clock> {
        &self.context().clock
    }

    /// The look of the last pass, or a first one.
    pub(super) async fn last_or_look(&self) -> Result<Arc<Survey>> {
        let last = self.last();
        if last.now_ms > 0 { Ok(last) } else { self.look_for_pass(PassMode::DryRun).await }
    }

    /// The last look, unless it is older than a threshold. Looks then, as a process must whose passes
    /// are made by another one: otherwise it would report a past outage for ever.
    pub(super) async fn recent_look(&self) -> Result<Arc<Survey>> {
        let _one_at_a_time = self.looking.lock().await;
        let (last, now) = (self.shown.lock().expect(LOCK).clone(), self.context_clock().mono());
        let recent = self.context().threshold.max(RECENT_MIN);
        if last.now_ms > 0 && now.saturating_sub(last.over) < recent {
            return Ok(last);
        }
        self.look(PassMode::DryRun).await
    }

    /// Notes who is silent now and was not before, and forgets who is not silent any more. Sets since when each is
    /// silent. A dry run notes nothing: for it, whoever is silent has been so for the limit.
    async fn note_silence(&self, seen: &mut Seen, now_ms: u64, act: PassMode) -> Result<()> {
        let (connection, key) = (&self.context().connection, self.own("silence"));
        let mut cmd = redis::cmd("HGETALL");
        cmd.arg(&key);
        let known: BTreeMap<String, String> = connection.query("HGETALL", &cmd).await?;
        let (mut pipeline, mut count) = (redis::pipe(), 0);
        for (name, worker) in seen.workers.iter_mut().filter(|(_, worker)| worker.is_silent) {
            let limit_ms = worker.limit_ms.unwrap_or(self.limit_ms());
            let noted = known.get(name.as_str()).map(|noted| Silence::parse(noted));
            let since_ms = match noted {
                Some(Silence { since_ms, act }) if act == worker.act => since_ms,
                _ if act == PassMode::DryRun => now_ms.saturating_sub(limit_ms),
                known => {
                    // What another pass noted meanwhile stays, unless the worker did something since then.
                    let verb = if known.is_some() { "HSET" } else { "HSETNX" };
                    let noted = Silence { since_ms: now_ms, act: &worker.act };
                    pipeline.cmd(verb).arg(&key).arg(name.as_str()).arg(noted.to_string());
                    count += 1;
                    now_ms
                }
            };
            worker.due_ms = (since_ms + limit_ms).max(worker.active_until_ms);
        }
        for name in known.keys() {
            if !seen.workers.get(name.as_str()).is_some_and(|worker| worker.is_silent) {
                pipeline.cmd("HDEL").arg(&key).arg(name);
                count += 1;
            }
        }
        if act == PassMode::Reclaim {
            let _: Vec<Option<u64>> = connection.query_each("HSETNX", &pipeline, count).await?;
        }
        Ok(())
    }

    /// The brake judges by workers where the system's keys show who lives, and by jobs where they do not.
    pub(super) async fn count(&self, survey: &Survey) -> Result<Census> {
        let (mut census, back_ms) = self.owners.count_since().await?;
        let seen = &survey.seen;
        let back_ms = if survey.all_came_after(back_ms) { 0 } else { back_ms };
        census.population = seen.in_flight;
        census.suspects = survey.suspects().len() as u64;
        let oldest = survey.suspects().first().map(|suspect| suspect.deadline_ms);
        census.oldest_late_ms = oldest.map_or(0, |at| census.now_ms.saturating_sub(at));
        census.back_ms = back_ms;
        if self.profile.facts().shows_workers {
            (census.entries_died_recently, census.entries_died_last_half) = (0, 0);
            let names = survey.dead_workers();
            census.owners_died_recently = self.died_recently(census.now_ms, &names).await?;
            let dead = names.len() as u64;
            (census.owners_live, census.owners_overdue) = (survey.live_workers(), dead);
            if back_ms > 0 {
                (census.owners_spared, census.owners_overdue) = (dead, 0);
            }
        } else {
            let recent_ms = census.now_ms.saturating_sub(self.context().threshold_ms());
            let recent = survey.suspects().iter().filter(|one| one.deadline_ms > recent_ms);
            census.orphans = census.suspects;
            census.entries_tracked = seen.in_flight;
            census.entries_due_recently = recent.count() as u64;
            if back_ms > 0 {
                (census.orphans_spared, census.orphans, census.suspects) = (census.orphans, 0, 0);
            }
        }
        census.observation = survey.observation.clone();
        if let Some(observation) = &mut census.observation {
            // It may have been confirmed since the look.
            observation.confirmed_ms = self.confirmed_ms().await?;
        }
        Ok(census)
    }

    /// Workers other than `dying` whose jobs were put back within the last threshold. The brake counts them together with
    /// those, so that workers that fall silent one after another are a mass death, too.
    async fn died_recently(&self, now_ms: u64, dying: &BTreeSet<&str>) -> Result<u64> {
        let mut cmd = redis::cmd("ZRANGEBYSCORE");
        let since_ms = now_ms.saturating_sub(self.context().threshold_ms());
        cmd.arg(self.own("deaths")).arg(format!("({since_ms}")).arg("+inf");
        let died: Vec<String> = self.context().connection.query("ZRANGEBYSCORE", &cmd).await?;
        Ok(died.iter().filter(|name| !dying.contains(name.as_str())).count() as u64)
    }
}
