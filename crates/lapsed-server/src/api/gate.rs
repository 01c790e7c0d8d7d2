//! The gate before all routes: what every request passes, in this order, and what its answer passes on the
//! way back.
//!
//! 1. What the route demands (`route_table`): a scope, and whether it may take long.
//! 2. Who sends it, and whether that client may (`http::auth`): a token, its rate limit, the page it came from.
//! 3. What its bearer is limited to, if it is (`bearer_check`).
//! 4. Whether it was carried out before, if it has an idempotency key (`kept_requests`).
//! 5. The route, within the request timeout.
//! 6. The security headers of the answer, and the request log.
//!
//! It is one service before the router instead of a layer on every route: a layer costs each request a
//! copy of the route and two more allocations, which is as much as handling a heartbeat costs.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures::future::{Either, Ready, ready, select};
use hyper::body::Incoming;
use tokio::sync::Notify;
use tower_service::Service;

use super::bearer_check::{self, OwnerCheck};
use super::kept_requests;
use super::route_table::{self, Need};
use crate::connections::CutFlag;
use crate::http::Shared;
use crate::http::auth::{check_change, looks};
use crate::http::caller::Caller;
use crate::http::problem::{CountedAsOutage, Problem};
use crate::telemetry::TracedRequest;

/// The router behind the checks. Each connection has its own copy, which knows the client's
/// address, so that the address need not be attached to every request.
#[derive(Clone)]
pub struct RequestGate {
    behind: Arc<Behind>,
    peer: SocketAddr,
    /// The slot under which failures of the client's address are counted.
    place: usize,
    cut: CutFlag,
}

/// What the gates of all connections share.
struct Behind {
    app: Shared,
    router: Router,
    timeout: RequestTimeout,
}

type Answer = Result<Response, Infallible>;
type Work = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl RequestGate {
    /// The checks before `router`, not yet for a particular client. Must be called inside a Tokio runtime,
    /// because it starts the task of the request timeout.
    pub fn new(app: Shared, router: Router) -> RequestGate {
        let peer = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let place = app.authenticator.place(peer.ip());
        let timeout = RequestTimeout::start(app.request_timeout);
        let behind = Arc::new(Behind { app, router, timeout });
        RequestGate { behind, peer, place, cut: CutFlag::default() }
    }

    /// A copy for the connection from `peer`. `cut` reports whether the connection was ended by the
    /// write timeout.
    pub fn facing(&self, peer: SocketAddr, cut: CutFlag) -> RequestGate {
        let place = self.behind.app.authenticator.place(peer.ip());
        RequestGate { behind: self.behind.clone(), peer, place, cut }
    }

    /// Admits the request, or answers why it is refused. Returns what is left to check in its body.
    fn admit(&self, need: &Need, request: &mut Request) -> Result<Option<OwnerCheck>, Problem> {
        let admitted =
            self.behind.app.authenticator.check(need.scope, request.headers(), self.place)?;
        check_change(request)?;
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

    /// Answers one request, or says why it is refused.
    pub fn answer(&self, mut request: Request) -> Either<Ready<Answer>, Work> {
        let path = request.uri().path();
        let (reads, guarded) = (looks(request.method()), is_guarded(path));
        let (need, is_feed) = (route_table::needed(request.method(), path), path == EVENTS);
        let admitted = if guarded { self.admit(&need, &mut request) } else { Ok(None) };
        let owners = match admitted {
            Ok(owners) => owners,
            Err(problem) => {
                let mut answer = problem.into_response();
                add_security_headers(&mut answer, reads, guarded);
                return Either::Left(ready(Ok(answer)));
            }
        };
        if is_feed {
            request.extensions_mut().insert(self.cut.clone());
        }
        let request_log = RequestLog::of(&request);
        let telemetry = &self.behind.app.telemetry;
        let asked = telemetry.is_some().then(|| TracedRequest::of(&request));
        let behind = self.behind.clone();
        let is_kept = guarded && !reads && kept_requests::is_kept(&request);
        let routed = match (owners, is_kept) {
            (None, false) => Either::Left(behind.router.clone().call(request)),
            (owners, is_kept) => {
                Either::Right(Box::pin(route_checked(behind.clone(), owners, is_kept, request)))
            }
        };
        let work = async move {
            let answered = match need.slow {
                true => Some(routed.await),
                false => behind.timeout.with(routed).await,
            };
            let mut answer = match answered {
                Some(Ok(answer)) => answer,
                None => too_slow().into_response(),
            };
            add_security_headers(&mut answer, reads, guarded);
            request_log.answered(&mut answer);
            Ok(answer)
        };
        match (telemetry, asked) {
            (Some(telemetry), Some(asked)) => {
                Either::Right(Box::pin(telemetry.clone().answer(asked, work)))
            }
            _ => Either::Right(Box::pin(work)),
        }
    }
}

impl hyper::service::Service<hyper::Request<Incoming>> for RequestGate {
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Ready<Answer>, Work>;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        self.answer(request.map(Body::new))
    }
}

/// Routes a request after its owners were checked, and once if it has a key.
async fn route_checked(
    behind: Arc<Behind>,
    owners: Option<OwnerCheck>,
    is_kept: bool,
    request: Request,
) -> Answer {
    let (app, router) = (behind.app.clone(), behind.router.clone());
    match (is_kept, owners) {
        (true, owners) => Ok(kept_requests::answer(app, router, owners, request).await),
        (false, None) => behind.router.clone().call(request).await,
        (false, Some(owners)) => match owners.pass(&app, request).await {
            Ok(request) => behind.router.clone().call(request).await,
            Err(problem) => Ok(problem.into_response()),
        },
    }
}

/// The path of the event feed.
const EVENTS: &str = "/v1/events";

/// Whether a path requires a token. Health, the dashboard's files and the OpenAPI document do not;
/// they contain no data of any system.
pub fn is_guarded(path: &str) -> bool {
    path.starts_with("/v1/") || path == "/metrics"
}

/// The content security policy of answers that are not pages: nothing may be loaded.
const PLAIN_POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Adds the security and caching headers to an answer. `looked`: the request only read. `guarded`:
/// the path requires a token.
fn add_security_headers(response: &mut Response, looked: bool, guarded: bool) {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if !looked {
        return;
    }
    if guarded {
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(PLAIN_POLICY);
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
}

/// The longest interval between two ticks.
const TICK_MAX: Duration = Duration::from_millis(100);

/// One time limit that all requests share, without a timer for each of them.
///
/// Arming a timer for every request would each time wake the thread that waits for the network, which
/// costs more than handling a heartbeat. Instead one periodic tick serves all requests: a request notes
/// the time when it arrives, compares it at each tick, and is cut off at most one tick after its limit.
struct RequestTimeout {
    limit: Duration,
    tick: Arc<Notify>,
}

impl RequestTimeout {
    /// Starts the ticks on the current Tokio runtime. They end when the value is dropped.
    fn start(limit: Duration) -> RequestTimeout {
        let tick = Arc::new(Notify::new());
        let every = (limit / 4).clamp(Duration::from_millis(1), TICK_MAX);
        tokio::spawn(run(Arc::downgrade(&tick), every));
        RequestTimeout { limit, tick }
    }

    /// Runs `work` and returns its answer, or `None` if it takes longer than the limit.
    async fn with<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let began = Instant::now();
        match select(pin!(work), pin!(self.expire(began))).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        }
    }

    async fn expire(&self, began: Instant) {
        while began.elapsed() < self.limit {
            self.tick.notified().await;
        }
    }
}

async fn run(tick: Weak<Notify>, every: Duration) {
    while let Some(tick) = tick.upgrade() {
        tick.notify_waiters();
        drop(tick);
        tokio::time::sleep(every).await;
    }
}

/// The problem that is answered when a request took longer than the request timeout.
fn too_slow() -> Problem {
    Problem::new(
        StatusCode::GATEWAY_TIMEOUT,
        "timeout",
        "It took too long",
        "no answer within `request_timeout`; it may have been carried out, and repeating it is safe",
    )
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is accepted from a client, in bytes; a longer one is ignored.
const ID_BYTES_MAX: usize = 128;

/// One request that is being handled, with what its log line needs: requests that were answered with a 5xx
/// status are logged and, with `-vv`, all requests. Requests that failed because a store is away are among
/// the latter: the outage is logged once, with the number of failed calls.
///
/// Each logged request has an id, either the client's own (`x-request-id`) or a new one. The answer
/// repeats the id if the request was logged or the client sent one.
struct RequestLog {
    method: Method,
    uri: Uri,
    given: Option<HeaderValue>,
    began: Instant,
}

impl RequestLog {
    /// Records the method, path, id and start time of a request. The clones are cheap: they only
    /// share memory with the request.
    fn of(request: &Request) -> RequestLog {
        let given = request.headers().get(&REQUEST_ID);
        let given = given.filter(|id| id.len() <= ID_BYTES_MAX && id.to_str().is_ok()).cloned();
        let (method, uri) = (request.method().clone(), request.uri().clone());
        RequestLog { method, uri, given, began: Instant::now() }
    }

    fn answered(self, answer: &mut Response) {
        let status = answer.status();
        let failed = status.is_server_error();
        if !failed && self.given.is_none() && !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let id = self.given.unwrap_or_else(new_id);
        let request_id = id.to_str().unwrap_or_default();
        let (method, path, status) = (&self.method, self.uri.path(), status.as_u16());
        let took_ms = self.began.elapsed().as_millis() as u64;
        let counted = answer.extensions().get::<CountedAsOutage>().is_some();
        match failed {
            true if counted => {
                tracing::debug!(request_id, %method, path, status, took_ms, "request failed")
            }
            true => tracing::warn!(request_id, %method, path, status, took_ms, "request failed"),
            false => tracing::debug!(request_id, %method, path, status, took_ms, "request"),
        }
        answer.headers_mut().insert(REQUEST_ID, id);
    }
}

/// A new id, unique among the requests of this host: the process id and a number.
fn new_id() -> HeaderValue {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let text = format!("{}-{number}", std::process::id());
    HeaderValue::from_str(&text).expect("digits and a dash are a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_under_v1_is_guarded() {
        assert!(is_guarded("/v1/sweeps") && is_guarded("/metrics"));
        assert!(!is_guarded("/healthz") && !is_guarded("/"));
    }

    #[tokio::test]
    async fn the_slow_are_cut_off_and_the_quick_are_not() {
        let timeout = RequestTimeout::start(Duration::from_millis(20));
        assert_eq!(timeout.with(async { 7 }).await, Some(7));
        let yielding = async {
            tokio::task::yield_now().await;
            8
        };
        assert_eq!(timeout.with(yielding).await, Some(8));
        assert_eq!(timeout.with(std::future::pending::<()>()).await, None);
    }
}
