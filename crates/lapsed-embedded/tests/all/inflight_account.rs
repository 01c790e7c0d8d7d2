//! Random operations, disk failures and kills: every job is in exactly one place, the totals
//! balance, tokens only grow, and memory equals disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fixture::fragile::{Fragile, survivor};
use crate::fixture::inflight_on_bytes;
use lapsed_core::clock::ManualClock;
use lapsed_core::inflight::conformance::{InflightFixture, job, job_with, name};
use lapsed_core::inflight::rules::{OnDeath, QueueEnd};
use lapsed_core::inflight::{
    Claimed, Enqueued, Finish, Finished, JobPlace, JobTicket, JobToken, RecoveryAction,
};
use lapsed_core::owner::Claim;
use lapsed_core::{Error, Result};

const START_MS: u64 = 1_700_000_000_000;

/// A small random generator: the same seed gives the same run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// The answers that callers got so far.
#[derive(Default)]
struct Promised {
    entered: BTreeSet<String>,
    /// Jobs that were answered as completed, deleted or dropped.
    gone: BTreeSet<String>,
    /// Jobs whose last operation was not answered, so that it may have happened.
    in_doubt: BTreeSet<String>,
    /// How often each job's completion was answered with `Done`.
    completed: BTreeMap<String, u32>,
    last_token: u64,
}

struct Story {
    f: InflightFixture,
    fragile: Fragile,
    clock: ManualClock,
    dice: Dice,
    promised: Promised,
    claims: Vec<Claim>,
    tickets: Vec<(usize, Claimed)>,
    next_job: u64,
    next_owner: u64,
}

fn open(fragile: &Fragile, clock: &ManualClock) -> InflightFixture {
    let fragile = fragile.clone();
    inflight_on_bytes(move |file| fragile.file(file), clock)
}

impl Story {
    async fn begin(seed: u64) -> Story {
        let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(START_MS));
        let f = open(&fragile, &clock).settled().await;
        let (promised, dice) = (Promised::default(), Dice(seed));
        let (claims, tickets) = (Vec::new(), Vec::new());
        Story { f, fragile, clock, dice, promised, claims, tickets, next_job: 0, next_owner: 0 }
    }

    async fn step(&mut self) {
        match self.dice.below(12) {
            0 | 1 => self.enqueue().await,
            2 => self.start().await,
            3..=5 => self.take().await,
            6 | 7 => self.finish().await,
            8 => self.letter().await,
            9 => self.pass_time().await,
            10 => self.sweep().await,
            _ => self.crash().await,
        }
    }

    async fn enqueue(&mut self) {
        self.next_job += 1;
        let id = format!("j{:03}", self.next_job);
        let ways =
            [OnDeath::Front, OnDeath::Back, OnDeath::Drop, OnDeath::DeadLetter, OnDeath::Fail];
        let new = match self.dice.below(7) {
            way @ 0..5 => job_with(&id, ways[way as usize]),
            _ => job(&id),
        };
        match self.f.inflight.enqueue(&[new]).await {
            Ok(answer) => {
                assert_eq!(answer, [Enqueued::Queued]);
                self.promised.entered.insert(id);
            }
            Err(error) => self.doubt(&error, [id]),
        }
    }

    async fn start(&mut self) {
        self.next_owner += 1;
        let owner = name(&format!("w{}", self.next_owner % 4));
        if let Ok(beat) = self.f.inflight.start(&owner, self.f.ttl_ms()).await {
            self.claims.push(Claim::exact(owner, beat.incarnation));
        }
    }

    async fn take(&mut self) {
        if self.claims.is_empty() {
            return;
        }
        let at = self.dice.below(self.claims.len() as u64) as usize;
        let limit = 1 + self.dice.below(3) as usize;
        let Ok(taken) = self.f.inflight.take(&self.claims[at], &name("q"), limit).await else {
            return;
        };
        for job in taken.jobs {
            assert!(job.token > JobToken(self.promised.last_token), "{job:?}");
            self.promised.last_token = job.token.0;
            assert!(!self.promised.gone.contains(job.id.as_str()), "{job:?} was gone");
            self.tickets.push((at, job));
        }
    }

    /// Ends a claim of any owner that ever held the job.
    async fn finish(&mut self) {
        if self.tickets.is_empty() {
            return;
        }
        let at = self.dice.below(self.tickets.len() as u64) as usize;
        let (whose, job) = self.tickets[at].clone();
        let incarnation = self.claims[whose].incarnation.filter(|_| self.dice.below(2) == 0);
        let how = match self.dice.below(6) {
            0 => Finish::Fail { error: "no".to_owned() },
            1 => Finish::GiveBack(QueueEnd::Front),
            2 => Finish::GiveBack(QueueEnd::Back),
            _ => Finish::Complete,
        };
        let id = job.id.to_string();
        let ticket = JobTicket { id: job.id, token: job.token, incarnation };
        match self.f.inflight.finish(&[ticket], &how).await {
            Ok(answer) if answer == [Finished::Done] && how == Finish::Complete => {
                self.promised.gone.insert(id.clone());
                *self.promised.completed.entry(id).or_default() += 1;
            }
            Ok(_) => {}
            Err(error) => self.doubt(&error, [id]),
        }
    }

    async fn letter(&mut self) {
        let Ok(letters) = self.f.inflight.dead(None, 100).await else { return };
        if letters.is_empty() {
            return;
        }
        let id = letters[self.dice.below(letters.len() as u64) as usize].id.clone();
        let done = match self.dice.below(2) {
            0 => self.f.inflight.put_back(&id, QueueEnd::Back).await.map(|_| false),
            _ => self.f.inflight.delete(&id).await,
        };
        match done {
            Ok(true) => {
                self.promised.gone.insert(id.to_string());
            }
            Ok(false) => {}
            Err(error) => self.doubt(&error, [id.to_string()]),
        }
    }

    async fn pass_time(&mut self) {
        self.clock.advance(self.f.ttl / 2);
        for claim in &self.claims {
            if self.dice.below(2) == 0 {
                let _ = self.f.inflight.beat(claim).await;
            }
        }
    }

    async fn sweep(&mut self) {
        self.f.sweep().await;
        for receipt in self.f.receipts().await {
            let done: lapsed_core::inflight::RecoveredJob =
                serde_json::from_value(receipt.removed).unwrap();
            if done.did == RecoveryAction::Dropped {
                self.promised.gone.insert(receipt.key.to_string());
            }
        }
    }

    /// Lets the disk fail after a few writes, or kills the process now.
    async fn crash(&mut self) {
        if self.dice.below(2) == 0 {
            let writes = self.dice.below(12) as i64;
            self.fragile.left.store(writes, Ordering::SeqCst);
            return;
        }
        self.fragile.left.store(i64::MIN, Ordering::SeqCst);
        let left = self.fragile.all();
        self.fragile = Fragile { bytes: survivor(&left), ..Fragile::unlimited() };
        self.f = open(&self.fragile, &self.clock);
        self.clock.advance(Duration::from_secs(1));
    }

    fn doubt(&mut self, error: &Error, ids: impl IntoIterator<Item = String>) {
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        self.promised.in_doubt.extend(ids);
    }

    /// Checks that every job is in exactly one place.
    async fn audit(&mut self, when: &str) -> Result<()> {
        let counts = self.f.counts().await;
        let (mut queued, mut in_flight, mut dead) = (0, 0, 0);
        for number in 1..=self.next_job {
            let id = format!("j{number:03}");
            let found = self.f.inflight.job(&name(&id)).await?;
            match found.as_ref().map(|job| &job.place) {
                Some(JobPlace::Queued) => queued += 1,
                Some(JobPlace::InFlight { .. }) => in_flight += 1,
                Some(JobPlace::Dead { .. }) => dead += 1,
                Some(other) => panic!("{when}: {id} is {other:?}"),
                None => {}
            }
            let p = &self.promised;
            if p.in_doubt.contains(&id) {
                continue;
            }
            let expected = p.entered.contains(&id) && !p.gone.contains(&id);
            assert_eq!(found.is_some(), expected, "{when}: {id} is {found:?}");
        }
        assert_eq!(
            (counts.queued, counts.in_flight, counts.dead),
            (queued, in_flight, dead),
            "{when}"
        );
        let queues = self.f.inflight.queues(None, 10).await?;
        assert_eq!(queues.iter().map(|(_, length)| length).sum::<u64>(), queued, "{when}");
        assert!(self.promised.completed.values().all(|times| *times == 1), "{when}");
        Ok(())
    }

    /// The store gives the same answers after it was opened again.
    async fn compare_with_disk(&self, when: &str) {
        let bytes = survivor(&self.fragile.all());
        let on_disk = inflight_on_bytes(move |file| bytes.file(file), &self.clock);
        assert_eq!(on_disk.counts().await, self.f.counts().await, "{when}");
    }
}

#[tokio::test]
async fn every_job_is_in_one_place_after_random_operations() {
    let (mut completed, mut doubted) = (0, 0);
    for seed in 0..60 {
        let mut story = Story::begin(seed).await;
        for at in 0..140 {
            story.step().await;
            let when = format!("seed {seed}, step {at}");
            // The disk may fail during the check; then the check is repeated on a working disk.
            if story.audit(&when).await.is_err() {
                story.audit(&when).await.unwrap();
            }
        }
        story.fragile.left.store(i64::MIN, Ordering::SeqCst);
        story.compare_with_disk(&format!("seed {seed}")).await;
        completed += story.promised.completed.len();
        doubted += story.promised.in_doubt.len();
    }
    assert!(completed > 200 && doubted > 20, "{completed} completed, {doubted} in doubt");
}
