//! `availability`: who can take work now, answered from a mirror, true in a durable store.
//!
//! Two stores take part. The **truth** (Postgres, or the embedded store) has every fact: who is online
//! and active, the sessions, the settings, the log. The **mirror** (Valkey or Redis, or memory) has what
//! is asked thousands of times a minute, and the beats. It can be lost at any time.
//!
//! The races, and what closes them:
//!
//! - *Two writers tell the mirror in the wrong order* (C2, C8). Every change of a provider in the truth
//!   takes the next **version** of that provider, under its lock, and reads the whole state after
//!   that; the mirror takes a state over only if its version is newer. Nothing is counted up or down.
//! - *A ping arrives while somebody is being set offline* (C5). The mirror decides in one step, by its own
//!   clock, and takes the provider out of the set in that step: a ping is before it and wins, or after
//!   it and is told. The decision stays in the mirror (it is **doomed**) until the truth has carried it
//!   out, so that a sweeper that dies in between is followed up by the next.
//! - *A toggle arrives between the decision and the truth* (C2). Each toggle begins a new **epoch**; the
//!   truth carries a decision out only in the epoch that it was made in. *A ping went to the truth,
//!   because its daemon could not reach the mirror*: the truth looks at the beats that it has, too.
//! - *Several sweepers flip the same provider* (C6): the one whose transaction flips the row writes the
//!   log row and the receipt in it.
//! - *Clocks of different hosts* (C11): what goes from one store to the other is how old a beat is, never
//!   when it was. A beat on its way from the truth is dated by a reading of the mirror's clock from
//!   *before* the truth was read, so that waiting makes nobody fresher.
//! - *A mirror that lost its data says that nobody is there*: it answers only once it was **seeded**, and
//!   what says so is lost together with the data.

mod beacon;
mod breaker;
#[cfg(feature = "conformance")]
pub mod conformance;
mod counters;
mod explain;
mod fallback;
mod glance;
pub mod memory;
mod operations;
mod reads;
mod reconcile;
pub mod rules;
mod seed;
mod services;
mod sweep;
mod upkeep;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::name::Name;
use crate::receipt::Receipt;
use crate::store::Store;
use crate::sweep::{Batch, BatchId, Cursor, Refusal, Tidied, TidyLimits};
use crate::system::Restored;
use rules::{Doom, Settings, SettingsPatch};

pub use breaker::{BreakerPolicy, BreakerState};
pub use counters::{Counters, Read};
pub use glance::Glance;
pub use operations::{Availability, AvailabilityParts, Source, Sourced, Written};
pub use reads::{Found, OwnStatus};

/// The most providers in one answer or one call.
pub const PAGE_MAX: usize = 1_000;

/// How long a snapshot of the beacon lasts.
pub const SNAPSHOT_MS: u64 = 10_000;

/// One provider, as the truth has it at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderState {
    /// Who.
    pub id: Name,
    /// Grows with every change. 0: never changed through lapsed.
    pub version: u64,
    /// The version of the last toggle between online and offline (also of a second "online" in a row).
    pub epoch: u64,
    /// Whether it says that it is there.
    pub online: bool,
    /// Whether it may work at all.
    pub active: bool,
    /// How many sessions it has.
    pub sessions: u64,
    /// How long ago it last beat, on the truth's clock, as far as the truth knows.
    pub beat_age_ms: Option<u64>,
}

/// Who a provider is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Who.
    pub id: Name,
    /// What people call it; `None`: leaves it.
    pub display_name: Option<String>,
}

/// What became of a change of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The provider, as it is now.
    pub state: ProviderState,
    /// Whether it was otherwise before: each such change of `online` has a log row.
    pub changed: bool,
    /// How many of its logins were revoked in the same transaction.
    pub revoked: u64,
}

/// The answer to a beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beat {
    /// Noted.
    Noted,
    /// It may not work: nothing was noted.
    Deactivated,
    /// It is not online (any more), or nobody knows it: nothing was noted (C10).
    Offline,
}

impl Beat {
    /// The word used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Beat::Noted => "noted",
            Beat::Deactivated => "deactivated",
            Beat::Offline => "offline",
        }
    }
}

/// Somebody who can take work now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Available {
    /// Who.
    pub id: Name,
    /// How many sessions it has already.
    pub active_session_count: u64,
}

/// What a session is in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum SessionStatus {
    /// Being worked on.
    Active,
    /// Waiting to be paid for; its provider stays occupied.
    PendingPayment,
    /// Over.
    Ended,
    /// Over: its time ran out.
    Expired,
    /// Over: somebody called it off.
    Cancelled,
    /// Whatever else the application has, before anybody accepted.
    Other(String),
}

impl SessionStatus {
    /// Those that occupy a provider.
    pub const OCCUPYING: &[SessionStatus] = &[SessionStatus::Active, SessionStatus::PendingPayment];

    /// The word in the table.
    pub fn as_str(&self) -> &str {
        match self {
            SessionStatus::Active => "active",
            SessionStatus::PendingPayment => "pending_payment",
            SessionStatus::Ended => "ended",
            SessionStatus::Expired => "expired",
            SessionStatus::Cancelled => "cancelled",
            SessionStatus::Other(word) => word,
        }
    }

    /// Whether nothing can become of it any more.
    pub fn is_over(&self) -> bool {
        matches!(self, SessionStatus::Ended | SessionStatus::Expired | SessionStatus::Cancelled)
    }
}

impl From<String> for SessionStatus {
    fn from(word: String) -> Self {
        match word.as_str() {
            "active" => SessionStatus::Active,
            "pending_payment" => SessionStatus::PendingPayment,
            "ended" => SessionStatus::Ended,
            "expired" => SessionStatus::Expired,
            "cancelled" => SessionStatus::Cancelled,
            _ => SessionStatus::Other(word),
        }
    }
}

impl From<SessionStatus> for String {
    fn from(status: SessionStatus) -> String {
        status.as_str().to_owned()
    }
}

impl fmt::Display for SessionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Which.
    pub id: Name,
    /// Whose work it is.
    pub provider: Option<Name>,
    /// What it is in.
    pub status: SessionStatus,
}

impl Session {
    /// Whether it takes a place of its provider.
    pub fn occupies(&self) -> bool {
        self.provider.is_some() && SessionStatus::OCCUPYING.contains(&self.status)
    }
}

/// What is to become of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionChange {
    /// A provider takes it; a session that is not known yet begins with that.
    Accept {
        /// Which.
        session: Name,
        /// Who.
        provider: Name,
    },
    /// It waits to be paid for once more; its provider stays occupied.
    Extend {
        /// Which.
        session: Name,
    },
    /// It was paid for.
    Resume {
        /// Which.
        session: Name,
    },
    /// It is over.
    End {
        /// Which.
        session: Name,
    },
    /// Its time ran out.
    Expire {
        /// Which.
        session: Name,
    },
    /// It was called off.
    Cancel {
        /// Which.
        session: Name,
    },
    /// Another provider goes on with it.
    Reroute {
        /// Which.
        session: Name,
        /// Who.
        to: Name,
    },
}

impl SessionChange {
    /// Which session.
    pub fn session(&self) -> &Name {
        match self {
            SessionChange::Accept { session, .. }
            | SessionChange::Extend { session }
            | SessionChange::Resume { session }
            | SessionChange::End { session }
            | SessionChange::Expire { session }
            | SessionChange::Cancel { session }
            | SessionChange::Reroute { session, .. } => session,
        }
    }

    /// Who is to have it.
    pub fn provider(&self) -> Option<&Name> {
        match self {
            SessionChange::Accept { provider, .. } => Some(provider),
            SessionChange::Reroute { to, .. } => Some(to),
            _ => None,
        }
    }
}

/// Why a session was left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionRefusal {
    /// Nobody knows it.
    NoSuchSession,
    /// Nobody knows who is to have it.
    NoSuchProvider,
    /// Nobody has accepted it yet.
    NotAccepted,
    /// It is over, in this way.
    Over(SessionStatus),
    /// This provider has it.
    Taken(Name),
    /// Who is to have it has as many as it can have.
    Full {
        /// So many.
        sessions: u64,
        /// Of so many.
        max: u64,
    },
    /// Who is to have it may not work.
    Deactivated,
}

/// What became of a change of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionOutcome {
    /// It is so now.
    Done {
        /// The session.
        session: Session,
        /// Whether it was otherwise before.
        changed: bool,
        /// The providers whose sessions are more or fewer by it, to be told to the mirror.
        touched: Vec<ProviderState>,
    },
    /// Nothing was changed.
    Refused(SessionRefusal),
}

/// One provider, as a dashboard lists it. Times are milliseconds of the truth's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Who.
    pub id: Name,
    /// What people call it.
    pub display_name: Option<String>,
    /// Whether it says that it is there.
    pub is_online: bool,
    /// Whether it may work at all.
    pub is_active: bool,
    /// How many sessions it has.
    pub active_session_count: u64,
    /// When it was last set online.
    pub last_online_ms: Option<u64>,
    /// When it was last set offline.
    pub last_offline_ms: Option<u64>,
    /// Its last beat, as far as the truth knows.
    pub last_heartbeat_ms: Option<u64>,
}

/// That somebody was set online or offline: one a flip, whoever did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flap {
    /// What it became.
    pub online: bool,
    /// When, on the truth's clock.
    pub at_ms: u64,
}

/// Which providers to list.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Those after this one, by id.
    pub after: Option<Name>,
    /// At most so many.
    pub limit: usize,
    /// Only those that say they are there.
    pub online_only: bool,
}

/// Somebody whom the mirror declared silent, for the truth to set offline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    /// Who.
    pub id: Name,
    /// In which epoch it was declared silent.
    pub epoch: u64,
    /// How long it had been silent when that was decided, on the mirror's clock; `None`: it never beat.
    pub silent_ms: Option<u64>,
    /// How long ago that was.
    pub decided_ago_ms: u64,
}

/// What the truth made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flipped {
    /// It is offline now; log row and receipt were written in the same transaction.
    Offline(Box<Receipt>, ProviderState),
    /// It is not: a newer toggle, a beat that reached the truth (then a new epoch has begun), or it was
    /// offline already. The provider as it is, if there is one.
    Left(Refusal, Option<ProviderState>),
}

/// The durable store of every fact.
///
/// Every change of a provider is one transaction that first takes the next version of the provider
/// ([`rules::next_version`]; of several in the order of their ids, so that two never wait for each
/// other), then changes, then reads the state: whoever comes later has the higher version and has seen
/// what came before. `None` in an answer: there is no such provider.
#[async_trait]
pub trait Truth: Send + Sync {
    /// Receipts, the operator's settings, and terms where the mirror has none.
    fn services(&self) -> Arc<dyn Store>;

    /// Makes a provider (active, offline), or changes its name.
    async fn put_provider(&self, profile: &Profile) -> Result<Changed>;

    /// Sets it online or offline. Online always begins a new epoch, and is a beat. A log row if it was
    /// otherwise before.
    async fn set_online(&self, id: &Name, online: bool) -> Result<Option<Changed>>;

    /// Activates or deactivates; deactivating revokes its logins in the same transaction.
    async fn set_active(&self, id: &Name, active: bool) -> Result<Option<Changed>>;

    /// Changes a session by [`rules::step`]; whoever is to have it must be active and have room.
    async fn change_session(&self, change: &SessionChange, max: u64) -> Result<SessionOutcome>;

    /// One session.
    async fn session(&self, id: &Name) -> Result<Option<Session>>;

    /// The newest state of each, with a new version that is above the number beside its id. Notices a
    /// toggle that the application made itself, and begins an epoch for it. Those that are not there
    /// are left out.
    async fn refresh(&self, ids: &[(Name, u64)]) -> Result<Vec<ProviderState>>;

    /// The state of each as it is, in one snapshot. Those that are not there are left out.
    async fn read(&self, ids: &[Name]) -> Result<Vec<ProviderState>>;

    /// The states of all, by id, those after `after`, at most `limit`.
    async fn page(&self, after: Option<&Name>, limit: usize) -> Result<Vec<ProviderState>>;

    /// About how many providers there are.
    async fn extent(&self) -> Result<u64>;

    /// Beats that the mirror could not take, in one statement: guarded like there.
    async fn beat(&self, ids: &[Name]) -> Result<Vec<Beat>>;

    /// Writes beats down that were so many milliseconds old at `at_ms` of the truth's clock (or are now, if
    /// that is earlier), in one statement and only forward in time (C9); only of those online. How many
    /// moved.
    async fn note_beats(&self, beats: &[(Name, u64)], at_ms: u64) -> Result<u64>;

    /// Those available, by id, those after `after`, at most `limit`.
    async fn available(
        &self,
        settings: &Settings,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Available>>;

    /// How many are available.
    async fn count_available(&self, settings: &Settings) -> Result<u64>;

    /// How many are online and active.
    async fn count_online(&self) -> Result<u64>;

    /// Providers with their names.
    async fn list(&self, listing: &Listing) -> Result<Vec<Listed>>;

    /// One of them.
    async fn describe(&self, id: &Name) -> Result<Option<Listed>>;

    /// The log of one provider, newest first, at most `limit` rows of it.
    async fn log(&self, id: &Name, limit: usize) -> Result<Vec<Flap>>;

    /// What the configuration table says; what it does not say is as usual.
    async fn settings(&self) -> Result<Settings>;

    /// Writes what is asked for into the configuration table, if the whole makes sense then.
    async fn set_settings(&self, patch: &SettingsPatch) -> Result<Settings>;

    /// Sets offline whom the mirror declared silent, each only if it is online, still in that epoch, and
    /// no beat younger than `stale_ms` reached the truth; all in one transaction, that notes the batch.
    /// A batch that was settled as not carried out is refused.
    async fn flip(&self, batch: &Batch, flips: &[Flip], stale_ms: u64) -> Result<Vec<Flipped>>;

    /// See [`Sweep::settle`](crate::sweep::Sweep::settle).
    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>>;

    /// See [`Sweep::tidy`](crate::sweep::Sweep::tidy).
    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied>;

    /// Sets online again whom receipt `seq` set offline, if nobody has toggled it since, and marks the
    /// receipt. The provider as it is then.
    async fn restore(&self, seq: u64) -> Result<(Restored, Option<ProviderState>)>;
}

/// A state of the truth, for a mirror to take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The state.
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
pub struct Seen {
    /// Who.
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
    /// Its last beat.
    pub beat: SeenBeat,
    /// Whether it was declared silent, and the truth does not know yet.
    pub doomed: Option<Doom>,
}

/// What a look at a mirror found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// One for each that was asked for, in the same order.
    pub seen: Vec<Seen>,
    /// The mirror's clock.
    pub now_ms: u64,
    /// Whether it is seeded: otherwise what is not there means nothing.
    pub seeded: bool,
}

/// The beat of somebody online.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlineBeat {
    /// Who.
    pub id: Name,
    /// The version of its last toggle.
    pub epoch: u64,
    /// Its last beat.
    pub beat: SeenBeat,
}

/// Some of those online, with their beats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BeatPage {
    /// Those whose beat is at least as old as was asked for (or missing, or unreadable).
    pub beats: Vec<OnlineBeat>,
    /// How many were looked at.
    pub examined: u64,
    /// The mirror's clock.
    pub now_ms: u64,
    /// Where to go on.
    pub next: Option<Cursor>,
}

/// Some of those available.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AvailablePage {
    /// Who; empty where only the number was asked for.
    pub available: Vec<Available>,
    /// How many.
    pub count: u64,
    /// Where to go on.
    pub next: Option<Cursor>,
}

/// What the beacon says: the snapshot that all daemons share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Whether anybody can take work now.
    pub available: bool,
    /// How many.
    pub count: u64,
}

/// Who makes the next snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotTurn {
    /// There is one.
    There(Snapshot),
    /// There is none, and it is this caller's turn to make it; shown when it is handed in.
    Yours(String),
    /// There is none, and somebody is at it.
    Theirs,
}

/// Since when the mirror is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// The mirror's clock.
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
    pub doomed: u64,
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

    /// The mirror's clock.
    async fn now_ms(&self) -> Result<u64>;

    /// Since when it is there. `stale_ms`: how long an absence is remembered.
    async fn presence(&self, stale_ms: u64) -> Result<Presence>;

    /// Waives a grace that is running, for absences up to this time of the mirror's clock.
    async fn waive(&self, until_ms: u64) -> Result<()>;

    /// Begins to seed: a name for this attempt. The mirror need not be empty.
    async fn begin_seed(&self) -> Result<String>;

    /// Ends that attempt: from now on it answers. `false`: data was lost since it began; begin again.
    async fn end_seed(&self, attempt: &str) -> Result<bool>;

    /// Takes states over by [`MirrorRow::apply`](rules::MirrorRow::apply), seeded or not. How many were
    /// newer than what it had. In an attempt to seed: `None` when that attempt is void.
    async fn apply(&self, told: &[Told], attempt: Option<&str>) -> Result<Option<u64>>;

    /// Removes every trace of those that the truth does not know, each only if its version is still the
    /// one beside it. How many.
    async fn forget(&self, ids: &[(Name, Option<u64>)]) -> Result<u64>;

    /// Beats: one round trip. The beat is dated by the mirror's clock.
    async fn beat(&self, ids: &[Name]) -> Result<Option<Vec<Beat>>>;

    /// What it has of each, seeded or not.
    async fn look(&self, ids: &[Name]) -> Result<Looked>;

    /// About `limit` of those online from `after` on, with the beats that are at least `older_ms` old.
    async fn beats(&self, after: &Cursor, limit: usize, older_ms: u64) -> Result<Option<BeatPage>>;

    /// Those declared silent that the truth does not know of yet, at most `limit`, the oldest first.
    async fn doomed(&self, limit: usize) -> Result<Vec<(Name, Doom)>>;

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
    ) -> Result<Vec<std::result::Result<Doom, Refusal>>>;

    /// About `limit` of those online from `after` on, of them those available.
    async fn available(
        &self,
        settings: &Settings,
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
