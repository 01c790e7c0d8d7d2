//! Opens the stores of a configuration. How a system is assembled on one is in `lapsed::assembly`.

use std::sync::Arc;

use lapsed_core::clock::Clock;
use lapsed_object::ObjectConfig;
use lapsed_postgres::Postgres;
use lapsed_redis::{Redis, Template};

pub use lapsed::assembly::{ChangeSources, OpenObject, OpenStore};

use crate::config::store::object::ObjectPlace;
use crate::config::store::{StoreConfig, StoreLocation};

/// Opens a store. Blocks the thread, and must be called inside a Tokio runtime. A Redis or Postgres
/// server is not contacted here: the first call to the store connects.
pub fn open(config: &StoreConfig, clock: Arc<dyn Clock>) -> lapsed_core::Result<OpenStore> {
    match &config.place {
        StoreLocation::Embedded { dir, cache_bytes } => {
            OpenStore::embedded(dir, *cache_bytes, clock)
        }
        StoreLocation::Redis(address) => Ok(OpenStore::Redis(Redis::with_clock(address, clock)?)),
        StoreLocation::Object(place) => {
            Ok(OpenStore::Object(OpenObject::open(object_config(config, place), clock)?))
        }
        StoreLocation::Postgres(address) => {
            Ok(OpenStore::Postgres(Postgres::with_clock(address, clock)?))
        }
    }
}

fn object_config(config: &StoreConfig, place: &ObjectPlace) -> ObjectConfig {
    let key = place.access_key.as_ref();
    let (id, secret) = key.map(|(id, secret)| (id.clone(), secret.reveal().to_owned())).unzip();
    ObjectConfig {
        endpoint: place.endpoint.clone(),
        region: place.region.clone(),
        access_key_id: id,
        secret_access_key: secret,
        account: place.account.clone(),
        account_key: place.account_key.as_ref().map(|key| key.reveal().to_owned()),
        allow_http: place.allow_http,
        virtual_host: place.virtual_host,
        requests_per_hour: place.requests_per_hour,
        timeout: place.timeout,
        ..ObjectConfig::new(&config.name, &place.url)
    }
}

/// Parses `text`, the name of a Redis key that must contain `{place}`. `key` is the configuration
/// key that the error message names.
pub fn template(key: &str, text: &str, place: &str) -> lapsed_core::Result<Template> {
    let wrong = || lapsed_core::Error::Invalid(format!("`{key}` must contain `{{{place}}}`"));
    Template::new(text, place).ok_or_else(wrong)
}
