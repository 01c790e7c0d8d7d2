//! What a store implements as the fast half: derived data and heartbeats. It can be lost at any
//! time.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::rules::{AvailabilitySettings, PendingOffline};
use crate::{Available, ProviderBeat, ProviderState};
use lapsed_core::error::Result;
use lapsed_core::name::Name;
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, Cursor, Refusal};

/// A state of the truth that a mirror should apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorUpdate {
    pub state: ProviderState,
    /// Time of its last heartbeat on the mirror's clock.
    pub beat_ms: Option<u64>,
}

/// A heartbeat as a mirror has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeenBeat {
    /// Its time in milliseconds of the mirror's clock.
    At(u64),
    /// There is no heartbeat; first missed by a pass at this time of the mirror's clock.
    Missing(Option<u64>),
    /// There is a heartbeat that cannot be parsed.
    Unreadable,
}

/// One provider as a mirror has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorEntry {
    pub id: Name,
    /// The newest version that was applied; `None`: none was.
    pub version: Option<u64>,
    /// The version of its last toggle.
    pub epoch: u64,
    /// Whether it is in the set of online providers.
    pub online: bool,
    /// Whether it is in the set of deactivated providers.
    pub deactivated: bool,
    /// Number of its sessions, 0 if there is no value; `None`: the value cannot be parsed.
    pub sessions: Option<u64>,
    pub beat: SeenBeat,
    /// The decision to set it offline, if the truth has not carried it out yet.
    pub pending_offline: Option<PendingOffline>,
}

/// What a mirror has of several providers, at one time of its clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorView {
    /// One entry per requested id, in the same order.
    pub seen: Vec<MirrorEntry>,
    pub now_ms: u64,
    /// Whether the mirror is seeded. If not, a missing provider means nothing.
    pub seeded: bool,
}

/// A mirror's answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorBeat {
    Told(ProviderBeat),
    /// The provider is pending offline. The heartbeat was not recorded, and only the truth knows
    /// whether the provider is offline.
    PendingOffline,
}

/// The heartbeat of an online provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlineBeat {
    pub id: Name,
    /// The version of its last toggle.
    pub epoch: u64,
    pub beat: SeenBeat,
}

/// Many heartbeats of one and the same millisecond, which lapsed did not write. Pings of providers
/// are not like that. An application that fills the mirror again by itself is: it dates the
/// heartbeat of everybody who is online *now*, also of those who are silent (C1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MassBeats {
    /// Their time, in milliseconds of the mirror's clock.
    pub at_ms: u64,
    /// How many heartbeats had that time.
    pub beats: u64,
    /// How many providers were looked at.
    pub of: u64,
}

/// A page of online providers with their heartbeats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BeatPage {
    /// Providers whose heartbeat is at least as old as requested, missing, or unreadable.
    pub beats: Vec<OnlineBeat>,
    /// Providers whose heartbeat may be dated after the mirror's present, for [`Mirror::clamp_beats`].
    pub ahead: Vec<Name>,
    /// How many providers were read.
    pub examined: u64,
    pub now_ms: u64,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
    /// Heartbeats on this page that were written at once by somebody else.
    pub mass_beats: Option<MassBeats>,
}

/// A page of available providers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AvailablePage {
    /// The providers, ordered by id, without duplicates; empty if only the number was requested.
    pub available: Vec<Available>,
    pub count: u64,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
}

/// The beacon's snapshot, which all daemons share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Whether any provider can take work now.
    pub available: bool,
    pub count: u64,
}

/// The snapshot, or which daemon computes the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotTurn {
    There(Snapshot),
    /// There is no snapshot and the caller has the turn; it must pass this token when it stores the
    /// snapshot.
    Yours(String),
    /// There is no snapshot, and another daemon has the turn.
    Theirs,
}

/// Identity of the mirror, and since when it is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    pub now_ms: u64,
    /// Changes when the mirror restarts or loses its data.
    pub incarnation: String,
    /// When it was back after an absence, if that was less than `stale_ms` ago and was not waived.
    pub back_ms: u64,
    /// Whether it was seeded in this incarnation and has not lost its data since.
    pub seeded: bool,
    /// How many are online.
    pub online: u64,
    /// How many providers are pending offline.
    pub pending_offline: u64,
    /// How many were decided to be silent within the last `stale_ms`, by any process. An implementation notes them in the
    /// step that decides.
    pub died_recently: u64,
    /// The last heartbeats that were found written at once by somebody else.
    pub mass_beats: Option<MassBeats>,
    /// How often such heartbeats were found, each time once.
    pub mass_beats_seen: u64,
}

/// The fast store of derived data.
///
/// `None` in an answer: the mirror is not seeded (any more), so the caller must read the truth.
/// After every reconnection, before it trusts an answer, the implementation must make sure that the
/// server is the same incarnation that was seeded.
#[async_trait]
pub trait Mirror: Send + Sync {
    /// The store of leaders' terms, if this store keeps them.
    fn terms(&self) -> Option<Arc<dyn Store>> {
        None
    }

    async fn now_ms(&self) -> Result<u64>;

    /// Since when the mirror is present. An absence is reported for `stale_ms`.
    async fn presence(&self, stale_ms: u64) -> Result<Presence>;

    /// Waives a grace that is running, for absences up to this time of the mirror's clock.
    async fn waive(&self, until_ms: u64) -> Result<()>;

    /// Starts to seed and returns the id of this attempt. The mirror need not be empty.
    async fn begin_seed(&self) -> Result<String>;

    /// Ends that attempt: the mirror answers from now on. `false`: data was lost since it began;
    /// start again.
    async fn end_seed(&self, attempt: &str) -> Result<bool>;

    /// Applies states by [`MirrorRow::apply`](crate::rules::MirrorRow::apply), whether or not the
    /// mirror is seeded, and returns how many were newer. Within a seeding attempt: `None` if that
    /// attempt is void.
    async fn apply(&self, told: &[MirrorUpdate], attempt: Option<&str>) -> Result<Option<u64>>;

    /// Removes everything stored for providers that the truth does not know, each only if its
    /// version is still the given one; returns how many were removed.
    async fn forget(&self, ids: &[(Name, Option<u64>)]) -> Result<u64>;

    /// Records heartbeats in one round trip, dated by the mirror's clock.
    async fn beat(&self, ids: &[Name]) -> Result<Option<Vec<MirrorBeat>>>;

    /// What is stored for each id, whether or not the mirror is seeded.
    async fn look(&self, ids: &[Name]) -> Result<MirrorView>;

    /// Reads about `limit` online providers from `after` on, and returns those whose heartbeat is
    /// at least `older_ms` old.
    async fn beats(&self, after: &Cursor, limit: usize, older_ms: u64) -> Result<Option<BeatPage>>;

    /// Sets each heartbeat of these providers that is dated after the mirror's present to its present, in the step
    /// that finds it so. Other heartbeats stay. Returns how many were changed. A mirror whose heartbeats only lapsed
    /// writes has none of them.
    async fn clamp_beats(&self, _ids: &[Name]) -> Result<u64> {
        Ok(0)
    }

    /// Providers that are pending offline, at most `limit`, the oldest decision first.
    async fn pending_offline(&self, limit: usize) -> Result<Vec<(Name, PendingOffline)>>;

    /// Ids of all providers for which anything is stored, from `after` on, and where the next page
    /// begins.
    async fn traces(&self, after: &Cursor, limit: usize) -> Result<(Vec<Name>, Option<Cursor>)>;

    /// Decides in one step which providers are silent: those that are online, in the given epoch,
    /// and whose heartbeat is at least `stale_ms` old by the mirror's clock (or was first missed
    /// that long ago), unless the mirror was away. The same step removes them from the online set,
    /// removes their heartbeats and records them as pending offline. A provider that was pending
    /// offline before is returned with its earlier decision. An error means that all or none of the
    /// batch may have been carried out.
    async fn decide(
        &self,
        batch: &Batch,
        stale_ms: u64,
    ) -> Result<Vec<std::result::Result<PendingOffline, Refusal>>>;

    /// Reads about `limit` online providers from `after` on, and returns the available ones.
    async fn available(
        &self,
        settings: &AvailabilitySettings,
        after: &Cursor,
        limit: usize,
        only_count: bool,
    ) -> Result<Option<AvailablePage>>;

    /// How many providers are online and not deactivated.
    async fn count_online(&self) -> Result<Option<u64>>;

    /// The shared snapshot, or who has the turn to compute it (for `lease_ms`).
    async fn snapshot(&self, lease_ms: u64) -> Result<Option<SnapshotTurn>>;

    /// Stores a snapshot for `ttl_ms`; `false` if it was dropped since the turn began.
    async fn put_snapshot(&self, turn: &str, snapshot: &Snapshot, ttl_ms: u64) -> Result<bool>;

    /// Drops the snapshot, and voids the turn of a daemon that is computing one.
    async fn drop_snapshot(&self) -> Result<()>;

    /// Notifies every daemon (and the application) that a setting has changed.
    async fn announce(&self, setting: &str) -> Result<()>;
}
