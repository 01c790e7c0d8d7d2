//! Opening a store by its URL.

use std::path::Path;
use std::sync::Arc;

use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::{Error, Kind, Result};

use crate::assembly::OpenStore;
use crate::availability::AvailabilityBuilder;
use crate::common::Settings;
use crate::inflight::InflightBuilder;
use crate::leases::LeasesBuilder;
use crate::registry::RegistryBuilder;
use crate::sessions::SessionsBuilder;

/// Opens the store at `url`.
///
/// `embedded:DIR` is a folder of this machine, which one process at a time may use. The data of `memory:` are
/// lost when the last handle is dropped. The first call that needs a server connects to it.
/// Credentials of an object store come from the environment (`AWS_*`, `AZURE_*`, `GOOGLE_*`); an
/// endpoint of your own is given by [`OpenOptions`].
///
/// # Errors
/// [`Error::Invalid`] when the URL is not one of a store, or its feature is off;
/// [`Error::Unavailable`] when the folder is in use or cannot be written.
pub async fn open(url: &str) -> Result<Lapsed> {
    OpenOptions::new().open(url).await
}

/// Options for opening a store that its URL does not contain.
#[derive(Clone)]
#[must_use]
pub struct OpenOptions {
    clock: Arc<dyn Clock>,
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) access_key: Option<(String, String)>,
    pub(crate) account: Option<String>,
    pub(crate) account_key: Option<String>,
    pub(crate) allow_http: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            clock: SystemClock::shared(),
            endpoint: None,
            region: None,
            access_key: None,
            account: None,
            account_key: None,
            allow_http: false,
        }
    }
}

impl OpenOptions {
    /// The options that [`open`] uses.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Object stores: the address of a server other than the provider's default.
    pub fn endpoint(mut self, url: &str) -> Self {
        self.endpoint = Some(url.to_owned());
        self
    }

    /// S3: the region of the bucket.
    pub fn region(mut self, region: &str) -> Self {
        self.region = Some(region.to_owned());
        self
    }

    /// S3: the id and the secret of an access key.
    pub fn access_key(mut self, id: &str, secret: &str) -> Self {
        self.access_key = Some((id.to_owned(), secret.to_owned()));
        self
    }

    /// Azure: the storage account and its key.
    pub fn account(mut self, account: &str, key: &str) -> Self {
        (self.account, self.account_key) = (Some(account.to_owned()), Some(key.to_owned()));
        self
    }

    /// Object stores: permits an endpoint without TLS.
    pub fn allow_http(mut self) -> Self {
        self.allow_http = true;
        self
    }

    /// The clock of this process, for tests that move time by hand.
    #[doc(hidden)]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the store at `url`; see [`open`].
    ///
    /// # Errors
    /// The same as those of [`open`].
    pub async fn open(self, url: &str) -> Result<Lapsed> {
        let (url, clock) = (url.to_owned(), self.clock.clone());
        // Opening an embedded store reads its file, which blocks.
        let opening = tokio::task::spawn_blocking(move || self.open_now(&url));
        let store = opening.await.map_err(|error| Error::Unavailable {
            store: "the store".to_owned(),
            what: format!("opening it failed: {error}"),
        })??;
        let process = format!("process-{}-{:016x}", std::process::id(), clock.random());
        Ok(Lapsed { inner: Arc::new(Inner { store, clock, process }) })
    }

    fn open_now(&self, url: &str) -> Result<OpenStore> {
        let (scheme, rest) = url.split_once(':').ok_or_else(no_scheme)?;
        match scheme {
            "memory" if rest.is_empty() => OpenStore::memory(self.clock.clone()),
            "memory" => Err(Error::Invalid("`memory:` takes nothing after the colon".to_owned())),
            "embedded" if rest.is_empty() => Err(Error::Invalid(
                "`embedded:` needs a folder, for example `embedded:./lapsed-data`".to_owned(),
            )),
            "embedded" => OpenStore::embedded(Path::new(rest), None, self.clock.clone()),
            _ if is_redis(scheme) => OpenStore::redis_url(url, self.clock.clone()),
            "postgres" | "postgresql" => OpenStore::postgres_url(url, self.clock.clone()),
            "s3" | "az" | "gs" => OpenStore::object_url(url, self, self.clock.clone()),
            other => Err(unknown(other)),
        }
    }
}

fn is_redis(scheme: &str) -> bool {
    let server = scheme.strip_suffix("+cluster").unwrap_or(scheme);
    matches!(server, "redis" | "rediss" | "valkey" | "valkeys")
}

fn no_scheme() -> Error {
    let what = "a store's URL starts with its kind, for example `embedded:./lapsed-data`";
    Error::Invalid(what.to_owned())
}

fn unknown(scheme: &str) -> Error {
    Error::Invalid(format!(
        "`{scheme}` is no kind of store; this version knows `embedded:DIR`, `memory:`, \
         `redis://HOST:PORT/0`, `rediss://`, `redis+cluster://HOST:PORT,HOST:PORT`, \
         `postgres://USER:PASSWORD@HOST/DATABASE`, `s3://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` \
         and `gs://BUCKET/PREFIX`"
    ))
}

/// An opened store, on which systems are built. A clone is another handle of the same store.
#[derive(Clone)]
pub struct Lapsed {
    inner: Arc<Inner>,
}

struct Inner {
    store: OpenStore,
    clock: Arc<dyn Clock>,
    process: String,
}

impl Lapsed {
    /// A registry: which instance holds a connection.
    pub fn registry(&self, name: &str) -> RegistryBuilder {
        RegistryBuilder::new(Settings::new(self, Kind::Registry, name))
    }

    /// Sessions that are kept while somebody is connected, and a grace period longer.
    pub fn sessions(&self, name: &str) -> SessionsBuilder {
        SessionsBuilder::new(Settings::new(self, Kind::Sessions, name))
    }

    /// Jobs that go back to their queue when their worker dies.
    pub fn inflight(&self, name: &str) -> InflightBuilder {
        InflightBuilder::new(Settings::new(self, Kind::Inflight, name))
    }

    /// Leases with a fencing token, and decisions of transactions.
    pub fn leases(&self, name: &str) -> LeasesBuilder {
        LeasesBuilder::new(Settings::new(self, Kind::Leases, name))
    }

    /// Providers that are set offline when their heartbeats stop.
    pub fn availability(&self, name: &str) -> AvailabilityBuilder {
        AvailabilityBuilder::new(Settings::new(self, Kind::Availability, name))
    }

    pub(crate) fn store(&self) -> &OpenStore {
        &self.inner.store
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    pub(crate) fn process(&self) -> &str {
        &self.inner.process
    }
}
