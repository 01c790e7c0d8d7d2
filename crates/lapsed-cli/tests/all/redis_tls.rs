//! `rediss://`: a native registry over TLS to a real server, and a certificate that no trusted authority signed.

use crate::support::{Home, lapsed};
use lapsed_testbed::{Engine, Port, ServerOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::path::Path;

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn written(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn a_native_registry_works_over_tls_and_an_unknown_authority_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, stranger) = (authority("tests"), authority("somebody else"));
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
    let ca_file = written(dir.path(), "ca.pem", &ca.pem());
    let stranger_file = written(dir.path(), "stranger.pem", &stranger.pem());
    let cert = written(dir.path(), "cert.pem", &certificate.pem());
    let key = written(dir.path(), "key.pem", &key.serialize_pem());
    let reserved = Port::free().unwrap();
    let port = reserved.number();
    let options = ServerOptions::new(Engine::Redis)
        .extra("tls-port", &port.to_string())
        .extra("tls-cert-file", &cert)
        .extra("tls-key-file", &key)
        .extra("tls-ca-cert-file", &ca_file)
        .extra("tls-auth-clients", "no");
    let server = options.start().unwrap();
    let home = Home { dir };
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"rediss://127.0.0.1:{port}/0\"\n\n\
         [[system]]\nkind = \"registry\"\nname = \"devices\"\n"
    );
    std::fs::write(home.config(), text).unwrap();
    let daemon = home.serve_with(&[("SSL_CERT_FILE", &ca_file)]);
    daemon.hold("i-1", &["imei-1"]);
    assert_eq!(server.command(&["HKEYS", "connections:registry"]).unwrap(), "imei-1");
    drop(daemon);
    let refused = lapsed()
        .args(["check", "-c"])
        .arg(home.config())
        .env("SSL_CERT_FILE", &stranger_file)
        .output()
        .unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{told}");
    for words in ["certificate", "[store.main]", "SSL_CERT_FILE"] {
        assert!(told.contains(words), "{words}: {told}");
    }
}
