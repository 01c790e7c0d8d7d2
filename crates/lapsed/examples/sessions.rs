//! A chat server dies: its references are dropped, and the session is deleted when its grace is over.
//!
//! `cargo run -p lapsed --example sessions`

use std::time::Duration;

use lapsed::{Every, SessionProfile};

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapsed::Result<()> {
    let ms = Duration::from_millis;
    let lapsed = lapsed::open("memory:").await?;
    let chat = lapsed.sessions("chat").ttl(ms(500)).grace(ms(300)).sweep(Every(ms(50)));
    let chat = chat.start().await?;
    let me = chat.join("chat-1").await?;
    let profile = SessionProfile { value: Some("42".to_owned()), ..Default::default() };
    me.activate_with("s-1", &profile).await?;
    me.connect("s-1").await?;
    let session = chat.get("s-1").await?.expect("it was activated");
    println!("s-1 has {} reference, by {}", session.references, me.name());

    drop(me); // chat-1 crashes, and disconnects nobody
    while chat.get("s-1").await?.is_some() {
        tokio::time::sleep(ms(20)).await;
    }
    let receipt = chat.receipts(1).await?.remove(0);
    println!("{} was deleted, because it was {}", receipt.key, receipt.reason);

    chat.restore(&receipt).await?;
    let value = chat.get("s-1").await?.and_then(|session| session.profile.value);
    println!("s-1 is back, with its value {}", value.unwrap_or_default());
    Ok(())
}
