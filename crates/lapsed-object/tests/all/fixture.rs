//! Stores on real servers, each test below a prefix of its own.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::conformance::{Advance, TestStore};
use lapsed_core::leases::conformance::{LeasesFixture, OpenForgetting};
use lapsed_core::notes::conformance::NotesFixture;
use lapsed_core::store::Store;
use lapsed_core::{Kind, SystemId};
use lapsed_object::{LeasesLayout, ObjectConfig, ObjectLeases, ObjectStore};
use lapsed_testbed::{HttpProxy, ObjectEngine, ObjectServer};

/// Long enough for a busy machine, short enough to be waited for.
pub const TTL: Duration = Duration::from_secs(2);
/// The narrowest bucket there is.
pub const BUCKET: Duration = Duration::from_secs(1);

/// A prefix that no other test uses.
pub fn prefix() -> String {
    format!("t{:016x}", SystemClock::new().random())
}

/// How to reach a server by way of a port, below a prefix.
pub fn config(server: &ObjectServer, port: u16, prefix: &str) -> ObjectConfig {
    config_by(server.engine(), port, prefix)
}

/// The same where the server belongs to another process.
pub fn config_by(engine: ObjectEngine, port: u16, prefix: &str) -> ObjectConfig {
    let (id, secret) = engine.credentials();
    let (id, secret) = (Some(id.to_owned()), Some(secret.to_owned()));
    let config = ObjectConfig {
        endpoint: Some(engine.endpoint_by(port)),
        allow_http: true,
        timeout: Duration::from_secs(20),
        ..ObjectConfig::new("main", &format!("{}/{prefix}", engine.url()))
    };
    match engine {
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

/// Narrow buckets, and log objects that are open for at most 3 s. No key is forgotten: what lies in the index is
/// there for its lease.
pub fn layout() -> LeasesLayout {
    LeasesLayout {
        bucket: BUCKET,
        log_open_max: Duration::from_secs(3),
        forget_after: None,
        ..LeasesLayout::default()
    }
}

/// Leases on a server, below a prefix of their own.
pub struct Site {
    pub prefix: String,
    pub store: Arc<ObjectStore>,
    pub leases: Arc<ObjectLeases>,
    pub proxy: Option<HttpProxy>,
}

impl Site {
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

    /// As the suite wants it, with a clock that is known well.
    pub async fn sharp_fixture(self) -> LeasesFixture {
        sharpen(&self.store).await;
        self.fixture()
    }

    /// As the suite wants it.
    pub fn fixture(self) -> LeasesFixture {
        let opened = self.store.clone();
        let forgetting: OpenForgetting = Box::new(move |after| {
            let layout = LeasesLayout { forget_after: Some(after), ..layout() };
            opened.leases(system(), layout).unwrap()
        });
        let leases = self.leases.clone();
        LeasesFixture::new(leases, forgetting, (TTL, BUCKET), self.under_test())
    }

    fn under_test(self) -> TestStore {
        let (store, waiting) = (self.store.clone(), self.store.clone());
        let advance: Advance = Box::new(move |span| {
            let store = waiting.clone();
            Box::pin(async move { pass(&store, span).await })
        });
        TestStore { store, advance, keep: Box::new(self) }
    }

    /// As the suite of notes wants it.
    pub fn notes(self) -> NotesFixture {
        NotesFixture { system: system(), on: self.under_test() }
    }
}

/// How well the store's clock is known when a story begins.
const SHARP_MS: i64 = 250;

/// Asks for the time until it is known well: answers tell whole seconds.
pub async fn sharpen(store: &ObjectStore) {
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        store.info().await.unwrap();
        let offset = store.offset().unwrap();
        if offset.hi_ms - offset.lo_ms <= SHARP_MS {
            return;
        }
        assert!(std::time::Instant::now() < limit, "the store's clock stays vague: {offset:?}");
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
}

/// Waits until the store's clock has moved on by `span`, for sure: also for what was granted by a clock
/// that was known less well than it is now.
pub async fn pass(store: &ObjectStore, span: Duration) {
    sharpen(store).await;
    let until = latest_ms(store) + span.as_millis() as i64 + SHARP_MS;
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
