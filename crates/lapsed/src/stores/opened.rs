//! Opened stores, and how a system is opened on one.

use std::any::Any;
use std::sync::Arc;

use futures::future::BoxFuture;
use lapsed_core::store::Store;
use lapsed_core::{Error, Kind, Result, SystemId};

use super::driver::{StoreDriver, StoreUse};

/// What every opened store does, whatever its kind.
pub trait OpenedStore: Any + Send + Sync {
    /// The store of receipts, terms and settings.
    fn store(&self) -> Arc<dyn Store>;

    /// The number of statements sent to the store; none if they are not counted.
    fn statements(&self) -> Option<u64> {
        None
    }

    /// The policy by which the server removes keys when its memory is full; `None` if it removes none, or does not
    /// say.
    fn eviction_policy(&self) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(async { Ok(None) })
    }

    /// Tries whether this user may write what the systems write that were opened on this store. Their data do not
    /// change. Answers one sentence for each fault; an error if the store does not answer.
    fn write_faults(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Flushes and closes the store. Blocking.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// What systems of one kind are opened from. Its value has the settings of one system.
pub trait SystemSpec: 'static {
    const KIND: Kind;
    /// What a store returns for a system of this kind.
    type Opened: 'static;
}

/// What opening a system returns.
pub type Opened<S> = Result<<S as SystemSpec>::Opened>;

/// A store that carries systems of one kind. The implementation is in the file of the kind or in that of the store.
pub trait Carries<S: SystemSpec>: OpenedStore {
    fn open_system(&self, id: &SystemId, spec: S) -> Opened<S>;
}

/// Opens a system, given the store, its id and its settings, without their types.
type OpenErased = fn(&dyn Any, &SystemId, Box<dyn Any>) -> Result<Box<dyn Any>>;

/// An element of the list of kinds that a driver supports.
#[derive(Debug)]
pub struct CarriedKind {
    pub(super) kind: Kind,
    open: OpenErased,
}

/// Says that stores of the type `T` carry the kind of `S`.
#[allow(dead_code)] // A build without any store does not call it.
pub(super) const fn carried<T: Carries<S>, S: SystemSpec>() -> CarriedKind {
    CarriedKind {
        kind: S::KIND,
        open: |store, id, spec| {
            let store = store.downcast_ref::<T>().expect("the driver opened this type of store");
            let spec = spec.downcast::<S>().expect("a kind has one type of settings");
            Ok(Box::new(store.open_system(id, *spec)?))
        },
    }
}

/// An opened store of any driver. A clone is another handle of the same store.
#[derive(Clone)]
pub struct OpenStore {
    driver: &'static StoreDriver,
    opened: Arc<dyn OpenedStore>,
}

impl OpenStore {
    pub(super) fn new(driver: &'static StoreDriver, opened: Arc<dyn OpenedStore>) -> OpenStore {
        OpenStore { driver, opened }
    }

    /// The store of receipts, terms and settings.
    pub fn store(&self) -> Arc<dyn Store> {
        self.opened.store()
    }

    /// Who uses the store.
    pub fn used_by(&self) -> StoreUse {
        self.driver.used_by
    }

    /// The store, if it is one of the type `T`.
    pub fn get<T: OpenedStore>(&self) -> Option<&T> {
        (&*self.opened as &dyn Any).downcast_ref()
    }

    /// The object store; none if it is another kind of store.
    #[cfg(feature = "object")]
    pub fn object(&self) -> Option<&super::object::OpenObject> {
        self.get()
    }

    /// The number of statements sent to the store; none if they are not counted.
    pub fn statements(&self) -> Option<u64> {
        self.opened.statements()
    }

    pub async fn eviction_policy(&self) -> Result<Option<String>> {
        self.opened.eviction_policy().await
    }

    pub async fn write_faults(&self) -> Result<Vec<String>> {
        self.opened.write_faults().await
    }

    /// Opens the system `id` on this store.
    pub fn open_system<S: SystemSpec>(&self, id: &SystemId, spec: S) -> Opened<S> {
        let Some(carried) = self.driver.carried(S::KIND) else {
            return Err(unsupported(id, self.driver.title));
        };
        let opened = (carried.open)(&*self.opened as &dyn Any, id, Box::new(spec))?;
        Ok(*opened.downcast().expect("a kind has one type of opened systems"))
    }

    /// Flushes and closes the store. Blocking.
    pub fn close(self) -> Result<()> {
        self.opened.close()
    }
}

/// The error for a system that a store does not carry.
pub(crate) fn unsupported(id: &SystemId, store: &str) -> Error {
    Error::Unsupported { operation: id.kind.to_string(), store: store.to_owned() }
}
