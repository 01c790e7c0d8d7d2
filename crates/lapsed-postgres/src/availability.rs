//! The truth of availability, in an application's tables.
//!
//! Every transaction that changes a provider:
//!
//! 1. takes the next version of everybody it touches, in the order of their ids: the lock that keeps two
//!    of lapsed's own apart, and always first, so that they cannot wait for each other in a circle;
//! 2. changes what is to be changed;
//! 3. looks at the whole state in a statement of its own (*conclude*), which sees all that was committed
//!    before it began. So a change with the higher version has seen what one with a lower version has seen.
//!
//! The application writes its tables without those locks. What it toggles is noticed in the third step: the
//! own table remembers how a provider was last seen, and one that is otherwise begins a new epoch.

mod changes;
mod config;
mod flips;
mod reads;
mod receipts;
mod sessions;
mod states;
mod table_names;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lapsed_availability::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_availability::{
    Available, Flip, Flipped, ListedProvider, OnlineToggle, ProviderBeat, ProviderChange,
    ProviderProfile, ProviderQuery, ProviderState, SessionChange, SessionOutcome, Truth,
    WorkSession,
};
use lapsed_core::receipt::Receipt;
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, BatchId, Tidied, TidyLimits};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Kind, Name, Result, SystemId};
use tokio::sync::OnceCell;

use crate::Postgres;
use crate::layout::Layout;
use crate::pool::PostgresPool;
use receipts::PruneSchedule;
use table_names::TableNames;

/// How many times a transaction is tried that the server rolls back because of concurrent ones.
const TRIES: usize = 5;

/// Tries a step again that the server rolled back because of a concurrent transaction.
macro_rules! retry_on_conflict {
    ($step:expr) => {{
        let mut tries = 1;
        loop {
            match $step.await {
                Err(failure) if failure.conflict && tries < TRIES => tries += 1,
                outcome => break outcome.map_err(Error::from),
            }
        }
    }};
}

/// The truth of one system.
pub struct PostgresTruth {
    postgres: Postgres,
    id: SystemId,
    system: String,
    layout: Layout,
    names: OnceCell<TableNames>,
    prune_schedule: Mutex<PruneSchedule>,
}

impl Postgres {
    /// The truth of an availability system in these tables. The first call checks the tables.
    pub fn availability(&self, id: SystemId, layout: Layout) -> Result<PostgresTruth> {
        if id.kind != Kind::Availability {
            return Err(Error::Invalid(format!("{id} is no system that PostgreSQL carries")));
        }
        layout.check()?;
        self.register_layout(&id, &layout);
        Ok(PostgresTruth {
            postgres: self.clone(),
            system: id.to_string(),
            id,
            layout,
            names: OnceCell::new(),
            prune_schedule: Mutex::default(),
        })
    }
}

impl PostgresTruth {
    /// Checks the tables now. The error names each column that is missing.
    pub async fn check(&self) -> Result<()> {
        self.names().await.map(|_| ())
    }

    async fn names(&self) -> Result<&TableNames> {
        let find = || TableNames::find(self.pool(), self.postgres.own(), &self.layout);
        self.names.get_or_try_init(find).await
    }

    fn pool(&self) -> &PostgresPool {
        self.postgres.pool()
    }
}

#[async_trait]
impl Truth for PostgresTruth {
    fn services(&self) -> Arc<dyn Store> {
        Arc::new(self.postgres.clone())
    }

    async fn put_provider(&self, profile: &ProviderProfile) -> Result<ProviderChange> {
        retry_on_conflict!(self.try_put_provider(profile))
    }

    async fn set_online(&self, id: &Name, online: bool) -> Result<Option<ProviderChange>> {
        retry_on_conflict!(self.try_set_online(id, online))
    }

    async fn set_active(&self, id: &Name, active: bool) -> Result<Option<ProviderChange>> {
        retry_on_conflict!(self.try_set_active(id, active))
    }

    async fn change_session(&self, change: &SessionChange, max: u64) -> Result<SessionOutcome> {
        self.step_session(change, max).await
    }

    async fn session(&self, id: &Name) -> Result<Option<WorkSession>> {
        self.read_session(id).await
    }

    async fn refresh(&self, ids: &[(Name, u64)]) -> Result<Vec<ProviderState>> {
        retry_on_conflict!(self.try_refresh(ids))
    }

    async fn read(&self, ids: &[Name]) -> Result<Vec<ProviderState>> {
        self.read_states(ids).await
    }

    async fn page(&self, after: Option<&Name>, limit: usize) -> Result<Vec<ProviderState>> {
        self.read_page(after, limit).await
    }

    async fn extent(&self) -> Result<u64> {
        self.estimate().await
    }

    async fn beat(&self, ids: &[Name]) -> Result<Vec<ProviderBeat>> {
        self.note_own_beats(ids).await
    }

    async fn note_beats(&self, beats: &[(Name, u64)], at_ms: u64) -> Result<u64> {
        self.note_old_beats(beats, at_ms).await
    }

    async fn clamp_beats(&self, ids: &[Name]) -> Result<u64> {
        self.clamp_future_beats(ids).await
    }

    async fn available(
        &self,
        settings: &AvailabilitySettings,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Available>> {
        self.read_available(settings, after, limit).await
    }

    async fn count_available(&self, settings: &AvailabilitySettings) -> Result<u64> {
        self.number_available(settings).await
    }

    async fn count_online(&self) -> Result<u64> {
        self.number_online().await
    }

    async fn list(&self, listing: &ProviderQuery) -> Result<Vec<ListedProvider>> {
        self.read_list(listing).await
    }

    async fn describe(&self, id: &Name) -> Result<Option<ListedProvider>> {
        self.read_one(id).await
    }

    async fn log(&self, id: &Name, limit: usize) -> Result<Vec<OnlineToggle>> {
        self.read_log(id, limit).await
    }

    async fn settings(&self) -> Result<AvailabilitySettings> {
        self.read_settings().await
    }

    async fn set_settings(&self, patch: &SettingsPatch) -> Result<AvailabilitySettings> {
        retry_on_conflict!(self.try_set_settings(patch))
    }

    async fn flip(&self, batch: &Batch, flips: &[Flip], stale_ms: u64) -> Result<Vec<Flipped>> {
        retry_on_conflict!(self.try_flip(batch, flips, stale_ms))
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.settle_batch(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.tidy_up(&limits).await
    }

    async fn restore(&self, seq: u64) -> Result<(Restored, Option<ProviderState>)> {
        retry_on_conflict!(self.try_restore(seq))
    }
}
