//! The simulated bucket does what the client of a real one expects.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::TryStreamExt;
use lapsed_sim::executor::{Executor, World};
use lapsed_sim::leases::bucket::{BucketConnection, SimBucket};
use object_store::aws::AmazonS3Builder;
use object_store::client::{HttpClient, HttpConnector};
use object_store::path::Path;
use object_store::{ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};

#[derive(Debug)]
struct Connector(BucketConnection);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.0.clone()))
    }
}

async fn exercise(store: impl ObjectStore) {
    let key = Path::from("n/meta/a%2Fb.pb");
    let put = |body: &'static str, mode| {
        let options = object_store::PutOptions { mode, ..Default::default() };
        store.put_opts(&key, body.into(), options)
    };
    let first = put("one", PutMode::Create).await.unwrap();
    assert!(matches!(put("two", PutMode::Create).await, Err(Error::AlreadyExists { .. })));
    let version = UpdateVersion { e_tag: first.e_tag, version: None };
    put("two", PutMode::Update(version.clone())).await.unwrap();
    let stale = put("three", PutMode::Update(version)).await;
    assert!(matches!(stale, Err(Error::Precondition { .. })), "{stale:?}");
    let got = store.get(&key).await.unwrap().bytes().await.unwrap();
    assert_eq!(&got[..], b"two");
    for n in 0..1_005 {
        store.put(&Path::from(format!("list/{n:04}")), "x".into()).await.unwrap();
    }
    store.put(&Path::from("list/deep/1"), "x".into()).await.unwrap();
    let all: Vec<_> = store.list(Some(&Path::from("list"))).try_collect().await.unwrap();
    assert_eq!(all.len(), 1_006);
    let after = store.list_with_offset(Some(&Path::from("list")), &Path::from("list/1003"));
    let after: Vec<_> = after.try_collect().await.unwrap();
    assert_eq!(after.len(), 2, "{after:?}");
    let listed = store.list_with_delimiter(Some(&Path::from("list"))).await.unwrap();
    assert_eq!((listed.objects.len(), listed.common_prefixes.len()), (1_005, 1));
    store.delete(&key).await.unwrap();
    assert!(matches!(store.get(&key).await, Err(Error::NotFound { .. })));
}

#[test]
fn the_simulated_bucket_behaves_as_an_s3_client_expects() {
    let world = World::new(1, false);
    let line = SimBucket::new(&world, None).line("client");
    let store = AmazonS3Builder::new()
        .with_bucket_name("b")
        .with_region("r")
        .with_endpoint("http://s3.test")
        .with_access_key_id("k")
        .with_secret_access_key("s")
        .with_allow_http(true)
        .with_http_connector(Connector(line))
        .build()
        .unwrap();
    let done = Arc::new(Mutex::new(false));
    let told = done.clone();
    world.spawn(1, async move {
        exercise(store).await;
        *told.lock().unwrap() = true;
    });
    Executor::new(&world).run(Duration::from_secs(3_600));
    assert!(*done.lock().unwrap(), "it came to its end");
}
