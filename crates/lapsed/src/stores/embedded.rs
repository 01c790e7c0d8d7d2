//! The embedded store: a folder of this machine, or the memory of this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytesize::ByteSize;
use lapsed_core::Result;
use lapsed_core::clock::Clock;
use lapsed_core::store::Store;
use lapsed_embedded::{Embedded, Options};

use super::{KeyResult, OpenedStore, StoreAddress, StoreKeys};

/// The folder of an embedded store.
#[derive(Clone, Debug)]
pub struct EmbeddedFolder {
    pub dir: PathBuf,
    /// The size of its cache in bytes; the store's own default if absent.
    cache_bytes: Option<usize>,
}

/// An embedded store in the memory of this process; its data are lost when the last handle is dropped.
#[derive(Debug)]
struct EmbeddedMemory;

impl EmbeddedFolder {
    pub fn new(dir: PathBuf) -> std::result::Result<EmbeddedFolder, String> {
        if dir.as_os_str().is_empty() {
            return Err("`embedded:` needs a folder, for example `embedded:./lapsed-data`".into());
        }
        if dir.exists() && !dir.is_dir() {
            return Err(format!("{} is not a folder", dir.display()));
        }
        Ok(EmbeddedFolder { dir, cache_bytes: None })
    }
}

/// Reads `embedded:DIR` and `embedded:DIR?cache=SIZE`.
pub(super) fn read(
    _name: &str,
    url: &str,
    _keys: &dyn StoreKeys,
) -> KeyResult<Arc<dyn StoreAddress>> {
    let (_, rest) = url.split_once(':').unwrap_or_default();
    let (dir, query) = match rest.split_once('?') {
        Some((dir, query)) => (dir, Some(query)),
        None => (rest, None),
    };
    let mut cache_bytes = None;
    for pair in query.into_iter().flat_map(|q| q.split('&')) {
        match pair.split_once('=') {
            Some(("cache", size)) => cache_bytes = Some(parse_size(size)?),
            _ => {
                let what = format!("unknown option {pair:?}; `?cache=256MiB` is the only one");
                return Err(what.into());
            }
        }
    }
    Ok(Arc::new(EmbeddedFolder { cache_bytes, ..EmbeddedFolder::new(PathBuf::from(dir))? }))
}

/// Reads `memory:`, an embedded store that leaves no files.
pub(super) fn read_memory(
    _name: &str,
    url: &str,
    _keys: &dyn StoreKeys,
) -> KeyResult<Arc<dyn StoreAddress>> {
    match url {
        "memory:" => Ok(Arc::new(EmbeddedMemory)),
        _ => Err("`memory:` takes nothing after the colon".to_owned().into()),
    }
}

/// Parses a number of bytes: `1048576`, `512KiB`, `1MB`.
pub fn parse_size(text: &str) -> std::result::Result<usize, String> {
    let garbage = || format!("{text:?} is not a size; write it like `512KiB` or `1MiB`");
    let ByteSize(bytes) = text.trim().parse().map_err(|_| garbage())?;
    match usize::try_from(bytes) {
        Ok(0) => Err(format!("the size {text:?} must be above 0")),
        // The parser returns the largest number for a value that does not fit.
        Ok(usize::MAX) | Err(_) => Err(garbage()),
        Ok(bytes) => Ok(bytes),
    }
}

impl StoreAddress for EmbeddedFolder {
    fn describe(&self) -> String {
        format!("embedded:{}", self.dir.display())
    }

    fn open(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn OpenedStore>> {
        let usual = Options { clock, ..Options::default() };
        let cache_bytes = self.cache_bytes.unwrap_or(usual.cache_bytes);
        Ok(Arc::new(Embedded::open(&self.dir, Options { cache_bytes, ..usual })?))
    }

    fn exclusive_place(&self) -> Option<String> {
        Some(resolved(&self.dir).display().to_string())
    }
}

impl StoreAddress for EmbeddedMemory {
    fn describe(&self) -> String {
        "memory:".to_owned()
    }

    fn open(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn OpenedStore>> {
        Ok(Arc::new(Embedded::in_memory(Options { clock, ..Options::default() })?))
    }
}

impl OpenedStore for Embedded {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn close(&self) -> Result<()> {
        self.clone().close()
    }
}

/// The absolute path of the folder, with symbolic links resolved if the folder exists.
fn resolved(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    std::fs::canonicalize(&absolute).unwrap_or_else(|_| absolute.components().collect())
}
