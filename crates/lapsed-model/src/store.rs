//! What the store does in one atomic step. The guard is production's.

use lapsed_core::owner::{Ending, Incarnation};
use lapsed_core::registry::rules::{
    IncarnationState, OwnerCase, OwnerGuard, StrictOwnerGuard, due_ms,
};

use crate::bug::ProtocolBug;
use crate::world::{IncarnationNumber, IncarnationRow, ModelWorld, ReclaimRequest, TTL};

impl IncarnationRow {
    fn state(&self) -> IncarnationState {
        IncarnationState {
            started_ms: self.started.into(),
            deadline_ms: self.deadline.into(),
            ttl_ms: TTL.into(),
            ended: self.ended.then_some(Ending::Dead),
        }
    }
}

impl ModelWorld {
    fn row(&mut self, incarnation: IncarnationNumber) -> &mut IncarnationRow {
        &mut self.store.incarnations[usize::from(incarnation) - 1]
    }

    fn has_ended(&self, incarnation: IncarnationNumber) -> bool {
        self.store.incarnations[usize::from(incarnation) - 1].ended
    }

    /// Starts the next incarnation of the owner.
    pub(crate) fn start(&mut self) {
        let started = self.store.now;
        let row = IncarnationRow { started, deadline: started + TTL, ended: false };
        self.store.incarnations.push(row);
    }

    /// A heartbeat. An incarnation that has ended is answered `Lost`.
    pub(crate) fn beat(&mut self, incarnation: IncarnationNumber, bug: Option<ProtocolBug>) {
        let ended = self.has_ended(incarnation);
        if ended && bug != Some(ProtocolBug::BeatRevivesTheEnded) {
            self.observed.zombie_refused = true;
            return;
        }
        self.observed.zombie_accepted |= ended;
        let deadline = self.store.now + TTL;
        let row = self.row(incarnation);
        (row.deadline, row.ended) = (deadline, false);
    }

    /// Registers the entry. An incarnation that has ended is refused.
    pub(crate) fn register(&mut self, incarnation: IncarnationNumber, bug: Option<ProtocolBug>) {
        let ended = self.has_ended(incarnation);
        if ended && bug != Some(ProtocolBug::EndedMayRegister) {
            self.observed.zombie_refused = true;
            return;
        }
        self.observed.zombie_accepted |= ended;
        self.store.holder = Some(incarnation);
        self.registrations += 1;
    }

    fn back_ms(&self, bug: Option<ProtocolBug>) -> u64 {
        if bug == Some(ProtocolBug::NoGraceAfterRestart) { 0 } else { self.store.back.into() }
    }

    /// The incarnation that holds the entry, if the index says that it may be dead.
    pub(crate) fn suspect(&self, bug: Option<ProtocolBug>) -> Option<IncarnationNumber> {
        let holder = self.store.holder?;
        let state = self.store.incarnations[usize::from(holder) - 1].state();
        let is_due = u64::from(self.store.now) >= due_ms(&state, self.back_ms(bug));
        (state.ended.is_some() || is_due).then_some(holder)
    }

    fn may_reclaim(&self, request: &ReclaimRequest, bug: Option<ProtocolBug>) -> bool {
        let Some(holder) = self.store.holder else { return false };
        if self.store.settled.contains(&request.batch) {
            return false;
        }
        let holder = match bug {
            Some(ProtocolBug::NoGuardInTheStep) => return true,
            Some(ProtocolBug::HolderNotCompared) => request.suspected,
            _ => holder,
        };
        let case = OwnerCase {
            suspected: Incarnation(request.suspected.into()),
            holder: Incarnation(holder.into()),
            state: self.store.incarnations[usize::from(request.suspected) - 1].state(),
            now_ms: self.store.now.into(),
            back_ms: self.back_ms(bug),
        };
        StrictOwnerGuard.judge(&case).is_ok()
    }

    /// Guard, removal and receipt: one step. Returns whether it reclaimed the entry.
    pub(crate) fn reclaim(&mut self, request: &ReclaimRequest, bug: Option<ProtocolBug>) -> bool {
        if !self.may_reclaim(request, bug) {
            return false;
        }
        self.observe_removal();
        self.row(request.suspected).ended = true;
        self.store.holder = None;
        match bug {
            Some(ProtocolBug::ReceiptInASecondStep) => self.store.unwritten.push(request.batch),
            _ => self.store.receipts.push(request.batch),
        }
        true
    }

    /// Compares the removal with what the observer knows, without the guard's functions.
    fn observe_removal(&mut self) {
        let Some(holder) = self.store.holder else { return };
        let row = &self.store.incarnations[usize::from(holder) - 1];
        let now = self.store.now;
        let has_beaten = now < row.deadline;
        let was_cut_off = row.started < self.store.back && now < self.store.back + TTL;
        self.observed.living_reclaimed |= !row.ended && (has_beaten || was_cut_off);
        self.observed.removals += 1;
    }
}
