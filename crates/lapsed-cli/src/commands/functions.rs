//! `lapsed functions`: prints the function library for Redis, or loads it.

use std::path::Path;

use lapsed_core::Error;
use lapsed_redis::{Downgrade, Loaded, Redis, RedisAddress};
use serde_json::json;
use tokio::runtime::Builder;

use crate::cli::{Functions, LoadFunctions};
use lapsed_server::config::store::{NoKeys, StoreConfig, driver_at};
use lapsed_server::config::{Overrides, process_env};
use lapsed_server::failure::Failure;
use lapsed_server::node::Config;
use lapsed_server::print::{self, lines, plural};

/// Prints the library, or loads it into every target.
pub fn run(args: Functions) -> Result<(), Failure> {
    match args {
        Functions::Print => print::verbatim(Redis::functions().trim_end()),
        Functions::Load(args) => load(&args),
    }
}

fn load(args: &LoadFunctions) -> Result<(), Failure> {
    let downgrade = if args.force { Downgrade::Allow } else { Downgrade::Refuse };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    for (name, address) in targets(args)? {
        let loaded = runtime.block_on(async {
            let redis = Redis::new(&address)?;
            redis.load_functions(downgrade).await
        });
        let loaded = loaded.map_err(|error| match error {
            Error::Unsupported { .. } => Failure::failed(format!(
                "{error}. Nothing was changed; --force does it all the same"
            )),
            other => other.into(),
        })?;
        match args.output.json {
            true => print::json(&json!({
                "store": name,
                "url": address.place(),
                "before": loaded.before,
                "now": loaded.now,
                "nodes": loaded.nodes,
            }))?,
            false => lines(&describe(&address, loaded))?,
        }
    }
    Ok(())
}

/// The addresses to load the library into, each with the name of its store if a configuration gives one.
fn targets(args: &LoadFunctions) -> Result<Vec<(Option<String>, RedisAddress)>, Failure> {
    if let Some(url) = &args.url {
        let place = driver_at(url).and_then(|driver| driver.read("url", url, &NoKeys));
        let place = place.map_err(|wrong| Failure::usage(format!("--url: {}", wrong.what)))?;
        return match place.get::<RedisAddress>() {
            Some(address) => Ok(vec![(None, address.clone())]),
            None => Err(Failure::usage("--url: functions are for Redis and Valkey")),
        };
    }
    let file = args.config.as_deref().unwrap_or(Path::new("lapsed.toml"));
    let config = Config::load(Some(file), &Overrides::default(), &process_env)?;
    let wanted = |store: &&StoreConfig| args.store.as_ref().is_none_or(|name| *name == store.name);
    let redis = |store: &StoreConfig| {
        let address = store.place.get::<RedisAddress>()?;
        Some((Some(store.name.clone()), address.clone()))
    };
    let found: Vec<_> = config.stores.values().filter(wanted).filter_map(redis).collect();
    if found.is_empty() {
        let which = args
            .store
            .as_ref()
            .map_or("no store".to_owned(), |name| format!("no store named `{name}`"));
        return Err(Failure::usage(format!(
            "{}: {which} is on Redis or Valkey, which functions are for",
            file.display()
        )));
    }
    Ok(found)
}

fn describe(address: &RedisAddress, loaded: Loaded) -> String {
    let before = match loaded.before {
        Some(before) if before == loaded.now => "reloaded".to_owned(),
        Some(before) => format!("loaded in place of version {before}"),
        None => "loaded".to_owned(),
    };
    let nodes = match loaded.nodes {
        1 => String::new(),
        many => format!(", on {}", plural(many as u64, "master", "masters")),
    };
    format!("{}: version {} of the functions {before}{nodes}", address.place(), loaded.now)
}
