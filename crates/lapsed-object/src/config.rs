//! Where the store is and how it is spoken to: a URL and a few options, and what they leave out from the
//! environment (`AWS_*`, `AZURE_*`, `GOOGLE_*`).

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::{Error, Result};
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::signer::Signer;
use object_store::{BackoffConfig, RetryConfig};

use crate::http::{Connector, MeteredTransport};

/// The default budget, in requests per hour.
pub const REQUESTS_PER_HOUR: u64 = 100_000;

/// The default time limit of one request.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The address of a store and how requests to it are sent.
#[derive(Clone)]
pub struct ObjectConfig {
    /// The store's name in the configuration, which errors contain.
    pub name: String,
    pub url: String,
    /// The address of a server other than the provider's own.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    pub access_key_id: Option<String>,
    /// S3: the secret of that access key.
    pub secret_access_key: Option<String>,
    pub account: Option<String>,
    /// Azure: the key of that account.
    pub account_key: Option<String>,
    /// Whether an endpoint may be without TLS.
    pub allow_http: bool,
    /// S3: whether the bucket is part of the host's name. Unless told: with the provider's own
    /// servers, and not with an endpoint.
    pub virtual_host: Option<bool>,
    pub requests_per_hour: u64,
    /// The time limit of one request.
    pub timeout: Duration,
}

impl std::fmt::Debug for ObjectConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectConfig")
            .field("name", &self.name)
            .field("url", &self.url)
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl ObjectConfig {
    /// The configuration of the store at `url`, with defaults for everything else.
    pub fn new(name: &str, url: &str) -> Self {
        ObjectConfig {
            name: name.to_owned(),
            url: url.to_owned(),
            endpoint: None,
            region: None,
            access_key_id: None,
            secret_access_key: None,
            account: None,
            account_key: None,
            allow_http: false,
            virtual_host: None,
            requests_per_hour: REQUESTS_PER_HOUR,
            timeout: TIMEOUT,
        }
    }

    /// Refuses options that cannot work, before any request is sent.
    pub fn check(&self) -> Result<()> {
        self.place()?;
        if self.timeout.is_zero() || self.requests_per_hour == 0 {
            return Err(Error::Invalid(format!(
                "store.{}: `timeout` and `requests_per_hour` must be above 0",
                self.name
            )));
        }
        if let Some(endpoint) = &self.endpoint
            && endpoint.starts_with("http://")
            && !self.allow_http
        {
            return Err(Error::Invalid(format!(
                "store.{}: the endpoint {endpoint:?} is without TLS; say `allow_http = true` if \
                 that is meant",
                self.name
            )));
        }
        Ok(())
    }

    /// The provider, the bucket and the prefix that the URL names.
    pub(crate) fn place(&self) -> Result<BucketLocation<'_>> {
        let wrong = || {
            Error::Invalid(format!(
                "store.{}: {:?} is not the URL of an object store; they look like \
                 `s3://bucket/prefix`, `az://container/prefix`, `gs://bucket/prefix`",
                self.name, self.url
            ))
        };
        let (scheme, rest) = self.url.split_once("://").ok_or_else(wrong)?;
        let provider = match scheme {
            "s3" => Provider::S3,
            "az" => Provider::Azure,
            "gs" => Provider::Gcs,
            _ => return Err(wrong()),
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        let prefix = prefix.trim_matches('/');
        let parts_fit = prefix.is_empty()
            || prefix.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
        let fits = !bucket.is_empty() && prefix.len() <= 128 && parts_fit;
        if fits && bucket.chars().chain(prefix.chars()).all(plain) {
            return Ok(BucketLocation { provider, bucket, prefix });
        }
        Err(wrong())
    }

    /// The client of `object_store`, which sends its requests through [`MeteredTransport`].
    pub(crate) fn client(
        &self,
        transport: &Arc<MeteredTransport>,
        signing: RequestSigning,
    ) -> Result<Client> {
        let place = self.place()?;
        match place.provider {
            Provider::S3 => self.s3(&place, Connector(transport.clone()), signing),
            Provider::Azure => self.azure(&place, Connector(transport.clone())),
            Provider::Gcs => self.gcs(&place, Connector(transport.clone())),
        }
        .map_err(|error| Error::Invalid(format!("store.{}: {error}", self.name)))
    }

    fn s3(
        &self,
        place: &BucketLocation<'_>,
        transport: Connector,
        signing: RequestSigning,
    ) -> object_store::Result<Client> {
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(place.bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_disable_bulk_delete(true)
            .with_disable_tagging(true)
            .with_retry(no_retries())
            .with_allow_http(self.allow_http)
            .with_virtual_hosted_style_request(self.virtual_host.unwrap_or(self.endpoint.is_none()))
            .with_http_connector(transport);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        if let (Some(id), Some(secret)) = (&self.access_key_id, &self.secret_access_key) {
            builder = builder.with_access_key_id(id).with_secret_access_key(secret);
        }
        if signing == RequestSigning::Omitted {
            builder = builder.with_skip_signature(true);
        }
        let client = Arc::new(builder.build()?);
        Ok(Client { objects: client.clone(), pages: client.clone(), signer: Some(client) })
    }

    fn azure(
        &self,
        place: &BucketLocation<'_>,
        transport: Connector,
    ) -> object_store::Result<Client> {
        let mut builder = MicrosoftAzureBuilder::from_env()
            .with_container_name(place.bucket)
            .with_disable_tagging(true)
            .with_retry(no_retries())
            .with_allow_http(self.allow_http)
            .with_http_connector(transport);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        if let Some(account) = &self.account {
            builder = builder.with_account(account);
        }
        if let Some(key) = &self.account_key {
            builder = builder.with_access_key(key);
        }
        let client = Arc::new(builder.build()?);
        Ok(Client { objects: client.clone(), pages: client.clone(), signer: Some(client) })
    }

    fn gcs(
        &self,
        place: &BucketLocation<'_>,
        transport: Connector,
    ) -> object_store::Result<Client> {
        let mut builder = GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(place.bucket)
            .with_retry(no_retries())
            .with_http_connector(transport);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_base_url(endpoint);
        }
        let client = Arc::new(builder.build()?);
        // Google compares generations, not ETags, when it deletes, so there is no signer.
        Ok(Client { objects: client.clone(), pages: client, signer: None })
    }
}

/// Turns off retries in the client: the caller must know which request was repeated.
fn no_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        retry_timeout: Duration::from_secs(1),
    }
}

/// Whether requests to S3 carry a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestSigning {
    Required,
    /// For a simulated bucket, which does not check signatures.
    Omitted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    S3,
    Azure,
    Gcs,
}

impl Provider {
    /// The word used in `status` and metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Provider::S3 => "s3",
            Provider::Azure => "azure",
            Provider::Gcs => "gcs",
        }
    }
}

pub(crate) struct BucketLocation<'c> {
    pub(crate) provider: Provider,
    pub(crate) bucket: &'c str,
    pub(crate) prefix: &'c str,
}

/// One client, by the interfaces of it that are used.
pub(crate) struct Client {
    pub(crate) objects: Arc<dyn object_store::ObjectStore>,
    pub(crate) pages: Arc<dyn PaginatedListStore>,
    /// Signs requests that `object_store` does not offer: a delete on the condition that the object is
    /// unchanged.
    pub(crate) signer: Option<Arc<dyn Signer>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_nonsense_is_named() {
        let config = ObjectConfig::new("main", "s3://bucket/a/b/");
        let place = config.place().unwrap();
        assert_eq!((place.provider, place.bucket, place.prefix), (Provider::S3, "bucket", "a/b"));
        assert_eq!(ObjectConfig::new("m", "az://c").place().unwrap().prefix, "");
        for bad in ["", "s3://", "ftp://x", "s3:/x", "s3://b/a//b", "s3://b/.x", "s3://b/ü"] {
            let error = ObjectConfig::new("main", bad).check().unwrap_err().to_string();
            assert!(error.contains("store.main"), "{error}");
        }
        let plain = ObjectConfig {
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            ..ObjectConfig::new("main", "s3://b")
        };
        assert!(plain.check().unwrap_err().to_string().contains("allow_http"));
        assert!(ObjectConfig { allow_http: true, ..plain }.check().is_ok());
    }
}
