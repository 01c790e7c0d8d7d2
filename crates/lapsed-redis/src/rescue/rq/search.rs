//! Searches a long queue for jobs that no worker has started.
//!
//! A job that a dead worker took and did not start has the status `queued`, as has one that waits on its queue. `LPOS` over a million ids holds
//! the server for 40 ms, so that the decisive step looks only at [`NEAR`] ids at both ends. Of a longer queue it needs to be told that the job
//! is not on it. This search tells, in pages, over several looks if need be.
//!
//! **Why what it says still holds in the decisive step.** Each enqueueing of a job, by RQ or by lapsed, writes a new `enqueued_at`. A search
//! begins after `enqueued_at` was read, and what it says counts only while that is the same. So the job was not added since, and what remains is that it
//! was on the list all the time and was not met. The search goes from the end where jobs are added to the end where they are
//! taken. Ids are never exchanged on a list, so that each page is joined to the one before by the last ids that were read there
//! (the anchor), wherever they are by now. If they are nowhere, the search begins anew.
//!
//! That a job *is* on the queue is not told to the decisive step: a worker may take it meanwhile. It is spared until it is near an end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lapsed_core::{Name, Result};

use super::{Execution, Rq, Taken};
use crate::rescue::profile::Seen;
use crate::rescue::reader::Reader;

/// At how many ids at each end of a queue the decisive step looks, as `put_back.lua` has it.
pub(super) const NEAR: u64 = 1_000;

/// How many ids one page has. The server needs about 0.2 ms for it.
const PAGE: usize = 2_000;

/// How far a page reaches back, in case ids were removed from what has been read.
const OVERLAP: usize = 100;

/// How many ids join one page to the next.
const ANCHOR: usize = 4;

/// How many pages one look reads, and for how long: a pass waits for it.
const PAGES_MAX: usize = 250;
const LOOK_MAX: Duration = Duration::from_millis(500);

/// Between two pages other clients are served.
const PAUSE: Duration = Duration::from_micros(300);

/// For how long a job that was met on its queue is not searched for again.
const KNOWN_FOR: Duration = Duration::from_secs(60);

/// A worker registers what it has taken by its next command, so that only what nobody has registered for longer is searched for.
const TAKEN_FOR: Duration = Duration::from_secs(5);

/// The id of a job, and when it was enqueued, as its hash had it.
type Enqueued = (String, String);

/// What is known of the jobs of one queue that are `queued` and were taken by a worker.
#[derive(Default)]
pub(super) struct QueueSearch {
    /// Not on the queue since then.
    absent: BTreeSet<Enqueued>,
    /// On the queue at that time of this process.
    met: BTreeMap<Enqueued, Duration>,
    under_way: Option<Walk>,
    /// When this process first found a job that was taken and not registered.
    taken: BTreeMap<Enqueued, Duration>,
}

/// The jobs of each queue that were taken and not started: those of silent workers, and those that nobody has registered.
#[derive(Default)]
pub(super) struct NotStarted {
    of_silent: BTreeSet<Enqueued>,
    of_nobody: BTreeSet<Enqueued>,
}

impl Rq {
    pub(super) fn not_started(
        &self,
        running: &[Execution],
        taken: &[Taken],
        has_pubsub: bool,
        seen: &Seen,
    ) -> BTreeMap<Name, NotStarted> {
        let mut all: BTreeMap<Name, NotStarted> = BTreeMap::new();
        for one in running {
            let worker = one.worker.as_ref().filter(|_| has_pubsub);
            let is_silent = worker
                .and_then(|worker| seen.workers.get(worker))
                .is_none_or(|worker| worker.is_silent);
            if let (true, Some(at)) = (is_silent, &one.queued_at) {
                let of_queue = all.entry(one.queue.clone()).or_default();
                of_queue.of_silent.insert((one.id.clone(), at.clone()));
            }
        }
        for one in taken {
            let of_queue = all.entry(one.queue.clone()).or_default();
            of_queue.of_nobody.extend(one.queued_at.clone().map(|at| (one.id.clone(), at)));
        }
        all
    }

    /// Goes on with the search in each queue that the decisive step cannot search.
    pub(super) async fn search_queues(
        &self,
        reader: &Reader<'_>,
        suspects: BTreeMap<Name, NotStarted>,
        seen: &mut Seen,
    ) -> Result<()> {
        let mut searches = self.searches.lock().await;
        searches.retain(|queue, _| suspects.contains_key(queue));
        for (queue, jobs) in suspects {
            if seen.queues.get(&queue).is_none_or(|length| *length <= 2 * NEAR) {
                searches.remove(&queue);
                continue;
            }
            let search = searches.entry(queue.clone()).or_default();
            let wanted = search.wanted(jobs, reader.clock.mono());
            search.go_on(reader, &queue, &wanted, seen).await?;
        }
        Ok(())
    }

    /// When a job was enqueued that is not on its queue since then; empty: that is not known.
    pub(super) async fn absent_since(
        &self,
        queue: &Name,
        id: &str,
        queued_at: Option<String>,
    ) -> String {
        let Some(at) = queued_at else { return String::new() };
        let searches = self.searches.lock().await;
        let job = (id.to_owned(), at);
        let is_absent = searches.get(queue).is_some_and(|search| search.absent.contains(&job));
        if is_absent { job.1 } else { String::new() }
    }
}

/// One walk along a queue.
struct Walk {
    wanted: BTreeMap<String, String>,
    met: BTreeSet<String>,
    /// How many ids stood behind the last one that was read, when it was read.
    read: usize,
    /// The last ids that were read, in the order of reading.
    anchor: Vec<Vec<u8>>,
}

impl QueueSearch {
    /// What is searched for: not what a worker may be about to register.
    fn wanted(&mut self, jobs: NotStarted, now: Duration) -> BTreeSet<Enqueued> {
        self.taken.retain(|one, _| jobs.of_nobody.contains(one));
        let mut wanted = jobs.of_silent;
        for one in jobs.of_nobody {
            let since = *self.taken.entry(one.clone()).or_insert(now);
            if now.saturating_sub(since) >= TAKEN_FOR {
                wanted.insert(one);
            }
        }
        wanted
    }

    /// Goes on with the search for these jobs of a long queue. Their hashes were read before.
    async fn go_on(
        &mut self,
        reader: &Reader<'_>,
        queue: &Name,
        jobs: &BTreeSet<Enqueued>,
        seen: &mut Seen,
    ) -> Result<()> {
        let now = reader.clock.mono();
        self.absent.retain(|one| jobs.contains(one));
        self.met.retain(|one, at| jobs.contains(one) && now.saturating_sub(*at) < KNOWN_FOR);
        let is_open = |one: &&Enqueued| !self.absent.contains(*one) && !self.met.contains_key(*one);
        let open: Vec<Enqueued> = jobs.iter().filter(is_open).cloned().collect();
        if open.is_empty() {
            self.under_way = None;
            return Ok(());
        }
        let begin = || Walk {
            wanted: open.iter().cloned().collect(),
            met: BTreeSet::new(),
            read: 0,
            anchor: Vec::new(),
        };
        // It stays in its place, because a look may be given up at any page.
        let walk = self.under_way.get_or_insert_with(begin);
        if !walk.go_on(reader, &format!("rq:queue:{queue}"), seen).await? {
            seen.notes.push(format!("queue `{queue}` is long and is being searched for jobs that no worker has started ({} ids so far): they are not judged before that", walk.read));
            return Ok(());
        }
        let Some(walk) = self.under_way.take() else { return Ok(()) };
        let over = reader.clock.mono();
        for (id, enqueued) in walk.wanted {
            match walk.met.contains(&id) {
                true => drop(self.met.insert((id, enqueued), over)),
                false => drop(self.absent.insert((id, enqueued))),
            }
        }
        Ok(())
    }
}

impl Walk {
    /// Reads some pages. True: the queue has been read to its end.
    async fn go_on(&mut self, reader: &Reader<'_>, list: &str, seen: &mut Seen) -> Result<bool> {
        let until = reader.clock.mono() + LOOK_MAX;
        for _ in 0..PAGES_MAX {
            let skip = self.read.saturating_sub(OVERLAP);
            let (from, to) =
                ((-((skip + PAGE) as i64)).to_string(), (-1 - skip as i64).to_string());
            let mut page: Vec<Vec<u8>> =
                reader.one("LRANGE", &[list.as_bytes(), from.as_bytes(), to.as_bytes()]).await?;
            page.reverse();
            seen.examined += page.len() as u64;
            if self.join(&page, skip) {
                return Ok(true);
            }
            if reader.clock.mono() >= until {
                break;
            }
            reader.clock.sleep(PAUSE).await;
        }
        Ok(false)
    }

    /// Takes a page in, which begins `skip` ids before the end of the queue. True: it is the last one.
    fn join(&mut self, page: &[Vec<u8>], skip: usize) -> bool {
        let ids = page.iter().filter_map(|id| std::str::from_utf8(id).ok());
        self.met.extend(ids.filter(|id| self.wanted.contains_key(*id)).map(str::to_owned));
        let is_last = page.len() < PAGE;
        let is_joined = self.anchor.is_empty()
            || page.windows(self.anchor.len()).any(|ids| *ids == self.anchor[..]);
        match (is_joined, is_last) {
            (true, true) => return true,
            (true, false) => {
                self.read = skip + page.len();
                self.anchor = page[page.len() - ANCHOR..].to_vec();
            }
            // So much was added meanwhile that the anchor is further on.
            (false, false) => self.read = skip + page.len(),
            // Workers have taken it, or somebody removed it.
            (false, true) => (self.read, self.anchor) = (0, Vec::new()),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue, as LRANGE reads it from its end.
    fn page(list: &[String], skip: usize) -> Vec<Vec<u8>> {
        list.iter().rev().skip(skip).take(PAGE).map(|id| id.clone().into_bytes()).collect()
    }

    fn walk(wanted: &str) -> Walk {
        let wanted = BTreeMap::from([(wanted.to_owned(), "then".to_owned())]);
        Walk { wanted, met: BTreeSet::new(), read: 0, anchor: Vec::new() }
    }

    /// Walks along a list that changes before each page. Returns whether the id was met.
    fn is_met(
        wanted: &str,
        list: &mut Vec<String>,
        change: impl Fn(&mut Vec<String>, usize),
    ) -> bool {
        let mut walk = walk(wanted);
        for n in 0..1_000 {
            change(list, n);
            let skip = walk.read.saturating_sub(OVERLAP);
            if walk.join(&page(list, skip), skip) {
                return walk.met.contains(wanted);
            }
        }
        panic!("the walk does not end")
    }

    fn queue() -> Vec<String> {
        (0..20_000).map(|n| format!("j{n}")).collect()
    }

    #[test]
    fn a_waiting_job_is_met_whatever_is_added_taken_and_removed_meanwhile() {
        for wanted in ["j0", "j9999", "j18999", "j19000", "j19001", "j19999"] {
            assert!(is_met(wanted, &mut queue(), |_, _| ()), "{wanted}");
            let adds = |list: &mut Vec<String>, n: usize| {
                (0..500).for_each(|m| list.push(format!("new{n}-{m}")));
            };
            assert!(is_met(wanted, &mut queue(), adds), "{wanted}");
            // Ids behind the wanted one are removed from what has been read, more at a time than pages overlap.
            let removes = |list: &mut Vec<String>, n: usize| {
                let end = list.len() - 200;
                if n > 0 && n < 5 {
                    list.retain({
                        let mut at = 0;
                        move |id| {
                            at += 1;
                            at <= end - 150 || at > end || id == wanted
                        }
                    });
                }
            };
            assert!(is_met(wanted, &mut queue(), removes), "{wanted}");
        }
        let takes = |list: &mut Vec<String>, _: usize| drop(list.drain(..300));
        assert!(is_met("j19999", &mut queue(), takes));
        assert!(!is_met("nobody", &mut queue(), takes));
    }

    #[test]
    fn what_is_on_no_page_is_not_met() {
        assert!(!is_met("gone", &mut queue(), |_, _| ()));
        assert!(!is_met("gone", &mut Vec::new(), |_, _| ()));
    }
}
