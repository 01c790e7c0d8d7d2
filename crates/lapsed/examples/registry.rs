//! An instance dies, its connections are taken back, and one of them is restored.
//!
//! `cargo run -p lapsed --example registry`

use std::time::Duration;

use lapsed::{Every, Restored};

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapsed::Result<()> {
    let lapsed = lapsed::open("memory:").await?;
    let devices = lapsed.registry("devices").ttl(Duration::from_millis(500));
    let devices = devices.sweep(Every(Duration::from_millis(50))).start().await?;
    let (gone, busy) = (devices.join("gateway-1").await?, devices.join("gateway-2").await?);
    gone.register("imei-1").await?;
    busy.register("imei-2").await?;
    println!("gateway-1 holds imei-1, gateway-2 holds imei-2");

    drop(gone); // its heartbeats stop, as if the process had died
    let receipt = loop {
        match devices.receipts(1).await?.pop() {
            Some(receipt) => break receipt,
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    println!("reclaimed: {} of {}, because {}", receipt.key, receipt.owner, receipt.reason);
    let found = devices.lookup_many(&["imei-1", "imei-2"]).await?;
    println!("found: imei-1 {}, imei-2 {}", found[0].is_some(), found[1].is_some());

    let again = devices.join("gateway-1").await?;
    if let Restored::Restored { key, owner, .. } = devices.restore(&receipt).await? {
        println!("{key} is back, held by {owner}");
    }
    let left = again.leave().await?;
    println!("gateway-1 leaves: {} released", left.reclaimed);
    Ok(())
}
