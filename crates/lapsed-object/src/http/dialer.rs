//! Connections to a store: TCP, by way of a proxy if the environment names one, and TLS.
//!
//! `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` are read as curl reads them. A proxy tunnels to an
//! https address (`CONNECT`) and forwards requests to an http address. Deliberately absent: SOCKS.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::USER_AGENT;
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tower_service::Service;

pub(super) const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("lapsed/", env!("CARGO_PKG_VERSION")));

/// How long a connection may be idle before the kernel asks whether its peer is alive, and how long between
/// two questions.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 3;
/// How long sent bytes may remain unacknowledged.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Dialing<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// Opens connections, each within a time limit.
#[derive(Clone)]
pub(super) struct Dialer {
    tcp: HttpConnector,
    tls: TlsConnector,
    proxies: Arc<Matcher>,
    limit: Duration,
}

impl Dialer {
    /// Trusts the certificate authorities of this machine, and uses the proxies that the environment names.
    pub(super) fn new(limit: Duration) -> Result<Self, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(limit));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE));
        tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
        let proxies = Arc::new(Matcher::from_system());
        Ok(Dialer { tcp, tls: tls()?, proxies, limit })
    }

    /// What a proxy that forwards a request to `destination` wants to see of credentials.
    pub(super) fn forwarding_auth(&self, destination: &Uri) -> Option<HeaderValue> {
        if destination.scheme() != Some(&Scheme::HTTP) {
            return None;
        }
        self.proxies.intercept(destination)?.basic_auth().cloned()
    }

    async fn dial(self, destination: Uri) -> Result<Stream, BoxError> {
        let encrypted = destination.scheme() == Some(&Scheme::HTTPS);
        let direct = DirectDialer { tcp: self.tcp, tls: self.tls };
        match self.proxies.intercept(&destination) {
            None => direct.dial(destination).await,
            Some(proxy) if encrypted => {
                let tunnel = tunnel(&proxy, direct.clone())?.call(destination.clone()).await?;
                direct.encrypt(&destination, tunnel).await
            }
            Some(proxy) => {
                let stream = direct.dial(address_of(&proxy)?).await?;
                Ok(Stream { forwards: true, ..stream })
            }
        }
    }
}

impl Service<Uri> for Dialer {
    type Response = Stream;
    type Error = BoxError;
    type Future = Dialing<Stream>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, destination: Uri) -> Self::Future {
        let (limit, dialer) = (self.limit, self.clone());
        Box::pin(async move {
            match tokio::time::timeout(limit, dialer.dial(destination)).await {
                Ok(dialed) => dialed,
                Err(elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, elapsed).into()),
            }
        })
    }
}

/// Connects to the address that it is given, without a proxy.
#[derive(Clone)]
struct DirectDialer {
    tcp: HttpConnector,
    tls: TlsConnector,
}

impl DirectDialer {
    async fn dial(mut self, destination: Uri) -> Result<Stream, BoxError> {
        let stream = Stream::over(self.tcp.call(destination.clone()).await?);
        match destination.scheme() == Some(&Scheme::HTTPS) {
            true => self.encrypt(&destination, stream).await,
            false => Ok(stream),
        }
    }

    /// Speaks TLS over `stream`, with the server that `destination` names.
    async fn encrypt(&self, destination: &Uri, stream: Stream) -> Result<Stream, BoxError> {
        let host = destination.host().ok_or("the address names no host")?;
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
        let encrypted = self.tls.connect(name, TokioIo::new(stream)).await?;
        Ok(Stream::over(TokioIo::new(encrypted)))
    }
}

impl Service<Uri> for DirectDialer {
    type Response = Stream;
    type Error = BoxError;
    type Future = Dialing<Stream>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, destination: Uri) -> Self::Future {
        Box::pin(self.clone().dial(destination))
    }
}

fn tunnel(proxy: &Intercept, direct: DirectDialer) -> Result<Tunnel<DirectDialer>, BoxError> {
    let tunnel = Tunnel::new(address_of(proxy)?, direct)
        .with_headers(HeaderMap::from_iter([(USER_AGENT, AGENT)]));
    Ok(match proxy.basic_auth() {
        Some(auth) => tunnel.with_auth(auth.clone()),
        None => tunnel,
    })
}

/// The address of a proxy that speaks HTTP.
fn address_of(proxy: &Intercept) -> Result<Uri, BoxError> {
    match proxy.uri().scheme_str() {
        Some("http" | "https") => Ok(proxy.uri().clone()),
        scheme => Err(format!(
            "the proxy in the environment must speak http or https, not {}",
            scheme.unwrap_or("something unnamed")
        )
        .into()),
    }
}

/// rustls with ring and the certificate authorities of this machine.
fn tls() -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // A certificate that cannot be read is left out, so that no server is trusted because of it.
        let _ = roots.add(certificate);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

trait ReadWrite: Read + Write + Send + Unpin {}

impl<T: Read + Write + Send + Unpin> ReadWrite for T {}

/// A connection to the store, or to a proxy before it.
pub(super) struct Stream {
    bytes: Box<dyn ReadWrite>,
    /// Whether the peer is a proxy that forwards each request.
    forwards: bool,
}

impl Stream {
    fn over(bytes: impl ReadWrite + 'static) -> Self {
        Stream { bytes: Box::new(bytes), forwards: false }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.forwards)
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.bytes).poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.bytes).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.bytes).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.bytes).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.bytes.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.bytes).poll_write_vectored(cx, buffers)
    }
}
