//! What a browser may be made to ask, and what it may make of the answers.
//!
//! A page of this daemon sends its token in a header, never in a cookie, so that no other page can
//! borrow it. Without tokens the daemon listens on loopback alone, where a web page in somebody's
//! browser can still knock: so a request from a page of another origin, or one made under a foreign
//! host name, is refused. With or without, nothing is changed for a page that is not the daemon's own.

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

use super::extract;
use super::problem::Problem;

/// For what is no page, and says nothing of itself: nothing.
const PLAIN_POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Whether it only looks.
pub fn looks(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// Nothing is changed for the page of another site, nor by a form.
pub fn check_change(request: &Request) -> Result<(), Problem> {
    if looks(request.method()) {
        return Ok(());
    }
    // Only a browser sends it, and no page can. `none` is the address bar.
    let site = request.headers().get(&SITE).map(HeaderValue::as_bytes);
    if !matches!(site, None | Some(b"same-origin" | b"none")) {
        return Err(stranger("pages of another site may not change anything here"));
    }
    // A form can be sent across sites without asking; JSON cannot.
    match request.body().is_end_stream() {
        true => Ok(()),
        false => extract::check_type(request.headers()),
    }
}

/// Tells a browser what it may make of an answer: `looked`, what only looks; `guarded`, what is behind
/// the gate.
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

/// A page of another origin announces itself; one that lured the browser by DNS shows in `Host`.
pub fn check(headers: &HeaderMap) -> Result<(), Problem> {
    // What cannot be read is nobody's name.
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
