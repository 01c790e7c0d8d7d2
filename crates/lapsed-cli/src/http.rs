//! HTTP: thin. Parse, ask the node, answer; whatever goes wrong is `application/problem+json`.

pub mod auth;
pub mod brakes;
pub mod events;
mod extract;
pub mod openapi;
mod patience;
pub mod problem;
pub mod receipts;
pub mod registry;
pub mod schemas;
pub mod service;
pub mod sweeps;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::{Router, middleware};
use lapsed::Kind;
use lapsed::schedule::Stop;
use tokio::sync::mpsc;
use utoipa_axum::router::OpenApiRouter;

use crate::config::server::Server;
use crate::metrics::Metrics;
use crate::node::{Live, Node};
use crate::systems;
use auth::Gate;
use patience::Patience;
use problem::Problem;

/// What every handler is given.
pub type Shared = Arc<App>;

/// The daemon as the routes see it.
pub struct App {
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    gate: Gate,
    body_limit: usize,
    patience: Patience,
    stop: Stop,
    busy: mpsc::Sender<()>,
}

impl App {
    /// Ready to be routed to, on the current runtime. The receiver ends when no work is left.
    pub fn new(
        node: Arc<Node>,
        metrics: Arc<Metrics>,
        server: &Server,
        stop: Stop,
    ) -> (Shared, mpsc::Receiver<()>) {
        let (busy, idle) = mpsc::channel(1);
        let app = App {
            node,
            metrics,
            gate: Gate::new(server),
            body_limit: server.body_limit,
            patience: Patience::start(server.request_timeout),
            stop,
            busy,
        };
        (Arc::new(app), idle)
    }

    fn live(&self, kind: &str, name: &str) -> Result<&Arc<Live>, Problem> {
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
        let task = tokio::spawn(async move {
            let answer = work.await;
            drop(busy);
            answer
        });
        task.await.map_err(|e| Problem::internal(format!("the work ended early: {e}")))
    }
}

/// All routes.
pub fn router(app: Shared) -> Router {
    let (routes, document) = routes(&app).split_for_parts();
    routes
        .merge(openapi::route(document))
        .fallback(problem::no_route)
        .method_not_allowed_fallback(problem::no_method)
        .layer(DefaultBodyLimit::max(app.body_limit))
        .with_state(app)
}

/// Every route with its description. The guard stands before all but the open ones.
fn routes(app: &Shared) -> OpenApiRouter<Shared> {
    let mut quick = OpenApiRouter::new()
        .merge(sweeps::routes())
        .merge(brakes::routes())
        .merge(receipts::routes())
        .merge(service::guarded_routes());
    let mut slow = OpenApiRouter::new().merge(sweeps::slow_routes()).merge(events::routes());
    for room in systems::ROOMS {
        quick = quick.merge(room.routes());
        slow = slow.merge(room.slow_routes());
    }
    let quick = quick.route_layer(middleware::from_fn_with_state(app.clone(), auth::guard_quick));
    let slow = slow.route_layer(middleware::from_fn_with_state(app.clone(), auth::guard));
    OpenApiRouter::with_openapi(openapi::base())
        .merge(quick)
        .merge(slow)
        .merge(service::open_routes())
}
