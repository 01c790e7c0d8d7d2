//! The checks that every request passes before it is routed: access, and the request timeout.
//!
//! They are one service before the router instead of a layer on every route: a layer costs each
//! request a copy of the route and two more allocations, which is as much as handling a heartbeat
//! costs.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::future::{Either, Ready, ready};
use tower_service::Service;

use super::bearer_check::{self, OwnerCheck};
use super::scopes;
use crate::http::auth::{self, Caller};
use crate::http::problem::Problem;
use crate::http::request_log::RequestLog;
use crate::http::{Shared, browser};
use crate::telemetry::Asked;
use crate::write_timeout::WasCut;

/// The router behind the checks. Each connection has its own copy, which knows the client's
/// address, so that the address need not be attached to every request.
#[derive(Clone)]
pub struct RequestGate {
    app: Shared,
    router: Router,
    peer: SocketAddr,
    /// The slot under which failures of the client's address are counted.
    place: usize,
    cut: WasCut,
}

type Answer = Result<Response, Infallible>;
type Work = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl RequestGate {
    /// The checks before `router`, not yet for a particular client.
    pub fn new(app: Shared, router: Router) -> RequestGate {
        let peer = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let place = app.gate.place(peer.ip());
        RequestGate { app, router, peer, place, cut: WasCut::default() }
    }

    /// A copy for the connection from `peer`. `cut` reports whether the connection was ended by the
    /// write timeout.
    pub fn facing(&self, peer: SocketAddr, cut: WasCut) -> RequestGate {
        RequestGate { peer, cut, place: self.app.gate.place(peer.ip()), ..self.clone() }
    }

    /// Admits the request, or answers why it is refused. Returns what is left to check in its body.
    fn admit(&self, request: &mut Request) -> Result<Option<OwnerCheck>, Problem> {
        let need = scopes::needed(request.method(), request.uri().path());
        let admitted = self.app.gate.check(need.scope, request.headers(), self.place)?;
        browser::check_change(request)?;
        let owners = match admitted.limits() {
            None => None,
            Some(limits) => bearer_check::check(limits, request)?,
        };
        if need.told {
            let caller = Caller::new(admitted.bearer(), self.peer, request.headers());
            request.extensions_mut().insert(caller);
        }
        Ok(owners)
    }
}

impl Service<Request> for RequestGate {
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Ready<Answer>, Work>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let (looked, guarded) =
            (browser::looks(request.method()), is_guarded(request.uri().path()));
        let admitted = if guarded { self.admit(&mut request) } else { Ok(None) };
        let owners = match admitted {
            Ok(owners) => owners,
            Err(problem) => {
                let mut answer = problem.into_response();
                browser::dress(&mut answer, looked, guarded);
                return Either::Left(ready(Ok(answer)));
            }
        };
        let slow = scopes::is_slow(request.method(), request.uri().path());
        if request.uri().path() == EVENTS {
            request.extensions_mut().insert(self.cut.clone());
        }
        let request_log = RequestLog::of(&request);
        let asked = self.app.telemetry.is_some().then(|| Asked::of(&request));
        let routed = match owners {
            None => Either::Left(self.router.call(request)),
            Some(owners) => {
                let (app, router) = (self.app.clone(), self.router.clone());
                Either::Right(Box::pin(route_checked(app, router, owners, request)))
            }
        };
        let app = self.app.clone();
        let work = async move {
            let answered = match slow {
                true => Some(routed.await),
                false => app.request_timeout.with(routed).await,
            };
            let mut answer = match answered {
                Some(Ok(answer)) => answer,
                None => auth::too_slow().into_response(),
            };
            browser::dress(&mut answer, looked, guarded);
            request_log.answered(&mut answer);
            Ok(answer)
        };
        match (&self.app.telemetry, asked) {
            (Some(telemetry), Some(asked)) => {
                Either::Right(Box::pin(telemetry.clone().answer(asked, work)))
            }
            _ => Either::Right(Box::pin(work)),
        }
    }
}

/// Routes a request after its owners were checked.
async fn route_checked(
    app: Shared,
    mut router: Router,
    owners: OwnerCheck,
    request: Request,
) -> Answer {
    match owners.pass(&app, request).await {
        Ok(request) => router.call(request).await,
        Err(problem) => Ok(problem.into_response()),
    }
}

/// The path of the event feed.
const EVENTS: &str = "/v1/events";

/// Whether a path requires a token. Health, the dashboard's files and the OpenAPI document do not;
/// they contain no data of any system.
pub fn is_guarded(path: &str) -> bool {
    path.starts_with("/v1/") || path == "/metrics"
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::scopes::is_slow;
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
        assert!(!is_slow(&Method::GET, "/v1/registry/default/lookup/retire"));
    }
}
