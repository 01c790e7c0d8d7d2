//! What a pass does about the brake: it reads the record that all processes share, takes a step or
//! an override by compare-and-set, and ends the override when it stops.
//!
//! An override is used up when its pass begins. If that pass stops half-way (a limit, a failure, a
//! killed process), what it did not reach is judged automatically by the next pass. If the answer to
//! the compare-and-set is lost, the override may be used up by a pass that did nothing.

use crate::error::Result;
use crate::store::{BRAKE_TRIES, brake_contended};
use crate::sweep::Census;
use crate::sweep::brake::{BrakeRecord, BrakeVerdict, Counted, HeldBy, Overriding, WAIVER_MS};
use crate::sweep::report::Stopped;

use super::Run;
use crate::sweep::PassMode;

impl Run<'_> {
    /// The brake's verdict for this pass. What a pass that reclaims is granted, no other pass gets.
    pub(super) async fn judge_brake(&mut self, census: &Census) -> Result<BrakeVerdict> {
        let parts = &self.sweeper.parts;
        self.read_brake().await?;
        if self.act == PassMode::DryRun {
            return Ok(parts.brake.preview(census));
        }
        parts.brake.observe(census);
        for _ in 0..BRAKE_TRIES {
            let decision = parts.brake.decide(census, &self.sweeper.name);
            if self.is_accepted(decision.next).await? {
                self.overrides = matches!(decision.verdict, BrakeVerdict::Overridden { .. });
                let system = parts.sweep.system();
                parts.brake.conclude(system, &decision.verdict, census.now_ms);
                return Ok(decision.verdict);
            }
            self.read_brake().await?;
        }
        Err(brake_contended(parts.sweep.system()))
    }

    /// Whether the store has replaced its record by `next`; true if nothing changes.
    async fn is_accepted(&self, next: Option<BrakeRecord>) -> Result<bool> {
        let Some(next) = next else { return Ok(true) };
        let parts = &self.sweeper.parts;
        let swap = parts.store.swap_brake(parts.sweep.system(), &next);
        let is_accepted = self.call("brake", swap).await?;
        if is_accepted {
            parts.brake.set(next);
        }
        Ok(is_accepted)
    }

    /// Reads the record, which another process may have changed.
    async fn read_brake(&mut self) -> Result<()> {
        let parts = &self.sweeper.parts;
        let record = self.call("brake", parts.store.brake(parts.sweep.system())).await?;
        parts.brake.set(record);
        self.brake_read = parts.clock.mono();
        Ok(())
    }

    /// Reads the record in the middle of a pass. A pass under an override also renews the waiver of
    /// the store-away grace, unless the operator has meanwhile given another order.
    pub(super) async fn read_brake_again(&mut self) -> Result<()> {
        let since_read = self.sweeper.parts.clock.mono() - self.brake_read;
        self.read_brake().await?;
        let record = self.sweeper.parts.brake.record();
        let Some(overriding) = record.overriding.clone() else { return Ok(()) };
        if self.overrides && record.is_overridden_by(&self.sweeper.name) {
            let until_ms = overriding.until_ms + since_read.as_millis() as u64;
            let overriding = Some(Overriding { until_ms, ..overriding });
            self.is_accepted(Some(BrakeRecord { overriding, ..record.next() })).await?;
        }
        Ok(())
    }

    /// Ends the override of this pass. If the store does not answer, its waiver runs out by itself.
    pub(in crate::sweep) async fn end_override(&mut self) {
        if !self.overrides {
            return;
        }
        for _ in 0..BRAKE_TRIES {
            if self.read_brake().await.is_err() {
                break;
            }
            let ended = self.sweeper.parts.brake.record().ended_by(&self.sweeper.name);
            match self.is_accepted(ended).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(_) => break,
            }
        }
        let system = self.sweeper.parts.sweep.system();
        tracing::warn!(%system, "the end of the override could not be stored; its waiver of the store-away grace runs out within {} s", WAIVER_MS / 1_000);
    }

    /// Whether this is a dry run that lists suspects although the brake spares them.
    pub(super) fn lists_spared(&self, verdict: &BrakeVerdict) -> bool {
        self.act == PassMode::DryRun && matches!(verdict, BrakeVerdict::Held { .. })
    }

    /// All pages are done: `Brake` if somebody was spared, otherwise `Done`.
    pub(super) fn done_or_braked(&mut self, census: &Census, verdict: &BrakeVerdict) -> Stopped {
        let spared = match verdict {
            BrakeVerdict::Open | BrakeVerdict::Overridden { .. } => false,
            BrakeVerdict::Opening { max, of: Counted::Owners } => {
                census.owners_overdue > *max as u64
            }
            BrakeVerdict::Opening { max, of: Counted::Entries } => census.orphans > *max as u64,
            BrakeVerdict::Held { by: HeldBy::Observing, .. } => true,
            BrakeVerdict::Held { .. } => {
                let owners = census.owners_overdue + census.owners_spared;
                // Without a census, somebody may have been spared.
                census.uncounted || owners + census.orphans + census.orphans_spared > 0
            }
        };
        if !spared {
            return Stopped::Done;
        }
        let counts = census.observation.as_ref().filter(|_| verdict.is_observing());
        let counts = counts.map_or(String::new(), |counts| format!("{}; ", counts.describe()));
        self.report.detail =
            Some(format!("{counts}{}", self.sweeper.parts.brake.describe(verdict, census.now_ms)));
        self.report.held_by = verdict.held_by();
        let held_back = census.suspects.saturating_sub(self.report.suspects);
        if held_back > 0 {
            self.report.suspects += held_back;
            *self.report.skipped.entry("brake".to_owned()).or_default() += held_back;
        }
        Stopped::Brake
    }
}
