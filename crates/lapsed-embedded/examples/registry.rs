//! An instance dies, its connections are taken back, and when it comes back it is told.
//!
//! `cargo run -p lapsed-embedded --example registry`

mod ground;

use std::sync::Arc;
use std::time::Duration;

use ground::Ground;
use lapsed_core::owner::Claim;
use lapsed_core::registry::{Registry, RegistryParts};
use lapsed_core::system::{Restored, System};
use lapsed_core::{Error, Kind, Name, SystemId};

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapsed_core::Result<()> {
    let ground = Ground::new()?;
    let registry = open(&ground)?;
    let (gone, busy) = (Name::new("gateway-1")?, Name::new("gateway-2")?);
    let first = Claim::exact(gone.clone(), registry.start(&gone, None).await?.incarnation);
    let other = Claim::exact(busy.clone(), registry.start(&busy, None).await?.incarnation);
    let keys = [Name::new("imei-1")?, Name::new("imei-2")?];
    registry.register(&first, &keys[0]).await?;
    registry.register(&other, &keys[1]).await?;
    println!("gateway-1 holds imei-1, gateway-2 holds imei-2");

    ground.wait(60);
    registry.beat(&other).await?;
    println!("only gateway-2 beats");
    ground.wait(60);
    let found = registry.lookup_many(&keys).await?;
    println!("found: imei-1 {}, imei-2 {}", found[0].is_some(), found[1].is_some());

    let report = ground.sweep(&registry, Arc::new(ground.store.clone())).await;
    let entry = &report.entries[0];
    println!(
        "{} reclaimed: {} of {}, {} s late",
        report.reclaimed,
        entry.key,
        entry.owner,
        entry.late_ms / 1_000
    );
    match registry.beat(&first).await {
        Err(Error::Lost(lost)) => println!("gateway-1 is told: {lost}"),
        other => println!("not told: {other:?}"),
    }

    let again = registry.start(&gone, None).await?;
    println!("it starts anew, as incarnation {}", again.incarnation);
    let receipt = entry.receipt.as_ref().expect("what was reclaimed has a receipt");
    if let Restored::Restored { key, owner, incarnation } = registry.restore(receipt.seq).await? {
        println!("{key} is back, held by {owner} ({incarnation})");
    }
    Ok(())
}

fn open(ground: &Ground) -> lapsed_core::Result<Registry> {
    let ttl = Duration::from_secs(90);
    let id = SystemId::new(Kind::Registry, "devices")?;
    Ok(Registry::new(
        RegistryParts::new(
            ground.store.registry(id.clone(), ttl)?,
            Arc::new(ground.store.clone()),
            ttl,
        )
        .brake(ground.brake(ttl))
        .clock(ground.clock())
        .timeout(Duration::from_secs(5))
        .batch(500)
        .sweeper("example".to_owned()),
    ))
}
