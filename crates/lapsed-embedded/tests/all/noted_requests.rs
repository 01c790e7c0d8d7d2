//! A request whose answer was never kept: the daemon was killed after the commit of the change.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::registry::{Registered, RegistryStore, TakePolicy};
use lapsed_core::request::{CurrentRequest, KeptRequest, RequestId};
use lapsed_core::store::Store;
use lapsed_core::{Error, Kind, Name, SystemId};
use lapsed_embedded::{Embedded, EmbeddedRegistry, Options};

fn id() -> SystemId {
    SystemId::new(Kind::Registry, "a").unwrap()
}

fn open(folder: &Path) -> (Embedded, Arc<EmbeddedRegistry>) {
    let store = Embedded::open(folder, Options::default()).unwrap();
    let registry = store.registry(id(), Duration::from_secs(600)).unwrap();
    (store, registry)
}

fn attempt(number: u32) -> RequestId {
    RequestId::new("key", "f", &format!("attempt-{number}")).unwrap()
}

async fn unregister(registry: &EmbeddedRegistry, number: u32) -> lapsed_core::Result<Vec<bool>> {
    let claim = Claim::newest(Name::new("o").unwrap());
    let keys = [Name::new("k").unwrap()];
    let work = registry.unregister(&claim, &keys);
    CurrentRequest::new(id(), attempt(number)).carry_out(work).await
}

#[tokio::test]
async fn a_change_is_noted_with_its_request_and_not_made_twice() {
    let folder = tempfile::tempdir().unwrap();
    let (store, registry) = open(folder.path());
    let owner = Name::new("o").unwrap();
    registry.start(&owner, 600_000).await.unwrap();
    let (claim, keys) = (Claim::newest(owner), [Name::new("k").unwrap()]);
    let register = || registry.register(&claim, &keys, TakePolicy::Always);
    register().await.unwrap();
    assert_eq!(store.kept_request(&id(), &attempt(1)).await.unwrap(), KeptRequest::Unknown);
    assert_eq!(unregister(&registry, 1).await.unwrap(), [true]);
    assert_eq!(register().await.unwrap().keys, [Registered::New]);
    // The second attempt comes after a restart: it must not remove what was registered since.
    drop(registry);
    store.close().unwrap();
    let (store, registry) = open(folder.path());
    assert_eq!(store.kept_request(&id(), &attempt(2)).await.unwrap(), KeptRequest::Begun);
    let second = unregister(&registry, 2).await;
    assert!(matches!(second, Err(Error::Unavailable { .. })), "{second:?}");
    assert!(registry.find(&keys).await.unwrap()[0].is_some(), "it is still registered");
    let other = RequestId::new("key", "g", "attempt-3").unwrap();
    let reused = store.kept_request(&id(), &other).await;
    assert!(matches!(reused, Err(Error::KeyReused { .. })), "{reused:?}");
    // Its answer is kept, or it is forgotten.
    store.keep_answer(&id(), &attempt(1), "yes").await.unwrap();
    let kept = store.kept_request(&id(), &attempt(2)).await.unwrap();
    assert_eq!(kept, KeptRequest::Answered("yes".to_owned()));
    store.forget_request(&id(), &attempt(1)).await.unwrap();
    assert_eq!(store.kept_request(&id(), &attempt(2)).await.unwrap(), KeptRequest::Unknown);
    assert_eq!(unregister(&registry, 2).await.unwrap(), [true]);
}
