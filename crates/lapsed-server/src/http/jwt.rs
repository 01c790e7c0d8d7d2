//! Bearer JWTs (RFC 7519) in the compact form of JWS (RFC 7515): checks one token against the
//! configuration and the keys in force.
//!
//! The order of the checks: size, form, header, signature, claims. Claims are not looked at before
//! the signature was verified. The algorithm is the configured one; a token that names another is
//! refused, so that a public key is never used as a secret. `crit` is refused, because no extension
//! is understood. The answer to a refused token names the check that failed, and never quotes the token.

mod keys;
pub mod strict_json;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lapsed_core::Name;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::limit::TokenBucket;
use crate::config::jwt::JwtConfig;
pub use keys::KeySet;

/// The longest JWT that is looked at, in bytes.
pub const JWT_BYTES_MAX: usize = 8 << 10;

/// How often the file of keys is checked for changes.
const LOOK: Duration = Duration::from_secs(2);

/// The most subjects whose rate is remembered at a time.
const SUBJECTS_MAX: usize = 100_000;

/// What a verified token says about its bearer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtBearer {
    /// The only owner as which the bearer may act.
    pub owner: Name,
    /// When the token expires, in milliseconds of the wall clock, without the leeway.
    pub expires_ms: u64,
}

/// Why a token is refused.
pub type JwtRefusal = &'static str;

/// Whether `shown` has the form of a JWT: three parts.
pub fn is_jwt(shown: &str) -> bool {
    shown.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// Checks a token against `config` and `keys` at `now_ms`.
pub fn verify(
    config: &JwtConfig,
    keys: &KeySet,
    token: &str,
    now_ms: u64,
) -> Result<JwtBearer, JwtRefusal> {
    if token.len() > JWT_BYTES_MAX {
        return Err("the JWT is longer than 8 KiB");
    }
    let (message, signature) = token.rsplit_once('.').ok_or("a JWT has three parts")?;
    let (header, claims) = message.split_once('.').ok_or("a JWT has three parts")?;
    let header = object(header).ok_or("the header of the JWT is not readable")?;
    if header["alg"].as_str() != Some(config.algorithm.as_str()) {
        return Err("the JWT has another algorithm than [server.jwt] names");
    }
    if header.get("crit").is_some() {
        return Err("the JWT demands an extension that is not understood (`crit`)");
    }
    let id = match header.get("kid") {
        None => None,
        Some(Value::String(id)) => Some(id.as_str()),
        Some(_) => return Err("the `kid` of the JWT is no text"),
    };
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| "the JWT is not readable")?;
    if !keys.verifies(id, message.as_bytes(), &signature) {
        return Err("no key of [server.jwt] has signed the JWT");
    }
    let claims = object(claims).ok_or("the claims of the JWT are not readable")?;
    check_claims(config, &claims, now_ms)
}

fn object(part: &str) -> Option<Value> {
    let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
    strict_json::parse(&bytes).ok().filter(Value::is_object)
}

fn check_claims(config: &JwtConfig, claims: &Value, now_ms: u64) -> Result<JwtBearer, JwtRefusal> {
    let leeway_ms = config.leeway.as_millis() as u64;
    let expires_ms = moment(claims, "exp")?.ok_or("the JWT has no `exp`; it must expire")?;
    if now_ms >= expires_ms.saturating_add(leeway_ms) {
        return Err("the JWT has expired");
    }
    if moment(claims, "nbf")?.is_some_and(|from_ms| now_ms.saturating_add(leeway_ms) < from_ms) {
        return Err("the JWT is not valid yet");
    }
    if !is_for(config.audience.as_deref(), claims.get("aud")) {
        return Err("the JWT is for another audience (`aud`) than [server.jwt] names");
    }
    let issuer = config.issuer.as_deref();
    if issuer.is_some_and(|issuer| claims["iss"].as_str() != Some(issuer)) {
        return Err("the JWT has another issuer (`iss`) than [server.jwt] names");
    }
    let owner = claims.get(&config.owner_claim).and_then(Value::as_str);
    let owner = owner.and_then(|owner| Name::new(owner).ok());
    let owner =
        owner.ok_or("the JWT does not name an owner in the claim that [server.jwt] sets")?;
    Ok(JwtBearer { owner, expires_ms })
}

/// A `NumericDate` in milliseconds since 1970. A moment before 1970 counts as 1970.
fn moment(claims: &Value, claim: &str) -> Result<Option<u64>, JwtRefusal> {
    let Some(value) = claims.get(claim) else { return Ok(None) };
    let seconds = value.as_f64().ok_or("a time in the JWT is no number of seconds")?;
    // The conversion saturates at the bounds of u64.
    Ok(Some((seconds * 1_000.0) as u64))
}

/// Whether a token with the claim `aud` is for `audience`. Without a configured audience, a token
/// for a particular audience is for somebody else (RFC 7519, section 4.1.3).
fn is_for(audience: Option<&str>, claim: Option<&Value>) -> bool {
    match (audience, claim) {
        (None, claim) => claim.is_none(),
        (Some(audience), Some(Value::String(one))) => one == audience,
        (Some(audience), Some(Value::Array(many))) => {
            many.iter().all(Value::is_string) && many.iter().any(|one| one == audience)
        }
        (Some(_), _) => false,
    }
}

/// Checks tokens with the keys in force, and counts the requests of each subject.
pub struct JwtVerifier {
    config: JwtConfig,
    keys: RwLock<Option<Arc<KeySet>>>,
    buckets: Mutex<HashMap<Name, TokenBucket>>,
}

impl JwtVerifier {
    /// Without keys yet: every token is refused until [`JwtVerifier::follow`] has read them.
    pub fn new(config: &JwtConfig) -> Arc<JwtVerifier> {
        let (keys, buckets) = (RwLock::new(None), Mutex::default());
        Arc::new(JwtVerifier { config: config.clone(), keys, buckets })
    }

    pub fn config(&self) -> &JwtConfig {
        &self.config
    }

    /// Reads the keys, and starts a task on the current runtime that follows changes of their file.
    pub fn follow(self: &Arc<JwtVerifier>) -> Result<(), String> {
        let keys = KeySet::read(&self.config)?;
        let seen = keys.digest.clone();
        self.set(keys);
        let hangup = signal(SignalKind::hangup()).map_err(|e| format!("no signals: {e}"))?;
        tokio::spawn(follow(self.clone(), seen, hangup));
        Ok(())
    }

    fn set(&self, keys: KeySet) {
        *self.keys.write().expect("no holder of this lock panics") = Some(Arc::new(keys));
    }

    /// Checks a token at `now_ms`.
    pub fn verify(&self, token: &str, now_ms: u64) -> Result<JwtBearer, JwtRefusal> {
        let keys = self.keys.read().expect("no holder of this lock panics").clone();
        let keys = keys.ok_or("the keys of [server.jwt] are not read yet")?;
        verify(&self.config, &keys, token, now_ms)
    }

    /// Counts one request of `owner`. The error is how long it has to wait.
    pub fn count(&self, owner: &Name, now: Duration) -> Result<(), Duration> {
        let Some(limit) = self.config.rate_limit else { return Ok(()) };
        let mut buckets = self.buckets.lock().expect("no holder of this lock panics");
        if buckets.len() >= SUBJECTS_MAX && !buckets.contains_key(owner) {
            buckets.retain(|_, bucket| bucket.is_used(now));
            if buckets.len() >= SUBJECTS_MAX {
                buckets.clear();
            }
        }
        buckets.entry(owner.clone()).or_insert_with(|| TokenBucket::new(limit)).take(now)
    }
}

/// Checks the file at an interval and at every SIGHUP; never returns. A file that cannot be used is
/// logged once, and the keys stay as they are.
async fn follow(verifier: Arc<JwtVerifier>, mut seen: Vec<u8>, mut hangup: Signal) {
    let mut said = String::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = hangup.recv() => {}
        }
        let (reader, before) = (verifier.clone(), seen.clone());
        let read = move || KeySet::read_unless(&reader.config, Some(&before));
        let read = tokio::task::spawn_blocking(read).await;
        match read.unwrap_or_else(|e| Err(format!("reading the keys of JWTs: {e}"))) {
            Ok(None) => said.clear(),
            Ok(Some(keys)) => {
                seen.clone_from(&keys.digest);
                said.clear();
                verifier.set(keys);
                tracing::info!("new keys for JWTs are in force");
            }
            Err(error) if error != said => {
                tracing::warn!("{error}; the keys for JWTs stay as they are");
                said = error;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
