//! What `top` hears: a thread that asks how everything stands, one that follows the receipts, one that
//! carries out what was ordered. Each ends when nobody listens any more.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapsed_core::SystemId;
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::{PassMode, PassReport};
use lapsed_core::system::Explanation;
use serde::Deserialize;

use crate::backend::{Backend, Followed, JobListing, RemoteBackend};
use lapsed_server::failure::Failure;
use lapsed_server::node::BrakeOrder;
use lapsed_server::node::shapes::{BrakeStatus, SystemStatus};

/// How often everything is asked for.
const EVERY: Duration = Duration::from_secs(1);

/// How many receipts of before are shown at first.
const BEFORE: usize = 200;

/// What a system did lately, as far as it is shown here.
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

/// What was reclaimed in one slice of time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SampleView {
    pub at_ms: u64,
    pub reclaimed: u64,
}

/// How a store is.
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

pub enum News {
    Status(Vec<SystemStatus>),
    Lately(Vec<HistoryView>, Vec<Health>),
    /// The daemon does not answer, or says no.
    Away(String),
    /// Receipts of before, newest first.
    Before(Vec<Receipt>),
    Receipt(Box<Receipt>),
    Explained(String, Result<Explanation, String>),
    Passed(SystemId, Result<PassReport, String>),
    Braked(Result<BrakeStatus, String>),
}

/// What is to be done.
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
    pub fn start(remote: RemoteBackend, tell: Sender<News>) -> Feed {
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
        // Whoever carries out ends only with the program.
        let _ = self.orders.send(order);
    }
}

/// By this machine's clock.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn look(remote: &RemoteBackend, tell: &Sender<News>) {
    loop {
        let news = match remote.status() {
            Ok(status) => News::Status(status),
            Err(failure) => News::Away(failure.to_string()),
        };
        if tell.send(news).is_err() {
            return;
        }
        // An older daemon has neither: then there is less to show.
        let histories = remote.read::<Histories>("/v1/history").unwrap_or_default();
        let stores = remote.read::<Stores>("/v1/stores").unwrap_or_default();
        if tell.send(News::Lately(histories.systems, stores.stores)).is_err() {
            return;
        }
        std::thread::sleep(EVERY);
    }
}

/// From the moment on at which the stream begins nothing is missed, and what was before is listed then.
/// When the stream has given up it begins anew, and the list closes the gap.
fn follow(remote: &RemoteBackend, tell: &Sender<News>) {
    loop {
        let ended = remote.follow(None, &mut |followed| {
            let news = match followed {
                Followed::Begun => {
                    let listing = JobListing { limit: BEFORE, ..JobListing::default() };
                    News::Before(remote.receipts(&listing)?.receipts)
                }
                Followed::Receipt(receipt) => News::Receipt(receipt),
            };
            tell.send(news).map_err(|_| Failure::Closed)
        });
        if matches!(ended, Err(Failure::Closed)) {
            return;
        }
        std::thread::sleep(EVERY);
    }
}

fn carry_out(remote: &RemoteBackend, ordered: &Receiver<FeedRequest>, tell: &Sender<News>) {
    while let Ok(order) = ordered.recv() {
        let words = |failure: Failure| failure.to_string();
        let news = match order {
            FeedRequest::Explain(system, key) => {
                let told = remote.explain(&system, &key).map_err(words);
                News::Explained(format!("{system} {key}"), told)
            }
            FeedRequest::Pass(system, act) => {
                let report = remote.pass(&system, act).map_err(words);
                News::Passed(system, report)
            }
            FeedRequest::Brake(system, order) => {
                News::Braked(remote.set_brake(&system, order).map_err(words))
            }
        };
        if tell.send(news).is_err() {
            return;
        }
    }
}
