//! Assembles the HTTP API: the routes of every kind of system, the routes that all kinds share, the
//! OpenAPI document, the dashboard, and the checks that a request passes before it is routed.

mod bearer_check;
mod gate;
mod kept_requests;
mod openapi;
mod page;
mod route_table;
mod service;

use utoipa_axum::router::OpenApiRouter;

use crate::http::{self, Shared, problem};
use crate::systems;
pub use gate::RequestGate;

/// The complete HTTP service: all routes behind the checks of [`RequestGate`]. Must be called inside a Tokio
/// runtime.
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

/// Every route of the API, with its OpenAPI description.
fn routes() -> OpenApiRouter<Shared> {
    let common = OpenApiRouter::with_openapi(openapi::base())
        .merge(http::routes())
        .merge(service::routes())
        .merge(page::routes());
    systems::KINDS.iter().fold(common, |routes, kind| routes.merge(kind.routes()))
}
