//! The backend that calls a running daemon over HTTP. Every call has a time limit, except for passes, whose
//! duration is not known in advance.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::SystemId;
use lapsed_core::receipt::ReceiptId;
use lapsed_core::sweep::{PassMode, PassReport};
use lapsed_core::system::{Explanation, Restored};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::http::Response;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::{Backend, BackendRef, Followed, Progress, ReceiptListing, sse, system_id};
use lapsed_server::failure::Failure;
use lapsed_server::http::brakes::{BrakeBody, Word};
use lapsed_server::http::reconcile::ReconcileOptions;
use lapsed_server::node::audit::AuditPage;
use lapsed_server::node::shapes::{
    AdoptStatus, BrakeStatus, Estimate, ReceiptPage, Reconciliation, Sweeps, SystemStatus,
};
use lapsed_server::node::{BrakeOrder, LIST_MAX, ReconcileOrder};
use lapsed_server::print::visible;
use lapsed_server::tls;

const CONNECT: Duration = Duration::from_secs(3);
pub(crate) const ANSWER: Duration = Duration::from_secs(60);

/// A stream without data for this time is broken: the daemon sends keep-alives more often.
const SILENCE: Duration = Duration::from_secs(40);

/// The time limit of a request.
#[derive(Clone, Copy)]
pub enum RequestLimit {
    /// For requests that the daemon answers at once.
    Short,
    /// For requests of unknown duration, such as a pass.
    Long,
    For(Duration),
    /// For event streams, which may be silent for a while.
    Stream,
}

/// The size limit of an answer; the longest is a report that lists the most entries.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

pub struct RemoteBackend {
    url: String,
    token: Option<String>,
    /// The trusted certificates, if the URL is https.
    tls: Option<TlsConfig>,
}

impl RemoteBackend {
    /// The daemon at `url`; TLS uses the certificates that this machine trusts.
    pub fn new(url: &str, token: Option<String>) -> Result<RemoteBackend, Failure> {
        RemoteBackend::with_ca(url, token, None)
    }

    /// The daemon at `url`; TLS trusts the certificates in `ca` if given, otherwise those of this machine.
    pub fn with_ca(
        url: &str,
        token: Option<String>,
        ca: Option<&Path>,
    ) -> Result<RemoteBackend, Failure> {
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let tls = match url.split_once("://") {
            Some(("http", _)) => None,
            Some(("https", _)) => Some(trusting(ca)?),
            _ => {
                let what = format!("{url}: only http:// and https:// addresses are understood");
                return Err(Failure::usage(what));
            }
        };
        Ok(RemoteBackend { url: url.trim_end_matches('/').to_owned(), token, tls })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends a GET and decodes the answer as `T`.
    pub fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.get(path)
    }

    /// Whether a daemon answers at the URL.
    pub fn answers(&self) -> bool {
        self.agent(RequestLimit::Short).get(format!("{}/healthz", self.url)).call().is_ok()
    }

    /// An HTTP client without a proxy: the daemon is on this machine or in the same network.
    fn agent(&self, limit: RequestLimit) -> Agent {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT));
        let config = match limit {
            RequestLimit::Short => config.timeout_global(Some(ANSWER)),
            RequestLimit::For(limit) => config.timeout_global(Some(limit)),
            RequestLimit::Long => config,
            RequestLimit::Stream => config.timeout_per_read(Some(SILENCE)),
        };
        let config = match &self.tls {
            Some(tls) => config.tls_config(tls.clone()),
            None => config,
        };
        config.build().new_agent()
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        read(self.open(path, &[], RequestLimit::Short)?)
    }

    /// Sends a GET; the JSON body of a successful answer.
    pub fn get_json(&self, path: &str) -> Result<Value, Failure> {
        self.get(path)
    }

    /// Sends a POST; the JSON body of a successful answer.
    pub fn post_json(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(Method::Post, path, body, RequestLimit::Short)
    }

    /// Sends a GET; the caller reads the body of the successful answer.
    pub fn open(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        limit: RequestLimit,
    ) -> Result<Response<Body>, Failure> {
        let mut request = self.agent(limit).get(format!("{}{path}", self.url));
        for (name, value) in headers.iter().copied().chain(self.bearer().as_deref().map(auth)) {
            request = request.header(name, value);
        }
        self.judge(request.call())
    }

    fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        limit: RequestLimit,
    ) -> Result<T, Failure> {
        let url = format!("{}{path}", self.url);
        let agent = self.agent(limit);
        let mut request = match method {
            Method::Post => agent.post(url),
            Method::Put => agent.put(url),
        };
        if let Some(bearer) = &self.bearer() {
            request = request.header(auth(bearer).0, auth(bearer).1);
        }
        read(self.judge(request.send_json(body))?)
    }

    /// Sends a POST and returns its answer, whatever the status is.
    pub(crate) fn ask(&self, path: &str, body: Option<&Value>) -> Result<Response<Body>, Failure> {
        self.ask_within(path, body, RequestLimit::Short)
    }

    pub(crate) fn ask_within(
        &self,
        path: &str,
        body: Option<&Value>,
        limit: RequestLimit,
    ) -> Result<Response<Body>, Failure> {
        let mut request = self.agent(limit).post(format!("{}{path}", self.url));
        if let Some(bearer) = &self.bearer() {
            request = request.header(auth(bearer).0, auth(bearer).1);
        }
        let answer = match body {
            Some(body) => request.send_json(body),
            None => request.send_empty(),
        };
        answer.map_err(|error| self.silent(&error))
    }

    /// Sends a GET and returns its answer, whatever the status is.
    pub(crate) fn look(&self, path: &str) -> Result<Response<Body>, Failure> {
        let request = self.agent(RequestLimit::Short).get(format!("{}{path}", self.url));
        let request = self.bearer().iter().fold(request, |request, bearer| {
            let (name, value) = auth(bearer);
            request.header(name, value)
        });
        request.call().map_err(|error| self.silent(&error))
    }

    /// Sends a POST that changes something; false if the daemon answers that it does not exist.
    pub(crate) fn change(&self, path: &str, body: &Value) -> Result<bool, Failure> {
        let answer = self.ask(path, Some(body))?;
        match answer.status().as_u16() {
            404 => Ok(false),
            _ => self.judge(Ok(answer)).map(|_| true),
        }
    }

    fn bearer(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("Bearer {token}"))
    }

    /// The answer if it is successful; otherwise the failure to connect, or the reason that the daemon gives.
    pub(crate) fn judge(
        &self,
        answer: Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, Failure> {
        let answer = answer.map_err(|error| self.silent(&error))?;
        if answer.status().is_success() { Ok(answer) } else { Err(refused(answer)) }
    }

    fn silent(&self, error: &ureq::Error) -> Failure {
        let url = &self.url;
        match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                Failure::usage(format!("{url} is not an address: {error}"))
            }
            _ if error.to_string().contains("certificate") => Failure::failed(format!(
                "the daemon at {url} is not trusted: {error}. Give the certificate of its authority \
                 with --ca FILE or LAPSED_CA"
            )),
            _ => Failure::failed(format!(
                "no daemon answers at {url}: {error}. Start one with `lapsed serve`, give its \
                 address with --url, or go straight to a store with -c FILE"
            )),
        }
    }
}

enum Method {
    Post,
    Put,
}

fn auth(bearer: &str) -> (&str, &str) {
    ("authorization", bearer)
}

/// The certificates in `ca`, or those that this machine trusts.
fn trusting(ca: Option<&Path>) -> Result<TlsConfig, Failure> {
    let found = match ca {
        Some(file) => tls::authorities(file).map_err(|e| Failure::usage(format!("--ca: {e}")))?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let owned = found.iter().map(|cert| Certificate::from_der(cert.as_ref()).to_owned());
    let roots = RootCerts::Specific(Arc::new(owned.collect()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = TlsConfig::builder().root_certs(roots);
    Ok(config.unversioned_rustls_crypto_provider(provider).build())
}

pub(crate) fn read<T: DeserializeOwned>(mut answer: Response<Body>) -> Result<T, Failure> {
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
    body.read_json()
        .map_err(|e| Failure::failed(format!("the daemon's answer makes no sense: {e}")))
}

pub(crate) fn refused(mut answer: Response<Body>) -> Failure {
    let status = answer.status().as_u16();
    let problem: Value = answer.body_mut().read_json().unwrap_or_default();
    let Some(detail) = problem["detail"].as_str() else { return not_a_daemon(status) };
    // The server that answers may not be lapsed: a newline in its answer could forge a line.
    let detail = &*visible(detail);
    match status {
        401 => Failure::failed(format!(
            "the daemon refuses: {detail}. Give a token with --token or LAPSED_TOKEN"
        )),
        403 => Failure::failed(format!(
            "the daemon refuses: {detail}. Give a token that may do this with --token or LAPSED_TOKEN"
        )),
        400 | 422 => Failure::usage(detail),
        _ => Failure::failed(format!("the daemon answers {status}: {detail}")),
    }
}

/// The failure for an error answer without `detail`: another program must have sent it.
fn not_a_daemon(status: u16) -> Failure {
    Failure::failed(format!(
        "the answer ({status}) is not one of lapsed. Is it another program? Give the daemon's \
         address, as `lapsed serve` prints it, with --url"
    ))
}

/// Percent-encodes `text` as one segment of a path.
pub fn segment(text: &str) -> String {
    const RESERVED: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(text, RESERVED).to_string()
}

impl Backend for RemoteBackend {
    fn as_ref(&self) -> BackendRef<'_> {
        BackendRef::Remote(self)
    }

    fn systems(&self) -> Result<Vec<SystemId>, Failure> {
        let all = self.status()?;
        Ok(all.iter().filter_map(|s| system_id(&s.kind, &s.system)).collect())
    }

    fn status(&self) -> Result<Vec<SystemStatus>, Failure> {
        Ok(self.get::<Sweeps>("/v1/sweeps")?.systems)
    }

    fn pass(&self, system: &SystemId, act: PassMode) -> Result<PassReport, Failure> {
        let body = json!({ "dry_run": act == PassMode::DryRun, "list": LIST_MAX });
        self.send(Method::Post, &format!("/v1/sweeps/{system}"), &body, RequestLimit::Long)
    }

    fn reconcile(
        &self,
        system: &SystemId,
        order: ReconcileOrder,
        _tell: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Reconciliation, Failure> {
        let body = ReconcileOptions {
            dry_run: Some(order.act == PassMode::DryRun),
            from: order.after.0,
            list: Some(order.list),
        };
        self.send(Method::Post, &format!("/v1/reconcile/{system}"), &body, RequestLimit::Long)
    }

    fn estimate(&self, system: &SystemId) -> Result<Estimate, Failure> {
        self.get(&format!("/v1/reconcile/{system}"))
    }

    fn explain(&self, system: &SystemId, key: &str) -> Result<Explanation, Failure> {
        self.get(&format!("/v1/explain/{system}/{}", segment(key)))
    }

    fn receipts(&self, listing: &ReceiptListing) -> Result<ReceiptPage, Failure> {
        let mut path = format!("/v1/receipts?limit={}", listing.limit);
        let system = listing.system.as_ref().map(ToString::to_string);
        for (name, value) in [
            ("system", &system),
            ("before", &listing.before),
            ("key", &listing.key),
            ("owner", &listing.owner),
        ] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", segment(value)));
            }
        }
        self.get(&path)
    }

    fn follow(
        &self,
        system: Option<&SystemId>,
        tell: &mut dyn FnMut(Followed) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        sse::follow(self, system, tell)
    }

    fn restore(&self, receipt: &ReceiptId) -> Result<Restored, Failure> {
        let mut answer = self.ask(&format!("/v1/receipts/{receipt}/restore"), None)?;
        if answer.status() == 409 {
            let problem: Value = answer.body_mut().read_json().unwrap_or_default();
            let why = problem["detail"].as_str().unwrap_or_default().to_owned();
            return Ok(Restored::Refused { why });
        }
        if answer.status().is_success() { read(answer) } else { Err(refused(answer)) }
    }

    fn adopt(&self, system: &SystemId) -> Result<AdoptStatus, Failure> {
        self.send(Method::Post, &format!("/v1/adopt/{system}"), &(), RequestLimit::Short)
    }

    fn brake(&self, system: &SystemId) -> Result<BrakeStatus, Failure> {
        self.get(&format!("/v1/brakes/{system}"))
    }

    fn set_brake(&self, system: &SystemId, order: BrakeOrder) -> Result<BrakeStatus, Failure> {
        let (setting, reason) = match order {
            BrakeOrder::Auto => (Word::Auto, None),
            BrakeOrder::Hold => (Word::Hold, None),
            BrakeOrder::Override { reason } => (Word::Override, Some(reason)),
        };
        let body = BrakeBody { setting, reason };
        self.send(Method::Put, &format!("/v1/brakes/{system}"), &body, RequestLimit::Short)
    }

    fn audit(
        &self,
        system: Option<&SystemId>,
        before: Option<&str>,
        limit: usize,
    ) -> Result<AuditPage, Failure> {
        let mut path = format!("/v1/audit?limit={limit}");
        if let Some(system) = system {
            path.push_str(&format!("&system={}", segment(&system.to_string())));
        }
        if let Some(before) = before {
            path.push_str(&format!("&before={}", segment(before)));
        }
        self.get(&path)
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}
