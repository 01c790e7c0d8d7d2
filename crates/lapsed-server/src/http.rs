//! What the HTTP handlers share: the application state, reading requests, writing answers, and the
//! routes that do not belong to one kind of system. Every error is answered as
//! `application/problem+json`. `crate::api` assembles all routes into one service.

pub mod adoptions;
pub mod audit;
pub mod auth;
pub mod brakes;
pub mod caller;
pub mod events;
pub mod extract;
pub mod history;
pub mod idempotency;
pub mod jwt;
pub(crate) mod limit;
pub mod owners;
pub mod paging;
pub mod problem;
pub mod receipts;
pub mod reconcile;
pub mod request_turns;
pub mod route_rules;
pub mod sweeps;
pub mod webhooks;
pub mod whoami;

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::Kind;
use lapsed_core::clock::SystemClock;
use lapsed_core::request;
use lapsed_core::schedule::StopSignal;
use opentelemetry::context::FutureExt;
use tokio::sync::mpsc;
use utoipa_axum::router::OpenApiRouter;

use crate::config::server::ServerConfig;
use crate::feed::{Feeds, ListenerSlots};
use crate::metrics::Metrics;
use crate::node::{LiveSystem, OpenSystems};
use crate::telemetry::Telemetry;
use crate::webhooks::Webhooks;
use auth::Authenticator;
use problem::Problem;
use request_turns::RequestTurns;

/// The application state, shared by all handlers.
pub type Shared = Arc<App>;

/// The state of the daemon that handlers use: the open systems, the access check, limits, and the
/// event feeds.
pub struct App {
    pub(crate) node: Arc<OpenSystems>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) authenticator: Authenticator,
    pub(crate) body_limit: usize,
    /// How long a request may take unless its route declares that it is slow.
    pub(crate) request_timeout: Duration,
    pub(crate) feeds: Feeds,
    pub(crate) listener_slots: Arc<ListenerSlots>,
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) request_turns: RequestTurns,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
    pub(crate) stop: StopSignal,
    pub(crate) busy: mpsc::Sender<()>,
}

/// The parts of the daemon that send data out without being asked: webhooks and traces.
#[derive(Default)]
pub struct OutboundServices {
    /// The configured webhooks, ready to deliver.
    pub webhooks: Arc<Webhooks>,
    /// The exporter of traces; `None` if `[telemetry]` is not configured.
    pub telemetry: Option<Arc<Telemetry>>,
}

impl App {
    /// Builds the state. The returned receiver closes when the last piece of work started by
    /// `App::finish` has ended.
    pub fn new(
        node: Arc<OpenSystems>,
        metrics: Arc<Metrics>,
        outward: OutboundServices,
        server: &ServerConfig,
        stop: StopSignal,
    ) -> (Shared, mpsc::Receiver<()>) {
        let (busy, idle) = mpsc::channel(1);
        let app = App {
            telemetry: outward.telemetry,
            webhooks: outward.webhooks,
            request_turns: RequestTurns::default(),
            feeds: Feeds::new(node.journal().clone(), stop.clone()),
            listener_slots: ListenerSlots::new(server.listeners_max, metrics.events().clone()),
            node,
            metrics,
            authenticator: Authenticator::new(server, SystemClock::shared()),
            body_limit: server.body_limit,
            request_timeout: server.request_timeout,
            stop,
            busy,
        };
        (Arc::new(app), idle)
    }

    pub(crate) fn live(&self, kind: &str, name: &str) -> Result<&Arc<LiveSystem>, Problem> {
        let live = kind_named(kind).and_then(|kind| self.node.find(kind, name));
        live.ok_or_else(|| self.no_such_system())
    }

    /// The operations of the system `name`, as the type `T` that its kind uses. A system that does
    /// not exist, or is of another type, is a `not_found` problem.
    pub(crate) fn operations<T: 'static>(&self, kind: Kind, name: &str) -> Result<&T, Problem> {
        let live = self.node.find(kind, name);
        live.and_then(|live| live.operations()).ok_or_else(|| self.no_such_system())
    }

    pub(crate) fn no_such_system(&self) -> Problem {
        let all: Vec<String> = self.node.systems().iter().map(|s| s.id().to_string()).collect();
        Problem::not_found(format!("there is no such system; there are: {}", all.join(", ")))
    }

    /// Runs `work` to its end in a task of its own, even if the client that asked for it
    /// disconnects.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Problem> {
        let busy = self.busy.clone();
        let work = request::continued(async move {
            let answer = work.await;
            drop(busy);
            answer
        });
        let task = match self.telemetry {
            Some(_) => tokio::spawn(work.with_current_context()),
            None => tokio::spawn(work),
        };
        task.await.map_err(|e| Problem::internal(format!("the work ended early: {e}")))
    }
}

fn kind_named(word: &str) -> Option<Kind> {
    Kind::ALL.iter().find(|kind| kind.as_str() == word).copied()
}

/// The kind whose routes the path of a request, or of a route, is under: `/v1/KIND/…`.
pub(crate) fn kind_of(path: &str) -> Option<Kind> {
    kind_named(path.strip_prefix("/v1/")?.split('/').next()?)
}

/// The routes that do not belong to one kind of system, with their OpenAPI descriptions.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .merge(sweeps::routes())
        .merge(reconcile::routes())
        .merge(adoptions::routes())
        .merge(brakes::routes())
        .merge(history::routes())
        .merge(receipts::routes())
        .merge(events::routes())
        .merge(webhooks::routes())
        .merge(whoami::routes())
        .merge(audit::routes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_in_the_path() {
        assert_eq!(kind_of("/v1/sessions/registry/beat"), Some(Kind::Sessions));
        assert_eq!(kind_of("/v1/nothing/registry/beat"), None);
        assert_eq!(kind_of("/registry"), None);
    }
}
