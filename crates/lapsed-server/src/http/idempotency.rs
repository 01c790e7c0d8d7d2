//! The header `Idempotency-Key`, by which a client repeats a request whose answer it did not get.
//!
//! The key, a fingerprint of the request and a number for this attempt go to the store, which keeps the
//! answer in the same atomic step as the change. A request without the header has a key of its own, so
//! that the daemon can still undo what it could not deliver.
//!
//! Operations whose repetition must get more than the bytes of the first answer (a `take`) take the request by
//! [`Repeatable`]. For all other routes `api::kept_requests` does the same around the route.

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, Method, Uri};
use lapsed_core::clock::SystemClock;
use lapsed_core::request::RequestId;
use ring::digest::{Context, SHA256};
use serde::de::DeserializeOwned;

use super::Shared;
use super::extract::{check_type, parse, read};
use super::problem::{HttpResult, Problem};

/// The name of the header.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// How many bytes of the digest are compared.
const FINGERPRINT_BYTES: usize = 16;

/// The JSON body of a request that may be repeated, and the key by which it is recognized.
pub struct Repeatable<T> {
    pub body: T,
    /// The client's key, or one of this request alone.
    pub request: RequestId,
}

impl<T: DeserializeOwned> FromRequest<Shared> for Repeatable<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> HttpResult<Self> {
        check_type(request.headers())?;
        key_of(request.headers())?;
        let (parts, body) = request.into_parts();
        let bytes = read(body, app).await?;
        let request = request_id(&parts.method, &parts.uri, &parts.headers, &bytes)?;
        Ok(Repeatable { body: parse(&bytes)?, request })
    }
}

/// The id of a request with this body: by its key, or of this request alone.
pub fn request_id(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &[u8],
) -> HttpResult<RequestId> {
    let Some(key) = key_of(headers)? else { return Ok(RequestId::unrepeatable(&attempt())?) };
    let target = uri.path_and_query().map_or(uri.path(), |target| target.as_str());
    let place = format!("{method} {target}\n");
    Ok(RequestId::new(&key, &fingerprint(&[place.as_bytes(), body]), &attempt())?)
}

fn key_of(headers: &HeaderMap) -> HttpResult<Option<String>> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = given.next() else { return Ok(None) };
    let visible = |key: &&str| key.bytes().all(|byte| byte.is_ascii_graphic());
    let key = key.to_str().ok().filter(visible).filter(|_| given.next().is_none());
    let wrong = || {
        Problem::malformed(
            "`Idempotency-Key` is one header of visible ASCII characters, without spaces",
        )
    };
    key.map(|key| Some(key.to_owned())).ok_or_else(wrong)
}

fn fingerprint(parts: &[&[u8]]) -> String {
    let mut digest = Context::new(&SHA256);
    parts.iter().for_each(|part| digest.update(part));
    let digest = digest.finish();
    digest.as_ref().iter().take(FINGERPRINT_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// An id for something that a request creates without naming it. It follows from the request's key, so that
/// all attempts create the same; nobody else has it, because the key of a request without a header is random.
pub fn made_up_id(request: &RequestId, index: usize) -> String {
    let (key, fingerprint_of_request) = (request.key.as_str(), request.fingerprint.as_str());
    let text = format!("id\n{index}\n{fingerprint_of_request}\n{key}");
    fingerprint(&[text.as_bytes()])
}

/// A number that no other attempt has.
fn attempt() -> String {
    let clock = SystemClock::shared();
    format!("{:016x}{:016x}", clock.random(), clock.random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_differ_by_place_and_content() {
        let all =
            [fingerprint(&[b"a", b"b"]), fingerprint(&[b"a", b"c"]), fingerprint(&[b"b", b"b"])];
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
        assert_eq!(all[0].len(), 2 * FINGERPRINT_BYTES);
        assert_ne!(attempt(), attempt());
    }

    #[test]
    fn one_readable_header_is_a_key() {
        let mut headers = HeaderMap::new();
        assert_eq!(key_of(&headers).unwrap(), None);
        headers.append(IDEMPOTENCY_KEY, "k-1".parse().unwrap());
        assert_eq!(key_of(&headers).unwrap().as_deref(), Some("k-1"));
        headers.append(IDEMPOTENCY_KEY, "k-2".parse().unwrap());
        assert!(key_of(&headers).is_err());
        headers.insert(IDEMPOTENCY_KEY, "k 1".parse().unwrap());
        assert!(key_of(&headers).is_err());
    }
}
