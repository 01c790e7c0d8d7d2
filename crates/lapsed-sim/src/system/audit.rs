//! Compares the whole store with the model: owners, entries, indexes, counts, receipts.

use std::collections::BTreeMap;

use lapsed_core::Name;
use lapsed_core::owner::{Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::registry::RegistryStore;
use lapsed_core::store::Store;
use lapsed_core::sweep::{Census, Sweep};

use crate::model::{Model, ModelIncarnation};
use crate::promise::{Broken, Checked, Promise, holds};
use crate::system::{SimStore, SimSystem, at_once};

/// Whether an audit also compares all receipts, which takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptAudit {
    Compared,
    Skipped,
}

impl Model {
    /// Marks as uncertain every incarnation that has ended, or is uncertain, in `other`.
    pub(super) fn expect_ends_of(&mut self, other: &Model) {
        for (number, incarnation) in &mut self.incarnations {
            let there = other.incarnations.get(number);
            incarnation.uncertain |= there
                .is_some_and(|incarnation| incarnation.ended.is_some() || incarnation.uncertain);
        }
    }
}

fn unread(what: lapsed_core::Error) -> Broken {
    Broken::new(Promise::P4, format!("the store cannot be read: {what}"))
}

fn owners(store: &SimStore) -> Result<BTreeMap<u64, OwnerInfo>, Broken> {
    let all = at_once(store.registry.owners(None, usize::MAX)).map_err(unread)?;
    Ok(all.into_iter().map(|info| (info.incarnation.0, info)).collect())
}

impl SimSystem {
    /// Takes over from the store what only the store can know: which uncertain ends happened and
    /// which were undone.
    pub(super) fn adopt(
        &self,
        store: &SimStore,
        model: &mut Model,
        at: u64,
        reopened: bool,
    ) -> Checked {
        let owners = owners(store)?;
        let numbers: Vec<u64> = model.incarnations.keys().copied().collect();
        for number in numbers {
            let Some(incarnation) = model.incarnations.get_mut(&number) else { continue };
            let real = owners.get(&number).and_then(|info| info.ended);
            match (incarnation.ended, real) {
                (None, Some((ending, _))) if incarnation.uncertain => {
                    model.end(number, ending, at, reopened);
                }
                (Some(end), None) if !end.durable => {
                    let told = incarnation.told;
                    holds(!told, Promise::P5, || {
                        format!("incarnation {number} was told that it ended, and is live again")
                    })?;
                    model.undo_end(number);
                }
                (Some(end), Some(_)) if reopened => {
                    incarnation.ended = Some(crate::model::ModelEnd { durable: true, ..end });
                }
                _ => {}
            }
            if let Some(incarnation) = model.incarnations.get_mut(&number) {
                incarnation.uncertain = false;
            }
        }
        Ok(())
    }

    pub(super) fn compare(&self, store: &SimStore, model: &Model) -> Checked {
        self.compare_state(store, model)?;
        self.compare_receipts(store, model)
    }

    pub(super) fn compare_state(&self, store: &SimStore, model: &Model) -> Checked {
        let census = at_once(store.registry.census()).map_err(unread)?;
        let real = owners(store)?;
        self.compare_owners(&real, &census, model)?;
        self.compare_entries(store, model)?;
        self.compare_indexes(store, &real, model)?;
        self.compare_census(&census, model)
    }

    fn compare_owners(
        &self,
        real: &BTreeMap<u64, OwnerInfo>,
        census: &Census,
        model: &Model,
    ) -> Checked {
        let (here, there): (Vec<_>, Vec<_>) =
            (model.incarnations.keys().collect(), real.keys().collect());
        holds(here == there, Promise::P4, || {
            format!("these incarnations are known: {there:?}; it should be {here:?}")
        })?;
        for (number, incarnation) in &model.incarnations {
            let info = &real[number];
            let same = info.owner == incarnation.name
                && info.ttl_ms == incarnation.ttl_ms
                && info.ended.map(|end| end.0) == incarnation.ended.map(|end| end.ending);
            holds(same, Promise::P5, || {
                format!("incarnation {number} is {info:?}, not {incarnation:?}")
            })?;
            self.compare_due(model, incarnation, info, census.now_ms)?;
        }
        Ok(())
    }

    fn compare_due(
        &self,
        model: &Model,
        incarnation: &ModelIncarnation,
        info: &OwnerInfo,
        now_ms: u64,
    ) -> Checked {
        let real = info.due_ms as i128 - i128::from(now_ms);
        let due = i128::from(model.due(incarnation)) - i128::from(self.now());
        let promise = if real < due { Promise::P1 } else { Promise::P2 };
        holds(incarnation.ended.is_some() || real == due || self.tampered(), promise, || {
            format!("incarnation {} is due in {real} ms, not in {due} ms", info.incarnation)
        })
    }

    /// Whether a planted bug changes the store's deadlines. Deadlines and census are then not
    /// compared: the bug must be found by what the store does.
    fn tampered(&self) -> bool {
        self.parts.planted.shifts_deadlines()
    }

    fn compare_entries(&self, store: &SimStore, model: &Model) -> Checked {
        let keys: Vec<Name> = model.entries.keys().cloned().collect();
        let found = at_once(store.registry.find(&keys)).map_err(unread)?;
        for (key, found) in keys.iter().zip(found) {
            let real = found.map(|found| found.holder.incarnation.0);
            let incarnation = model.entries[key].incarnation;
            holds(real == Some(incarnation), Promise::P4, || {
                format!("`{key}` is held by {real:?}; it should be by incarnation {incarnation}")
            })?;
        }
        Ok(())
    }

    fn compare_indexes(
        &self,
        store: &SimStore,
        real: &BTreeMap<u64, OwnerInfo>,
        model: &Model,
    ) -> Checked {
        for (number, incarnation) in &model.incarnations {
            let claim = Claim::exact(incarnation.name.clone(), Incarnation(*number));
            let listed = match incarnation.ended {
                None => {
                    at_once(store.registry.entries(&claim, None, usize::MAX)).map_err(unread)?
                }
                Some(_) => at_once(store.registry.held_by(&claim, usize::MAX))
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
                format!(
                    "incarnation {number} is answer_text to hold {count}, and holds {}",
                    held.len()
                )
            })?;
        }
        Ok(())
    }

    pub(super) fn compare_census(&self, census: &Census, model: &Model) -> Checked {
        let expected_census = model.expected_census(self.now());
        let population = model.entries.len() as u64;
        let died = census.owners_died_recently == expected_census.died || self.clock_was_set;
        let same = census.population == population
            && (census.suspects == expected_census.suspects || self.tampered())
            && (census.owners_live == expected_census.live || self.tampered())
            && (census.owners_overdue == expected_census.overdue || self.tampered())
            && (died || self.tampered());
        holds(same, Promise::P8, || {
            format!(
                "the census is {census:?}; it should be {expected_census:?} among {population} entries"
            )
        })
    }

    pub(super) fn compare_receipts(&self, store: &SimStore, model: &Model) -> Checked {
        let query = ReceiptQuery { after: Some(0), limit: usize::MAX, before: None };
        let real = at_once(store.embedded.receipts(&self.system, query)).map_err(unread)?;
        let (here, there) = (model.receipts.len(), real.len());
        holds(here == there, Promise::P3, || {
            format!("there are {there} receipts; there should be {here}")
        })?;
        for receipt in real {
            let taken = model.receipts.get(&receipt.id.seq);
            let same = taken.is_some_and(|taken| {
                taken.key == receipt.key
                    && taken.incarnation == receipt.incarnation.0
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
