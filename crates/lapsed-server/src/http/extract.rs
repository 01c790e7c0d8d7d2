//! Extractors for requests and the writer of JSON answers: like axum's own, except that every error
//! is a [`Problem`].

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Shared;
use super::problem::Problem;

pub struct Json<T>(pub T);

/// A JSON body; `None` if the request has no body.
pub struct MaybeJson<T>(pub Option<T>);

/// The parameters of the path; one that cannot be read is a [`Problem`].
pub struct Path<T>(pub T);

/// The parameters of the query string; one that cannot be read is a [`Problem`].
pub struct Query<T>(pub T);

pub struct JsonAnswer<T>(pub T);

impl<T: Serialize> IntoResponse for JsonAnswer<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(mut body) => {
                // Ends the answer with a newline, which is easier to read in a terminal.
                body.push(b'\n');
                ([(header::CONTENT_TYPE, APPLICATION_JSON)], body).into_response()
            }
            Err(error) => Problem::internal(error.to_string()).into_response(),
        }
    }
}

/// How long receiving a body may take, whatever time limit the request itself has.
const BODY_WITHIN: Duration = Duration::from_secs(30);

const APPLICATION_JSON: HeaderValue = HeaderValue::from_static("application/json");

impl<T: DeserializeOwned> FromRequest<Shared> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, Problem> {
        check_type(request.headers())?;
        let bytes = read(request.into_body(), app).await?;
        parse(&bytes).map(Json)
    }
}

impl<T: DeserializeOwned> FromRequest<Shared> for MaybeJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, Problem> {
        let typed = check_type(request.headers());
        let bytes = read(request.into_body(), app).await?;
        if bytes.is_empty() {
            return Ok(MaybeJson(None));
        }
        typed?;
        parse(&bytes).map(MaybeJson)
    }
}

/// Reads the whole body; takes at most `BODY_WITHIN`.
pub async fn read(body: Body, app: &Shared) -> Result<Bytes, Problem> {
    let read = tokio::time::timeout(BODY_WITHIN, read_whole(body, app)).await;
    read.unwrap_or_else(|_| {
        let seconds = BODY_WITHIN.as_secs();
        let detail = format!("the body was not there after {seconds} s; nothing was done");
        let status = StatusCode::REQUEST_TIMEOUT;
        Err(Problem::new(status, "timeout", "The body did not come", detail))
    })
}

/// Reads the whole body, and refuses one that is larger than the configured limit. Most bodies
/// arrive in one piece, which is not copied.
async fn read_whole(mut body: Body, app: &Shared) -> Result<Bytes, Problem> {
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

/// Refuses a body whose `Content-Type` is not JSON.
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

/// The most digits of a number: no integer type that a request contains has more.
const DIGITS_MAX: usize = 20;

pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // serde would also read a JSON array as a struct, by the order of the fields. Only objects are
    // accepted.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::invalid("the body does not fit: it is a list; send an object"));
    }
    serde_json::from_slice(bytes).or_else(|error| match error.is_data() {
        true => parse_rounded(bytes)
            .ok_or_else(|| Problem::invalid(format!("the body does not fit: {error}"))),
        false => Err(Problem::malformed(format!("the body is not JSON: {error}"))),
    })
}

/// Parses a body in which some whole numbers are written as `5.0` or `1e3`, as some clients write
/// them.
fn parse_rounded<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    serde_json::from_slice(&whole_numbers(bytes)?).ok()
}

/// Rewrites whole numbers such as `5.0` and `1e3` as plain integers. `None` if there is nothing to
/// rewrite.
fn whole_numbers(json: &[u8]) -> Option<Vec<u8>> {
    let (mut written, mut rest, mut changed) = (Vec::with_capacity(json.len()), json, false);
    while let Some(first) = rest.first() {
        let length = match first {
            b'"' => text_length(rest),
            b'-' | b'0'..=b'9' => {
                let is_of_it =
                    |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                rest.iter().take_while(|byte| is_of_it(byte)).count()
            }
            _ => 1,
        };
        let (piece, after) = rest.split_at(length);
        match std::str::from_utf8(piece).ok().and_then(whole) {
            Some(number) => {
                written.extend_from_slice(number.as_bytes());
                changed = true;
            }
            None => written.extend_from_slice(piece),
        }
        rest = after;
    }
    changed.then_some(written)
}

/// The length in bytes of the JSON string that begins here, including its quotes.
fn text_length(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

/// Writes a number that has a fraction or an exponent, but is whole, as a plain integer without
/// loss. `None` if the number is not whole, is already an integer, or has more than [`DIGITS_MAX`]
/// digits.
fn whole(number: &str) -> Option<String> {
    let (sign, number) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (mantissa, exponent) = match number.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None if number.contains('.') => (number, 0),
        None => return None,
    };
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = [before, after].concat();
    let point = i32::try_from(before.len()).ok()?.checked_add(exponent)?;
    let point = usize::try_from(point).ok().filter(|point| *point <= DIGITS_MAX)?;
    if digits.len() < point {
        digits.push_str(&"0".repeat(point - digits.len()));
    }
    let is_whole = digits.bytes().skip(point).all(|digit| digit == b'0');
    let whole = digits.get(..point).filter(|_| is_whole)?.trim_start_matches('0');
    Some(if whole.is_empty() { "0".to_owned() } else { format!("{sign}{whole}") })
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
        for (text, number) in [
            ("9007199254740993.0", 9_007_199_254_740_993),
            ("1.8446744073709551615e19", u64::MAX),
            ("120e-1", 12),
            ("-0.0", 0),
            ("0e5", 0),
        ] {
            let body = format!(r#"{{"\\": [], "a": [{text}], "b": [5.0]}}"#);
            assert_eq!(parse::<Body<u64>>(body.as_bytes()).unwrap()[&'a'], [number], "{text}");
        }
        for bad in [
            "5.5",
            "-1.0",
            "1e300",
            "1.8446744073709551616e19",
            "12e-1",
            "1e-300",
            "1e99999999999",
            "\"5.0\"",
        ] {
            assert!(
                parse::<Body<u64>>(format!(r#"{{"a": [{bad}]}}"#).as_bytes()).is_err(),
                "{bad}"
            );
        }
        assert_eq!(parse::<Body<f64>>(br#"{"a": [5.0]}"#).unwrap()[&'a'], [5.0]);
    }

    #[test]
    fn members_have_names_and_not_places() {
        assert!(parse::<Vec<u64>>(b" [1]").is_err());
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
