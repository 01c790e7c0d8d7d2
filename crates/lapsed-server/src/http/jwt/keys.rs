//! The keys that signatures of JWTs are verified with: read from PEM, from a JSON Web Key Set, or a
//! secret. Only keys that fit the configured algorithm are taken.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use ring::{digest, hmac};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;

use super::strict_json;
use crate::config::jwt::{JwtAlgorithm, JwtConfig, JwtKeySource};

/// The largest file of keys that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The most keys of a set.
const KEYS_MAX: usize = 100;

/// How the public key of RSA, P-256 and Ed25519 begins in DER (RFC 5280, 8017, 5480, 8410).
const RSA_OID: &[u8] = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
const P256_PREFIX: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
const ED25519_PREFIX: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

/// The keys in force.
pub struct KeySet {
    keys: Vec<VerifyingKey>,
    /// Whether a token chooses among the keys by its `kid`.
    by_id: bool,
    /// The digest of the file, by which changes are detected; empty without a file.
    pub digest: Vec<u8>,
}

struct VerifyingKey {
    id: Option<String>,
    material: KeyMaterial,
}

enum KeyMaterial {
    /// The modulus and the exponent, big-endian.
    RsaParts(Vec<u8>, Vec<u8>),
    /// An `RSAPublicKey` in DER.
    RsaDer(Vec<u8>),
    /// An uncompressed point on P-256.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
    Hmac(hmac::Key),
}

impl VerifyingKey {
    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match &self.material {
            KeyMaterial::RsaParts(n, e) => {
                let key = RsaPublicKeyComponents { n, e };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            KeyMaterial::RsaDer(der) => {
                UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, der).verify(message, signature)
            }
            KeyMaterial::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            KeyMaterial::Ed25519(key) => {
                UnparsedPublicKey::new(&ED25519, key).verify(message, signature)
            }
            KeyMaterial::Hmac(key) => hmac::verify(key, message, signature),
        };
        verified.is_ok()
    }
}

impl KeySet {
    /// Reads the keys of the configuration.
    pub fn read(config: &JwtConfig) -> Result<KeySet, String> {
        Self::read_unless(config, None)?.ok_or_else(|| "there are no keys".to_owned())
    }

    /// Reads the keys, unless the file has the digest `seen`; a secret never changes.
    pub fn read_unless(config: &JwtConfig, seen: Option<&[u8]>) -> Result<Option<KeySet>, String> {
        let algorithm = config.algorithm;
        match &config.source {
            JwtKeySource::Secret(_) if seen.is_some() => Ok(None),
            JwtKeySource::Secret(secret) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret.reveal().as_bytes());
                let keys = vec![VerifyingKey { id: None, material: KeyMaterial::Hmac(key) }];
                Ok(Some(KeySet { keys, by_id: false, digest: Vec::new() }))
            }
            JwtKeySource::Pem(file) => changed(file, seen)?
                .map(|bytes| KeySet::from_pem_bytes(algorithm, &bytes))
                .transpose()
                .map_err(|what| format!("{}: {what}", file.display())),
            JwtKeySource::Jwks(file) => changed(file, seen)?
                .map(|bytes| KeySet::from_jwks_bytes(algorithm, &bytes))
                .transpose()
                .map_err(|what| format!("{}: {what}", file.display())),
        }
    }

    /// Reads the content of a PEM file.
    pub fn from_pem_bytes(algorithm: JwtAlgorithm, bytes: &[u8]) -> Result<KeySet, String> {
        Ok(KeySet { keys: from_pem(algorithm, bytes)?, by_id: false, digest: sha256(bytes) })
    }

    /// Reads the content of a JSON Web Key Set.
    pub fn from_jwks_bytes(algorithm: JwtAlgorithm, bytes: &[u8]) -> Result<KeySet, String> {
        Ok(KeySet { keys: from_jwks(algorithm, bytes)?, by_id: true, digest: sha256(bytes) })
    }

    /// Whether a key of the set, the one with this id if ids count, has made `signature`.
    pub fn verifies(&self, id: Option<&str>, message: &[u8], signature: &[u8]) -> bool {
        let key = match (self.by_id, id, self.keys.as_slice()) {
            (true, Some(id), keys) => keys.iter().find(|key| key.id.as_deref() == Some(id)),
            (_, _, [only]) => Some(only),
            _ => None,
        };
        key.is_some_and(|key| key.verifies(message, signature))
    }
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, bytes).as_ref().to_vec()
}

/// The content of `file`, unless it has the digest `seen`.
fn changed(file: &Path, seen: Option<&[u8]>) -> Result<Option<Vec<u8>>, String> {
    let wrong = |what: String| format!("{}: {what}", file.display());
    let metadata = std::fs::metadata(file).map_err(|e| wrong(format!("cannot be read: {e}")))?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(wrong("is no file of keys".to_owned()));
    }
    let bytes = std::fs::read(file).map_err(|e| wrong(format!("cannot be read: {e}")))?;
    Ok((seen != Some(&sha256(&bytes)[..])).then_some(bytes))
}

/// The one public key of a PEM file.
fn from_pem(algorithm: JwtAlgorithm, pem: &[u8]) -> Result<Vec<VerifyingKey>, String> {
    let none = || format!("there is no public key for {} in PEM in it", algorithm.as_str());
    let material = match SubjectPublicKeyInfoDer::from_pem_slice(pem) {
        Ok(info) => from_info(algorithm, info.as_ref()),
        Err(_) if algorithm == JwtAlgorithm::Rs256 => rsa_of_pkcs1(pem),
        Err(_) => None,
    };
    Ok(vec![VerifyingKey { id: None, material: material.ok_or_else(none)? }])
}

/// A public key as a `SubjectPublicKeyInfo` has it. P-256 and Ed25519 keys have a fixed form.
fn from_info(algorithm: JwtAlgorithm, der: &[u8]) -> Option<KeyMaterial> {
    match algorithm {
        JwtAlgorithm::Rs256 => {
            let (whole, _) = der_content(0x30, der)?;
            let (bits, _) = der_content(0x03, whole.strip_prefix(RSA_OID)?)?;
            Some(KeyMaterial::RsaDer(bits.strip_prefix(&[0])?.to_vec()))
        }
        JwtAlgorithm::Es256 => {
            let point = der.strip_prefix(P256_PREFIX).filter(|point| is_point(point))?;
            Some(KeyMaterial::P256(point.to_vec()))
        }
        JwtAlgorithm::EdDsa => {
            let key = der.strip_prefix(ED25519_PREFIX).filter(|key| key.len() == 32)?;
            Some(KeyMaterial::Ed25519(key.to_vec()))
        }
        JwtAlgorithm::Hs256 => None,
    }
}

/// A key that begins with `-----BEGIN RSA PUBLIC KEY-----`.
fn rsa_of_pkcs1(pem: &[u8]) -> Option<KeyMaterial> {
    let is_pkcs1 = pem.windows(20).any(|text| text == b"BEGIN RSA PUBLIC KEY");
    let text = String::from_utf8_lossy(pem).replace(" RSA PUBLIC KEY", " PUBLIC KEY");
    // The reader knows sections by their label and does not look at their content.
    let section = SubjectPublicKeyInfoDer::from_pem_slice(text.as_bytes()).ok();
    Some(KeyMaterial::RsaDer(section.filter(|_| is_pkcs1)?.as_ref().to_vec()))
}

/// The content of the DER value that begins here, and what follows it.
fn der_content(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, rest) = der.strip_prefix(&[tag])?.split_first()?;
    let (length, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        0x81 => (usize::from(*rest.first()?), rest.get(1..)?),
        0x82 => (usize::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?])), rest.get(2..)?),
        _ => return None,
    };
    rest.split_at_checked(length)
}

fn is_point(point: &[u8]) -> bool {
    point.len() == 65 && point[0] == 4
}

/// The keys of a JSON Web Key Set that fit the algorithm. Other keys are ignored.
fn from_jwks(algorithm: JwtAlgorithm, bytes: &[u8]) -> Result<Vec<VerifyingKey>, String> {
    let set = strict_json::parse(bytes).map_err(|e| format!("is no JSON Web Key Set: {e}"))?;
    let list = set["keys"].as_array().ok_or("is no JSON Web Key Set: `keys` is missing")?;
    let mut keys: Vec<VerifyingKey> = Vec::new();
    for key in list {
        let Some(material) = from_jwk(algorithm, key) else { continue };
        let id = key["kid"].as_str().map(str::to_owned);
        if keys.iter().any(|other| other.id == id) {
            return Err("two keys have the same `kid`, or none; give each its own".to_owned());
        }
        keys.push(VerifyingKey { id, material });
    }
    match keys.len() {
        0 => Err(format!("there is no public key for {} in it", algorithm.as_str())),
        1..=KEYS_MAX => Ok(keys),
        _ => Err(format!("there are more than {KEYS_MAX} keys in it")),
    }
}

fn from_jwk(algorithm: JwtAlgorithm, key: &Value) -> Option<KeyMaterial> {
    let text = |member: &str| key[member].as_str();
    let bytes = |member: &str| URL_SAFE_NO_PAD.decode(text(member)?).ok();
    if text("use").is_some_and(|purpose| purpose != "sig")
        || text("alg").is_some_and(|name| name != algorithm.as_str())
    {
        return None;
    }
    match (algorithm, text("kty")?, text("crv")) {
        (JwtAlgorithm::Rs256, "RSA", _) => Some(KeyMaterial::RsaParts(bytes("n")?, bytes("e")?)),
        (JwtAlgorithm::Es256, "EC", Some("P-256")) => {
            let point = [vec![4], bytes("x")?, bytes("y")?].concat();
            is_point(&point).then_some(KeyMaterial::P256(point))
        }
        (JwtAlgorithm::EdDsa, "OKP", Some("Ed25519")) => {
            bytes("x").filter(|key| key.len() == 32).map(KeyMaterial::Ed25519)
        }
        _ => None,
    }
}
