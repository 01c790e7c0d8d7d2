//! Opening a store by its URL.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::{Error, Result};

use crate::stores::{KeyResult, OpenStore, StoreDriver, StoreKeys};

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
    texts: BTreeMap<&'static str, String>,
    allow_http: Option<bool>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        let clock = SystemClock::shared();
        OpenOptions { clock, texts: BTreeMap::new(), allow_http: None }
    }
}

impl StoreKeys for OpenOptions {
    fn text(&self, key: &'static str) -> KeyResult<Option<String>> {
        Ok(self.texts.get(key).cloned())
    }

    fn flag(&self, key: &'static str) -> KeyResult<Option<bool>> {
        Ok(self.allow_http.filter(|_| key == "allow_http"))
    }
}

impl OpenOptions {
    /// The options that [`open`] uses.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    fn set(mut self, key: &'static str, text: &str) -> Self {
        self.texts.insert(key, text.to_owned());
        self
    }

    /// Object stores: the address of a server other than the provider's default.
    pub fn endpoint(self, url: &str) -> Self {
        self.set("endpoint", url)
    }

    /// S3: the region of the bucket.
    pub fn region(self, region: &str) -> Self {
        self.set("region", region)
    }

    /// S3: the id and the secret of an access key.
    pub fn access_key(self, id: &str, secret: &str) -> Self {
        self.set("access_key_id", id).set("secret_access_key", secret)
    }

    /// Azure: the storage account and its key.
    pub fn account(self, account: &str, key: &str) -> Self {
        self.set("account", account).set("account_key", key)
    }

    /// Object stores: permits an endpoint without TLS.
    pub fn allow_http(mut self) -> Self {
        self.allow_http = Some(true);
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
        let driver = StoreDriver::of_url(url, |_| true)?;
        driver.read("the store", url, self)?.open(self.clock.clone())
    }
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
