//! Redis and Valkey, a single server or a cluster.

use std::sync::Arc;

use futures::future::BoxFuture;
use lapsed_core::Result;
use lapsed_core::clock::Clock;
use lapsed_core::store::Store;
use lapsed_redis::{Redis, RedisAddress};

use super::{KeyResult, OpenedStore, StoreAddress, StoreKeys};

pub(super) fn read(
    _name: &str,
    url: &str,
    keys: &dyn StoreKeys,
) -> KeyResult<Arc<dyn StoreAddress>> {
    let usual = RedisAddress::new(url);
    let address = RedisAddress {
        connect_timeout: keys.span("connect_timeout")?.unwrap_or(usual.connect_timeout),
        response_timeout: keys.span("response_timeout")?.unwrap_or(usual.response_timeout),
        ..usual
    };
    address.check()?;
    Ok(Arc::new(address))
}

impl StoreAddress for RedisAddress {
    fn describe(&self) -> String {
        self.place()
    }

    fn data_place(&self) -> String {
        self.database()
    }

    fn open(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn OpenedStore>> {
        Ok(Arc::new(Redis::with_clock(self, clock)?))
    }
}

impl OpenedStore for Redis {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn eviction_policy(&self) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(self.eviction())
    }

    fn write_faults(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(Redis::write_faults(self))
    }
}
