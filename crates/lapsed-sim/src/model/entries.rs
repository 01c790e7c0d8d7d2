//! What is held: registered, let go, put back.

use lapsed_core::Name;
use lapsed_core::owner::Claim;
use lapsed_core::registry::TakePolicy;

use crate::model::{Held, Model, ModelClaim};

/// What a registration of one key should do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// The key was free.
    New,
    /// It was this life's already.
    Kept,
    /// It was that life's.
    Moved(u64),
    /// It stays that life's.
    Taken(u64),
}

impl Model {
    /// Registers keys: the life that holds them, whether it was begun, and one answer a key.
    /// Nothing when that life is lost.
    pub fn register(
        &mut self,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
        now: u64,
        given: Option<u64>,
    ) -> Option<(u64, bool, Vec<Put>)> {
        let (life, started) = match self.meant(claim) {
            ModelClaim::Stranger => return None,
            ModelClaim::Nobody => (self.start(&claim.owner, self.threshold_ms, now, given), true),
            ModelClaim::Life(number) => (self.acting(number)?, false),
        };
        let puts = keys.iter().map(|key| self.put(life, key, take)).collect();
        Some((life, started, puts))
    }

    /// That life, unless it has ended; then it is told so.
    fn acting(&mut self, number: u64) -> Option<u64> {
        let life = self.lives.get_mut(&number)?;
        life.told |= life.ended.is_some();
        life.ended.is_none().then_some(number)
    }

    fn put(&mut self, life: u64, key: &Name, take: TakePolicy) -> Put {
        let put = match self.entries.get(key) {
            None => Put::New,
            Some(held) if held.life == life => return Put::Kept,
            Some(held)
                if self.lives_on(held.life)
                    && (take == TakePolicy::IfFree || self.is_newer(held.life, life)) =>
            {
                return Put::Taken(held.life);
            }
            Some(held) => Put::Moved(held.life),
        };
        self.hold(life, key);
        put
    }

    /// Whether `holder` is a newer life of the same owner.
    fn is_newer(&self, holder: u64, life: u64) -> bool {
        let name = |number: &u64| self.lives.get(number).map(|life| &life.name);
        holder > life && name(&holder) == name(&life)
    }

    fn hold(&mut self, life: u64, key: &Name) {
        self.last_registration += 1;
        let registration = self.last_registration;
        self.entries.insert(key.clone(), Held { life, registration });
    }

    /// Lets go of keys: for each, whether it was its. Nothing when that life is lost.
    pub fn unregister(&mut self, claim: &Claim, keys: &[Name]) -> Option<Vec<bool>> {
        let ModelClaim::Life(number) = self.meant(claim) else { return None };
        let life = self.acting(number)?;
        let let_go = |key: &Name| {
            let its = self.entries.get(key).is_some_and(|held| held.life == life);
            if its {
                self.entries.remove(key);
            }
            its
        };
        Some(keys.iter().map(let_go).collect())
    }

    /// Puts back what a receipt removed: into which life, unless it is refused.
    pub fn restore(&mut self, seq: u64, now: u64) -> Option<u64> {
        let taken = self.receipts.get(&seq).filter(|taken| !taken.restored)?;
        let (key, owner) = (taken.key.clone(), taken.owner.clone());
        if self.entries.contains_key(&key) {
            return None;
        }
        let ModelClaim::Life(number) = self.meant(&Claim::newest(owner)) else { return None };
        let life = self.lives.get(&number)?;
        if life.ended.is_some() || self.due(life) <= now {
            return None;
        }
        self.hold(number, &key);
        if let Some(taken) = self.receipts.get_mut(&seq) {
            taken.restored = true;
        }
        Some(number)
    }
}
