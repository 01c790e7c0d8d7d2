//! Two hosts want one key. The first falls silent, the second gets it with a higher token, and what the first
//! writes too late changes nothing.
//!
//! `cargo run -p lapsed-embedded --example leases`

mod ground;

use std::sync::Arc;
use std::time::Duration;

use ground::Ground;
use lapsed_core::leases::{
    AcquireRequest, Acquired, Decision, Fenced, LeaseKey, LeaseState, Leases, LeasesParts,
};
use lapsed_core::{Kind, Name, SystemId};

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapsed_core::Result<()> {
    let ground = Ground::new()?;
    let leases = open(&ground)?;
    let wanted = |owner: &str| -> lapsed_core::Result<AcquireRequest> {
        let key = LeaseKey::new("default", "nightly-report")?;
        Ok(AcquireRequest { key, owner: Name::new(owner)?, ttl_ms: 30_000, request: None })
    };
    let Acquired::Granted(first) = leases.acquire(&wanted("host-1")?, Duration::ZERO).await? else {
        unreachable!("nobody else is there");
    };
    println!("host-1 has token {}", first.token);
    if let Acquired::Held(by) = leases.acquire(&wanted("host-2")?, Duration::ZERO).await? {
        println!("host-2 is told: held by {} for {} s", by.owner, by.left().as_secs());
    }

    println!("host-1 falls silent");
    ground.wait(30);
    let Acquired::Granted(second) = leases.acquire(&wanted("host-2")?, Duration::ZERO).await?
    else {
        unreachable!("its time is over");
    };
    println!("host-2 has token {}: nobody had to sweep", second.token);

    let state = LeaseState::Json(serde_json::json!({ "page": 7 }));
    match leases.set_state(&first.ticket(), Some(&state)).await? {
        Fenced::Lost(loss) => {
            println!("host-1 is told: {} ({})", loss.why.as_str(), loss.describe())
        }
        Fenced::Done(()) => println!("not fenced"),
    }
    leases.set_state(&second.ticket(), Some(&state)).await?;
    leases.release(&second.ticket()).await?;
    let record = leases.describe(&second.ticket().key).await?.expect("a key is never forgotten");
    let state = serde_json::to_string(&record.state).expect("a state is plain data");
    println!("free again; token {} and state {state} stay", record.token);

    let order = Name::new("order-4711")?;
    for decision in [Decision::Commit, Decision::Rollback] {
        let told = leases.decide(&order, decision, None).await?;
        println!("{}? It is {}, first: {}", decision.as_str(), told.decision.as_str(), told.first);
    }

    leases
        .acquire(
            &AcquireRequest { key: LeaseKey::new("default", "backup")?, ..wanted("host-1")? },
            Duration::ZERO,
        )
        .await?;
    ground.wait(31);
    let report = ground.sweep(&leases, Arc::new(ground.store.clone())).await;
    println!("a pass tidies up what nobody touches any more: {}", report.reclaimed);
    Ok(())
}

fn open(ground: &Ground) -> lapsed_core::Result<Leases> {
    let ttl = Duration::from_secs(30);
    let id = SystemId::new(Kind::Leases, "locks")?;
    Ok(Leases::new(
        LeasesParts::new(
            ground.store.leases(id.clone(), ttl)?,
            Arc::new(ground.store.clone()),
            ttl,
        )
        .decision_ttl(Duration::from_secs(24 * 3_600))
        .brake(ground.brake(ttl))
        .clock(ground.clock())
        .timeout(Duration::from_secs(5)),
    ))
}
