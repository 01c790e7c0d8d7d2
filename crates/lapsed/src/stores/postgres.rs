//! PostgreSQL.

use std::sync::Arc;

use futures::future::BoxFuture;
use lapsed_core::Result;
use lapsed_core::clock::Clock;
use lapsed_core::store::Store;
use lapsed_postgres::{Postgres, PostgresAddress};

use super::{KeyResult, OpenedStore, StoreAddress, StoreKeys, WrongKey};

/// The most connections that one process may have to a database.
const CONNECTIONS_MAX: usize = 1_000;

pub(super) fn read(
    _name: &str,
    url: &str,
    keys: &dyn StoreKeys,
) -> KeyResult<Arc<dyn StoreAddress>> {
    let usual = PostgresAddress::new(url);
    let connections = keys.number("connections")?.map(|number| number as usize);
    let address = PostgresAddress {
        connect_timeout: keys.span("connect_timeout")?.unwrap_or(usual.connect_timeout),
        call_timeout: keys.span("response_timeout")?.unwrap_or(usual.call_timeout),
        connections: connections.unwrap_or(usual.connections),
        prefix: keys.text("table_prefix")?.unwrap_or_else(|| usual.prefix.clone()),
        ..usual
    };
    if !(1..=CONNECTIONS_MAX).contains(&address.connections) {
        return Err(WrongKey::of("connections", &format!("must be 1 to {CONNECTIONS_MAX}")));
    }
    address.check()?;
    Ok(Arc::new(address))
}

impl StoreAddress for PostgresAddress {
    fn describe(&self) -> String {
        self.place()
    }

    fn open(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn OpenedStore>> {
        Ok(Arc::new(Postgres::with_clock(self, clock)?))
    }
}

impl OpenedStore for Postgres {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn write_faults(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(Postgres::write_faults(self))
    }

    fn statements(&self) -> Option<u64> {
        Some(Postgres::statements(self))
    }
}
