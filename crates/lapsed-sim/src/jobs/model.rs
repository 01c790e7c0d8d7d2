//! The model of the job store: written from the contracts alone, on the true time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lapsed_core::Name;
use lapsed_core::inflight::rules::{DeadLetterReason, OnDeath, QueueEnd, RecoveryPolicy};
use lapsed_core::inflight::{Finish, Finished, JobCounts, JobTicket, RecoveryAction};
use lapsed_core::owner::Ending;
use lapsed_core::sweep::Suspect;

/// Where a job is, or how it left the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPlace {
    Queued,
    InFlight {
        incarnation: u64,
        /// The token of the claim; 0 if the answer with it was lost.
        token: u64,
    },
    Dead(DeadLetterReason),
    Completed,
    Dropped,
}

#[derive(Clone, Debug)]
pub struct ModelJob {
    pub place: ModelPlace,
    /// When workers died while they held it, in milliseconds.
    pub crashes: Vec<u64>,
    pub on_death: Option<OnDeath>,
}

#[derive(Clone, Debug)]
pub struct ModelWorker {
    pub name: Name,
    pub started_ms: u64,
    /// The deadline of its last beat, in milliseconds.
    pub deadline_ms: u64,
    pub ended: Option<Ending>,
}

/// The state that the store should have.
#[derive(Clone, Debug)]
pub struct JobModel {
    pub recovery: RecoveryPolicy,
    /// The TTL of a beat, in milliseconds.
    pub ttl_ms: u64,
    /// When the store was last opened.
    pub back_ms: u64,
    /// Every job there ever was, by its id: the last of that id.
    pub jobs: BTreeMap<Name, ModelJob>,
    /// The one queue, in order.
    pub queue: VecDeque<Name>,
    /// Every worker that ever started, by incarnation.
    pub incarnations: BTreeMap<u64, ModelWorker>,
    /// Incarnations that have ended in the store's memory, and possibly not on its disk.
    pub unsure: BTreeSet<u64>,
    /// The counts of jobs that entered and left.
    pub left: JobCounts,
    /// The highest token that was ever seen.
    pub token: u64,
    /// How many receipts were written by each batch.
    pub receipts: BTreeMap<u64, u64>,
}

impl JobModel {
    pub fn new(recovery: RecoveryPolicy, ttl_ms: u64, now_ms: u64) -> Self {
        JobModel {
            recovery,
            ttl_ms,
            back_ms: now_ms,
            jobs: BTreeMap::new(),
            queue: VecDeque::new(),
            incarnations: BTreeMap::new(),
            unsure: BTreeSet::new(),
            left: JobCounts::default(),
            token: 0,
            receipts: BTreeMap::new(),
        }
    }

    /// Whether that incarnation may be declared dead: its time is over, and it had a whole TTL since the store
    /// was back.
    pub fn is_due(&self, incarnation: &ModelWorker, now_ms: u64) -> bool {
        let spared =
            if self.back_ms <= incarnation.started_ms { 0 } else { self.back_ms + self.ttl_ms };
        now_ms >= incarnation.deadline_ms.max(spared)
    }

    /// Whether that incarnation has ended.
    pub fn has_ended(&self, incarnation: u64) -> bool {
        self.incarnations.get(&incarnation).is_none_or(|incarnation| incarnation.ended.is_some())
    }

    /// How many of a job's crashes are within the crash window.
    pub fn crashes(&self, job: &ModelJob, now_ms: u64) -> u32 {
        let counts = |at: &&u64| now_ms - **at < self.recovery.crash_window_ms;
        job.crashes.iter().filter(counts).count() as u32
    }

    /// Puts a job on the queue: whether it was new.
    pub fn enqueue(&mut self, id: &Name, on_death: Option<OnDeath>) -> bool {
        let is_free =
            |job: &ModelJob| matches!(job.place, ModelPlace::Completed | ModelPlace::Dropped);
        if self.jobs.get(id).is_some_and(|job| !is_free(job)) {
            return false;
        }
        self.jobs.insert(
            id.clone(),
            ModelJob { place: ModelPlace::Queued, crashes: Vec::new(), on_death },
        );
        self.queue.push_back(id.clone());
        self.left.entered += 1;
        true
    }

    /// What that incarnation takes; its tokens are told later.
    pub fn take(&mut self, incarnation: u64, limit: usize) -> Option<Vec<Name>> {
        if self.has_ended(incarnation) {
            return None;
        }
        let taken: Vec<Name> = self.queue.drain(..limit.min(self.queue.len())).collect();
        for id in &taken {
            self.set(id, ModelPlace::InFlight { incarnation, token: 0 });
        }
        Some(taken)
    }

    /// What becomes of that claim.
    pub fn finish(&mut self, ticket: &JobTicket, how: &Finish) -> Finished {
        let place = self.jobs.get(&ticket.id).map(|job| job.place);
        match place {
            None | Some(ModelPlace::Completed | ModelPlace::Dropped) => return Finished::Gone,
            Some(ModelPlace::InFlight { incarnation, token }) if token == ticket.token.0 => {
                if self.has_ended(incarnation) {
                    return Finished::OwnerEnded;
                }
            }
            Some(_) => return Finished::Superseded,
        }
        match how {
            Finish::Complete => self.set(&ticket.id, ModelPlace::Completed),
            Finish::Fail { .. } => self.set(&ticket.id, ModelPlace::Dead(DeadLetterReason::Failed)),
            Finish::GiveBack(end) => self.requeue(&ticket.id, *end),
        }
        Finished::Done
    }

    /// What a batch does: of each suspect what was done, or nothing.
    pub fn reclaim(
        &mut self,
        number: u64,
        suspects: &[Suspect],
        now_ms: u64,
    ) -> Vec<Option<RecoveryAction>> {
        let (mut done, mut front) = (Vec::new(), Vec::new());
        for suspect in suspects {
            let did = self.reclaim_one(suspect, now_ms, &mut front);
            if did.is_some() {
                *self.receipts.entry(number).or_default() += 1;
            }
            done.push(did);
        }
        // The one that was taken first comes first again.
        front.sort_by_key(|(token, _)| std::cmp::Reverse(*token));
        front.into_iter().for_each(|(_, id)| self.requeue(&id, QueueEnd::Front));
        done
    }

    fn reclaim_one(
        &mut self,
        suspect: &Suspect,
        now_ms: u64,
        front: &mut Vec<(u64, Name)>,
    ) -> Option<RecoveryAction> {
        let ModelPlace::InFlight { incarnation, token } = self.jobs.get(&suspect.key)?.place else {
            return None;
        };
        if incarnation != suspect.incarnation.0 {
            return None;
        }
        let is_due = self.is_due(self.incarnations.get(&incarnation)?, now_ms);
        let holder = self.incarnations.get_mut(&incarnation)?;
        if holder.ended.is_none() {
            if !is_due {
                return None;
            }
            holder.ended = Some(Ending::Dead);
        }
        let crashed = holder.ended == Some(Ending::Dead);
        let job = self.jobs.get_mut(&suspect.key)?;
        if crashed {
            job.crashes.push(now_ms);
        }
        let on_death = job.on_death.unwrap_or(self.recovery.on_death);
        let crashes = self.crashes(&self.jobs[&suspect.key].clone(), now_ms);
        let place = match on_death {
            _ if !crashed => ModelPlace::Queued,
            OnDeath::Drop => ModelPlace::Dropped,
            OnDeath::DeadLetter => ModelPlace::Dead(DeadLetterReason::Asked),
            OnDeath::Fail => ModelPlace::Dead(DeadLetterReason::Failed),
            _ if crashes >= self.recovery.crashes_max => {
                ModelPlace::Dead(DeadLetterReason::Crashes)
            }
            _ => ModelPlace::Queued,
        };
        match (place, on_death) {
            (ModelPlace::Queued, OnDeath::Back) => self.requeue(&suspect.key, QueueEnd::Back),
            (ModelPlace::Queued, _) => {
                self.set(&suspect.key, ModelPlace::Queued);
                front.push((token, suspect.key.clone()));
            }
            _ => self.set(&suspect.key, place),
        }
        Some(match place {
            ModelPlace::Dead(_) => RecoveryAction::DeadLetter,
            ModelPlace::Dropped => RecoveryAction::Dropped,
            _ => RecoveryAction::PutBack,
        })
    }

    /// Puts a dead letter back: whether it was one.
    pub fn put_back(&mut self, id: &Name) -> bool {
        match self.jobs.get_mut(id) {
            Some(job) if matches!(job.place, ModelPlace::Dead(_)) => job.crashes.clear(),
            _ => return false,
        }
        self.requeue(id, QueueEnd::Back);
        true
    }

    /// What those who are due, or have ended, hold.
    pub fn suspects(&self, now_ms: u64) -> BTreeSet<Name> {
        let is_dead = |incarnation: &u64| {
            self.incarnations
                .get(incarnation)
                .is_some_and(|l| l.ended.is_some() || self.is_due(l, now_ms))
        };
        let suspect = |(id, job): (&Name, &ModelJob)| match job.place {
            ModelPlace::InFlight { incarnation, .. } if is_dead(&incarnation) => Some(id.clone()),
            _ => None,
        };
        self.jobs.iter().filter_map(suspect).collect()
    }

    pub fn counts(&self) -> JobCounts {
        let mut counts = self.left;
        for job in self.jobs.values() {
            match job.place {
                ModelPlace::Queued => counts.queued += 1,
                ModelPlace::InFlight { .. } => counts.in_flight += 1,
                ModelPlace::Dead(_) => counts.dead += 1,
                ModelPlace::Completed | ModelPlace::Dropped => {}
            }
        }
        counts
    }

    /// Moves a job to this place.
    pub fn set(&mut self, id: &Name, place: ModelPlace) {
        match place {
            ModelPlace::Completed => self.left.completed += 1,
            ModelPlace::Dropped => self.left.dropped += 1,
            _ => {}
        }
        if let Some(job) = self.jobs.get_mut(id) {
            job.place = place;
        }
    }

    fn requeue(&mut self, id: &Name, end: QueueEnd) {
        self.set(id, ModelPlace::Queued);
        match end {
            QueueEnd::Front => self.queue.push_front(id.clone()),
            QueueEnd::Back => self.queue.push_back(id.clone()),
        }
    }
}
