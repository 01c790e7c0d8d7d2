//! The HTTP client of a store: HTTP/1.1, so that one slow answer holds up no other, connections that are used
//! again, and one time limit from the connection to the last byte of the answer. It follows no redirect.
//!
//! A request is sent again only if not a byte of it was written, because the server had closed an idle connection.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ACCEPT, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::client::{
    HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::dialer::{AGENT, Dialer};

/// The time limit for connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long a connection is kept for the next request.
const IDLE_MAX: Duration = Duration::from_secs(90);

pub(super) struct PooledClient {
    client: Client<Dialer, HttpRequestBody>,
    dialer: Dialer,
    timeout: Duration,
}

impl PooledClient {
    pub(super) fn new(timeout: Duration) -> Result<Self, String> {
        let dialer = Dialer::new(CONNECT_LIMIT.min(timeout))?;
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .build(dialer.clone());
        Ok(PooledClient { client, dialer, timeout })
    }
}

impl std::fmt::Debug for PooledClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PooledClient")
    }
}

#[async_trait]
impl HttpService for PooledClient {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let deadline = Instant::now() + self.timeout;
        let proxy_auth = self.dialer.forwarding_auth(request.uri());
        let headers = request.headers_mut();
        headers.entry(USER_AGENT).or_insert(AGENT);
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        if let Some(auth) = proxy_auth {
            headers.entry(PROXY_AUTHORIZATION).or_insert(auth);
        }
        let answer = match timeout_at(deadline, self.client.request(request)).await {
            Ok(answer) => answer.map_err(failed_request)?,
            Err(elapsed) => return Err(HttpError::new(HttpErrorKind::Timeout, elapsed)),
        };
        Ok(limited(answer, deadline))
    }
}

fn limited(answer: Response<Incoming>, deadline: Instant) -> HttpResponse {
    let (parts, bytes) = answer.into_parts();
    let over = Box::pin(sleep_until(deadline));
    HttpResponse::from_parts(parts, HttpResponseBody::new(LimitedBody { bytes, over }))
}

/// The body of an answer, which must have arrived when `over` ends.
struct LimitedBody {
    bytes: Incoming,
    over: Pin<Box<Sleep>>,
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.bytes).poll_frame(cx) {
            let failed = |error| HttpError::new(kind_of(&error), error);
            return Poll::Ready(frame.map(|frame| frame.map_err(failed)));
        }
        let late =
            || HttpError::new(HttpErrorKind::Timeout, io::Error::from(io::ErrorKind::TimedOut));
        self.over.as_mut().poll(cx).map(|()| Some(Err(late())))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.bytes.size_hint()
    }
}

fn failed_request(error: hyper_util::client::legacy::Error) -> HttpError {
    let kind = match kind_of(&error) {
        HttpErrorKind::Timeout => HttpErrorKind::Timeout,
        _ if error.is_connect() => HttpErrorKind::Connect,
        kind => kind,
    };
    HttpError::new(kind, error)
}

/// What went wrong, by the first cause that tells.
fn kind_of(error: &(dyn Error + 'static)) -> HttpErrorKind {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(kind) = told_by(error) {
            return kind;
        }
        next = error.source();
    }
    HttpErrorKind::Unknown
}

fn told_by(error: &(dyn Error + 'static)) -> Option<HttpErrorKind> {
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        if error.is_timeout() {
            return Some(HttpErrorKind::Timeout);
        }
        let cut =
            error.is_closed() || error.is_incomplete_message() || error.is_body_write_aborted();
        return cut.then_some(HttpErrorKind::Request);
    }
    match error.downcast_ref::<io::Error>()?.kind() {
        io::ErrorKind::TimedOut => Some(HttpErrorKind::Timeout),
        io::ErrorKind::ConnectionAborted
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => Some(HttpErrorKind::Interrupted),
        _ => None,
    }
}
