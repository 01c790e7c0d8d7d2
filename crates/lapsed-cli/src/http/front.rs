//! What every request passes before it is routed: who may ask, and for how long.
//!
//! One service before the router, not a layer on every route: a layer costs each request a copy of
//! the route and two more allocations, as much as a beat itself.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use futures::future::{Either, Ready, ready};
use tower_service::Service;

use super::{Shared, auth};
use crate::systems;

/// The router, and what stands before it.
#[derive(Clone)]
pub struct Front {
    app: Shared,
    router: Router,
}

type Answer = Result<Response, Infallible>;
type Work = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Front {
    /// Before `router`.
    pub fn new(app: Shared, router: Router) -> Front {
        Front { app, router }
    }
}

impl Service<Request> for Front {
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Ready<Answer>, Work>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (method, path) = (request.method(), request.uri().path());
        if is_guarded(path)
            && let Err(problem) = self.app.gate.check(method, path, request.headers())
        {
            return Either::Left(ready(Ok(problem.into_response())));
        }
        let slow = is_slow(method, path);
        let routed = self.router.call(request);
        if slow {
            return Either::Right(Box::pin(routed));
        }
        let app = self.app.clone();
        Either::Right(Box::pin(async move {
            match app.patience.with(routed).await {
                Some(answer) => answer,
                None => Ok(auth::too_slow().into_response()),
            }
        }))
    }
}

/// Health, the page and the document are for everybody; what they show is in the rest.
pub fn is_guarded(path: &str) -> bool {
    path.starts_with("/v1/") || path == "/metrics"
}

/// What takes as long as it takes: a pass, a reconciliation, the event feed, and whatever a kind says of its own.
fn is_slow(method: &Method, path: &str) -> bool {
    // Foretelling what a reconciliation costs counts what there is.
    let pass = method == Method::POST && path.starts_with("/v1/sweeps/")
        || path.starts_with("/v1/reconcile/");
    let own = || systems::ROOMS.iter().flat_map(|room| room.slow_operations());
    pass || path == "/v1/events" || own().any(|operation| ends_with_operation(path, operation))
}

fn ends_with_operation(path: &str, operation: &str) -> bool {
    path.strip_suffix(operation).is_some_and(|rest| rest.ends_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_under_v1_is_guarded_and_only_long_work_is_slow() {
        assert!(is_guarded("/v1/sweeps") && is_guarded("/metrics"));
        assert!(!is_guarded("/healthz") && !is_guarded("/"));
        assert!(is_slow(&Method::POST, "/v1/sweeps/registry/default"));
        assert!(is_slow(&Method::POST, "/v1/reconcile/registry/default"));
        assert!(is_slow(&Method::GET, "/v1/events"));
        assert!(is_slow(&Method::POST, "/v1/registry/default/retire"));
        assert!(!is_slow(&Method::GET, "/v1/sweeps/registry/default"));
        assert!(!is_slow(&Method::POST, "/v1/registry/default/beat"));
    }
}
