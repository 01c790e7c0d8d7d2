//! Reads of jobs in flight: pages of suspects, counts, and single jobs.

use std::collections::HashMap;

use lapsed_core::inflight::{Job, JobCounts, JobPlace, JobToken};
use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::{Census, Cursor, PageRequest, Suspect, SuspectPage};
use lapsed_core::{Error, Name, Result};

use super::adopt::{AdoptedInflight, LOCK, owner_of};
use crate::queues::QueueFormat;
use crate::script;
use crate::system_context::Args;

/// Scores from here on are milliseconds; below, seconds.
const MILLISECONDS_FROM: f64 = 1e11;

/// The most bytes of payloads in one page, and therefore in one batch.
const PAGE_BYTES_MAX: usize = 512 << 10;

/// The most queues that are read.
const QUEUES_MAX: usize = 10_000;

/// The position at which a page continues: a score, as the server writes it, and an id.
struct IndexPosition {
    score: String,
    id: Vec<u8>,
}

/// As `to_ms` of the scripts: whole seconds may have been cut off, so the end of that second counts.
pub(super) fn from_score(score: f64) -> u64 {
    match score {
        n if n >= MILLISECONDS_FROM => n as u64,
        n if n <= 0.0 => 0,
        n if n.fract() == 0.0 => (n as u64 + 1) * 1_000,
        n => (n * 1_000.0).ceil() as u64,
    }
}

impl AdoptedInflight {
    /// `score id`: names have no control characters, so this one separates them.
    pub(super) fn place_after(&self, suspect: &Suspect) -> Cursor {
        let known = self.places.lock().expect(LOCK).get(&suspect.key).cloned();
        let score = known.unwrap_or_else(|| {
            suspect.deadline_ms.saturating_sub(self.context().threshold_ms()).to_string()
        });
        Cursor(Some(format!("{score}\u{1}{}", suspect.key)))
    }

    pub(super) async fn page(&self, request: &PageRequest) -> Result<SuspectPage> {
        let mut from = match &request.after.0 {
            None => IndexPosition { score: String::new(), id: Vec::new() },
            Some(text) => {
                let parts = text.split_once('\u{1}');
                let (score, id) = parts.ok_or_else(|| {
                    Error::Invalid(format!("{text:?} is not a cursor of this store"))
                })?;
                IndexPosition { score: score.to_owned(), id: id.as_bytes().to_vec() }
            }
        };
        let mut page = SuspectPage { last: true, ..SuspectPage::default() };
        // While the brake holds, nothing that is not declared dead is listed.
        if request.undeclared_max == Some(0) {
            return Ok(page);
        }
        let mut places = HashMap::new();
        // A member that is not a valid name is skipped, and must not use up the page's limit.
        loop {
            let (rows, last) = self.rows(&from, request.limit).await?;
            page.last = last;
            page.examined += rows.len() as u64;
            for (score, id) in &rows {
                if let Ok(key) = Name::from_bytes(id) {
                    page.suspects.push(self.suspect(key.clone(), score)?);
                    places.insert(key, score.clone());
                }
            }
            match rows.into_iter().next_back() {
                Some((score, id)) if page.suspects.is_empty() && !last => {
                    from = IndexPosition { score, id };
                }
                _ => break,
            }
        }
        *self.places.lock().expect(LOCK) = places;
        Ok(page)
    }

    /// Reads the rows of the index after that position, and whether they are the last ones.
    async fn rows(
        &self,
        from: &IndexPosition,
        limit: usize,
    ) -> Result<(Vec<(String, Vec<u8>)>, bool)> {
        let mut args = Args::default()
            .key(&self.layout.index_key)
            .key(&self.layout.jobs_key)
            .arg(self.context().threshold_ms())
            .arg(limit)
            .arg(&from.score);
        args.args.push(from.id.clone());
        let args = args.arg(PAGE_BYTES_MAX);
        let words: Vec<Vec<u8>> =
            self.context().run_with_keys(&script::INFLIGHT_ADOPT_PAGE, args).await?;
        let unexpected_answer = || self.context().unexpected_answer(&script::INFLIGHT_ADOPT_PAGE);
        let (last, rows) = words.split_first().ok_or_else(unexpected_answer)?;
        let read = |row: &[Vec<u8>]| {
            Ok((
                String::from_utf8(row[0].clone()).map_err(|_| unexpected_answer())?,
                row[1].clone(),
            ))
        };
        let rows: Result<Vec<_>> = rows.chunks_exact(2).map(read).collect();
        Ok((rows?, last == b"1"))
    }

    fn suspect(&self, key: Name, score: &str) -> Result<Suspect> {
        let score: f64 = score
            .parse()
            .map_err(|_| self.context().unexpected_answer(&script::INFLIGHT_ADOPT_PAGE))?;
        Ok(Suspect {
            owner: owner_of(&key),
            key,
            incarnation: Incarnation(0),
            deadline_ms: from_score(score) + self.context().threshold_ms(),
            reason: Reason::OwnerDead,
        })
    }

    pub(super) async fn count(&self) -> Result<Census> {
        let threshold_ms = self.context().threshold_ms();
        let args = Args::default().key(&self.layout.index_key).arg(threshold_ms);
        let script = &script::INFLIGHT_ADOPT_CENSUS;
        let words: Vec<String> = self.context().run(self.shard(), script, args).await?;
        let number = |at: usize| -> Result<u64> {
            let word = words.get(at).and_then(|word| word.parse().ok());
            word.ok_or_else(|| self.context().unexpected_answer(script))
        };
        let (now_ms, back_ms, due) = (number(0)?, number(1)?, number(4)?);
        self.context().check_return_time(self.shard(), back_ms, now_ms);
        let mut census = Census {
            now_ms,
            store: words.get(2).cloned().unwrap_or_default(),
            back_ms,
            population: number(3)?,
            oldest_late_ms: number(5).map_or(0, |oldest| now_ms.saturating_sub(oldest)),
            ..Census::default()
        };
        // Owners have a whole threshold after the server's return to send a heartbeat.
        match back_ms {
            0 => (census.orphans, census.entries_due_recently) = (due, number(6)?),
            _ => census.orphans_spared = due,
        }
        census.entries_tracked = census.population;
        census.entries_died_recently = number(7)?;
        census.suspects = census.orphans;
        let silent = due.saturating_add(number(8)?);
        census.observation = Some(self.observation(census.population, silent).await?);
        Ok(census)
    }

    /// Reads one job that is in flight or a dead letter. A job on its queue belongs to the application.
    pub(super) async fn find(&self, id: &Name) -> Result<Option<Job>> {
        let (layout, none) = (&self.layout, self.none());
        let args = Args::default()
            .key(&layout.index_key)
            .key(&layout.jobs_key)
            .key(self.letters_key())
            .key(self.crashes())
            .key(self.process(id.as_str()).unwrap_or_else(|| none.clone()))
            .key(layout.details_index_key.as_ref().unwrap_or(&none))
            .arg(id)
            .arg(self.context().threshold_ms())
            .arg(layout.recovery.crash_window_ms)
            .arg(layout.queues.as_str());
        let script = &script::INFLIGHT_ADOPT_JOB;
        let words: Vec<Vec<u8>> = self.context().run(self.shard(), script, args).await?;
        let unexpected_answer = || self.context().unexpected_answer(script);
        let shown: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        let shown: Vec<&str> = shown.iter().map(|word| &**word).collect();
        match shown[..] {
            [] => Ok(None),
            ["dead", now, _] => {
                let now_ms = now.parse().map_err(|_| unexpected_answer())?;
                let found = vec![(id.clone(), words[2].clone())];
                Ok(self.read_letters(found, now_ms).await?.pop())
            }
            ["held", ..] => in_flight_job(id, &shown).ok_or_else(unexpected_answer).map(Some),
            _ => Err(unexpected_answer()),
        }
    }

    /// What can be seen from here. How many jobs the application has completed only it knows:
    /// those that entered are those that are somewhere.
    pub(super) async fn account(&self) -> Result<JobCounts> {
        let connection = &self.context().connection;
        let mut in_flight = redis::cmd("ZCARD");
        in_flight.arg(&self.layout.index_key);
        let mut dead = redis::cmd("HLEN");
        dead.arg(self.letters_key());
        let mut dropped = redis::cmd("HGET");
        dropped.arg(self.none()).arg("dropped");
        let dropped: Option<i64> = connection.query("HGET", &dropped).await?;
        let queues = self.filled_queues(None, QUEUES_MAX).await?;
        let mut counts = JobCounts {
            queued: queues.iter().map(|(_, jobs)| jobs).sum(),
            in_flight: connection.query("ZCARD", &in_flight).await?,
            dead: connection.query("HLEN", &dead).await?,
            dropped: dropped.unwrap_or(0).max(0) as u64,
            ..JobCounts::default()
        };
        counts.entered = counts.queued + counts.in_flight + counts.dead + counts.dropped;
        Ok(counts)
    }

    /// Queues that hold something: those that Sidekiq knows, or that jobs were put back to.
    pub(super) async fn filled_queues(
        &self,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, u64)>> {
        let mut names = self.queue_names().await?;
        names.sort();
        names.dedup();
        names.retain(|name| after.is_none_or(|after| name > after));
        let verb = if self.layout.queues == QueueFormat::Stream { "XLEN" } else { "LLEN" };
        let mut filled = Vec::new();
        for some in names.chunks(500) {
            let mut pipeline = redis::pipe();
            for name in some {
                pipeline.cmd(verb).arg(self.queues.key_of(name));
            }
            let connection = &self.context().connection;
            let lengths: Vec<Option<u64>> =
                connection.query_each(verb, &pipeline, some.len()).await?;
            let pairs = some.iter().cloned().zip(lengths);
            filled.extend(pairs.filter_map(|(name, jobs)| Some((name, jobs.filter(|n| *n > 0)?))));
            if filled.len() >= limit {
                break;
            }
        }
        filled.truncate(limit);
        Ok(filled)
    }

    async fn queue_names(&self) -> Result<Vec<Name>> {
        let (mut names, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let mut cmd = redis::cmd("SSCAN");
            cmd.arg(self.names()).arg(&cursor).arg("COUNT").arg(500);
            let (next, page): (String, Vec<Vec<u8>>) =
                self.context().connection.query("SSCAN", &cmd).await?;
            names.extend(page.iter().filter_map(|name| Name::from_bytes(name).ok()));
            if next == "0" || names.len() >= QUEUES_MAX {
                return Ok(names);
            }
            cursor = next;
        }
    }
}

/// Takes the answer apart. Who registered when is known only to newer versions of the original;
/// else the last heartbeat is the earliest that is known.
fn in_flight_job(id: &Name, words: &[&str]) -> Option<Job> {
    let [_, now, payload, queue, crashes, beat, due, registered] = *words else { return None };
    let (now_ms, beat_ms) = (now.parse().ok()?, beat.parse().ok()?);
    let registered_ms: u64 = registered.parse().unwrap_or(0);
    Some(Job {
        id: id.clone(),
        queue: Name::new(queue).or_else(|_| Name::new("?")).ok()?,
        payload: payload.to_owned(),
        crashes: crashes.parse().ok()?,
        entered_ms: registered_ms,
        place: JobPlace::InFlight {
            owner: owner_of(id),
            incarnation: Incarnation(0),
            token: JobToken(0),
            since_ms: if registered_ms > 0 { registered_ms } else { beat_ms },
            due_ms: due.parse().ok()?,
            ended: None,
        },
        now_ms,
    })
}
