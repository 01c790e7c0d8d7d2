//! TLS: which server certificates are accepted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lapsed_core::{Error, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Whose certificate will do. The file: what to trust instead of what the system trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Any certificate: an eavesdropper cannot read the connection, but the server's identity is not checked.
    Anybody,
    /// A certificate of a trusted authority, for any host name.
    Authority(Option<PathBuf>),
    /// A certificate of a trusted authority that names the host.
    Host(Option<PathBuf>),
}

/// The connector that encrypts connections, for `trust`.
pub(crate) fn connector(trust: &Trust) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Invalid(format!("TLS: {error}")))?;
    let config = match trust {
        Trust::Host(root) => builder.with_root_certificates(roots(root.as_deref())?),
        Trust::Authority(root) => {
            let verifier = WebPkiServerVerifier::builder_with_provider(
                Arc::new(roots(root.as_deref())?),
                provider.clone(),
            );
            let verifier = verifier.build();
            let inner = verifier.map_err(|error| Error::Invalid(format!("TLS: {error}")))?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyHost { inner }))
        }
        Trust::Anybody => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate { provider })),
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

fn roots(file: Option<&Path>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let Some(file) = file else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(store);
    };
    let wrong = |why: &dyn std::fmt::Display| {
        Error::Invalid(format!("sslrootcert {}: {why}", file.display()))
    };
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))? {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        store.add(certificate).map_err(|error| wrong(&error))?;
    }
    match store.is_empty() {
        true => Err(wrong(&"there is no certificate in it")),
        false => Ok(store),
    }
}

/// Trusts an authority, whatever host its certificate names.
#[derive(Debug)]
struct AnyHost {
    inner: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let verified = self.inner.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        // The name is looked at last: everything else was found good.
        match verified {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Trusts every certificate, as libpq does below `verify-ca`.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
