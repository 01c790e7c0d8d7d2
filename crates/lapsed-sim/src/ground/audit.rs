//! Everything there is, compared: owners, entries, indexes, counts, receipts.

use std::collections::BTreeMap;

use lapsed_core::Name;
use lapsed_core::owner::{Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::registry::RegistryStore;
use lapsed_core::store::Store;
use lapsed_core::sweep::{Census, Sweep};

use crate::ground::{SimOwner, SimSystem, at_once};
use crate::model::{Model, ModelIncarnation};
use crate::promise::{Broken, Checked, Promise, holds};

/// Whether an audit reads all receipts, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptAudit {
    Compared,
    Skipped,
}

impl Model {
    /// Those lives that `other` ends, and those whose end is uncertain there, are uncertain here.
    pub(super) fn expect_ends_of(&mut self, other: &Model) {
        for (number, life) in &mut self.lives {
            let there = other.lives.get(number);
            life.uncertain |= there.is_some_and(|life| life.ended.is_some() || life.uncertain);
        }
    }
}

fn unread(what: lapsed_core::Error) -> Broken {
    Broken::new(Promise::P4, format!("the store cannot be read: {what}"))
}

fn owners(live: &SimOwner) -> Result<BTreeMap<u64, OwnerInfo>, Broken> {
    let all = at_once(live.registry.owners(None, usize::MAX)).map_err(unread)?;
    Ok(all.into_iter().map(|info| (info.incarnation.0, info)).collect())
}

impl SimSystem {
    /// Takes the store's word for what only it can know: ends that may have been undone.
    pub(super) fn adopt(
        &self,
        live: &SimOwner,
        model: &mut Model,
        at: u64,
        reopened: bool,
    ) -> Checked {
        let owners = owners(live)?;
        let numbers: Vec<u64> = model.lives.keys().copied().collect();
        for number in numbers {
            let Some(life) = model.lives.get_mut(&number) else { continue };
            let real = owners.get(&number).and_then(|info| info.ended);
            match (life.ended, real) {
                (None, Some((ending, _))) if life.uncertain => {
                    model.end(number, ending, at, reopened);
                }
                (Some(end), None) if !end.durable => {
                    let told = life.told;
                    holds(!told, Promise::P5, || {
                        format!("incarnation {number} was told that it ended, and lives again")
                    })?;
                    model.undo_end(number);
                }
                (Some(end), Some(_)) if reopened => {
                    life.ended = Some(crate::model::ModelEnd { durable: true, ..end });
                }
                _ => {}
            }
            if let Some(life) = model.lives.get_mut(&number) {
                life.uncertain = false;
            }
        }
        Ok(())
    }

    pub(super) fn compare(&self, live: &SimOwner, model: &Model) -> Checked {
        self.compare_state(live, model)?;
        self.compare_receipts(live, model)
    }

    pub(super) fn compare_state(&self, live: &SimOwner, model: &Model) -> Checked {
        self.compare_owners(live, model)?;
        self.compare_entries(live, model)?;
        self.compare_indexes(live, model)?;
        let census = at_once(live.registry.census()).map_err(unread)?;
        self.compare_census(&census, model)
    }

    fn compare_owners(&self, live: &SimOwner, model: &Model) -> Checked {
        let real = owners(live)?;
        let census = at_once(live.registry.census()).map_err(unread)?;
        let (here, there): (Vec<_>, Vec<_>) = (model.lives.keys().collect(), real.keys().collect());
        holds(here == there, Promise::P4, || {
            format!("these lives are known: {there:?}; it should be {here:?}")
        })?;
        for (number, life) in &model.lives {
            let info = &real[number];
            let same = info.owner == life.name
                && info.ttl_ms == life.ttl_ms
                && info.ended.map(|end| end.0) == life.ended.map(|end| end.ending);
            holds(same, Promise::P5, || format!("incarnation {number} is {info:?}, not {life:?}"))?;
            self.compare_due(model, life, info, census.now_ms)?;
        }
        Ok(())
    }

    fn compare_due(
        &self,
        model: &Model,
        life: &ModelIncarnation,
        info: &OwnerInfo,
        now_ms: u64,
    ) -> Checked {
        let real = info.due_ms as i128 - i128::from(now_ms);
        let due = i128::from(model.due(life)) - i128::from(self.now());
        let promise = if real < due { Promise::P1 } else { Promise::P2 };
        holds(life.ended.is_some() || real == due || self.tampered(), promise, || {
            format!("incarnation {} is due in {real} ms, not in {due} ms", info.incarnation)
        })
    }

    /// A store whose clock is a planted bug has other deadlines, and another idea of the grace; what
    /// must find that is what it does, not how it counts.
    fn tampered(&self) -> bool {
        self.parts.plant.shifts_deadlines()
    }

    fn compare_entries(&self, live: &SimOwner, model: &Model) -> Checked {
        let keys: Vec<Name> = model.entries.keys().cloned().collect();
        let found = at_once(live.registry.find(&keys)).map_err(unread)?;
        for (key, found) in keys.iter().zip(found) {
            let real = found.map(|found| found.holder.incarnation.0);
            let life = model.entries[key].life;
            holds(real == Some(life), Promise::P4, || {
                format!("`{key}` is held by {real:?}; it should be by incarnation {life}")
            })?;
        }
        Ok(())
    }

    fn compare_indexes(&self, live: &SimOwner, model: &Model) -> Checked {
        let real = owners(live)?;
        for (number, life) in &model.lives {
            let claim = Claim::exact(life.name.clone(), Incarnation(*number));
            let listed = match life.ended {
                None => at_once(live.registry.entries(&claim, None, usize::MAX)).map_err(unread)?,
                Some(_) => at_once(live.registry.held_by(&claim, usize::MAX))
                    .map_err(unread)?
                    .into_iter()
                    .map(|suspect| suspect.key)
                    .collect(),
            };
            let held: Vec<Name> = model.held(*number).cloned().collect();
            holds(listed == held, Promise::P8, || {
                format!("the index of incarnation {number} has {listed:?}; it holds {held:?}")
            })?;
            let count = real[number].held;
            holds(count == held.len() as u64, Promise::P8, || {
                format!("incarnation {number} is said to hold {count}, and holds {}", held.len())
            })?;
        }
        Ok(())
    }

    pub(super) fn compare_census(&self, census: &Census, model: &Model) -> Checked {
        let heads = model.heads(self.now());
        let population = model.entries.len() as u64;
        let died = census.owners_died_recently == heads.died || self.clock_was_set;
        let same = census.population == population
            && (census.suspects == heads.suspects || self.tampered())
            && (census.owners_live == heads.live || self.tampered())
            && (census.owners_overdue == heads.overdue || self.tampered())
            && (died || self.tampered());
        holds(same, Promise::P8, || {
            format!("the census is {census:?}; it should be {heads:?} among {population} entries")
        })
    }

    pub(super) fn compare_receipts(&self, live: &SimOwner, model: &Model) -> Checked {
        let query = ReceiptQuery { after: Some(0), limit: usize::MAX, before: None };
        let real = at_once(live.embedded.receipts(&self.system, query)).map_err(unread)?;
        let (here, there) = (model.receipts.len(), real.len());
        holds(here == there, Promise::P3, || {
            format!("there are {there} receipts; there should be {here}")
        })?;
        for receipt in real {
            let taken = model.receipts.get(&receipt.id.seq);
            let same = taken.is_some_and(|taken| {
                taken.key == receipt.key
                    && taken.life == receipt.incarnation.0
                    && taken.owner == receipt.owner
                    && taken.sweeper == *receipt.sweeper
                    && taken.batch == receipt.batch
                    && taken.restored == receipt.restored_ms.is_some()
            });
            holds(same, Promise::P3, || {
                format!("receipt {} is {receipt:?}; it should be {taken:?}", receipt.id)
            })?;
        }
        Ok(())
    }
}
