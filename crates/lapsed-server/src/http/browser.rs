//! Protection against requests that a foreign web page makes a browser send, and the security
//! headers of the answers.
//!
//! The dashboard sends its token in a header, never in a cookie, so that no other page can make the
//! browser send it. Without tokens the daemon listens on loopback only, but any web page open in a
//! browser on this machine can still send requests there. Such a request is therefore refused if
//! its `Origin` or its `Host` is not this daemon. Whether there are tokens or not, a request that
//! changes something is refused if it comes from a page of another site.

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

use super::extract;
use super::problem::Problem;

/// The content security policy of answers that are not pages: nothing may be loaded.
const PLAIN_POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Whether a request with this method only reads.
pub fn looks(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// Refuses a request that changes something if it comes from a page of another site or from an HTML
/// form.
pub fn check_change(request: &Request) -> Result<(), Problem> {
    if looks(request.method()) {
        return Ok(());
    }
    // Only browsers send this header, and no page can set it. The value `none` means that a person
    // typed the address or opened a bookmark.
    let site = request.headers().get(&SITE).map(HeaderValue::as_bytes);
    if !matches!(site, None | Some(b"same-origin" | b"none")) {
        return Err(stranger("pages of another site may not change anything here"));
    }
    // A form can be sent to another site without a CORS preflight; a body of type JSON cannot.
    match request.body().is_end_stream() {
        true => Ok(()),
        false => extract::check_type(request.headers()),
    }
}

/// Adds the security and caching headers to an answer. `looked`: the request only read. `guarded`:
/// the path requires a token.
pub fn dress(response: &mut Response, looked: bool, guarded: bool) {
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

/// Refuses a request whose `Origin` is another site, or whose `Host` is a foreign name: the latter
/// happens when a page points its own DNS name at this machine.
pub fn check(headers: &HeaderMap) -> Result<(), Problem> {
    // A header that is not text is read as `?`, which matches no host.
    let text = |name| headers.get(name).map(|v: &HeaderValue| v.to_str().unwrap_or("?"));
    let host = text(header::HOST).unwrap_or("");
    if !is_local_host(host) {
        return Err(stranger(
            "without a token only requests to a loopback address are answered; set `token` in [server]",
        ));
    }
    let Some(origin) = text(header::ORIGIN) else { return Ok(()) };
    match origin.split_once("://") {
        Some((_, authority)) if authority.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(stranger("without a token, pages of another origin are not answered")),
    }
}

fn stranger(detail: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", "Not from there", detail)
}

fn is_local_host(host: &str) -> bool {
    if host.is_empty() {
        return true;
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_pass_without_a_token() {
        for good in ["", "localhost", "localhost:7227", "127.0.0.1:1", "[::1]:7227", "127.9.9.9"] {
            assert!(is_local_host(good), "{good}");
        }
        for bad in ["evil.example", "evil.example:7227", "10.0.0.1:7227", "localhost.evil.example"]
        {
            assert!(!is_local_host(bad), "{bad}");
        }
    }
}
