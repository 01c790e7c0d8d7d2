//! HTTP: thin. Parse, ask the node, answer; whatever goes wrong is `application/problem+json`.

pub mod audit;
pub mod auth;
pub mod availability;
pub mod brakes;
mod browser;
pub mod connections;
pub mod events;
mod extract;
mod front;
pub mod history;
pub mod inflight;
pub mod leases;
mod limit;
pub mod line;
mod noted;
pub mod openapi;
pub mod owners;
mod page;
mod patience;
pub mod problem;
pub mod receipts;
pub mod reconcile;
pub mod registry;
pub mod schemas;
mod scopes;
pub mod service;
pub mod sessions;
pub mod sweeps;
pub mod webhooks;
pub mod whoami;

use std::sync::Arc;

use lapsed_core::Kind;
use lapsed_core::clock::SystemClock;
use lapsed_core::schedule::StopSignal;
use opentelemetry::context::FutureExt;
use tokio::sync::mpsc;
use utoipa_axum::router::OpenApiRouter;

use crate::config::server::ServerConfig;
use crate::feed::{Feeds, ListenerSlots};
use crate::metrics::Metrics;
use crate::node::{LiveSystem, OpenSystems};
use crate::systems;
use crate::telemetry::Telemetry;
use crate::webhooks::Webhooks;
use auth::Gate;
pub use front::RequestGate;
use patience::RequestTimeout;
use problem::Problem;

/// What every handler is given.
pub type Shared = Arc<App>;

/// The daemon as the routes see it.
pub struct App {
    node: Arc<OpenSystems>,
    metrics: Arc<Metrics>,
    gate: Gate,
    body_limit: usize,
    patience: RequestTimeout,
    feeds: Feeds,
    seats: Arc<ListenerSlots>,
    webhooks: Arc<Webhooks>,
    telemetry: Option<Arc<Telemetry>>,
    stop: StopSignal,
    busy: mpsc::Sender<()>,
}

/// What the daemon tells others by itself.
#[derive(Default)]
pub struct Outward {
    /// Who is called.
    pub webhooks: Arc<Webhooks>,
    /// Traces, if anybody wants them.
    pub telemetry: Option<Arc<Telemetry>>,
}

impl App {
    /// Ready to be routed to, on the current runtime. The receiver ends when no work is left.
    pub fn new(
        node: Arc<OpenSystems>,
        metrics: Arc<Metrics>,
        outward: Outward,
        server: &ServerConfig,
        stop: StopSignal,
    ) -> (Shared, mpsc::Receiver<()>) {
        let (busy, idle) = mpsc::channel(1);
        let app = App {
            telemetry: outward.telemetry,
            webhooks: outward.webhooks,
            feeds: Feeds::new(node.journal().clone(), stop.clone()),
            seats: ListenerSlots::new(server.listeners_max, metrics.events().clone()),
            node,
            metrics,
            gate: Gate::new(server, SystemClock::shared()),
            body_limit: server.body_limit,
            patience: RequestTimeout::start(server.request_timeout),
            stop,
            busy,
        };
        (Arc::new(app), idle)
    }

    fn live(&self, kind: &str, name: &str) -> Result<&Arc<LiveSystem>, Problem> {
        let kind = Kind::ALL.iter().find(|k| k.as_str() == kind);
        let live = kind.and_then(|kind| self.node.find(*kind, name));
        live.ok_or_else(|| self.no_such_system())
    }

    /// The operations of one system, as the type that its kind uses.
    fn operations<T: 'static>(&self, kind: Kind, name: &str) -> Result<&T, Problem> {
        let live = self.node.find(kind, name);
        live.and_then(|live| live.operations()).ok_or_else(|| self.no_such_system())
    }

    fn no_such_system(&self) -> Problem {
        let all: Vec<String> = self.node.systems().iter().map(|s| s.id().to_string()).collect();
        Problem::not_found(format!("there is no such system; there are: {}", all.join(", ")))
    }

    /// Runs `work` to its end, whatever becomes of the client that asked for it.
    async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Problem> {
        let busy = self.busy.clone();
        let work = async move {
            let answer = work.await;
            drop(busy);
            answer
        };
        let task = match self.telemetry {
            Some(_) => tokio::spawn(work.with_current_context()),
            None => tokio::spawn(work),
        };
        task.await.map_err(|e| Problem::internal(format!("the work ended early: {e}")))
    }
}

/// All routes, and what stands before them.
pub fn service(app: Shared) -> RequestGate {
    let (routes, document) = routes().split_for_parts();
    let router = routes
        .merge(openapi::route(document))
        .merge(page::files())
        .fallback(problem::no_route)
        .method_not_allowed_fallback(problem::no_method)
        .with_state(app.clone());
    RequestGate::new(app, router)
}

/// Every route with its description.
fn routes() -> OpenApiRouter<Shared> {
    let common = OpenApiRouter::with_openapi(openapi::base())
        .merge(sweeps::routes())
        .merge(reconcile::routes())
        .merge(brakes::routes())
        .merge(history::routes())
        .merge(receipts::routes())
        .merge(events::routes())
        .merge(webhooks::routes())
        .merge(service::routes())
        .merge(page::routes())
        .merge(whoami::routes())
        .merge(audit::routes());
    systems::ROOMS.iter().fold(common, |routes, room| routes.merge(room.routes()))
}
