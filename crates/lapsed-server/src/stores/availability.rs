//! Truth and mirror of one system of availability, on the stores that were opened for it.

use std::sync::Arc;
use std::time::Duration;

use lapsed_availability::memory::MemoryMirror;
use lapsed_availability::{Mirror, Truth};
use lapsed_core::SystemId;
use lapsed_core::clock::Clock;
use lapsed_postgres::Postgres;
use lapsed_redis::{MirrorLayout, RedisMirror};

use super::{OpenStore, cannot, template};
use crate::systems::availability::TruthLayout;
use crate::systems::availability::layout::MirrorKeys;

/// How long this process may not have looked at its own memory before that counts as an absence: it is
/// looked at every second.
const GAP: Duration = Duration::from_secs(5);

/// Availability on its stores.
pub struct OpenAvailability {
    pub truth: Arc<dyn Truth>,
    /// What is asked for.
    pub mirror: Arc<dyn Mirror>,
    /// Who tells of changes without being asked; nobody where nobody else can change anything.
    pub tellers: Option<Tellers>,
}

/// Who tells of changes without being asked.
#[derive(Clone)]
pub struct Tellers {
    /// What the application changed in its tables, if they have triggers.
    pub truth: Postgres,
    /// That a setting has changed, and who fell silent.
    pub mirror: Arc<RedisMirror>,
}

impl OpenStore {
    /// The availability `id`, true on this store.
    pub fn availability(
        &self,
        mirror: Option<&OpenStore>,
        id: &SystemId,
        layout: &TruthLayout,
        threshold: Duration,
        clock: Arc<dyn Clock>,
    ) -> lapsed_core::Result<OpenAvailability> {
        match (self, mirror, layout) {
            (OpenStore::Embedded(store), None, TruthLayout::Embedded) => {
                let truth = store.availability(id.clone())?;
                Ok(OpenAvailability { truth, mirror: memory(clock), tellers: None })
            }
            (
                OpenStore::Postgres(store),
                Some(OpenStore::Redis(cache)),
                TruthLayout::Postgres { tables, keys },
            ) => {
                let truth = Arc::new(store.availability(id.clone(), (**tables).clone())?);
                let mirror = cache.mirror(id.clone(), mirror_layout(keys)?, threshold)?;
                let tellers = Some(Tellers { truth: store.clone(), mirror: mirror.clone() });
                Ok(OpenAvailability { truth, mirror, tellers })
            }
            _ => Err(cannot(id)),
        }
    }
}

/// In memory. It begins as one that was just lost: whoever is alive has a whole threshold to beat again.
fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Mirror> {
    let mirror = MemoryMirror::new(clock, Some(GAP));
    mirror.lose();
    Arc::new(mirror)
}

fn mirror_layout(keys: &MirrorKeys) -> lapsed_core::Result<MirrorLayout> {
    Ok(MirrorLayout {
        online_key: keys.online.clone(),
        deactivated_key: keys.deactivated.clone(),
        capacity_key: template("capacity_key", &keys.capacity, "provider")?,
        heartbeat_key: template("heartbeat_key", &keys.heartbeat, "provider")?,
        snapshot_key: keys.snapshot.clone(),
        invalidate_channel: keys.invalidate.clone(),
        instant: keys.instant,
    })
}
