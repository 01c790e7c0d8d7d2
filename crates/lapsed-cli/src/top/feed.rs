//! The threads of `lapsed top` that talk to the daemon: one polls the status, one follows the receipts, one
//! carries out requests. Each ends when the receiver of its messages is dropped.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapsed_core::SystemId;
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::{PassMode, PassReport};
use lapsed_core::system::Explanation;
use serde::Deserialize;

use crate::backend::{Backend, Followed, ReceiptListing, RemoteBackend};
use lapsed_server::failure::Failure;
use lapsed_server::node::BrakeOrder;
use lapsed_server::node::shapes::{BrakeStatus, SystemStatus};

/// The time between two status requests.
const EVERY: Duration = Duration::from_secs(1);

/// How many earlier receipts are read at the start.
const BEFORE: usize = 200;

/// The recent history of a system; only the members that are shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HistoryView {
    pub system: String,
    pub kind: String,
    pub slice_ms: u64,
    pub now_ms: u64,
    pub samples: Vec<SampleView>,
    pub passes: Vec<PassReport>,
}

/// The reclaims in one slice of time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SampleView {
    pub at_ms: u64,
    pub reclaimed: u64,
}

/// The health of a store.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Health {
    pub name: String,
    pub place: String,
    pub systems: Vec<String>,
    pub answers: bool,
    pub latency_us: u64,
    pub engine: Option<String>,
    pub clock_offset_ms: Option<i64>,
    pub error: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Histories {
    systems: Vec<HistoryView>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Stores {
    stores: Vec<Health>,
}

pub enum TopUpdate {
    Status(Vec<SystemStatus>),
    History(Vec<HistoryView>, Vec<Health>),
    /// The daemon does not answer, or refuses the request.
    Unreachable(String),
    /// Earlier receipts, newest first.
    EarlierReceipts(Vec<Receipt>),
    Receipt(Box<Receipt>),
    Explained(String, Result<Explanation, String>),
    Passed(SystemId, Result<PassReport, String>),
    Braked(Result<BrakeStatus, String>),
}

/// A request of the user to the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedRequest {
    Explain(SystemId, String),
    Pass(SystemId, PassMode),
    Brake(SystemId, BrakeOrder),
}

pub struct Feed {
    orders: Sender<FeedRequest>,
}

impl Feed {
    pub fn start(remote: RemoteBackend, tell: Sender<TopUpdate>) -> Feed {
        let remote = Arc::new(remote);
        let (orders, ordered) = channel();
        let (asking, telling) = (remote.clone(), tell.clone());
        std::thread::spawn(move || look(&asking, &telling));
        let (asking, telling) = (remote.clone(), tell.clone());
        std::thread::spawn(move || follow(&asking, &telling));
        std::thread::spawn(move || carry_out(&remote, &ordered, &tell));
        Feed { orders }
    }

    pub fn ask(&self, order: FeedRequest) {
        // Sending cannot fail: the receiving thread ends only with the program.
        let _ = self.orders.send(order);
    }
}

/// Milliseconds since the Unix epoch, by this machine's clock.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn look(remote: &RemoteBackend, tell: &Sender<TopUpdate>) {
    loop {
        let update = match remote.status() {
            Ok(status) => TopUpdate::Status(status),
            Err(failure) => TopUpdate::Unreachable(failure.to_string()),
        };
        if tell.send(update).is_err() {
            return;
        }
        // An older daemon reports neither history nor health: then less is shown.
        let histories = remote.read::<Histories>("/v1/history").unwrap_or_default();
        let stores = remote.read::<Stores>("/v1/stores").unwrap_or_default();
        if tell.send(TopUpdate::History(histories.systems, stores.stores)).is_err() {
            return;
        }
        std::thread::sleep(EVERY);
    }
}

/// Follows the receipts. Earlier receipts are listed after the stream has begun, so that none is missed. When the
/// stream ends, it is opened again, and the list fills the gap.
fn follow(remote: &RemoteBackend, tell: &Sender<TopUpdate>) {
    loop {
        let ended = remote.follow(None, &mut |followed| {
            let update = match followed {
                Followed::Begun => {
                    let listing = ReceiptListing { limit: BEFORE, ..ReceiptListing::default() };
                    TopUpdate::EarlierReceipts(remote.receipts(&listing)?.receipts)
                }
                Followed::Receipt(receipt) => TopUpdate::Receipt(receipt),
                // The status of each system shows its store's error.
                Followed::Missing(_) => return Ok(()),
            };
            tell.send(update).map_err(|_| Failure::Closed)
        });
        if matches!(ended, Err(Failure::Closed)) {
            return;
        }
        std::thread::sleep(EVERY);
    }
}

fn carry_out(remote: &RemoteBackend, ordered: &Receiver<FeedRequest>, tell: &Sender<TopUpdate>) {
    while let Ok(order) = ordered.recv() {
        let words = |failure: Failure| failure.to_string();
        let update = match order {
            FeedRequest::Explain(system, key) => {
                let told = remote.explain(&system, &key).map_err(words);
                TopUpdate::Explained(format!("{system} {key}"), told)
            }
            FeedRequest::Pass(system, act) => {
                let report = remote.pass(&system, act).map_err(words);
                TopUpdate::Passed(system, report)
            }
            FeedRequest::Brake(system, order) => {
                TopUpdate::Braked(remote.set_brake(&system, order).map_err(words))
            }
        };
        if tell.send(update).is_err() {
            return;
        }
    }
}
