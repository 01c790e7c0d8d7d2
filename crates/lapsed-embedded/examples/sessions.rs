//! A chat server crashes. Its references to a session die with it, the grace begins, and the orphan is
//! deleted with a receipt from which it can be put back.
//!
//! `cargo run -p lapsed-embedded --example sessions`

mod ground;

use std::sync::Arc;
use std::time::Duration;

use ground::Ground;
use lapsed_core::owner::Claim;
use lapsed_core::sessions::{SessionProfile, Sessions, SessionsParts};
use lapsed_core::system::{Restored, System};
use lapsed_core::{Kind, Name, SystemId};

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapsed_core::Result<()> {
    let ground = Ground::new()?;
    let sessions = open(&ground)?;
    let store = Arc::new(ground.store.clone());
    let (server, session) = (Name::new("chat-1")?, Name::new("s-1")?);
    let claim = Claim::exact(server.clone(), sessions.start(&server, None).await?.incarnation);
    let profile = SessionProfile { value: Some("42".to_owned()), ..SessionProfile::default() };
    sessions.activate(&session, &profile).await?;
    let standing = sessions.connect(Some(&claim), &session).await?.expect("it was just made");
    println!("s-1 has {} reference, by chat-1", standing.references);

    println!("chat-1 crashes: nobody disconnects");
    ground.wait(91);
    let report = ground.sweep(&sessions, store.clone()).await;
    println!(
        "a pass: {} released, {} deleted; the grace begins",
        report.released, report.reclaimed
    );
    let left = sessions.get(&session).await?.expect("it has its grace");
    println!("s-1 has {} references, and is kept for 30 s", left.references);

    ground.wait(31);
    let report = ground.sweep(&sessions, store).await;
    println!(
        "a pass: {} deleted; s-1 is there: {}",
        report.reclaimed,
        sessions.get(&session).await?.is_some()
    );
    let receipt = report.entries[0].receipt.as_ref().expect("what was deleted has a receipt");
    if let Restored::Restored { key, .. } = sessions.restore(receipt.seq).await? {
        let back = sessions.get(&session).await?.expect("it was restored");
        println!("{key} is back, with its value {}", back.profile.value.unwrap_or_default());
    }
    Ok(())
}

fn open(ground: &Ground) -> lapsed_core::Result<Sessions> {
    let (grace, ttl) = (Duration::from_secs(30), Duration::from_secs(90));
    let id = SystemId::new(Kind::Sessions, "chat")?;
    Ok(Sessions::new(
        SessionsParts::new(
            ground.store.sessions(id.clone(), ttl, grace)?,
            Arc::new(ground.store.clone()),
            ttl,
            grace,
        )
        .brake(ground.brake(ttl))
        .clock(ground.clock())
        .timeout(Duration::from_secs(5))
        .batch(500)
        .sweeper("example".to_owned()),
    ))
}
