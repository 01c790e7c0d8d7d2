//! Two providers are online, one falls silent and is set offline, in the truth and in the mirror.
//!
//! `cargo run -p lapsed-embedded --example availability`

mod ground;

use std::sync::Arc;
use std::time::Duration;

use ground::Ground;
use lapsed_availability::memory::MemoryMirror;
use lapsed_availability::{
    Availability, AvailabilityParts, ProviderProfile, SNAPSHOT_MS, SessionChange,
};
use lapsed_core::sweep::Cursor;
use lapsed_core::{Kind, Name, SystemId};

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapsed_core::Result<()> {
    let ground = Ground::new()?;
    let providers = open(&ground)?;
    providers.seed().await?; // what a mirror says counts only after it was filled from the truth
    let (sari, budi) = (Name::new("sari")?, Name::new("budi")?);
    for id in [&sari, &budi] {
        providers.put_provider(&ProviderProfile { id: id.clone(), display_name: None }).await?;
        providers.set_online(id).await?;
    }
    tell(&providers).await?;
    let session = Name::new("session-1")?;
    let accept = SessionChange::Accept { session, provider: sari.clone() };
    providers.change_session(&accept).await?;
    println!("sari takes a session");
    tell(&providers).await?;

    ground.wait(60);
    providers.heartbeat(std::slice::from_ref(&sari)).await?;
    println!("only sari beats");
    ground.wait(60);
    tell(&providers).await?;
    let report = ground.sweep(&*providers, providers.services()).await;
    println!("a pass: {} set offline: {}", report.reclaimed, report.entries[0].key);
    let told = providers.heartbeat(&[budi]).await?;
    println!("budi beats too late, and is told: {}", told.answer[0].as_str());
    Ok(())
}

/// Who can take work now.
async fn tell(providers: &Availability) -> lapsed_core::Result<()> {
    let found = providers.available(&Cursor::default(), 10).await?;
    let names = found.answer.available.iter();
    let mut names: Vec<_> =
        names.map(|one| format!("{} ({})", one.id, one.active_session_count)).collect();
    names.sort();
    println!("available, says the {}: {}", found.source.as_str(), names.join(", "));
    Ok(())
}

fn open(ground: &Ground) -> lapsed_core::Result<Arc<Availability>> {
    let id = SystemId::new(Kind::Availability, "mitras")?;
    Ok(Availability::new(
        AvailabilityParts::new(
            id.clone(),
            ground.store.availability(id.clone())?,
            Arc::new(MemoryMirror::new(ground.clock(), None)),
        )
        .brake(ground.brake(Duration::from_secs(90)))
        .clock(ground.clock())
        .timeout(Duration::from_secs(5))
        .mirror_timeout(Duration::from_millis(250))
        .snapshot_ttl(Duration::from_millis(SNAPSHOT_MS)),
    ))
}
