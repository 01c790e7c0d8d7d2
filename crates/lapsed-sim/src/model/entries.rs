//! What is held: registered, let go, put back.

use lapsed_core::Name;
use lapsed_core::owner::Claim;
use lapsed_core::registry::TakePolicy;

use crate::model::{Model, ModelClaim, ModelEntry};

/// What a registration of one key should do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedPut {
    /// The key was free and is now held.
    New,
    /// This incarnation already held it.
    Kept,
    /// It was taken over from that incarnation.
    Moved(u64),
    /// That incarnation keeps it.
    Taken(u64),
}

impl Model {
    /// Registers keys: the incarnation that holds them, whether it was begun, and one answer a key.
    /// Nothing when that incarnation is lost.
    pub fn register(
        &mut self,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
        now: u64,
        given: Option<u64>,
    ) -> Option<(u64, bool, Vec<ExpectedPut>)> {
        let (incarnation, started) = match self.meant(claim) {
            ModelClaim::Stranger => return None,
            ModelClaim::Nobody => (self.start(&claim.owner, self.threshold_ms, now, given), true),
            ModelClaim::Incarnation(number) => (self.acting(number)?, false),
        };
        let puts = keys.iter().map(|key| self.put(incarnation, key, take)).collect();
        Some((incarnation, started, puts))
    }

    /// That incarnation, or `None` if it has ended, in which case it is answered `Lost`.
    fn acting(&mut self, number: u64) -> Option<u64> {
        let incarnation = self.incarnations.get_mut(&number)?;
        incarnation.told |= incarnation.ended.is_some();
        incarnation.ended.is_none().then_some(number)
    }

    fn put(&mut self, incarnation: u64, key: &Name, take: TakePolicy) -> ExpectedPut {
        let put = match self.entries.get(key) {
            None => ExpectedPut::New,
            Some(held) if held.incarnation == incarnation => return ExpectedPut::Kept,
            Some(held)
                if self.is_live(held.incarnation)
                    && (take == TakePolicy::IfFree
                        && !self.is_same_owner(held.incarnation, incarnation)
                        || self.is_newer(held.incarnation, incarnation)) =>
            {
                return ExpectedPut::Taken(held.incarnation);
            }
            Some(held) => ExpectedPut::Moved(held.incarnation),
        };
        self.hold(incarnation, key);
        put
    }

    /// Whether `holder` is a newer incarnation of the same owner.
    fn is_newer(&self, holder: u64, incarnation: u64) -> bool {
        holder > incarnation && self.is_same_owner(holder, incarnation)
    }

    fn is_same_owner(&self, one: u64, other: u64) -> bool {
        let name =
            |number: &u64| self.incarnations.get(number).map(|incarnation| &incarnation.name);
        name(&one) == name(&other)
    }

    fn hold(&mut self, incarnation: u64, key: &Name) {
        self.last_registration += 1;
        let registration = self.last_registration;
        self.entries.insert(key.clone(), ModelEntry { incarnation, registration });
    }

    /// Lets go of keys: for each, whether it was its. Nothing when that incarnation is lost.
    pub fn unregister(&mut self, claim: &Claim, keys: &[Name]) -> Option<Vec<bool>> {
        let ModelClaim::Incarnation(number) = self.meant(claim) else { return None };
        let incarnation = self.acting(number)?;
        let let_go = |key: &Name| {
            let its = self.entries.get(key).is_some_and(|held| held.incarnation == incarnation);
            if its {
                self.entries.remove(key);
            }
            its
        };
        Some(keys.iter().map(let_go).collect())
    }

    /// Puts back what a receipt removed: into which incarnation, unless it is refused.
    pub fn restore(&mut self, seq: u64, now: u64) -> Option<u64> {
        let taken = self.receipts.get(&seq).filter(|taken| !taken.restored)?;
        let (key, owner) = (taken.key.clone(), taken.owner.clone());
        if self.entries.contains_key(&key) {
            return None;
        }
        let ModelClaim::Incarnation(number) = self.meant(&Claim::newest(owner)) else {
            return None;
        };
        let incarnation = self.incarnations.get(&number)?;
        if incarnation.ended.is_some() || self.due(incarnation) <= now {
            return None;
        }
        self.hold(number, &key);
        if let Some(taken) = self.receipts.get_mut(&seq) {
            taken.restored = true;
        }
        Some(number)
    }
}
