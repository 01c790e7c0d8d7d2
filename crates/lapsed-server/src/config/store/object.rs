//! `[store.NAME]` of an object store: its address, credentials and limits.

use std::time::Duration;

use super::{StoreSection, Wrong};
use crate::config::secret::Secret;

/// The URL schemes of object stores.
pub const SCHEMES: &[&str] = &["s3", "az", "gs"];

/// The default budget of requests per hour.
const REQUESTS_PER_HOUR: u64 = 100_000;

/// The default time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The longest prefix, in bytes: an object's name must have room for the escaped key after it.
const PREFIX_BYTES_MAX: usize = 128;

/// An object store. Credentials and settings that are not given here come from the environment
/// (`AWS_*`, `AZURE_*`, `GOOGLE_*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPlace {
    pub url: String,
    /// The address of a server other than the provider's own.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// S3: the access key id and its secret.
    pub access_key: Option<(String, Secret)>,
    pub account: Option<String>,
    /// Azure: the key of the storage account.
    pub account_key: Option<Secret>,
    /// Whether the endpoint may be plain HTTP.
    pub allow_http: bool,
    /// S3: whether the bucket is part of the host name.
    pub virtual_host: Option<bool>,
    pub requests_per_hour: u64,
    /// The time limit of one request.
    pub timeout: Duration,
}

impl ObjectPlace {
    /// Reads and checks the section; nothing is sent to the store.
    pub fn plan(section: &StoreSection) -> Result<ObjectPlace, Wrong> {
        let scheme = check_url(&section.url)?;
        check_belongs(section, scheme)?;
        check_endpoint(section)?;
        let access_key = match (&section.access_key_id, &section.secret_access_key) {
            (Some(id), Some(secret)) => Some((id.clone(), Secret::new(secret))),
            (None, None) => None,
            (Some(_), None) => {
                return Err(Wrong::of("access_key_id", "needs `secret_access_key`, too"));
            }
            (None, Some(_)) => {
                return Err(Wrong::of("secret_access_key", "needs `access_key_id`, too"));
            }
        };
        if section.requests_per_hour == Some(0) {
            return Err(Wrong::of("requests_per_hour", "must be above 0"));
        }
        Ok(ObjectPlace {
            url: section.url.clone(),
            endpoint: section.endpoint.clone(),
            region: section.region.clone(),
            access_key,
            account: section.account.clone(),
            account_key: section.account_key.as_deref().map(Secret::new),
            allow_http: section.allow_http.unwrap_or(false),
            virtual_host: section.virtual_host,
            requests_per_hour: section.requests_per_hour.unwrap_or(REQUESTS_PER_HOUR),
            timeout: section.response_timeout.map_or(TIMEOUT, |span| span.0),
        })
    }

    /// A description of where the store is, without secrets.
    pub fn describe(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("{} at {endpoint}", self.url),
            None => self.url.clone(),
        }
    }
}

/// Checks an address of the form `SCHEME://BUCKET/PREFIX`, and returns its scheme.
fn check_url(url: &str) -> Result<&str, Wrong> {
    let (scheme, rest) = url
        .split_once("://")
        .ok_or_else(|| Wrong::of("url", "an object store is written like `s3://BUCKET/PREFIX`"))?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if bucket.is_empty() || !bucket.chars().all(plain) {
        let what = "the bucket (or container) comes first: letters, digits, `-`, `_` and `.`, for \
                    example `s3://BUCKET/PREFIX`; credentials do not go here";
        return Err(Wrong::of("url", what));
    }
    let prefix = prefix.trim_matches('/');
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(plain);
    let fits = prefix.len() <= PREFIX_BYTES_MAX && prefix.split('/').all(part);
    if !prefix.is_empty() && !fits {
        let what = format!(
            "the prefix after the bucket has at most {PREFIX_BYTES_MAX} bytes: letters, digits, `-`, \
             `_` and `.` between slashes, no part of it beginning with `.`"
        );
        return Err(Wrong::of("url", &what));
    }
    Ok(scheme)
}

/// Refuses keys that do not apply to stores with this scheme.
fn check_belongs(section: &StoreSection, scheme: &str) -> Result<(), Wrong> {
    let of_s3 = [
        ("region", section.region.is_some()),
        ("access_key_id", section.access_key_id.is_some()),
        ("secret_access_key", section.secret_access_key.is_some()),
        ("virtual_host", section.virtual_host.is_some()),
    ];
    let of_azure =
        [("account", section.account.is_some()), ("account_key", section.account_key.is_some())];
    let mut keys = of_s3.iter().map(|(key, given)| (*key, *given, "s3"));
    let mut more = of_azure.iter().map(|(key, given)| (*key, *given, "az"));
    let stray = |(_, given, of): &(&'static str, bool, &str)| *given && *of != scheme;
    match keys.find(stray).or_else(|| more.find(stray)) {
        Some((key, _, of)) => {
            Err(Wrong::of(key, &format!("is for `{of}://` only, not `{scheme}://`")))
        }
        None => Ok(()),
    }
}

fn check_endpoint(section: &StoreSection) -> Result<(), Wrong> {
    let Some(endpoint) = section.endpoint.as_deref() else { return Ok(()) };
    let is_plain = endpoint.starts_with("http://");
    if !is_plain && !endpoint.starts_with("https://") {
        return Err(Wrong::of("endpoint", "begins with https:// or http://"));
    }
    if endpoint.contains('@') {
        return Err(Wrong::of("endpoint", "must not name a user: credentials have their own keys"));
    }
    if is_plain && section.allow_http != Some(true) {
        return Err(Wrong::of(
            "endpoint",
            "is without TLS; say `allow_http = true` if that is meant",
        ));
    }
    Ok(())
}
