//! One pass: page after page and batch after batch, until a limit, the brake, or the end of the
//! suspects.

mod braking;

use std::time::Duration;

use crate::clock::call_within;
use crate::error::{Error, Result};
use crate::stop::StopSignal;
use crate::sweep::brake::{BrakeVerdict, HeldBy};
use crate::sweep::policy::{BatchSize, SweepMode};
use crate::sweep::report::{PassReport, Stopped};
use crate::sweep::sweeper::{PassMode, Progress, Sweeper};
use crate::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, Refusal, Suspect,
    SuspectPage, TidyLimits,
};
use crate::upkeep::SIGN_EVERY;

/// Shorter pauses are skipped: setting a timer would take longer.
const REST_MIN: Duration = Duration::from_micros(50);

/// How old the operator's brake setting may be before a batch; it is read again then.
const HEED: Duration = Duration::from_secs(1);

/// Result of one page.
enum Step {
    More,
    End,
    Stop(Stopped),
}

/// A pass that is under way: its report so far, its pauses, and what the brake allowed.
pub(super) struct Run<'a> {
    sweeper: &'a Sweeper,
    act: PassMode,
    list: usize,
    stop: &'a StopSignal,
    pub began: Duration,
    uses: u64,
    ops: u64,
    /// Monotonic time before which no further batch is sent.
    rest_until: Duration,
    /// Whether the operator held the brake when the pass began. It then only continues with owners
    /// that were declared dead before.
    held: bool,
    /// Whether the pass uses an override of the operator.
    overrides: bool,
    /// When the brake's record was last read.
    brake_read: Duration,
    /// When the signs of activity of other processes were last read.
    signs_read: Duration,
    pub report: PassReport,
}

impl<'a> Run<'a> {
    pub fn new(sweeper: &'a Sweeper, act: PassMode, list: usize, stop: &'a StopSignal) -> Self {
        let parts = &sweeper.parts;
        let system = parts.sweep.system();
        let report = PassReport {
            system: system.name.to_string(),
            kind: system.kind,
            dry_run: act == PassMode::DryRun,
            examined: 0,
            suspects: 0,
            reclaimed: 0,
            released: 0,
            skipped: Default::default(),
            errors: 0,
            stopped: Stopped::Done,
            took_ms: 0,
            started_ms: parts.clock.wall_ms(),
            owners_ended: 0,
            settled: 0,
            detail: None,
            held_by: None,
            entries: Vec::new(),
            entries_cut: false,
        };
        let (began, uses) = (parts.clock.mono(), parts.activity.uses());
        let (held, brake_read) = (parts.brake.is_held_by_operator(), began);
        Run {
            sweeper,
            act,
            list,
            stop,
            began,
            uses,
            ops: 0,
            rest_until: began,
            held,
            overrides: false,
            brake_read,
            signs_read: began,
            report,
        }
    }

    pub async fn go(&mut self, progress: &mut Progress) -> Result<Stopped> {
        let parts = &self.sweeper.parts;
        if self.act == PassMode::Reclaim {
            self.settle(progress).await?;
        }
        // Checked before the brake, because a step that the brake grants is used up.
        if let Some(stopped) = self.why_stop() {
            return Ok(stopped);
        }
        if let Some(idle) = self.sweeper.idle_rule()
            && !idle.is_idle().await?
        {
            return Ok(Stopped::Activity);
        }
        // Before the brake's record is read: a census that was taken while another pass waived the
        // store-away grace is then followed by a record that says so, or by a guard that refuses.
        let census = match parts.sweep.survey(self.act).await? {
            Some(census) => census,
            None => self.call("census", parts.sweep.census()).await?,
        };
        let verdict = self.judge_brake(&census).await?;
        self.held = parts.brake.is_held_by_operator();
        let stopped = self.pages(progress, &census, &verdict).await?;
        if stopped != Stopped::Done {
            return Ok(stopped);
        }
        if self.act == PassMode::Reclaim {
            self.tidy(&verdict).await?;
        }
        Ok(self.done_or_braked(&census, &verdict))
    }

    async fn pages(
        &mut self,
        progress: &mut Progress,
        census: &Census,
        verdict: &BrakeVerdict,
    ) -> Result<Stopped> {
        let mut cursor = match self.act {
            PassMode::Reclaim => std::mem::take(&mut progress.cursor),
            PassMode::DryRun => Cursor::default(),
        };
        let mut size = progress.size.clone();
        // A pass that resumes in the middle also covers the beginning afterwards.
        let mut wraps = cursor != Cursor::default();
        loop {
            let step = self.step(progress, &mut cursor, &mut size, verdict, census).await;
            match step {
                Ok(Step::More) => {}
                Ok(Step::End) if wraps => (wraps, cursor) = (false, Cursor::default()),
                Ok(Step::End) => return Ok(Stopped::Done),
                Ok(Step::Stop(stopped)) => {
                    self.keep(progress, cursor);
                    return Ok(stopped);
                }
                Err(error) => {
                    self.keep(progress, cursor);
                    return Err(error);
                }
            }
        }
    }

    /// Processes one page as one batch. The cursor moves only past suspects that the store has
    /// answered for.
    async fn step(
        &mut self,
        progress: &mut Progress,
        cursor: &mut Cursor,
        size: &mut BatchSize,
        verdict: &BrakeVerdict,
        census: &Census,
    ) -> Result<Step> {
        if let Some(stopped) = self.why_stop() {
            return Ok(Step::Stop(stopped));
        }
        let Some(limit) = self.left(size.get(), verdict) else { return Ok(Step::End) };
        let page = self.page(cursor, limit, verdict).await?;
        let count = page.suspects.len();
        let Some(resume) = page.suspects.last().map(|s| self.sweeper.parts.sweep.after(s)) else {
            return Ok(Step::End);
        };
        self.rest().await;
        if self.act == PassMode::Reclaim
            && self.sweeper.parts.clock.mono() >= self.brake_read + HEED
        {
            self.read_brake_again().await?;
        }
        if self.is_used_elsewhere().await? {
            return Ok(Step::Stop(Stopped::Activity));
        }
        // Reading the page and pausing took time, in which the term may have run out.
        if let Some(stopped) = self.why_stop() {
            return Ok(Step::Stop(stopped));
        }
        // Read once, because the process may stall after any check: a batch that carries the term of
        // a former leader is refused by the store, and one without a term is not.
        let term = self.sweeper.term();
        if self.needs_term() && term.is_none() {
            return Ok(Step::Stop(self.not_leading()));
        }
        let clock = self.sweeper.parts.clock.clone();
        let sent = clock.mono();
        let answer = self.batch(progress, page.suspects, term, verdict, census).await?;
        let took = clock.mono() - sent;
        let parts = &self.sweeper.parts;
        parts.observer.batched(parts.sweep.system(), count, took);
        let held = if answer.held.is_zero() { took } else { answer.held };
        if matches!(answer.outcomes.first(), Some(Outcome::Refused(Refusal::NotLeader))) {
            return Ok(Step::Stop(self.not_leading()));
        }
        *cursor = resume;
        if self.act == PassMode::Reclaim {
            size.learn(count, held);
            progress.size = size.clone();
            let policy = &self.sweeper.parts.policy;
            self.rest_until = policy.next_batch_at(sent, clock.mono(), held, count);
        }
        Ok(if page.last { Step::End } else { Step::More })
    }

    /// Waits for the rest of the pause after the last batch. The time of reading the next page
    /// counts towards it.
    async fn rest(&self) {
        let clock = &self.sweeper.parts.clock;
        let left = self.rest_until.saturating_sub(clock.mono());
        if left > REST_MIN {
            clock.sleep(left).await;
        }
    }

    fn not_leading(&mut self) -> Stopped {
        self.report.detail = Some("another process leads; this one may not sweep".to_owned());
        Stopped::Error
    }

    /// Remembers where the next pass resumes. A dry run leaves no state.
    fn keep(&self, progress: &mut Progress, cursor: Cursor) {
        if self.act == PassMode::Reclaim {
            progress.cursor = cursor;
        }
    }

    async fn page(
        &mut self,
        after: &Cursor,
        limit: usize,
        verdict: &BrakeVerdict,
    ) -> Result<SuspectPage> {
        // Owners that this pass has declared dead already use up what the brake allowed.
        let ended = self.report.owners_ended as usize;
        let undeclared_max = match self.lists_spared(verdict) {
            true => None,
            false => verdict.undeclared_max().map(|n| n.saturating_sub(ended)),
        };
        let request = PageRequest { after: after.clone(), limit, undeclared_max };
        let page = self.call("suspects", self.sweeper.parts.sweep.suspects(request)).await?;
        self.report.examined += page.examined;
        self.report.suspects += page.suspects.len() as u64;
        Ok(page)
    }

    async fn batch(
        &mut self,
        progress: &mut Progress,
        suspects: Vec<Suspect>,
        term: Option<u64>,
        verdict: &BrakeVerdict,
        census: &Census,
    ) -> Result<BatchAnswer> {
        progress.batches += 1;
        let id = BatchId { sweeper: self.sweeper.name.clone(), number: progress.batches };
        let batch = Batch { id: id.clone(), suspects: suspects.clone(), act: self.act, term };
        match self.call("reclaim", self.sweeper.parts.sweep.reclaim(batch)).await {
            Ok(answer) => {
                self.tally(&suspects, &answer, verdict, census);
                Ok(answer)
            }
            Err(error) => {
                if self.act == PassMode::Reclaim && matches!(error, Error::Unavailable { .. }) {
                    progress.in_doubt.push(id);
                    suspects.iter().for_each(|_| self.report.tally(&Outcome::InDoubt));
                }
                Err(error)
            }
        }
    }

    fn tally(
        &mut self,
        suspects: &[Suspect],
        answer: &BatchAnswer,
        verdict: &BrakeVerdict,
        census: &Census,
    ) {
        self.ops += suspects.len() as u64;
        self.report.owners_ended += answer.owners_ended;
        let spares = self.lists_spared(verdict);
        for (suspect, outcome) in suspects.iter().zip(&answer.outcomes) {
            match outcome {
                Outcome::Reclaimed(_) | Outcome::Released if spares => self.report.tally_spared(),
                outcome => self.report.tally(outcome),
            }
            self.report.list(suspect, outcome, census.now_ms, self.list);
            if let Outcome::Reclaimed(Some(receipt)) = outcome {
                self.sweeper.parts.observer.reclaimed(receipt);
            }
        }
    }

    /// Reads the receipts of batches whose answers were lost in earlier passes, and counts them.
    async fn settle(&mut self, progress: &mut Progress) -> Result<()> {
        while let Some(id) = progress.in_doubt.first().cloned() {
            let receipts = self.call("settle", self.sweeper.parts.sweep.settle(&id)).await?;
            progress.in_doubt.remove(0);
            self.report.settled += receipts.len() as u64;
            self.report.reclaimed += receipts.len() as u64;
            receipts.iter().for_each(|r| self.sweeper.parts.observer.reclaimed(r));
        }
        Ok(())
    }

    /// Housekeeping, until nothing is left or the pass must stop. Fewer calls than it takes to catch up
    /// would let the records grow without bound wherever more owners end between two passes than one
    /// call removes.
    async fn tidy(&mut self, verdict: &BrakeVerdict) -> Result<()> {
        let parts = &self.sweeper.parts;
        let ended = self.report.owners_ended as usize;
        let mut limits = TidyLimits {
            rows: parts.policy.batch,
            undeclared_max: verdict.undeclared_max().map(|n| n.saturating_sub(ended)),
            retention: parts.retention,
            term: self.sweeper.term(),
        };
        if parts.policy.mode == SweepMode::Leader && limits.term.is_none() {
            return Ok(());
        }
        loop {
            let tidied = self.call("tidy", parts.sweep.tidy(limits)).await?;
            self.report.owners_ended += tidied.owners_ended;
            if !tidied.has_more || self.why_stop().is_some() {
                return Ok(());
            }
            let ended = tidied.owners_ended as usize;
            limits.undeclared_max = limits.undeclared_max.map(|max| max.saturating_sub(ended));
        }
    }

    /// Whether another process has begun to use the system, if this one sweeps only while nobody
    /// does. Looks as often as signs are left.
    async fn is_used_elsewhere(&mut self) -> Result<bool> {
        let Some(idle) = self.sweeper.idle_rule() else { return Ok(false) };
        let now = self.sweeper.parts.clock.mono();
        if now < self.signs_read + SIGN_EVERY {
            return Ok(false);
        }
        self.signs_read = now;
        Ok(!idle.is_idle().await?)
    }

    /// Why the pass must stop now, if it must. Checked before every batch.
    fn why_stop(&mut self) -> Option<Stopped> {
        let parts = &self.sweeper.parts;
        let policy = &parts.policy;
        if policy.max_ops.is_some_and(|max| self.ops >= max) {
            return Some(Stopped::Ops);
        }
        let ran = parts.clock.mono() - self.began;
        if policy.max_runtime.is_some_and(|max| ran >= max) || self.stop.is_stopped() {
            return Some(Stopped::Runtime);
        }
        if policy.idle_grace.is_some() && parts.activity.uses() != self.uses {
            return Some(Stopped::Activity);
        }
        if self.act == PassMode::Reclaim && !self.held && parts.brake.is_held_by_operator() {
            self.report.detail = Some("the operator has held the brake meanwhile".to_owned());
            self.report.held_by = Some(HeldBy::Operator);
            return Some(Stopped::Brake);
        }
        if self.overrides && !parts.brake.record().is_overridden_by(&self.sweeper.name) {
            self.report.detail = Some("the operator has ended the override meanwhile".to_owned());
            return Some(Stopped::Brake);
        }
        if self.needs_term() && self.sweeper.term().is_none() {
            return Some(self.not_leading());
        }
        None
    }

    /// Whether only the leader may do what this pass does.
    fn needs_term(&self) -> bool {
        self.act == PassMode::Reclaim && self.sweeper.parts.policy.mode == SweepMode::Leader
    }

    /// How many of `wanted` the policy's `max_ops` and a step of the brake still allow. `None`: the
    /// step is used up. At least one otherwise, because `why_stop` was checked before.
    fn left(&self, wanted: usize, verdict: &BrakeVerdict) -> Option<usize> {
        let wanted = wanted.min(self.sweeper.parts.policy.entries_within_timeout());
        let wanted = match self.sweeper.parts.policy.max_ops {
            Some(max) => wanted.min((max - self.ops) as usize),
            None => wanted,
        };
        match verdict.entries_max() {
            Some(max) => Some(wanted.min(max.saturating_sub(self.ops as usize))).filter(|n| *n > 0),
            None => Some(wanted),
        }
    }

    /// Gives every store call its time limit (X1).
    async fn call<T>(&self, what: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let parts = &self.sweeper.parts;
        call_within(&*parts.clock, parts.policy.timeout, &"the store", what, call).await
    }

    pub fn fail(&mut self, error: &Error) {
        let parts = &self.sweeper.parts;
        self.report.errors += 1;
        self.report.detail = Some(error.to_string());
        if matches!(error, Error::Unavailable { .. }) {
            parts.brake.note_unreachable(&error.to_string());
        }
        parts.observer.store_error(parts.sweep.system(), error);
    }
}
