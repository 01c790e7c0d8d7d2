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
use serde_json::Value;

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
        parse(&bytes).map(MaybeJson)
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

/// The body says that it is JSON.
pub fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
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
    // To serde a list is an object whose members are told by their places.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::invalid("the body does not fit: it is a list; send an object"));
    }
    serde_json::from_slice(bytes).or_else(|error| match error.is_data() {
        true => parse_rounded(bytes)
            .ok_or_else(|| Problem::invalid(format!("the body does not fit: {error}"))),
        false => Err(Problem::malformed(format!("the body is not JSON: {error}"))),
    })
}

/// The same where some number is written `5.0`: that is 5, some clients write it so.
fn parse_rounded<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let mut value = serde_json::from_slice(bytes).ok()?;
    round(&mut value).then_some(())?;
    serde_json::from_value(value).ok()
}

/// Writes whole numbers without a fraction; whether there was one.
fn round(value: &mut Value) -> bool {
    match value {
        // Beyond 2^53 a fraction may have been lost on the way.
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(given) if given.fract() == 0.0 && given.abs() < 9_007_199_254_740_992.0 => {
                *number = (given as i64).into();
                true
            }
            _ => false,
        },
        Value::Array(all) => all.iter_mut().map(round).filter(|rounded| *rounded).count() > 0,
        Value::Object(map) => map.values_mut().map(round).filter(|rounded| *rounded).count() > 0,
        _ => false,
    }
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
    fn whole_numbers_however_they_are_written() {
        type Body<T> = std::collections::BTreeMap<char, Vec<T>>;
        let whole = parse::<Body<u64>>(br#"{"a": [5.0, 7, 1e3]}"#).unwrap();
        assert_eq!(whole[&'a'], [5, 7, 1000]);
        for bad in ["5.5", "-1.0", "1e300"] {
            assert!(
                parse::<Body<u64>>(format!(r#"{{"a": [{bad}]}}"#).as_bytes()).is_err(),
                "{bad}"
            );
        }
        assert_eq!(parse::<Body<f64>>(br#"{"a": [5.0]}"#).unwrap()[&'a'], [5.0]);
    }

    #[test]
    fn members_have_names_and_not_places() {
        assert_eq!(
            parse::<Vec<u64>>(b" [1]").unwrap_err().status,
            StatusCode::UNPROCESSABLE_ENTITY
        );
        assert_eq!(parse::<Option<u64>>(b" null").unwrap(), None);
    }

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
