//! Two hosts want the same lease; a transaction is decided once.
//!
//! `cargo run -p lapsed --example leases`

use std::time::Duration;

use lapsed::Decision;

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapsed::Result<()> {
    let lapsed = lapsed::open("memory:").await?;
    let locks = lapsed.leases("locks").ttl(Duration::from_secs(1)).start().await?;
    let first = locks.acquire("report").await?;
    println!("the first holder has token {}", first.token());
    println!("free for another: {}", locks.try_acquire("report").await?.is_some());

    drop(first); // it is not renewed any more, as if the process had died
    let second = locks.acquire("report").await?; // waits until the TTL is over
    println!("the second holder has token {}", second.token());
    println!("released: {}", second.release().await?);

    for decision in [Decision::Commit, Decision::Rollback] {
        let decided = locks.decide("transfer-1", decision).await?;
        println!("{decision}? It is {}", decided.decision);
    }
    Ok(())
}
