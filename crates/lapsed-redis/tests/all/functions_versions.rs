//! The function library is loaded, stays, and is replaced by newer versions, on clusters and with shards, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapsed_core::owner::Claim;
use lapsed_core::registry::RegistryStore;
use lapsed_core::{Error, Kind, Name};
use lapsed_redis::{Downgrade, FUNCTIONS_VERSION, Redis, shard_of};
use lapsed_testbed::{Engine, RedisServer};

use crate::caller::{Caller, first};
use crate::fixture::{CLUSTER, connect, id, layout};

lapsed_testbed::steady_async_tests! {
    loading_twice_changes_nothing,
    calls_go_on_during_an_upgrade,
    a_newer_version_stays,
    on_every_master_of_a_cluster,
}

/// Reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

/// The library as another version would bring it.
fn version(number: u32) -> String {
    let line = |number: u32| format!("local VERSION = {number}\n");
    let text = Redis::functions();
    assert!(text.contains(&line(FUNCTIONS_VERSION)));
    text.replace(&line(FUNCTIONS_VERSION), &line(number))
}

async fn loading_twice_changes_nothing() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let redis = connect(&server.url());
        let first = redis.load_functions(Downgrade::Refuse).await.unwrap();
        assert_eq!((first.before, first.now, first.nodes), (None, FUNCTIONS_VERSION, 1));
        let second = redis.load_functions(Downgrade::Refuse).await.unwrap();
        assert_eq!(second.before, Some(FUNCTIONS_VERSION));
        let mut caller = Caller::bare(&server);
        assert_eq!(caller.must("lapsed_version", &[], &[]), FUNCTIONS_VERSION.to_string());
    }
}

/// An upgrade in place: no call fails, none is carried out twice or by half.
async fn calls_go_on_during_an_upgrade() {
    for engine in Engine::ALL {
        let server = Arc::new(RedisServer::start(engine).unwrap());
        let mut caller = Caller::bare(&server);
        caller.call(&["FUNCTION", "LOAD", &version(0)]).unwrap();
        let redis = connect(&server.url());
        let layout = layout(1);
        let hash = layout.registry_key.clone();
        let registry = redis.registry(id(Kind::Registry), layout).unwrap();
        let system = lapsed_core::sweep::Sweep::system(&registry).name.to_string();
        let life =
            first(&caller.must("lapsed_registry_start", &[&hash], &[&system, "i-1", "60000"]));

        let done = Arc::new(AtomicBool::new(false));
        let (tell, begun) = std::sync::mpsc::channel();
        let calls = std::thread::spawn({
            let (done, server, life) = (done.clone(), server.clone(), life.clone());
            move || {
                let mut caller = Caller::bare(&server);
                let (mut count, mut versions) = (0, Vec::new());
                loop {
                    let is_last = done.load(Ordering::Acquire);
                    let key = format!("k-{count}");
                    let args = [system.as_str(), "i-1", &life, &key];
                    assert_eq!(caller.must("lapsed_registry_register", &[&hash], &args), "new");
                    versions.push(caller.must("lapsed_version", &[], &[]));
                    versions.dedup();
                    count += 1;
                    let _ = tell.send(());
                    if is_last {
                        break;
                    }
                }
                (count, versions)
            }
        });
        begun.recv_timeout(PATIENCE).expect("the old version is called");
        for _ in 0..20 {
            let loaded = redis.load_functions(Downgrade::Refuse).await.unwrap();
            assert!(loaded.before.is_some());
        }
        done.store(true, Ordering::Release);
        let (count, versions) = calls.join().unwrap();
        assert_eq!(versions, ["0", &FUNCTIONS_VERSION.to_string()]);
        let claim = Claim::exact(
            Name::new("i-1").unwrap(),
            lapsed_core::owner::Incarnation(life.parse().unwrap()),
        );
        let held = registry.entries(&claim, None, 1_000_000).await.unwrap();
        assert_eq!(held.len(), count);
    }
}

async fn a_newer_version_stays() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let (mut caller, redis) = (Caller::bare(&server), connect(&server.url()));
        for (other, told) in [
            (version(FUNCTIONS_VERSION + 1), "newer"),
            (
                "#!lua name=lapsed\nredis.register_function('mine', function() return 1 end)"
                    .to_owned(),
                "not lapsed's",
            ),
        ] {
            caller.call(&["FUNCTION", "LOAD", "REPLACE", &other]).unwrap();
            let refused = redis.load_functions(Downgrade::Refuse).await;
            assert!(
                matches!(&refused, Err(Error::Unsupported { operation, .. }) if operation.contains(told)),
                "{refused:?}"
            );
            let listed = caller.call(&["FUNCTION", "LIST", "WITHCODE"]).unwrap().to_string();
            assert!(listed.contains(other.lines().nth(1).unwrap()), "it was replaced");
            let forced = redis.load_functions(Downgrade::Allow).await.unwrap();
            assert_eq!(forced.now, FUNCTIONS_VERSION);
            assert_eq!(caller.must("lapsed_version", &[], &[]), FUNCTIONS_VERSION.to_string());
        }
    }
}

/// Every master gets it, and a caller that picks each key's shard meets lapsed there.
async fn on_every_master_of_a_cluster() {
    const SHARDS: usize = 3;
    let redis = connect(&CLUSTER.url());
    let loaded = redis.load_functions(Downgrade::Refuse).await.unwrap();
    assert_eq!(loaded.nodes, 3);
    let layout = layout(SHARDS);
    let hash = layout.registry_key.clone();
    let registry = redis.registry(id(Kind::Registry), layout).unwrap();
    let system = lapsed_core::sweep::Sweep::system(&registry).name.to_string();
    let hash_of = |shard: usize| format!("{hash}/{shard}");
    let on = |key: &str, name: &str, args: &[&str]| {
        let node = CLUSTER.master_of_slot(lapsed_redis::slot(key)).unwrap();
        Caller::bare(&CLUSTER.nodes()[node]).must(
            name,
            &[key],
            &[&[system.as_str()], args].concat(),
        )
    };
    let life = first(&on(&hash_of(0), "lapsed_registry_start", &["i-1", "60000"]));
    for shard in 1..SHARDS {
        for _ in 0..2 {
            let told = on(&hash_of(shard), "lapsed_registry_start", &["i-1", "60000", &life]);
            assert_eq!(first(&told), life, "begun once, under the first one's number");
        }
    }
    let keys: Vec<Name> = (0..50).map(|n| Name::new(&format!("k-{n}")).unwrap()).collect();
    for key in &keys {
        let hash = hash_of(shard_of(key.as_str(), SHARDS));
        assert_eq!(on(&hash, "lapsed_registry_register", &["i-1", &life, key.as_str()]), "new");
    }
    let found = registry.find(&keys).await.unwrap();
    assert!(found.iter().flatten().all(|found| found.holder.incarnation.to_string() == life));
    assert_eq!(found.iter().flatten().count(), keys.len());
}
