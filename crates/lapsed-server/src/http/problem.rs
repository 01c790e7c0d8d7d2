//! Errors as `application/problem+json` (RFC 9457). The member `type` is a stable word that clients
//! may compare.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use lapsed_core::Error;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// The result of a handler; an error is answered as a problem.
pub type HttpResult<T> = std::result::Result<T, Problem>;

#[derive(Debug)]
pub struct Problem(Box<Members>);

#[derive(Debug, Serialize)]
struct Members {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    detail: String,
    #[serde(flatten)]
    more: Map<String, Value>,
    #[serde(skip)]
    headers: HeaderMap,
}

fn as_number<S: Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    /// A problem whose `type` is the stable word `kind`.
    pub fn new(
        status: StatusCode,
        kind: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        let (more, headers) = (Map::new(), HeaderMap::new());
        Problem(Box::new(Members { kind, title, status, detail: detail.into(), more, headers }))
    }

    /// Adds one more member to the problem's JSON.
    pub fn with(mut self, member: &str, value: Value) -> Problem {
        self.0.more.insert(member.to_owned(), value);
        self
    }

    pub fn header(self, name: header::HeaderName, value: &'static str) -> Problem {
        self.header_value(name, HeaderValue::from_static(value))
    }

    /// Adds a header to the answer, with a value that is computed at run time.
    pub fn header_value(mut self, name: header::HeaderName, value: HeaderValue) -> Problem {
        self.0.headers.insert(name, value);
        self
    }

    /// 400: the request cannot be parsed.
    pub fn malformed(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "malformed", "The request cannot be read", detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found", "There is no such thing", detail)
    }

    /// 422: the request can be parsed, but its content is not valid.
    pub fn invalid(detail: impl Into<String>) -> Problem {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Problem::new(status, "invalid", "The input cannot be right", detail)
    }

    pub fn internal(detail: impl Into<String>) -> Problem {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Problem::new(status, "internal", "A fault of lapsed", detail)
    }

    /// Whether the caller no longer holds what it acts on.
    pub fn is_lost(&self) -> bool {
        self.0.kind == "lost"
    }

    pub fn body(&self) -> Value {
        serde_json::to_value(&self.0).unwrap_or_default()
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let detail = error.to_string();
        let (status, title) = match &error {
            Error::Unavailable { .. } | Error::InUse { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "Try again later")
            }
            Error::Throttled { .. } => (StatusCode::TOO_MANY_REQUESTS, "Ask less often"),
            Error::Lost(_) => (StatusCode::CONFLICT, "You no longer hold it"),
            Error::Invalid(_) => return Problem::invalid(detail),
            Error::KeyReused { .. } => {
                (StatusCode::UNPROCESSABLE_ENTITY, "The key belongs to another request")
            }
            Error::Corrupt { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, "The store cannot be read")
            }
            Error::Unsupported { .. } => (StatusCode::NOT_IMPLEMENTED, "This store cannot do it"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "A fault of lapsed"),
        };
        let problem = Problem::new(status, error.kind(), title, detail);
        match error {
            Error::Lost(lost) => problem
                .with("owner", json!(lost.owner))
                .with("incarnation", json!(lost.incarnation))
                .with("ending", json!(lost.ending))
                .with("ended_ms", json!(lost.ended_ms))
                .with("held", json!(lost.held))
                .with("held_total", json!(lost.held_total)),
            Error::Unavailable { .. } | Error::InUse { .. } | Error::Throttled { .. } => {
                problem.header(header::RETRY_AFTER, "1")
            }
            _ => problem,
        }
    }
}

/// Marks an answer whose cause was reported as the outage of a store, so that it need not be logged
/// once more for each request.
#[derive(Clone, Copy, Debug)]
pub struct CountedAsOutage;

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_string(&self.0).unwrap_or_default() + "\n";
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (self.0.status, [(header::CONTENT_TYPE, kind)], body).into_response();
        response.headers_mut().extend(self.0.headers);
        if ["unavailable", "not_ready"].contains(&self.0.kind) {
            response.extensions_mut().insert(CountedAsOutage);
        }
        response
    }
}

/// Answers requests to a path that has no route.
pub async fn no_route(uri: Uri) -> Problem {
    Problem::not_found(format!("nothing answers at {}; see /openapi.json", uri.path()))
}

/// Answers requests with a method that the path does not support.
pub async fn no_method(method: Method, uri: Uri) -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "Wrong method",
        format!("{} does not answer to {method}; see /openapi.json", uri.path()),
    )
}
