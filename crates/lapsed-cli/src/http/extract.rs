//! Reading requests and writing answers: like axum's own, but what goes wrong is a [`Problem`].

use std::future::poll_fn;
use std::pin::Pin;

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Shared;
use super::problem::Problem;

/// A JSON body.
pub struct Json<T>(pub T);

/// A JSON body, or none.
pub struct MaybeJson<T>(pub Option<T>);

/// The parameters in the path.
pub struct Path<T>(pub T);

/// The parameters after the `?`.
pub struct Query<T>(pub T);

/// A JSON answer.
pub struct Answer<T>(pub T);

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(header::CONTENT_TYPE, APPLICATION_JSON)], body).into_response(),
            Err(error) => Problem::internal(error.to_string()).into_response(),
        }
    }
}

const APPLICATION_JSON: HeaderValue = HeaderValue::from_static("application/json");

impl<T: DeserializeOwned> FromRequest<Shared> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, Problem> {
        check_type(request.headers())?;
        let bytes = read(request, app).await?;
        parse(&bytes).map(Json)
    }
}

impl<T: DeserializeOwned> FromRequest<Shared> for MaybeJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, Problem> {
        let typed = check_type(request.headers());
        let bytes = read(request, app).await?;
        if bytes.is_empty() {
            return Ok(MaybeJson(None));
        }
        typed?;
        parse(&bytes).map(|body| MaybeJson(Some(body)))
    }
}

/// Reads the body, no more of it than is allowed. Mostly it is there in one piece.
async fn read(request: Request, app: &Shared) -> Result<Bytes, Problem> {
    let mut body = request.into_body();
    let mut whole = Bytes::new();
    let mut pieces: Vec<u8> = Vec::new();
    let announced = body.size_hint().lower();
    if announced > app.body_limit as u64 {
        return Err(too_large(app));
    }
    while !body.is_end_stream() {
        let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await else { break };
        let frame = frame.map_err(|e| Problem::malformed(format!("the body broke off: {e}")))?;
        let Ok(piece) = frame.into_data() else { continue };
        if whole.len() + pieces.len() + piece.len() > app.body_limit {
            return Err(too_large(app));
        }
        if whole.is_empty() && pieces.is_empty() {
            whole = piece;
            continue;
        }
        pieces.extend_from_slice(&std::mem::take(&mut whole));
        pieces.extend_from_slice(&piece);
    }
    if pieces.is_empty() { Ok(whole) } else { Ok(pieces.into()) }
}

fn too_large(app: &Shared) -> Problem {
    let detail = format!(
        "the body is larger than {} bytes; send fewer at a time, or raise `body_limit` in [server]",
        app.body_limit
    );
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "The body is too large", detail)
}

fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    if is_json(given) {
        return Ok(());
    }
    let detail = match given {
        "" => "send `Content-Type: application/json`".to_owned(),
        other => format!("{other:?} is not understood; send `Content-Type: application/json`"),
    };
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(Problem::new(status, "unsupported_media_type", "Wrong content type", detail))
}

fn is_json(given: &str) -> bool {
    let essence = given.split(';').next().unwrap_or("").trim();
    essence.eq_ignore_ascii_case("application/json")
        || essence.to_ascii_lowercase().ends_with("+json")
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| match error.is_data() {
        true => Problem::invalid(format!("the body does not fit: {error}")),
        false => Problem::malformed(format!("the body is not JSON: {error}")),
    })
}

impl<T: DeserializeOwned + Send> FromRequestParts<Shared> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let path = axum::extract::Path::from_request_parts(parts, app).await;
        path.map(|axum::extract::Path(value)| Path(value))
            .map_err(|rejection| Problem::malformed(format!("the path: {}", rejection.body_text())))
    }
}

impl<T: DeserializeOwned> FromRequestParts<Shared> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let query = axum::extract::Query::from_request_parts(parts, app).await;
        query.map(|axum::extract::Query(value)| Query(value)).map_err(|rejection| {
            Problem::malformed(format!("the query: {}", rejection.body_text()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_by_any_of_its_names() {
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/x+json"] {
            assert!(is_json(good), "{good}");
        }
        for bad in ["", "text/plain", "application/x-www-form-urlencoded", "json", "é+json-"] {
            assert!(!is_json(bad), "{bad}");
        }
    }
}
