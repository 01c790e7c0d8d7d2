//! An owner that beats by itself, holds something, and leaves gracefully.
//!
//! `cargo run -p lapsed-embedded --example owner`

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::registry::{Registry, RegistryParts};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_embedded::{Embedded, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapsed_core::Result<()> {
    let ttl = Duration::from_secs(3);
    let id = SystemId::new(Kind::Registry, "devices")?;
    let store = Embedded::in_memory(Options::default())?;
    let registry = Registry::new(
        RegistryParts::new(store.registry(id.clone(), ttl)?, Arc::new(store), ttl)
            .timeout(Duration::from_secs(5))
            .batch(500)
            .sweeper("example".to_owned()),
    );

    let owner = registry.owner("i-1").await?;
    let key = Name::new("imei-356307042441013")?;
    registry.register(owner.claim(), &key).await?;
    println!("{} holds {key} as incarnation {}", owner.name(), owner.incarnation());

    // A connection is served for longer than one TTL: the handle beats meanwhile.
    tokio::select! {
        lost = owner.lost() => println!("no longer mine: {lost}"),
        () = tokio::time::sleep(ttl * 2) => println!("still mine for {:?}", owner.trusted_for()),
    }
    let claim = owner.claim().clone();
    drop(owner);
    let retired = registry.retire(&claim).await?;
    println!("left, {} entry taken back", retired.reclaimed);
    assert!(registry.lookup(&key).await?.is_none());
    Ok(())
}
