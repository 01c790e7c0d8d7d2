//! The rows of the providers in memory, never ahead of the disk: what every read is answered from.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use lapsed_availability::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_core::Name;

use crate::availability::rows::ProviderRow;

#[derive(Default)]
pub(super) struct ProviderIndex {
    rows: BTreeMap<Name, ProviderRow>,
    /// Those of them that are online: fewer, and asked for more often.
    online: BTreeSet<Name>,
    /// What was set; what was not is as usual.
    pub set: SettingsPatch,
}

impl ProviderIndex {
    pub fn put(&mut self, id: Name, row: ProviderRow) {
        match row.is_online {
            true => self.online.insert(id.clone()),
            false => self.online.remove(&id),
        };
        self.rows.insert(id, row);
    }

    pub fn get(&self, id: &Name) -> Option<&ProviderRow> {
        self.rows.get(id)
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn settings(&self) -> AvailabilitySettings {
        AvailabilitySettings::default().with(&self.set)
    }

    /// Those after `after`, by id.
    pub fn after(&self, after: Option<&Name>) -> impl Iterator<Item = (&Name, &ProviderRow)> {
        self.rows.range::<Name, _>((from(after), Bound::Unbounded))
    }

    /// Of them, those online.
    pub fn online(&self, after: Option<&Name>) -> impl Iterator<Item = (&Name, &ProviderRow)> {
        let ids = self.online.range::<Name, _>((from(after), Bound::Unbounded));
        ids.filter_map(|id| self.rows.get_key_value(id))
    }
}

fn from(after: Option<&Name>) -> Bound<&Name> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}
