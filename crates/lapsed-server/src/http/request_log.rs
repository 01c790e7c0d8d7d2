//! The request log: requests that were answered with a 5xx status and, with `-vv`, all requests.
//! Requests that failed because a store is away are among the latter: the outage is logged once, with
//! the number of failed calls.
//!
//! Each logged request has an id, either the client's own (`x-request-id`) or a new one. The answer
//! repeats the id if the request was logged or the client sent one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use axum::response::Response;

use super::problem::CountedAsOutage;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is accepted from a client, in bytes; a longer one is ignored.
const ID_BYTES_MAX: usize = 128;

/// One request that is being handled, with what its log line needs.
pub struct RequestLog {
    method: Method,
    uri: Uri,
    given: Option<HeaderValue>,
    began: Instant,
}

impl RequestLog {
    /// Records the method, path, id and start time of a request. The clones are cheap: they only
    /// share memory with the request.
    pub fn of(request: &Request) -> RequestLog {
        let given = request.headers().get(&REQUEST_ID);
        let given = given.filter(|id| id.len() <= ID_BYTES_MAX && id.to_str().is_ok()).cloned();
        let (method, uri) = (request.method().clone(), request.uri().clone());
        RequestLog { method, uri, given, began: Instant::now() }
    }

    pub fn answered(self, answer: &mut Response) {
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
