//! Where a command is carried out: by a running daemon over HTTP, or on the store itself. The answers are the same.

mod local;
pub mod remote;
mod sse;

use lapsed_core::receipt::{Receipt, ReceiptId};
use lapsed_core::sweep::{PassMode, PassReport};
use lapsed_core::system::{Explanation, Restored};
use lapsed_core::{Error, Kind, SystemId};

use crate::cli::TargetArgs;
use lapsed_server::config::server::LISTEN_DEFAULT;
use lapsed_server::config::{Overrides, process_env};
use lapsed_server::failure::Failure;
use lapsed_server::node::Config;
use lapsed_server::node::audit::AuditPage;
use lapsed_server::node::missing::MissingSystem;
use lapsed_server::node::shapes::{
    AdoptStatus, BrakeStatus, Estimate, ReceiptPage, Reconciliation, SystemStatus,
};
use lapsed_server::node::{BrakeOrder, ReconcileOrder};

pub use local::LocalBackend;
pub use remote::RemoteBackend;

/// The name of a system that is not given one.
const DEFAULT_NAME: &str = "default";

/// The backend behind a [`Backend`]: the operations of one kind are implemented for both in the kind's folder.
pub enum BackendRef<'b> {
    Local(&'b LocalBackend),
    Remote(&'b RemoteBackend),
}

/// The operations that all kinds have in common, on a daemon or on a store.
pub trait Backend: Sync {
    fn as_ref(&self) -> BackendRef<'_>;
    /// Lists the systems of the daemon or the configuration.
    fn systems(&self) -> Result<Vec<SystemId>, Failure>;
    /// The status of every system.
    fn status(&self) -> Result<Vec<SystemStatus>, Failure>;
    fn pass(&self, system: &SystemId, act: PassMode) -> Result<PassReport, Failure>;
    /// Repairs the index from the stored data, or reports how they differ. `tell` is called with the progress,
    /// if this backend can see it.
    fn reconcile(
        &self,
        system: &SystemId,
        order: ReconcileOrder,
        tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Reconciliation, Failure>;
    /// Estimates how many requests a reconciliation takes.
    fn estimate(&self, system: &SystemId) -> Result<Estimate, Failure>;
    /// Explains why a key is, or is not, dead.
    fn explain(&self, system: &SystemId, key: &str) -> Result<Explanation, Failure>;
    /// One page of receipts, newest first.
    fn receipts(&self, listing: &ReceiptListing) -> Result<ReceiptPage, Failure>;
    /// Calls `tell` with every new receipt, until `tell` fails.
    fn follow(
        &self,
        system: Option<&SystemId>,
        tell: &mut dyn FnMut(Followed) -> Result<(), Failure>,
    ) -> Result<(), Failure>;
    /// Restores the entry that a receipt records as removed.
    fn restore(&self, receipt: &ReceiptId) -> Result<Restored, Failure>;
    /// Confirms the configuration of an adopted system.
    fn adopt(&self, system: &SystemId) -> Result<AdoptStatus, Failure>;
    /// The state of the brake of one system.
    fn brake(&self, system: &SystemId) -> Result<BrakeStatus, Failure>;
    /// Holds the brake, overrides it for one pass or makes it automatic; its new state.
    fn set_brake(&self, system: &SystemId, order: BrakeOrder) -> Result<BrakeStatus, Failure>;
    /// One page of the audit, newest first.
    fn audit(
        &self,
        system: Option<&SystemId>,
        before: Option<&str>,
        limit: usize,
    ) -> Result<AuditPage, Failure>;
    /// Adds the name of the store that failed, if this backend knows it.
    fn name_store(&self, failure: Failure) -> Failure {
        failure
    }
    /// Closes the store, if this backend has opened one.
    fn close(self: Box<Self>) -> Result<(), Failure>;
}

/// The progress of a reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows examined in this run.
    pub examined: u64,
    /// The approximate number of all rows, if the store knows it.
    pub extent: Option<u64>,
}

/// What the caller of `follow` receives.
#[derive(Clone, Debug)]
pub enum Followed {
    /// The stream has begun, and no later receipt is missed: the caller can list earlier receipts now.
    Begun,
    Receipt(Box<Receipt>),
    /// The systems whose stores do not answer at present; empty when all answer again.
    Missing(Vec<MissingSystem>),
}

/// Which receipts to list.
#[derive(Clone, Debug, Default)]
pub struct ReceiptListing {
    pub system: Option<SystemId>,
    pub before: Option<String>,
    /// The most receipts to list.
    pub limit: usize,
    pub key: Option<String>,
    pub owner: Option<String>,
}

/// Opens the store or addresses the daemon that `target` names. If a daemon has the store open, that daemon is used.
pub fn open(target: &TargetArgs) -> Result<Box<dyn Backend>, Failure> {
    let Some(file) = &target.config else {
        let url = url_or_default(target.url.clone());
        return Ok(Box::new(RemoteBackend::with_ca(
            &url,
            target.token.clone(),
            target.ca.as_deref(),
        )?));
    };
    let config = Config::load(Some(file), &Overrides::default(), &process_env)?;
    let known = config.server.token.as_ref().map(|secret| secret.reveal().to_owned());
    let token = target.token.clone().or(known);
    if let Some(url) = &target.url {
        return Ok(Box::new(RemoteBackend::with_ca(url, token, target.ca.as_deref())?));
    }
    let url = config.server.url();
    match LocalBackend::open(&config) {
        Ok(local) => Ok(Box::new(local)),
        Err(error @ Error::InUse { .. }) => {
            let remote = RemoteBackend::with_ca(&url, token, target.ca.as_deref())?;
            if !remote.answers() {
                return Err(Failure::failed(format!(
                    "{error}. No daemon answers at {url} either; give its address with --url"
                )));
            }
            tracing::info!("{error}; asking the daemon at {url} instead");
            Ok(Box::new(remote))
        }
        Err(error) => Err(Failure::from(error).name_store(|place| config.store_at(place))),
    }
}

/// Opens the native system that `text` names, KIND/NAME or KIND, on the store at `url`, with the default key names.
pub fn open_at(url: &str, text: &str) -> Result<Box<dyn Backend>, Failure> {
    let (kind, name) = text.split_once('/').unwrap_or((text, DEFAULT_NAME));
    if !Kind::ALL.iter().any(|known| known.as_str() == kind) {
        let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        return Err(Failure::usage(format!(
            "`{text}` names no kind of system; without a configuration, write KIND/NAME with one of these kinds: {}",
            kinds.join(", ")
        )));
    }
    let system =
        "[store.redis]\nurl = \"${URL}\"\n[[system]]\nkind = \"${KIND}\"\nname = \"${NAME}\"\n";
    let given = |variable: &str| match variable {
        "URL" => Some(url.to_owned()),
        "KIND" => Some(kind.to_owned()),
        "NAME" => Some(name.to_owned()),
        _ => None,
    };
    let config = Config::parse(system, &Overrides::default(), &given)?;
    let opened = LocalBackend::open(&config);
    Ok(Box::new(opened.map_err(|error| Failure::of_store(error, "redis"))?))
}

/// The daemon's address: `given`, or LAPSED_URL, or the default.
pub fn url_or_default(given: Option<String>) -> String {
    given.or_else(|| process_env("LAPSED_URL")).unwrap_or_else(default_url)
}

/// The daemon that `target` names, even if it names a configuration: some commands need a running daemon.
pub fn remote(target: &TargetArgs) -> Result<RemoteBackend, Failure> {
    let Some(file) = &target.config else {
        let url = url_or_default(target.url.clone());
        return RemoteBackend::with_ca(&url, target.token.clone(), target.ca.as_deref());
    };
    let config = Config::load(Some(file), &Overrides::default(), &process_env)?;
    let known = config.server.token.as_ref().map(|secret| secret.reveal().to_owned());
    let url = target.url.clone().unwrap_or_else(|| config.server.url());
    RemoteBackend::with_ca(&url, target.token.clone().or(known), target.ca.as_deref())
}

fn default_url() -> String {
    let listen = process_env("LAPSED_LISTEN").unwrap_or_else(|| LISTEN_DEFAULT.to_owned());
    format!("http://{listen}")
}

/// The system that `text` means: KIND/NAME, NAME, or the only one of a KIND.
pub fn resolve(text: &str, systems: &[SystemId]) -> Result<SystemId, Failure> {
    let whole = |id: &&SystemId| id.to_string() == text;
    let named = |id: &&SystemId| &*id.name == text;
    let of_kind = |id: &&SystemId| id.kind.as_str() == text;
    let mut found: Vec<&SystemId> = systems.iter().filter(whole).collect();
    if found.is_empty() {
        found = systems.iter().filter(named).collect();
    }
    if found.is_empty() {
        found = systems.iter().filter(of_kind).collect();
    }
    let list =
        |ids: &[&SystemId]| ids.iter().map(|id| id.to_string()).collect::<Vec<_>>().join(", ");
    match found.as_slice() {
        [only] => Ok((*only).clone()),
        [] => Err(Failure::usage(format!(
            "there is no system `{text}`; {}there are: {}",
            nearest(text, systems).map_or(String::new(), |id| format!("did you mean `{id}`? ")),
            list(&systems.iter().collect::<Vec<_>>())
        ))),
        several => {
            Err(Failure::usage(format!("`{text}` could be any of {}; say which", list(several))))
        }
    }
}

/// The system whose name, kind or both are most like `text`, if one is at all.
fn nearest<'s>(text: &str, systems: &'s [SystemId]) -> Option<&'s SystemId> {
    let likeness = |id: &SystemId| {
        let words = [id.to_string(), id.name.to_string(), id.kind.to_string()];
        words.iter().map(|word| strsim::jaro_winkler(text, word)).fold(0.0, f64::max)
    };
    let alike = systems.iter().map(|id| (likeness(id), id)).filter(|(likeness, _)| *likeness > 0.8);
    alike.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, id)| id)
}

/// The id of a system from the kind and name in an answer; none if the kind is unknown or the name invalid.
fn system_id(kind: &str, name: &str) -> Option<SystemId> {
    let kind = Kind::ALL.iter().find(|k| k.as_str() == kind)?;
    SystemId::new(*kind, name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> Vec<SystemId> {
        names.iter().map(|name| SystemId::new(Kind::Registry, name).unwrap()).collect()
    }

    #[test]
    fn a_system_is_meant_by_name_by_kind_or_by_both() {
        let one = ids(&["devices"]);
        for text in ["devices", "registry", "registry/devices"] {
            assert_eq!(&*resolve(text, &one).unwrap().name, "devices");
        }
        let two = ids(&["devices", "sockets"]);
        assert_eq!(&*resolve("sockets", &two).unwrap().name, "sockets");
        for text in ["registry", "nothing"] {
            let failure = resolve(text, &two).unwrap_err();
            assert!(matches!(failure, Failure::Usage(_)));
            let told = failure.to_string();
            assert!(told.contains("registry/devices, registry/sockets"), "{told}");
        }
        let told = resolve("sockts", &two).unwrap_err().to_string();
        assert!(told.contains("did you mean `registry/sockets`?"), "{told}");
        assert!(!resolve("xyz", &two).unwrap_err().to_string().contains("did you mean"));
    }
}
