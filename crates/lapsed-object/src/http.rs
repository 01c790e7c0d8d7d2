//! The layer between `object_store` and the network, which sees every request and every answer.
//!
//! It counts, keeps the budget, learns the store's time from `Date`, and notices throttling. It repeats
//! nothing: a conditional write that is repeated blindly mistakes its own first attempt for a rival's.

mod client;
mod dialer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::header::DATE;
use lapsed_core::Error;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};

use crate::clock::StoreClock;
use crate::http::client::PooledClient;
use crate::requests::{Meter, RequestKind};

/// Sends every request of one store: counts it, keeps the budget, reads the store's clock.
pub(crate) struct MeteredTransport {
    service: Arc<dyn HttpService>,
    meter: Meter,
    clock: Arc<StoreClock>,
    /// The part of an address that only requests to the store have; other requests fetch credentials.
    bucket: String,
}

impl MeteredTransport {
    pub(crate) fn new(
        store: &str,
        meter: Meter,
        clock: Arc<StoreClock>,
        bucket: &str,
        timeout: Duration,
    ) -> lapsed_core::Result<Arc<Self>> {
        let client = PooledClient::new(timeout).map_err(|what| Error::Unavailable {
            store: store.to_owned(),
            what: format!("no HTTP client: {what}"),
        })?;
        Ok(Self::over(Arc::new(client), meter, clock, bucket))
    }

    /// A transport that sends requests through `service`.
    pub(crate) fn over(
        service: Arc<dyn HttpService>,
        meter: Meter,
        clock: Arc<StoreClock>,
        bucket: &str,
    ) -> Arc<Self> {
        Arc::new(MeteredTransport { service, meter, clock, bucket: bucket.to_owned() })
    }

    /// The service that sends the requests.
    pub(crate) fn service(&self) -> Arc<dyn HttpService> {
        self.service.clone()
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    fn is_for_the_store(&self, request: &HttpRequest) -> bool {
        let uri = request.uri();
        let before_dot = |host: &str| {
            host.strip_prefix(self.bucket.as_str()).is_some_and(|rest| rest.starts_with('.'))
        };
        uri.host().is_some_and(before_dot) || uri.path().split('/').any(|part| part == self.bucket)
    }

    /// Sends one request; nothing is repeated.
    pub(crate) async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let ours = self.is_for_the_store(&request);
        let kind = match ours {
            true => RequestKind::of(request.method(), request.uri()),
            false => RequestKind::Other,
        };
        let spent = |spent| HttpError::new(HttpErrorKind::Unknown, spent);
        self.meter.spend(kind).map_err(spent)?;
        let sent_ms = self.clock.mono_ms();
        let answer = self.service.call(request).await?;
        if ours && let Some(date_ms) = date_ms(&answer) {
            self.clock.learn(sent_ms, date_ms);
        }
        let status = answer.status().as_u16();
        if matches!(status, 429 | 503) {
            self.meter.note_throttled();
        }
        if status == 429 || status >= 500 {
            return Err(HttpError::new(HttpErrorKind::Unknown, ServerFault { status }));
        }
        Ok(answer)
    }
}

/// The store answered with 429 or 5xx: it throttles, or it has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerFault {
    pub(crate) status: u16,
}

impl ServerFault {
    pub(crate) fn is_throttling(self) -> bool {
        matches!(self.status, 429 | 503)
    }
}

impl std::fmt::Display for ServerFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.is_throttling() {
            true => write!(f, "it asks for fewer requests (HTTP {})", self.status),
            false => write!(f, "it failed (HTTP {})", self.status),
        }
    }
}

impl std::error::Error for ServerFault {}

/// The `Date` of an answer, in milliseconds since 1970.
fn date_ms(answer: &HttpResponse) -> Option<i64> {
    let text = answer.headers().get(DATE)?.to_str().ok()?;
    let date = httpdate::parse_http_date(text).ok()?;
    let since = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok()
}

/// Gives all clients of one store the same transport.
#[derive(Clone)]
pub(crate) struct Connector(pub(crate) Arc<MeteredTransport>);

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.0.send(request).await
    }
}
