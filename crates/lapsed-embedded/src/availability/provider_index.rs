//! The providers' rows in memory, from which every read is answered. It never contains anything
//! that is not durable on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use lapsed_availability::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_core::Name;

use crate::availability::rows::ProviderRow;

#[derive(Default)]
pub(super) struct ProviderIndex {
    rows: BTreeMap<Name, ProviderRow>,
    /// Ids of the online providers: fewer than all, and read more often.
    online: BTreeSet<Name>,
    /// The settings that were set; all others have their defaults.
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

    /// Providers after `after`, ordered by id.
    pub fn after(&self, after: Option<&Name>) -> impl Iterator<Item = (&Name, &ProviderRow)> {
        self.rows.range::<Name, _>((from(after), Bound::Unbounded))
    }

    /// Online providers after `after`, ordered by id.
    pub fn online(&self, after: Option<&Name>) -> impl Iterator<Item = (&Name, &ProviderRow)> {
        let ids = self.online.range::<Name, _>((from(after), Bound::Unbounded));
        ids.filter_map(|id| self.rows.get_key_value(id))
    }
}

fn from(after: Option<&Name>) -> Bound<&Name> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}
