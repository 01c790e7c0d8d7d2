//! The seam of the fast store, which has what can be derived, and the beats; it can be lost at any time.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::rules::{AvailabilitySettings, PendingOffline};
use crate::{Available, ProviderBeat, ProviderState};
use lapsed_core::error::Result;
use lapsed_core::name::Name;
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, Cursor, Refusal};

/// A state of the truth, for a mirror to take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorUpdate {
    pub state: ProviderState,
    /// Its last beat, on the mirror's clock.
    pub beat_ms: Option<u64>,
}

/// A beat, as a mirror has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeenBeat {
    /// At this time of the mirror's clock.
    At(u64),
    /// There is none; first missed at this time of the mirror's clock, if a pass has missed it.
    Missing(Option<u64>),
    /// There is one that nobody can read.
    Unreadable,
}

/// One provider, as a mirror has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorEntry {
    pub id: Name,
    /// The newest version that was told; `None`: none was.
    pub version: Option<u64>,
    /// The version of its last toggle.
    pub epoch: u64,
    /// Whether it is in the set of those online.
    pub online: bool,
    /// Whether it is in the set of those deactivated.
    pub deactivated: bool,
    /// Its sessions; `None`: what is there cannot be read. Nothing there is 0.
    pub sessions: Option<u64>,
    pub beat: SeenBeat,
    /// Whether it was declared silent, and the truth does not know yet.
    pub pending_offline: Option<PendingOffline>,
}

/// What a look at a mirror found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorView {
    /// One for each that was asked for, in the same order.
    pub seen: Vec<MirrorEntry>,
    pub now_ms: u64,
    /// Whether it is seeded: otherwise what is not there means nothing.
    pub seeded: bool,
}

/// A mirror's answer to a beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorBeat {
    Told(ProviderBeat),
    /// Declared silent, and the truth may not have set it offline: nothing was noted, and only the truth
    /// knows whether it is offline.
    PendingOffline,
}

/// The beat of somebody online.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlineBeat {
    pub id: Name,
    /// The version of its last toggle.
    pub epoch: u64,
    pub beat: SeenBeat,
}

/// Some of those online, with their beats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BeatPage {
    /// Those whose beat is at least as old as was asked for (or missing, or unreadable).
    pub beats: Vec<OnlineBeat>,
    /// How many were looked at.
    pub examined: u64,
    pub now_ms: u64,
    /// Where to go on.
    pub next: Option<Cursor>,
}

/// Some of those available.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AvailablePage {
    /// Who, by id, nobody twice; empty where only the number was asked for.
    pub available: Vec<Available>,
    pub count: u64,
    /// Where to go on.
    pub next: Option<Cursor>,
}

/// What the beacon says: the snapshot that all daemons share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Whether anybody can take work now.
    pub available: bool,
    pub count: u64,
}

/// Who makes the next snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotTurn {
    There(Snapshot),
    /// There is none, and it is this caller's turn to make it; shown when it is handed in.
    Yours(String),
    /// There is none, and somebody is at it.
    Theirs,
}

/// Since when the mirror is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    pub now_ms: u64,
    /// Which life of the mirror this is.
    pub incarnation: String,
    /// When it was back after an absence, if that was less than `stale_ms` ago and was not waived.
    pub back_ms: u64,
    /// Whether it was seeded in this life and has not lost its data since.
    pub seeded: bool,
    /// How many are online.
    pub online: u64,
    /// How many were declared silent, and the truth does not know yet.
    pub pending_offline: u64,
}

/// The fast store of what can be derived.
///
/// `None` in an answer: the mirror is not seeded (any more), so that it does not know; ask the truth.
/// After every reconnection, before the first answer is trusted, the adapter makes sure that it talks to
/// the same life of the server as was seeded.
#[async_trait]
pub trait Mirror: Send + Sync {
    /// Where the terms of leaders are kept, if they are kept here.
    fn terms(&self) -> Option<Arc<dyn Store>> {
        None
    }

    async fn now_ms(&self) -> Result<u64>;

    /// Since when it is there. `stale_ms`: how long an absence is remembered.
    async fn presence(&self, stale_ms: u64) -> Result<Presence>;

    /// Waives a grace that is running, for absences up to this time of the mirror's clock.
    async fn waive(&self, until_ms: u64) -> Result<()>;

    /// Begins to seed: a name for this attempt. The mirror need not be empty.
    async fn begin_seed(&self) -> Result<String>;

    /// Ends that attempt: from now on it answers. `false`: data was lost since it began; begin again.
    async fn end_seed(&self, attempt: &str) -> Result<bool>;

    /// Takes states over by [`MirrorRow::apply`](crate::rules::MirrorRow::apply), seeded or
    /// not. How many were newer than what it had. In an attempt to seed: `None` when that attempt is void.
    async fn apply(&self, told: &[MirrorUpdate], attempt: Option<&str>) -> Result<Option<u64>>;

    /// Removes every trace of those that the truth does not know, each only if its version is still the
    /// one beside it. How many.
    async fn forget(&self, ids: &[(Name, Option<u64>)]) -> Result<u64>;

    /// Beats: one round trip. The beat is dated by the mirror's clock.
    async fn beat(&self, ids: &[Name]) -> Result<Option<Vec<MirrorBeat>>>;

    /// What it has of each, seeded or not.
    async fn look(&self, ids: &[Name]) -> Result<MirrorView>;

    /// About `limit` of those online from `after` on, with the beats that are at least `older_ms` old.
    async fn beats(&self, after: &Cursor, limit: usize, older_ms: u64) -> Result<Option<BeatPage>>;

    /// Those declared silent that the truth does not know of yet, at most `limit`, the oldest first.
    async fn pending_offline(&self, limit: usize) -> Result<Vec<(Name, PendingOffline)>>;

    /// Everybody of whom there is a trace, from `after` on: who, and where to go on.
    async fn traces(&self, after: &Cursor, limit: usize) -> Result<(Vec<Name>, Option<Cursor>)>;

    /// The decisive step: declares each silent that is online, in the epoch beside it, and whose beat is at
    /// least `stale_ms` old by the mirror's clock (one that is missing: was first missed so long ago),
    /// unless the mirror was away. Takes it out of the set of those online and removes its beat in that
    /// step, and remembers the doom. One that was doomed before is answered as it is. All of the batch or,
    /// on an error, perhaps none of it.
    async fn decide(
        &self,
        batch: &Batch,
        stale_ms: u64,
    ) -> Result<Vec<std::result::Result<PendingOffline, Refusal>>>;

    /// About `limit` of those online from `after` on, of them those available.
    async fn available(
        &self,
        settings: &AvailabilitySettings,
        after: &Cursor,
        limit: usize,
        only_count: bool,
    ) -> Result<Option<AvailablePage>>;

    /// How many are online and not deactivated.
    async fn count_online(&self) -> Result<Option<u64>>;

    /// The shared snapshot, or whose turn it is to make it (for `lease_ms`).
    async fn snapshot(&self, lease_ms: u64) -> Result<Option<SnapshotTurn>>;

    /// Hands a snapshot in, to last for `ttl_ms`; not if it was dropped since the turn began.
    async fn put_snapshot(&self, turn: &str, snapshot: &Snapshot, ttl_ms: u64) -> Result<bool>;

    /// Drops the snapshot, and voids the turn of whoever is making one.
    async fn drop_snapshot(&self) -> Result<()>;

    /// Tells every daemon (and the application) that a setting has changed.
    async fn announce(&self, setting: &str) -> Result<()>;
}
