//! The backend that uses the store directly: opens it, carries out one command, closes it.

use std::fmt::Display;
use std::sync::Arc;

use lapsed_core::clock::SystemClock;
use lapsed_core::receipt::{NoObserver, ReceiptId};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::{PassMode, PassReport};
use lapsed_core::system::{Explanation, Restored};
use lapsed_core::{Error, SystemId};
use tokio::runtime::{Builder, Runtime};

use super::{Backend, BackendRef, Followed, Progress, ReceiptListing};
use lapsed_server::config::process_env;
use lapsed_server::failure::Failure;
use lapsed_server::http::{receipts, sweeps};
use lapsed_server::node::Config;
use lapsed_server::node::OpenedFor;
use lapsed_server::node::audit::{self, AuditAction, AuditPage};
use lapsed_server::node::page::{self, ReceiptCursor, ReceiptFilter};
use lapsed_server::node::shapes::{
    AdoptStatus, BrakeStatus, Estimate, ReceiptPage, Reconciliation, SystemStatus,
};
use lapsed_server::node::{
    BrakeOrder, LIST_MAX, LiveSystem, OpenSystems, ReconcileOrder, host_name,
};

/// The systems of a configuration, on stores that this process has opened.
pub struct LocalBackend {
    node: OpenSystems,
    /// The address and the name of each store.
    stores: Vec<(String, String)>,
    pub(crate) runtime: Runtime,
}

impl LocalBackend {
    /// Opens every store that the configuration uses.
    pub fn open(config: &Config) -> Result<LocalBackend, Error> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|e| Error::Unavailable {
            store: "this process".to_owned(),
            what: format!("no threads: {e}"),
        })?;
        let node = {
            let _inside = runtime.enter();
            OpenSystems::open_by_hand(config, SystemClock::shared(), Arc::new(NoObserver))?
        };
        runtime.block_on(node.probe())?;
        runtime.block_on(node.prepare(config, OpenedFor::Command));
        let stores = config.stores.values().map(|store| (store.describe(), store.name.clone()));
        Ok(LocalBackend { node, stores: stores.collect(), runtime })
    }

    pub(crate) fn live(&self, system: &SystemId) -> Result<&Arc<LiveSystem>, Failure> {
        let live = self.node.find(system.kind, &system.name);
        live.ok_or_else(|| Failure::usage(format!("there is no system `{system}`")))
    }

    /// Carries out `work`, and records it in the audit log with the name of the user.
    pub(crate) fn audited<T>(
        &self,
        live: &LiveSystem,
        (what, target): (&str, &dyn Display),
        work: impl Future<Output = lapsed_core::Result<T>>,
        outcome: impl FnOnce(&T) -> String,
    ) -> Result<T, Failure> {
        let (what, target) = (what.to_owned(), target.to_string());
        let action = AuditAction { who: local_user(), from: None, what, target, request: None };
        Ok(self.runtime.block_on(live.audited(action, work, outcome))?)
    }
}

impl Backend for LocalBackend {
    fn as_ref(&self) -> BackendRef<'_> {
        BackendRef::Local(self)
    }

    fn systems(&self) -> Result<Vec<SystemId>, Failure> {
        Ok(self.node.systems().iter().map(|live| live.id().clone()).collect())
    }

    fn status(&self) -> Result<Vec<SystemStatus>, Failure> {
        let all = self.node.systems().iter().map(|live| live.status());
        Ok(self.runtime.block_on(futures::future::join_all(all)))
    }

    fn pass(&self, system: &SystemId, act: PassMode) -> Result<PassReport, Failure> {
        let live = self.live(system)?;
        let (_stopper, stop) = StopSignal::channel();
        let pass = async { Ok(live.pass(act, LIST_MAX, &stop).await) };
        match act.reclaims() {
            true => self.audited(live, ("sweep", system), pass, sweeps::audit_outcome),
            false => Ok(self.runtime.block_on(pass)?),
        }
    }

    fn reconcile(
        &self,
        system: &SystemId,
        order: ReconcileOrder,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Reconciliation, Failure> {
        let live = self.live(system)?;
        let reconciler = live.reconciler()?;
        let act = order.act;
        let run = async {
            let stop = stop_on_interrupt();
            let extent = reconciler.extent().await;
            let mut examined = 0;
            let mut seen = |rows: u64| {
                examined += rows;
                tell(Progress { examined, extent });
            };
            reconciler.run(order, &stop, &mut seen).await
        };
        match act.reclaims() {
            true => self.audited(live, ("reconcile", system), run, Reconciliation::audit_outcome),
            false => Ok(self.runtime.block_on(run)?),
        }
    }

    fn estimate(&self, system: &SystemId) -> Result<Estimate, Failure> {
        let reconciler = self.live(system)?.reconciler()?;
        Ok(Estimate { requests: self.runtime.block_on(reconciler.cost())? })
    }

    fn explain(&self, system: &SystemId, key: &str) -> Result<Explanation, Failure> {
        Ok(self.runtime.block_on(self.live(system)?.explain(key))?)
    }

    fn receipts(&self, listing: &ReceiptListing) -> Result<ReceiptPage, Failure> {
        let systems = match &listing.system {
            Some(system) => vec![self.live(system)?.clone()],
            None => self.node.systems().to_vec(),
        };
        let before =
            listing.before.as_ref().map(|t| ReceiptCursor::parse(t, &systems)).transpose()?;
        let ReceiptListing { limit, key, owner, .. } = listing.clone();
        let wanted = ReceiptFilter { before, limit, key, owner, ..ReceiptFilter::default() };
        Ok(self.runtime.block_on(page::read(&systems, &wanted))?)
    }

    fn follow(
        &self,
        _system: Option<&SystemId>,
        _tell: &mut dyn FnMut(Followed) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        Err(Failure::usage(
            "--follow needs a running daemon: nothing happens in a store while this command has \
             it open. Start `lapsed serve -c FILE`, then follow it",
        ))
    }

    fn restore(&self, receipt: &ReceiptId) -> Result<Restored, Failure> {
        let live = self.live(&receipt.system)?;
        if self.runtime.block_on(live.receipt(receipt.seq))?.is_none() {
            return Err(Failure::failed(format!(
                "there is no receipt {receipt}, or it is past its retention"
            )));
        }
        self.audited(live, ("restore", receipt), live.restore(receipt.seq), receipts::audit_outcome)
    }

    fn adopt(&self, system: &SystemId) -> Result<AdoptStatus, Failure> {
        let live = self.live(system)?;
        self.audited(live, ("adopt", system), live.confirm_adoption(), AdoptStatus::audit_outcome)
    }

    fn brake(&self, system: &SystemId) -> Result<BrakeStatus, Failure> {
        Ok(self.runtime.block_on(self.live(system)?.brake_status())?)
    }

    fn set_brake(&self, system: &SystemId, order: BrakeOrder) -> Result<BrakeStatus, Failure> {
        let live = self.live(system)?;
        self.audited(
            live,
            (order.what(), system),
            live.set_brake(order),
            BrakeStatus::audit_outcome,
        )
    }

    fn audit(
        &self,
        system: Option<&SystemId>,
        before: Option<&str>,
        limit: usize,
    ) -> Result<AuditPage, Failure> {
        let systems = match system {
            Some(system) => vec![self.live(system)?.clone()],
            None => self.node.systems().to_vec(),
        };
        let before = before.map(|text| ReceiptCursor::parse(text, &systems)).transpose()?;
        Ok(self.runtime.block_on(audit::read(&systems, before.as_ref(), limit))?)
    }

    fn name_store(&self, failure: Failure) -> Failure {
        failure.name_store(|place| {
            self.stores.iter().find(|(at, _)| at == place).map(|(_, name)| name.clone())
        })
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(self.node.close()?)
    }
}

/// A signal that stops a pass after its present page on Ctrl-C; a second Ctrl-C ends the process at once.
fn stop_on_interrupt() -> StopSignal {
    let (stopper, stop) = StopSignal::channel();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_err() {
            // The handler could not be installed, so Ctrl-C ends the process: wait for that.
            std::future::pending::<()>().await;
        }
        stopper.stop();
        let _ = tokio::signal::ctrl_c().await;
        std::process::exit(130);
    });
    stop
}

/// The user for the audit log, taken from the environment. It is not authenticated: access is granted by the
/// credentials of the store.
fn local_user() -> String {
    let name =
        process_env("USER").or_else(|| process_env("LOGNAME")).filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    format!("cli:{name}@{}", host_name())
}
