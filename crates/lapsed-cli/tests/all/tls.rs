//! The listener behind TLS: who is trusted, what a changed file does, and clients that never finish.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use crate::support::{self, Answer, CALM, Daemon, Home, until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

lapsed_testbed::steady_tests! {
    commands_trust_the_given_ca_only,
    a_renewed_certificate_is_reloaded_and_a_broken_one_is_not,
    an_unfinished_handshake_does_not_delay_other_clients,
    plain_http_is_refused_on_a_tls_listener,
    the_event_feed_works_over_tls,
}

/// An authority, and a folder for what it signs.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ca(&self) -> String {
        self.file("ca.pem").display().to_string()
    }

    /// Puts a new certificate for 127.0.0.1 and for `name` where the daemon reads it.
    fn issue(&self, name: &str) {
        let names = vec!["127.0.0.1".to_owned(), name.to_owned()];
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.file("cert.pem"), cert.pem()).unwrap();
        std::fs::write(self.file("key.pem"), key.serialize_pem()).unwrap();
    }

    /// A home whose daemon listens with it.
    fn home(&self) -> Home {
        let (cert, key) = (self.file("cert.pem"), self.file("key.pem"));
        let tls = format!("tls = {{ cert = {cert:?}, key = {key:?} }}");
        Home::with("1m", CALM, &tls)
    }

    /// A client that trusts it and means `name`.
    fn connect(&self, daemon: &Daemon, name: &str) -> std::io::Result<Stream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut tcp = plain(daemon);
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        Ok(StreamOwned::new(tls, tcp))
    }
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn plain(daemon: &Daemon) -> TcpStream {
    let address = daemon.url.strip_prefix("https://").expect("it says that it speaks TLS");
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    stream
}

/// One request on a connection that stays.
fn ask(stream: &mut (impl Read + Write), path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut answer = [0; 4_096];
    let read = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

fn status(daemon: &Daemon, ca: Option<&str>) -> Answer {
    let env: Vec<_> = ca.iter().map(|ca| ("LAPSED_CA", *ca)).collect();
    support::run_with(&["status", "--url", &daemon.url], &env)
}

fn commands_trust_the_given_ca_only() {
    let (ours, other) = (Authority::new(), Authority::new());
    ours.issue("here.example");
    let home = ours.home();
    assert_eq!(home.run(&["check"]).code, 0);
    let daemon = home.serve();
    let told = status(&daemon, Some(&ours.ca()));
    assert!(told.code == 0 && told.out.contains("registry/devices"), "{told:?}");
    let told = daemon.run(&["receipts", "--ca", &ours.ca()]);
    assert_eq!(told.code, 0, "{told:?}");
    for ca in [None, Some(&*other.ca())] {
        let told = status(&daemon, ca);
        assert!(told.code == 1 && told.err.contains("--ca"), "{told:?}");
    }
    let told = status(&daemon, Some("/nowhere.pem"));
    assert!(told.code == 2 && told.err.contains("/nowhere.pem"), "{told:?}");
    // Straight to the configuration of a daemon that has the store open: it is asked by its own scheme.
    let plain = daemon.url.replace("https", "http");
    assert_eq!(support::run(&["status", "--url", &plain]).code, 1);
    std::fs::write(ours.file("key.pem"), "nothing").unwrap();
    let told = home.run(&["check"]);
    assert!(told.code == 2 && told.err.contains("no private key"), "{told:?}");
}

fn a_renewed_certificate_is_reloaded_and_a_broken_one_is_not() {
    let ours = Authority::new();
    ours.issue("first.example");
    let home = ours.home();
    let daemon = home.serve();
    let mut old = ours.connect(&daemon, "first.example").unwrap();
    assert!(ask(&mut old, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(ours.connect(&daemon, "second.example").is_err());

    std::fs::write(ours.file("cert.pem"), "half of it").unwrap();
    until("the broken one to be noticed", || {
        daemon.log().contains("the certificate stays as it is").then_some(())
    });
    assert!(ours.connect(&daemon, "first.example").is_ok(), "{}", daemon.log());

    ours.issue("second.example");
    until("the new one to be shown", || ours.connect(&daemon, "second.example").ok());
    assert!(ours.connect(&daemon, "first.example").is_err());
    assert!(ask(&mut old, "/healthz").starts_with("HTTP/1.1 200"), "the old connection goes on");

    ours.issue("third.example");
    hang_up(&daemon);
    until("the third one to be shown", || ours.connect(&daemon, "third.example").ok());
    assert_eq!(daemon.stop(), Some(0));
}

fn hang_up(daemon: &Daemon) {
    let pid = daemon.pid().to_string();
    assert!(std::process::Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
}

fn an_unfinished_handshake_does_not_delay_other_clients() {
    let ours = Authority::new();
    ours.issue("here.example");
    let home = ours.home();
    let daemon = home.serve();
    let mut silent: Vec<TcpStream> = (0..50).map(|_| plain(&daemon)).collect();
    // The beginning of a handshake, of which nothing more comes.
    silent.iter_mut().for_each(|stream| stream.write_all(&[0x16, 3, 1, 2, 0, 1]).unwrap());
    for _ in 0..20 {
        let mut stream = ours.connect(&daemon, "here.example").unwrap();
        assert!(ask(&mut stream, "/healthz").starts_with("HTTP/1.1 200"));
    }
    let mut first = silent.swap_remove(0);
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).expect("it is closed before anybody's patience ends");
}

fn plain_http_is_refused_on_a_tls_listener() {
    let ours = Authority::new();
    ours.issue("here.example");
    let home = ours.home();
    let daemon = home.serve();
    let mut stream = plain(&daemon);
    write!(stream, "GET /v1/sweeps HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an end, not a reset");
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1 200"), "{answer:?}");
    assert!(ours.connect(&daemon, "here.example").is_ok());
}

fn the_event_feed_works_over_tls() {
    let ours = Authority::new();
    ours.issue("here.example");
    let home = ours.home();
    let daemon = home.serve();
    let mut stream = ours.connect(&daemon, "here.example").unwrap();
    write!(stream, "GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut seen = String::new();
    until("the first event", || {
        let mut piece = [0; 1_024];
        let read = stream.read(&mut piece).unwrap();
        seen.push_str(&String::from_utf8_lossy(&piece[..read]));
        seen.contains("event: cursor").then_some(())
    });
    assert!(seen.contains("text/event-stream"), "{seen}");
}

#[test]
fn invalid_certificates_are_refused_with_their_key() {
    let ours = Authority::new();
    ours.issue("here.example");
    let cert = ours.file("cert.pem");
    let serve = |tls: &str| {
        let home = Home::with("1m", CALM, tls);
        let mut command = support::lapsed();
        command.arg("serve").arg("-c").arg(home.config());
        Daemon::spawn(command, home.dir.path()).err().expect("it must not start")
    };
    let missing = serve(&format!("tls = {{ cert = {cert:?}, key = \"/nowhere.pem\" }}"));
    assert!(missing.contains("exit Some(2)") && missing.contains("/nowhere.pem"), "{missing}");
    let swapped = serve(&format!("tls = {{ cert = {cert:?}, key = {cert:?} }}"));
    assert!(swapped.contains("no private key"), "{swapped}");
    let other = Authority::new();
    other.issue("here.example");
    let key = other.file("key.pem");
    let foreign = serve(&format!("tls = {{ cert = {cert:?}, key = {key:?} }}"));
    assert!(foreign.contains("do not fit"), "{foreign}");
    let typo = serve(&format!("tls = {{ cert = {cert:?}, kez = {key:?} }}"));
    assert!(typo.contains("nearest valid one is `key`"), "{typo}");
}
