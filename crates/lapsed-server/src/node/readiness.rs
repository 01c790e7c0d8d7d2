//! Whether this process can serve: which of its systems have a store that answers.
//!
//! A daemon is ready while at least one of its systems can be served. If it were not, a load
//! balancer would take away a daemon because of one store, the heartbeats of all other systems would
//! stop with it, and a healthy fleet would be declared dead.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;
use utoipa::ToSchema;

use super::{LiveSystem, OpenSystems};

/// How long the other stores are waited for once one has answered. Those that need longer count as
/// not answering, so that a store that hangs does not delay the answer beyond a probe's time limit.
const REST: Duration = Duration::from_millis(500);

/// Whether one system can be served. This is shown to everybody, so it names no store and no error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SystemReadiness {
    /// The kind of the system.
    pub kind: String,
    /// The name of the system.
    pub system: String,
    /// Whether the system's store answers.
    pub ready: bool,
}

impl OpenSystems {
    /// Probes the stores of all systems at the same time. Waits for the first answer, and half a
    /// second longer for the others.
    pub async fn readiness(&self) -> Vec<SystemReadiness> {
        let used: BTreeSet<&str> = self.systems().iter().map(|live| live.store_name()).collect();
        let mut probes = JoinSet::new();
        for monitor in self.store_monitors().iter().filter(|m| used.contains(m.name())) {
            // Each probe has a task of its own, so that it ends and is remembered even if nobody
            // waits for it any more.
            let monitor = monitor.clone();
            probes.spawn(async move { monitor.take().await });
        }
        let mut answering = BTreeSet::new();
        while let Some(Ok(health)) = probes.join_next().await {
            if health.answers {
                answering.insert(health.name);
                break;
            }
        }
        let rest = async {
            while let Some(probed) = probes.join_next().await {
                answering.extend(probed.ok().filter(|health| health.answers).map(|h| h.name));
            }
        };
        let _ = tokio::time::timeout(REST, rest).await;
        probes.detach_all();
        let of = |live: &Arc<LiveSystem>| readiness(live, answering.contains(live.store_name()));
        self.systems().iter().map(of).collect()
    }

    /// Probes the store of one system.
    pub async fn readiness_of(&self, live: &LiveSystem) -> SystemReadiness {
        let monitor = self.store_monitors().iter().find(|m| m.name() == live.store_name());
        let ready = match monitor {
            Some(monitor) => monitor.take().await.answers,
            None => false,
        };
        readiness(live, ready)
    }
}

fn readiness(live: &LiveSystem, ready: bool) -> SystemReadiness {
    let id = live.id();
    SystemReadiness { kind: id.kind.to_string(), system: id.name.to_string(), ready }
}
