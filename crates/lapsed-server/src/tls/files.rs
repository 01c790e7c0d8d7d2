//! The files of a certificate and its key: reads them, checks that they match, and detects changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::digest;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;

/// The largest file that is read, in bytes; a certificate is never larger.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The paths of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain in PEM, leaf first.
    pub cert: PathBuf,
    /// The private key in PEM.
    pub key: PathBuf,
}

pub struct Pair {
    /// A digest of both files, by which changes are detected.
    pub digest: Vec<u8>,
    /// The TLS configuration, or why the files cannot be used.
    pub config: Result<Arc<ServerConfig>, String>,
}

impl TlsFiles {
    /// Reads both files and checks that they match. Returns their digest, too.
    pub fn read(&self) -> Result<(Arc<ServerConfig>, Vec<u8>), String> {
        match self.read_unless(&[])? {
            Some(Pair { digest, config }) => Ok((config?, digest)),
            None => Err("the certificate cannot be read".to_owned()),
        }
    }

    /// Reads both files, unless their content has the digest `seen`. While the files are being
    /// replaced, the certificate and the key may not match: that is reported in `Pair::config`, and
    /// the next check reads the new pair.
    pub fn read_unless(&self, seen: &[u8]) -> Result<Option<Pair>, String> {
        let (cert, key) = (read(&self.cert)?, read(&self.key)?);
        let mut both = digest::Context::new(&digest::SHA256);
        both.update(&(cert.len() as u64).to_be_bytes());
        both.update(&cert);
        both.update(&key);
        let digest = both.finish().as_ref().to_vec();
        if digest == seen {
            return Ok(None);
        }
        Ok(Some(Pair { config: self.configure(&cert, &key), digest }))
    }

    fn configure(&self, cert: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, String> {
        let chain = certificates(&self.cert, cert)?;
        // The parser's message is not repeated, because it could contain parts of the key.
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| format!("{}: there is no private key in PEM in it", self.key.display()))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
        let config = builder.with_no_client_auth().with_single_cert(chain, key);
        let mut config = config.map_err(|e| {
            format!("{} and {} do not fit: {e}", self.cert.display(), self.key.display())
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// The certificates of the authorities in a PEM file.
pub fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    certificates(file, &read(file)?)
}

fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(format!("{}: there is no certificate in PEM in it", file.display())),
        Err(error) => Err(format!("{}: {error}", file.display())),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let wrong = |what: String| format!("{}: {what}", file.display());
    let metadata = std::fs::metadata(file).map_err(|e| wrong(format!("cannot be read: {e}")))?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(wrong("is no file with a certificate or a key".to_owned()));
    }
    std::fs::read(file).map_err(|e| wrong(format!("cannot be read: {e}")))
}
