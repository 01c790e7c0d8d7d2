//! Providers go online, and who can take work is one read away.
//!
//! `cargo run -p lapsed --example availability`

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapsed::Result<()> {
    let lapsed = lapsed::open("memory:").await?;
    let drivers = lapsed.availability("drivers").start().await?;
    for name in ["budi", "sari"] {
        drivers.add(name).await?;
        drivers.online(name).await?;
    }
    let mut available = drivers.available().await?;
    available.sort();
    println!("available: {}", available.join(", "));

    println!("the heartbeat of sari is noted: {}", drivers.heartbeat("sari").await?);
    drivers.offline("budi").await?;
    println!("the heartbeat of budi is noted: {}", drivers.heartbeat("budi").await?);
    println!(
        "available: {}, {} in all",
        drivers.available().await?.join(", "),
        drivers.count().await?
    );
    println!("budi is {}", drivers.explain("budi").await?.verdict);
    drivers.stop().await;
    Ok(())
}
