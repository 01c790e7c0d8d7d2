//! Object stores: S3, Azure Blob Storage, Google Cloud Storage, and compatible servers. Credentials and settings that
//! are not given come from the environment (`AWS_*`, `AZURE_*`, `GOOGLE_*`).

use std::sync::{Arc, Mutex, PoisonError};

use lapsed_core::clock::Clock;
use lapsed_core::store::Store;
use lapsed_core::{Result, SystemId};
use lapsed_object::{LeasesLayout, ObjectConfig, ObjectLeases, ObjectStore, ProbeReport};

use super::{KeyResult, OpenedStore, StoreAddress, StoreKeys, WrongKey};

/// The longest prefix, in bytes: an object's name must have room for the escaped key after it.
const PREFIX_BYTES_MAX: usize = 128;

/// The leases on a store, by system.
type Known = Vec<(SystemId, Arc<ObjectLeases>)>;

/// An opened object store, and the systems of leases on it.
#[derive(Clone)]
pub struct OpenObject {
    name: String,
    store: Arc<ObjectStore>,
    leases: Arc<Mutex<Known>>,
}

impl OpenObject {
    pub fn store(&self) -> &Arc<ObjectStore> {
        &self.store
    }

    pub fn leases(&self, id: &SystemId, layout: LeasesLayout) -> Result<Arc<ObjectLeases>> {
        let leases = self.store.leases(id.clone(), layout)?;
        self.lock().push((id.clone(), leases.clone()));
        Ok(leases)
    }

    /// Tries the conditional operations that lapsed needs, and reports which of them the server carries out.
    pub async fn probe(&self) -> Result<ProbeReport> {
        self.store.probe().await
    }

    /// Fails if the server does not carry out the conditional operations that lapsed needs.
    pub async fn check(&self) -> Result<()> {
        self.probe().await?.verdict(&self.name)
    }

    /// The number of deleted index entries, by system.
    pub fn entries_deleted(&self) -> Vec<(SystemId, u64)> {
        self.lock().iter().map(|(id, leases)| (id.clone(), leases.entries_deleted())).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreAddress for ObjectConfig {
    fn describe(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("{} at {endpoint}", self.url),
            None => self.url.clone(),
        }
    }

    fn open(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn OpenedStore>> {
        let (name, store) = (self.name.clone(), ObjectStore::open(self.clone(), clock)?);
        Ok(Arc::new(OpenObject { name, store, leases: Arc::default() }))
    }

    fn place_of_one_system(&self) -> Option<String> {
        let endpoint = self.endpoint.as_deref().unwrap_or_default();
        Some(format!("{} {endpoint}", self.url.trim_end_matches('/')))
    }
}

impl OpenedStore for OpenObject {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
}

pub(super) fn read(
    name: &str,
    url: &str,
    keys: &dyn StoreKeys,
) -> KeyResult<Arc<dyn StoreAddress>> {
    let scheme = check_url(url)?;
    let usual = ObjectConfig::new(name, url);
    let config = ObjectConfig {
        endpoint: keys.text("endpoint")?,
        region: keys.text("region")?,
        access_key_id: keys.text("access_key_id")?,
        secret_access_key: keys.text("secret_access_key")?,
        account: keys.text("account")?,
        account_key: keys.text("account_key")?,
        allow_http: keys.flag("allow_http")?.unwrap_or(false),
        virtual_host: keys.flag("virtual_host")?,
        requests_per_hour: keys.number("requests_per_hour")?.unwrap_or(usual.requests_per_hour),
        timeout: keys.span("response_timeout")?.unwrap_or(usual.timeout),
        ..usual
    };
    check_scheme(&config, scheme)?;
    check_endpoint(&config)?;
    match (&config.access_key_id, &config.secret_access_key) {
        (Some(_), None) => {
            return Err(WrongKey::of("access_key_id", "needs `secret_access_key`, too"));
        }
        (None, Some(_)) => {
            return Err(WrongKey::of("secret_access_key", "needs `access_key_id`, too"));
        }
        _ => {}
    }
    if config.requests_per_hour == 0 {
        return Err(WrongKey::of("requests_per_hour", "must be above 0"));
    }
    Ok(Arc::new(config))
}

/// Checks an address of the form `SCHEME://BUCKET/PREFIX`, and returns its scheme.
fn check_url(url: &str) -> KeyResult<&str> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| {
        WrongKey::of("url", "an object store is written like `s3://BUCKET/PREFIX`")
    })?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if bucket.is_empty() || !bucket.chars().all(plain) {
        let what = "the bucket (or container) comes first: letters, digits, `-`, `_` and `.`, for \
                    example `s3://BUCKET/PREFIX`; credentials do not go here";
        return Err(WrongKey::of("url", what));
    }
    let prefix = prefix.trim_matches('/');
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(plain);
    let fits = prefix.len() <= PREFIX_BYTES_MAX && prefix.split('/').all(part);
    if !prefix.is_empty() && !fits {
        let what = format!(
            "the prefix after the bucket has at most {PREFIX_BYTES_MAX} bytes: letters, digits, `-`, \
             `_` and `.` between slashes, no part of it beginning with `.`"
        );
        return Err(WrongKey::of("url", &what));
    }
    Ok(scheme)
}

/// Refuses keys that do not apply to stores with this scheme.
fn check_scheme(config: &ObjectConfig, scheme: &str) -> KeyResult<()> {
    let keys = [
        ("region", config.region.is_some(), "s3"),
        ("access_key_id", config.access_key_id.is_some(), "s3"),
        ("secret_access_key", config.secret_access_key.is_some(), "s3"),
        ("virtual_host", config.virtual_host.is_some(), "s3"),
        ("account", config.account.is_some(), "az"),
        ("account_key", config.account_key.is_some(), "az"),
    ];
    match keys.into_iter().find(|(_, given, of)| *given && *of != scheme) {
        Some((key, _, of)) => {
            Err(WrongKey::of(key, &format!("is for `{of}://` only, not `{scheme}://`")))
        }
        None => Ok(()),
    }
}

fn check_endpoint(config: &ObjectConfig) -> KeyResult<()> {
    let Some(endpoint) = config.endpoint.as_deref() else { return Ok(()) };
    let is_plain = endpoint.starts_with("http://");
    if !is_plain && !endpoint.starts_with("https://") {
        return Err(WrongKey::of("endpoint", "begins with https:// or http://"));
    }
    if endpoint.contains('@') {
        return Err(WrongKey::of(
            "endpoint",
            "must not name a user: credentials have their own keys",
        ));
    }
    if is_plain && !config.allow_http {
        return Err(WrongKey::of(
            "endpoint",
            "is without TLS; say `allow_http = true` if that is meant",
        ));
    }
    Ok(())
}
