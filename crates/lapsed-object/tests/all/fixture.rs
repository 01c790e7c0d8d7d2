//! Stores on real servers, each test below a prefix of its own.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapsed::clock::{Clock, SystemClock};
use lapsed::leases::conformance::Fixture;
use lapsed::store::Store;
use lapsed::{Kind, SystemId};
use lapsed_object::{LeasesLayout, ObjectConfig, ObjectLeases, ObjectStore};
use lapsed_testbed::{HttpProxy, ObjectEngine, ObjectServer};

/// Long enough for a busy machine, short enough to be waited for.
pub const TTL: Duration = Duration::from_secs(2);
/// The narrowest bucket there is.
pub const BUCKET: Duration = Duration::from_secs(1);

/// A prefix that nobody else uses.
pub fn prefix() -> String {
    format!("t{:016x}", SystemClock::new().random())
}

/// How to reach a server by way of a port, below a prefix.
pub fn config(server: &ObjectServer, port: u16, prefix: &str) -> ObjectConfig {
    let (id, secret) = server.credentials();
    let (id, secret) = (Some(id.to_owned()), Some(secret.to_owned()));
    let config = ObjectConfig {
        endpoint: Some(server.endpoint_by(port)),
        allow_http: true,
        timeout: Duration::from_secs(20),
        ..ObjectConfig::new("main", &format!("{}/{prefix}", server.url()))
    };
    match server.engine() {
        ObjectEngine::Azurite => ObjectConfig { account: id, account_key: secret, ..config },
        _ => ObjectConfig {
            access_key_id: id,
            secret_access_key: secret,
            region: Some("us-east-1".to_owned()),
            ..config
        },
    }
}

pub fn open(config: ObjectConfig) -> Arc<ObjectStore> {
    ObjectStore::open(config, SystemClock::shared()).unwrap()
}

pub fn system() -> SystemId {
    SystemId::new(Kind::Leases, "default").unwrap()
}

/// Narrow buckets, and little patience with whoever died.
pub fn layout() -> LeasesLayout {
    LeasesLayout { bucket: BUCKET, log_patience: Duration::from_secs(3), ..LeasesLayout::default() }
}

/// Leases on a server, below a prefix of their own.
pub struct Site {
    pub prefix: String,
    pub store: Arc<ObjectStore>,
    pub leases: Arc<ObjectLeases>,
    pub proxy: Option<HttpProxy>,
}

impl Site {
    /// Directly.
    pub fn new(engine: ObjectEngine) -> Site {
        let server = ObjectServer::shared(engine);
        Site::at(server.engine(), &prefix(), layout(), None)
    }

    /// By way of a proxy.
    pub fn proxied(engine: ObjectEngine) -> Site {
        let proxy = HttpProxy::start(ObjectServer::shared(engine).port()).unwrap();
        Site::at(engine, &prefix(), layout(), Some(proxy))
    }

    pub fn at(
        engine: ObjectEngine,
        prefix: &str,
        layout: LeasesLayout,
        proxy: Option<HttpProxy>,
    ) -> Site {
        let server = ObjectServer::shared(engine);
        let port = proxy.as_ref().map_or(server.port(), HttpProxy::port);
        let store = open(config(server, port, prefix));
        let leases = store.leases(system(), layout).unwrap();
        Site { prefix: prefix.to_owned(), store, leases, proxy }
    }

    /// As the suite wants it.
    pub fn fixture(self) -> Fixture {
        let store = self.store.clone();
        Fixture {
            leases: self.leases.clone(),
            store: self.store.clone(),
            ttl: TTL,
            coarse: BUCKET,
            advance: Box::new(move |span| {
                let store = store.clone();
                Box::pin(async move { pass(&store, span).await })
            }),
            keep: Box::new(self),
        }
    }
}

/// Waits until the store's clock has moved on by `span`, for sure.
pub async fn pass(store: &ObjectStore, span: Duration) {
    store.info().await.unwrap();
    let until = latest_ms(store) + span.as_millis() as i64;
    let limit = std::time::Instant::now() + span + Duration::from_secs(60);
    while (store.info().await.unwrap().now_ms as i64) < until {
        assert!(std::time::Instant::now() < limit, "the store's clock stands still");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn latest_ms(store: &ObjectStore) -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    wall + store.offset().unwrap().hi_ms
}
