//! One bucket, or a prefix of it, as a store: its receipts, terms, settings and systems.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lapsed_core::clock::Clock;
use lapsed_core::leader::Term;
use lapsed_core::notes::NoteStore;
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::BrakeRecord;
use lapsed_core::upkeep::{ReconcileState, UpkeepStore};
use lapsed_core::{Error, Result, SystemId};
use object_store::client::HttpService;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::{Offset, StoreClock};
use crate::config::{ObjectConfig, Provider, RequestSigning};
use crate::http::MeteredTransport;
use crate::leases::{LeasesLayout, ObjectLeases};
use crate::log::{LOG_OPEN_MAX, Log};
use crate::names::ObjectPaths;
use crate::objects::{Objects, WriteCondition, Written};
use crate::probe::{self, ProbeReport};
use crate::requests::{Meter, RequestCounts};
use crate::system_context::SystemContext;

/// How many times a write is tried while other writers are faster.
const TRIES: usize = 100;

/// An object store. Opening it sends nothing.
pub struct ObjectStore {
    pub(crate) context: Arc<SystemContext>,
    transport: Arc<MeteredTransport>,
    config: ObjectConfig,
    signing: RequestSigning,
    provider: Provider,
    logs: Mutex<HashMap<SystemId, Arc<Log>>>,
    /// The transports of reconciling, each with its own budget.
    reconciling: Mutex<Vec<Arc<MeteredTransport>>>,
    probed: tokio::sync::OnceCell<ProbeReport>,
}

impl ObjectStore {
    /// Creates the store without sending a request.
    pub fn open(config: ObjectConfig, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        Self::start(config, clock, None)
    }

    /// The same, with something else in place of the network: what a simulation brings. Requests to S3 are
    /// not signed, because nobody would check it.
    pub fn open_over(
        config: ObjectConfig,
        clock: Arc<dyn Clock>,
        service: Arc<dyn HttpService>,
    ) -> Result<Arc<Self>> {
        Self::start(config, clock, Some(service))
    }

    fn start(
        config: ObjectConfig,
        clock: Arc<dyn Clock>,
        service: Option<Arc<dyn HttpService>>,
    ) -> Result<Arc<Self>> {
        config.check()?;
        let place = config.place()?;
        let time = Arc::new(StoreClock::new(clock.clone()));
        let meter = Meter::new(clock.clone(), config.requests_per_hour);
        let signing = match service {
            Some(_) => RequestSigning::Omitted,
            None => RequestSigning::Required,
        };
        let transport = match service {
            Some(service) => MeteredTransport::over(service, meter, time.clone(), place.bucket),
            None => MeteredTransport::new(
                &config.name,
                meter,
                time.clone(),
                place.bucket,
                config.timeout,
            )?,
        };
        let provider = place.provider;
        let context = context(&config, &transport, signing, time, clock)?;
        let (logs, reconciling, probed) = Default::default();
        Ok(Arc::new(ObjectStore {
            context,
            transport,
            config,
            signing,
            provider,
            logs,
            reconciling,
            probed,
        }))
    }

    /// The same objects through another meter: requests that use it are not taken from the budget of
    /// the operations on leases.
    fn beside(&self) -> Result<Arc<SystemContext>> {
        let bucket = self.config.place()?.bucket.to_owned();
        let (clock, time) = (self.context.clock.clone(), self.context.time.clone());
        let meter = Meter::new(clock.clone(), self.config.requests_per_hour);
        let transport =
            MeteredTransport::over(self.transport.service(), meter, time.clone(), &bucket);
        let beside = context(&self.config, &transport, self.signing, time, clock)?;
        self.reconciling.lock().unwrap_or_else(PoisonError::into_inner).push(transport);
        Ok(beside)
    }

    /// Tests what the server really does, once per process.
    pub async fn probe(&self) -> Result<ProbeReport> {
        self.probed.get_or_try_init(|| probe::run(&self.context)).await.cloned()
    }

    /// Opens the leases of one system.
    pub fn leases(&self, id: SystemId, layout: LeasesLayout) -> Result<Arc<ObjectLeases>> {
        let log = Arc::new(Log::new(self.context.clone(), id.clone(), layout.log_open_max));
        self.logs().insert(id.clone(), log.clone());
        ObjectLeases::new((self.context.clone(), self.beside()?), log, id, layout).map(Arc::new)
    }

    /// The number of requests so far, by kind.
    pub fn requests(&self) -> RequestCounts {
        let reconciling = self.reconciling.lock().unwrap_or_else(PoisonError::into_inner);
        let beside = reconciling.iter().map(|transport| transport.meter().counts());
        beside.fold(self.transport.meter().counts(), RequestCounts::and)
    }

    /// How far the store's clock is ahead of this host's; `None`: no answer has had a `Date` yet.
    pub fn offset(&self) -> Option<Offset> {
        self.context.time.offset()
    }

    /// Replaces a small object by what `change` makes of it, again and again until nobody else was faster;
    /// `None` leaves it as it is. What it is then.
    pub(crate) async fn replace<T>(&self, path: &str, change: impl Fn(T) -> Option<T>) -> Result<T>
    where
        T: Clone + Default + Serialize + DeserializeOwned,
    {
        for _ in 0..TRIES {
            let (stored, only) = self.context.stored::<T>(path).await?;
            let stored = stored.unwrap_or_default();
            let Some(next) = change(stored.clone()) else { return Ok(stored) };
            if self.context.store(path, &next, only).await? {
                return Ok(next);
            }
        }
        Err(self.contended(path))
    }

    /// Takes or renews the term that is kept under `path`.
    pub(crate) async fn take_term(
        &self,
        path: &str,
        candidate: &str,
        ttl_ms: u64,
    ) -> Result<Option<Term>> {
        for _ in 0..TRIES {
            let (stored, only) = self.context.stored::<StoredTerm>(path).await?;
            let stored = stored.unwrap_or_default();
            let now = self.context.clock_reading().await?;
            let lapsed = now.is_over(stored.until_ms);
            if !lapsed && stored.holder != candidate {
                return Ok(None);
            }
            let number = if lapsed { stored.number + 1 } else { stored.number };
            let until_ms = now.granting_ms + ttl_ms;
            let next = StoredTerm { number, holder: candidate.to_owned(), until_ms };
            if self.context.store(path, &next, only).await? {
                return Ok(Some(Term { number, holder: candidate.to_owned(), until_ms }));
            }
        }
        Err(self.contended(path))
    }

    fn contended(&self, path: &str) -> Error {
        Error::Throttled {
            store: self.config.name.clone(),
            what: format!("{path} is being written by too many at once"),
        }
    }

    fn log(&self, system: &SystemId) -> Arc<Log> {
        let make = || Arc::new(Log::new(self.context.clone(), system.clone(), LOG_OPEN_MAX));
        self.logs().entry(system.clone()).or_insert_with(make).clone()
    }

    fn logs(&self) -> std::sync::MutexGuard<'_, HashMap<SystemId, Arc<Log>>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for ObjectStore {
    async fn info(&self) -> Result<StoreInfo> {
        self.context.objects.get(&format!("{}.lapsed/hello", self.context.paths.root())).await?;
        let now = self.context.clock_reading().await?;
        Ok(StoreInfo {
            engine: self.provider.as_str().to_owned(),
            place: self.config.url.clone(),
            incarnation: "object".to_owned(),
            now_ms: now.judging_ms,
            back_ms: 0,
        })
    }

    async fn receipts(&self, system: &SystemId, query: ReceiptQuery) -> Result<Vec<Receipt>> {
        self.log(system).receipts(&query).await
    }

    async fn receipt(&self, system: &SystemId, seq: u64) -> Result<Option<Receipt>> {
        self.log(system).receipt(seq).await
    }

    async fn campaign(
        &self,
        system: &SystemId,
        candidate: &str,
        ttl_ms: u64,
    ) -> Result<Option<Term>> {
        self.take_term(&self.context.paths.system(system, "term"), candidate, ttl_ms).await
    }

    async fn term(&self, system: &SystemId) -> Result<Option<Term>> {
        let path = self.context.paths.system(system, "term");
        let Some(stored) = self.context.stored::<StoredTerm>(&path).await?.0 else {
            return Ok(None);
        };
        let StoredTerm { number, holder, until_ms } = stored;
        let is_over = self.context.clock_reading().await?.is_over(until_ms);
        Ok((!is_over).then_some(Term { number, holder, until_ms }))
    }

    async fn resign(&self, system: &SystemId, term: u64) -> Result<()> {
        let path = self.context.paths.system(system, "term");
        let ended = |stored: StoredTerm| {
            (stored.number == term).then_some(StoredTerm { until_ms: 0, ..stored })
        };
        self.replace(&path, ended).await.map(|_| ())
    }

    async fn brake(&self, system: &SystemId) -> Result<BrakeRecord> {
        let path = self.context.paths.system(system, "brake");
        Ok(self.context.stored::<BrakeRecord>(&path).await?.0.unwrap_or_default())
    }

    async fn swap_brake(&self, system: &SystemId, next: &BrakeRecord) -> Result<bool> {
        let path = self.context.paths.system(system, "brake");
        let (stored, only) = self.context.stored::<BrakeRecord>(&path).await?;
        if stored.unwrap_or_default().version + 1 != next.version {
            return Ok(false);
        }
        // If another process replaces the object in between, the condition fails.
        self.context.store(&path, next, only).await
    }

    fn notes(&self) -> &dyn NoteStore {
        self
    }

    fn upkeep(&self) -> Option<&dyn UpkeepStore> {
        Some(self)
    }
}

/// Two small objects for each system. They are overwritten without a condition: a sign or a position
/// that is a little too old costs requests, nothing else.
#[async_trait]
impl UpkeepStore for ObjectStore {
    async fn sign_activity(&self, system: &SystemId) -> Result<()> {
        let now_ms = self.context.clock_reading().await?.granting_ms;
        let path = self.context.paths.system(system, "activity");
        self.context.store(&path, &now_ms, WriteCondition::Always).await.map(|_| ())
    }

    async fn since_activity(&self, system: &SystemId) -> Result<Option<Duration>> {
        let path = self.context.paths.system(system, "activity");
        let Some(signed_ms) = self.context.stored::<u64>(&path).await?.0 else { return Ok(None) };
        let now_ms = self.context.clock_reading().await?.judging_ms;
        Ok(Some(Duration::from_millis(now_ms.saturating_sub(signed_ms))))
    }

    async fn reconcile_state(&self, system: &SystemId) -> Result<(Option<ReconcileState>, u64)> {
        let path = self.context.paths.system(system, "reconcile");
        let state = self.context.stored::<ReconcileState>(&path).await?.0;
        Ok((state, self.context.clock_reading().await?.judging_ms))
    }

    async fn keep_reconcile_state(&self, system: &SystemId, state: &ReconcileState) -> Result<()> {
        let path = self.context.paths.system(system, "reconcile");
        self.context.store(&path, state, WriteCondition::Always).await.map(|_| ())
    }
}

/// The context for requests to a store through one transport.
fn context(
    config: &ObjectConfig,
    transport: &Arc<MeteredTransport>,
    signing: RequestSigning,
    time: Arc<StoreClock>,
    clock: Arc<dyn Clock>,
) -> Result<Arc<SystemContext>> {
    let place = config.place()?;
    let objects = Objects::new(
        &config.name,
        place.bucket,
        config.client(transport, signing)?,
        transport.clone(),
        clock.clone(),
        place.provider != Provider::Azure,
    );
    let (paths, deletes_if) = (ObjectPaths::new(place.prefix), Default::default());
    Ok(Arc::new(SystemContext { objects, paths, time, clock, deletes_if }))
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StoredTerm {
    pub(crate) number: u64,
    pub(crate) holder: String,
    pub(crate) until_ms: u64,
}

/// A small object of lapsed's own: its content, and a nonce so that its bytes never repeat.
#[derive(Serialize, Deserialize)]
struct SmallObject<T> {
    nonce: String,
    content: T,
}

impl SystemContext {
    /// Reads a small object, with the condition under which it may be replaced.
    pub(crate) async fn stored<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<(Option<T>, WriteCondition)> {
        let Some(read) = self.objects.get(path).await? else {
            return Ok((None, WriteCondition::IfAbsent));
        };
        let small: SmallObject<T> = serde_json::from_slice(&read.body).map_err(|error| {
            Error::Corrupt { store: self.name().to_owned(), what: format!("{path}: {error}") }
        })?;
        Ok((Some(small.content), WriteCondition::IfUnchanged(read.version)))
    }

    /// Writes a small object; false if another process was first.
    pub(crate) async fn store<T: Serialize>(
        &self,
        path: &str,
        content: &T,
        only: WriteCondition,
    ) -> Result<bool> {
        let small = SmallObject { nonce: format!("{:016x}", self.nonce()), content };
        let body: Bytes = serde_json::to_vec(&small).expect("a small object is JSON").into();
        Ok(matches!(self.objects.put(path, body, only).await?, Written::Done(_)))
    }

    /// The number of the current term; `None`: no process has it.
    pub(crate) async fn term(&self, system: &SystemId) -> Result<Option<u64>> {
        let path = self.paths.system(system, "term");
        let stored = self.stored::<StoredTerm>(&path).await?.0;
        let now = self.clock_reading().await?;
        Ok(stored.filter(|term| !now.is_over(term.until_ms)).map(|term| term.number))
    }
}
