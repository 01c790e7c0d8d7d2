//! Outgoing HTTP calls: addresses, time limits, and errors that reveal no secret.
//!
//! An address may contain a secret, so only its host is ever shown, and no error repeats text that
//! could come from the address. Every call has a time limit. Deliberately absent: redirects and
//! proxies, which would send data to a host that the configuration does not name.

pub mod delivery;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// An address that may contain a secret: only its host is ever shown.
#[derive(Clone, PartialEq, Eq)]
pub struct OutboundUrl {
    url: String,
    shown: String,
}

impl OutboundUrl {
    /// Parses and checks `text`; the error does not repeat it.
    pub fn parse(text: &str) -> Result<OutboundUrl, &'static str> {
        let uri: Uri = text.parse().map_err(|_| "is not an address")?;
        let scheme = match uri.scheme_str() {
            Some(scheme @ ("http" | "https")) => scheme,
            _ => return Err("must begin with http:// or https://"),
        };
        let authority = uri.authority().ok_or("names no host")?;
        if authority.as_str().contains('@') {
            return Err("must not name a user: put a secret into its path or its query");
        }
        let shown = match uri.path_and_query().map(|rest| rest.as_str()) {
            None | Some("/" | "") => format!("{scheme}://{authority}"),
            Some(_) => format!("{scheme}://{authority}/..."),
        };
        Ok(OutboundUrl { url: text.to_owned(), shown })
    }

    pub fn reveal(&self) -> &str {
        &self.url
    }
}

impl fmt::Display for OutboundUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for OutboundUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.shown)
    }
}

/// An HTTP client with a time limit on the whole call, without redirects and without a proxy.
pub fn agent(address: &OutboundUrl, timeout: Duration) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .timeout_global(Some(timeout))
        .user_agent(concat!("lapsed/", env!("CARGO_PKG_VERSION")));
    let config = match address.reveal().starts_with("https:") {
        true => config.tls_config(tls()),
        false => config,
    };
    config.build().new_agent()
}

/// Makes one attempt. The error contains nothing of the address.
pub async fn post(
    agent: &Agent,
    address: &OutboundUrl,
    headers: &[(&str, String)],
    body: Vec<u8>,
) -> Result<(), String> {
    let request = agent.post(address.reveal()).header("content-type", "application/json");
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
    let answer = tokio::task::spawn_blocking(move || request.send(&body[..]));
    let answer = answer.await.map_err(|_| "the try was cut off".to_owned())?;
    match answer.map_err(|error| silent(&error))?.status() {
        status if status.is_success() => Ok(()),
        status if status.is_redirection() => {
            Err(format!("it answers {}; redirects are not followed", status.as_u16()))
        }
        status => Err(format!("it answers {}", status.as_u16())),
    }
}

/// TLS that trusts the certificate authorities of this machine.
fn tls() -> TlsConfig {
    let found = rustls_native_certs::load_native_certs();
    let owned = found.certs.iter().map(|cert| Certificate::from_der(cert.as_ref()).to_owned());
    let roots = RootCerts::Specific(Arc::new(owned.collect()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider).build()
}

/// Why there was no answer, without text that could come from the address.
pub fn silent(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => "it does not answer in time".to_owned(),
        ureq::Error::Io(error) => format!("it cannot be reached: {}", error.kind()),
        ureq::Error::HostNotFound => "its host is not known".to_owned(),
        ureq::Error::ConnectionFailed => "no connection".to_owned(),
        ureq::Error::Tls(what) => format!("TLS: {what}"),
        ureq::Error::Rustls(error) => format!("TLS: {error}"),
        _ => "no answer that makes sense".to_owned(),
    }
}

/// Makes a name fit for a header: names may be any UTF-8, so bytes that a header must not contain
/// are written as %XX.
pub fn header_safe(text: &str) -> String {
    const UNFIT: &AsciiSet = &CONTROLS.add(b' ').add(b'%');
    utf8_percent_encode(text, UNFIT).to_string()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_the_host_of_an_address_is_shown() {
        let secret = OutboundUrl::parse("https://hooks.example:8443/T0/s3cret?k=v").unwrap();
        assert_eq!(secret.to_string(), "https://hooks.example:8443/...");
        assert!(!format!("{secret:?}").contains("s3cret"));
        assert_eq!(secret.reveal(), "https://hooks.example:8443/T0/s3cret?k=v");
        assert_eq!(
            OutboundUrl::parse("http://127.0.0.1:80").unwrap().to_string(),
            "http://127.0.0.1:80"
        );
        for bad in ["", "ftp://a/b", "a b", "/hook", "https://", "https://user:pw@host/"] {
            assert!(OutboundUrl::parse(bad).is_err(), "{bad}");
        }
    }

    /// The server of an https address must speak TLS, and nothing is sent before the handshake.
    #[test]
    fn an_https_address_is_not_spoken_to_in_the_clear() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}/s3cret", listener.local_addr().unwrap());
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            let mut hello = [0; 3];
            std::io::Read::read_exact(&mut stream, &mut hello).unwrap();
            hello
        });
        let address = OutboundUrl::parse(&url).unwrap();
        let sent = agent(&address, Duration::from_secs(20)).post(&url).send("body");
        let why = silent(&sent.unwrap_err());
        assert!(!why.contains("s3cret"), "{why}");
        assert_eq!(answering.join().unwrap()[..2], [22, 3], "a TLS handshake: {why}");
    }

    #[test]
    fn any_name_fits_into_a_header() {
        assert_eq!(header_safe("inflight-jobs-a/b:c-17"), "inflight-jobs-a/b:c-17");
        assert_eq!(header_safe("é 100%"), "%C3%A9%20100%25");
    }
}
