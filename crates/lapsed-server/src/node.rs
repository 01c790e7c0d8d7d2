//! The opened stores and systems of one configuration. The daemon serves them over HTTP, and
//! commands that work without a daemon use them directly.

mod adoption;
pub mod audit;
mod journal;
mod live;
pub mod missing;
mod notes;
pub mod page;
pub mod plan;
pub mod readiness;
mod reconcile;
pub mod shapes;
pub mod status_history;
pub mod store_monitor;
pub mod store_outages;

use std::collections::BTreeMap;
use std::sync::Arc;

use lapsed_core::Kind;
use lapsed_core::clock::Clock;
use lapsed_core::receipt::Observer;

use crate::config::common::SystemSettings;
use crate::config::store::StoreConfig;
use crate::stores::{OpenObject, OpenStore};
use store_monitor::StoreMonitor;

pub use journal::Journal;
pub use live::{BrakeOrder, LIST_MAX, LiveContext, LiveSystem};
pub use plan::{
    BuildContext, BuiltSystem, ClaimedName, Config, LiveHooks, NoHooks, OpenedFor, SystemPlan,
};
pub use reconcile::{ReconcileOrder, Reconciler};

/// The stores and systems that one configuration names, all opened, with the monitors of the stores
/// and the journal of this process.
pub struct OpenSystems {
    systems: Vec<Arc<LiveSystem>>,
    stores: BTreeMap<String, OpenStore>,
    monitors: Vec<Arc<StoreMonitor>>,
    journal: Arc<Journal>,
}

impl OpenSystems {
    /// Opens the stores that the systems use, and builds the systems, for a daemon. Blocks the
    /// thread.
    pub fn open(
        config: &Config,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
    ) -> lapsed_core::Result<OpenSystems> {
        Self::open_for(config, clock, observer, false)
    }

    /// Opens the same for a single command. Passes then do not wait until a system is idle: the
    /// user chose the time of the pass by giving the command, and a process that has just started
    /// cannot know how long a system has been unused. Blocks the thread.
    pub fn open_by_hand(
        config: &Config,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
    ) -> lapsed_core::Result<OpenSystems> {
        Self::open_for(config, clock, observer, true)
    }

    fn open_for(
        config: &Config,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
        by_hand: bool,
    ) -> lapsed_core::Result<OpenSystems> {
        let journal = Arc::new(Journal::new(observer, clock.clone()));
        let process = process_name(&*clock);
        let (systems, stores, monitors) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut node = OpenSystems { systems, stores, monitors, journal };
        for plan in &config.systems {
            let common = plan.common();
            let places = common.stores().map(|name| (name.clone(), config.stores[name].describe()));
            node.journal.outages().add_system(common.id.clone(), places.collect());
            for name in common.stores() {
                if !node.stores.contains_key(name) {
                    let store = config.stores[name].open(clock.clone())?;
                    let used = used_by(config, name);
                    node.monitors.push(Arc::new(StoreMonitor::new(
                        &config.stores[name],
                        &store,
                        used,
                        clock.clone(),
                        node.journal.outages().clone(),
                    )));
                    node.stores.insert(name.clone(), store);
                }
            }
            let context = LiveContext {
                store: &node.stores[&common.store],
                mirror: common.mirror.as_ref().map(|name| &node.stores[name]),
                clock: clock.clone(),
                journal: node.journal.clone(),
                process: &process,
                by_hand,
            };
            node.systems.push(Arc::new(LiveSystem::build(&**plan, context)?));
        }
        Ok(node)
    }

    /// Does what some kinds need before their systems may be used, such as filling a mirror. All
    /// systems are prepared concurrently; returns when the last one is done.
    pub async fn prepare(&self, config: &Config, for_what: OpenedFor) {
        let work = config.systems.iter().filter_map(|plan| {
            let id = &plan.common().id;
            plan.prepare(self.find(id.kind, &id.name)?, for_what)
        });
        futures::future::join_all(work).await;
    }

    /// Checks that every object store supports what correctness depends on (conditional writes, for
    /// example). An error means that the process must not go on.
    pub async fn probe(&self) -> lapsed_core::Result<()> {
        for store in self.objects() {
            store.1.check().await?;
        }
        Ok(())
    }

    /// The object stores among the opened stores, each with its name.
    pub fn objects(&self) -> impl Iterator<Item = (&str, &OpenObject)> {
        let all = self.stores.iter();
        all.filter_map(|(name, store)| Some((name.as_str(), store.object()?)))
    }

    /// All systems, in the order of the configuration.
    pub fn systems(&self) -> &[Arc<LiveSystem>] {
        &self.systems
    }

    pub fn find(&self, kind: Kind, name: &str) -> Option<&Arc<LiveSystem>> {
        self.systems.iter().find(|s| s.id().kind == kind && &*s.id().name == name)
    }

    /// The journal: recent passes and reclaims of this process, and the wake-ups for readers of
    /// receipts.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// One monitor for each opened store, which probes the store's health on demand.
    pub fn store_monitors(&self) -> &[Arc<StoreMonitor>] {
        &self.monitors
    }

    /// How many statements were sent to a store; `None` for stores that do not count them.
    pub fn statements(&self, store: &str) -> Option<u64> {
        self.stores.get(store)?.statements()
    }

    /// Flushes and closes every store. Blocking.
    pub fn close(&self) -> lapsed_core::Result<()> {
        let closed: Vec<_> = self.stores.values().map(|store| store.clone().close()).collect();
        closed.into_iter().collect()
    }
}

/// The stores that the systems of `config` use.
pub fn used_stores(config: &Config) -> Vec<&StoreConfig> {
    let used =
        |name: &String| config.systems.iter().any(|s| s.common().stores().any(|n| n == name));
    config.stores.iter().filter(|(name, _)| used(name)).map(|(_, store)| store).collect()
}

/// The systems of `config` that use `store`.
fn used_by(config: &Config, store: &str) -> Vec<String> {
    let uses = |common: &&SystemSettings| common.stores().any(|name| name == store);
    let all = config.systems.iter().map(|plan| plan.common());
    all.filter(uses).map(|common| common.id.to_string()).collect()
}

/// The host name of this machine, without whitespace and at most 64 characters; `host` if it is
/// unknown.
pub fn host_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| !c.is_whitespace()).take(64).collect();
    if host.is_empty() { "host".to_owned() } else { host }
}

/// A name that is unique among all processes that use the same store: host name, process id and a
/// random number.
fn process_name(clock: &dyn Clock) -> String {
    let host = host_name();
    format!("{host}-{}-{:06x}", std::process::id(), clock.random() & 0xff_ffff)
}
