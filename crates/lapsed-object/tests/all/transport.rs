//! What lies between this host and the store: TLS, the proxies that the environment names, connections that are
//! used again, and time limits on each part of a request.
//!
//! Proxies and certificate authorities are read from the environment, so a process of its own asks the store.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener as BlockingListener};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lapsed_core::store::Store;
use lapsed_object::ObjectConfig;
use lapsed_testbed::{ObjectEngine, ObjectServer};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::fixture::{config_by, open, prefix};

const ENDPOINT: &str = "LAPSED_TEST_ENDPOINT";
/// Each question is one request.
const QUESTIONS: usize = 5;
/// `user:secret`, as a proxy is told.
const AUTH: &str = "Basic dXNlcjpzZWNyZXQ=";
const PROXY_VARIABLES: [&str; 8] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
];

/// The entry point of a child process. It does nothing unless another test has started it.
#[tokio::test]
async fn asking_process() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else { return };
    let config = config_by(ObjectEngine::Seaweed, 0, &prefix());
    let store = open(ObjectConfig { endpoint: Some(endpoint), ..config });
    for _ in 0..QUESTIONS {
        store.info().await.unwrap();
    }
}

/// Has a process ask the store at `endpoint`, with nothing of proxies in its environment but `variables`.
async fn ask(endpoint: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["transport::asking_process", "--exact", "--nocapture", "-q"]);
    for name in PROXY_VARIABLES {
        command.env_remove(name);
    }
    command.env(ENDPOINT, endpoint).envs(variables.iter().copied());
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn assert_answered(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

/// A server that passes on what it hears to the server on `upstream`, after a handshake or a `CONNECT`.
struct Relay {
    port: u16,
    connections: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Relay {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The head of the first request of each connection.
    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn listen() -> (TcpListener, Relay) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, Relay { port, connections: Arc::default(), heads: Arc::default() })
    }

    /// Speaks TLS in front of the server on `upstream`.
    async fn tls(upstream: u16, authority: &Authority) -> Relay {
        let (listener, relay) = Relay::listen().await;
        let (connections, acceptor) = (relay.connections.clone(), authority.acceptor());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut client = acceptor.accept(client).await.ok()?;
                    let mut server =
                        TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)).await.ok()?;
                    copy_bidirectional(&mut client, &mut server).await.ok()
                });
            }
        });
        relay
    }

    /// An HTTP proxy in front of `upstream`, the only server that it reaches.
    async fn proxy(upstream: u16) -> Relay {
        let (listener, relay) = Relay::listen().await;
        let (connections, heads) = (relay.connections.clone(), relay.heads.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(carry(client, upstream, heads.clone()));
            }
        });
        relay
    }
}

async fn carry(mut client: TcpStream, upstream: u16, heads: Arc<Mutex<Vec<String>>>) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.ok()?);
    }
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)).await.ok()?;
    match head.starts_with(b"CONNECT ") {
        true => client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok()?,
        false => server.write_all(&head).await.ok()?,
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    heads.lock().unwrap_or_else(PoisonError::into_inner).push(head);
    copy_bidirectional(&mut client, &mut server).await.ok().map(drop)
}

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    file: tempfile::NamedTempFile,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(issuer.pem().as_bytes()).unwrap();
        Authority { issuer, file }
    }

    /// The file with its certificate, to be trusted.
    fn file(&self) -> &str {
        self.file.path().to_str().unwrap()
    }

    /// Handshakes with a certificate of this authority for 127.0.0.1.
    fn acceptor(&self) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

fn seaweed() -> u16 {
    ObjectServer::shared(ObjectEngine::Seaweed).port()
}

/// `SSL_CERT_FILE` names the authorities; all requests share one connection.
#[tokio::test]
async fn a_store_over_tls_is_trusted_by_its_authority_and_its_connection_is_used_again() {
    let (authority, stranger) = (Authority::new("tests"), Authority::new("somebody else"));
    let front = Relay::tls(seaweed(), &authority).await;
    let endpoint = format!("https://{}", front.address());
    assert_answered(&ask(&endpoint, &[("SSL_CERT_FILE", authority.file())]).await);
    assert_eq!(front.connections(), 1);
    let refused = ask(&endpoint, &[("SSL_CERT_FILE", stranger.file())]).await;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned()
        + &String::from_utf8_lossy(&refused.stdout);
    assert!(!refused.status.success() && told.contains("certificate"), "{told}");
}

/// A tunnel to an https address, with credentials for the proxy; the proxy itself may speak TLS.
#[tokio::test]
async fn an_https_store_is_reached_through_a_tunnel() {
    let authority = Authority::new("tests");
    let front = Relay::tls(seaweed(), &authority).await;
    let endpoint = format!("https://{}", front.address());
    let proxy = Relay::proxy(front.port).await;
    let encrypted = Relay::tls(proxy.port, &authority).await;
    for address in [
        format!("http://user:secret@{}", proxy.address()),
        format!("https://{}", encrypted.address()),
    ] {
        for variable in ["HTTPS_PROXY", "all_proxy"] {
            let (before, tunnels) = (front.connections(), proxy.heads().len());
            let trusted = ("SSL_CERT_FILE", authority.file());
            assert_answered(&ask(&endpoint, &[trusted, (variable, &address)]).await);
            let heads = proxy.heads().split_off(tunnels);
            assert_eq!((heads.len(), front.connections()), (1, before + 1), "{heads:?}");
            assert!(heads[0].starts_with(&format!("CONNECT {} ", front.address())), "{heads:?}");
            assert_eq!(heads[0].contains(AUTH), address.contains("secret"), "{heads:?}");
        }
    }
}

/// Requests to an http address are forwarded, and `NO_PROXY` goes past the proxy.
#[tokio::test]
async fn an_http_store_is_reached_through_a_proxy_that_forwards() {
    let port = seaweed();
    let endpoint = format!("http://127.0.0.1:{port}");
    let proxy = Relay::proxy(port).await;
    let address = format!("http://user:secret@{}", proxy.address());
    assert_answered(&ask(&endpoint, &[("HTTP_PROXY", &address)]).await);
    let heads = proxy.heads();
    assert_eq!((heads.len(), proxy.connections()), (1, 1), "{heads:?}");
    assert!(heads[0].starts_with(&format!("GET {endpoint}/")), "{heads:?}");
    assert!(heads[0].contains(AUTH), "{heads:?}");
    for past in ["127.0.0.1", "localhost, 127.0.0.0/8"] {
        assert_answered(&ask(&endpoint, &[("HTTP_PROXY", &address), ("NO_PROXY", past)]).await);
    }
    assert_answered(&ask(&endpoint, &[("HTTPS_PROXY", &address)]).await);
    assert_eq!(proxy.connections(), 1);
}

/// How long a store was asked that never comes to an end.
async fn asked_for(endpoint: String, timeout: Duration) -> Duration {
    let config = config_by(ObjectEngine::Seaweed, 0, &prefix());
    let store = open(ObjectConfig { endpoint: Some(endpoint), timeout, ..config });
    let asked = Instant::now();
    let error = store.info().await.unwrap_err();
    assert!(error.to_string().contains("in time"), "{error}");
    asked.elapsed()
}

/// The answer begins, and stops in the middle of its body.
#[tokio::test]
async fn the_time_limit_includes_the_body_of_an_answer() {
    let listener = BlockingListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let head = "HTTP/1.1 200 OK\r\netag: \"e\"\r\nlast-modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
                        content-length: 100\r\n\r\nhalf";
            let _ = client.write_all(head.as_bytes());
            open.push(client);
        }
    });
    let elapsed = asked_for(format!("http://{address}"), Duration::from_millis(500)).await;
    assert!(elapsed < Duration::from_secs(12), "{elapsed:?}");
}

/// The kernel accepts the connection, and nobody shakes hands: connecting has a limit of 3 s.
#[tokio::test]
async fn a_handshake_that_does_not_end_is_given_up_before_the_time_limit_of_the_request() {
    let silent = BlockingListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let endpoint = format!("https://{}", silent.local_addr().unwrap());
    let elapsed = asked_for(endpoint, Duration::from_secs(60)).await;
    assert!(elapsed < Duration::from_secs(50), "{elapsed:?}");
}
