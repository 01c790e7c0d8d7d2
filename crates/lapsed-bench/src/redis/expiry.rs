//! Redis's own expiry as the alternative: 10,000 keys that are due among 990,000 that are not yet.
//! How many are gone a while after, when nobody asks for them; and when ours have been reclaimed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::{PassMode, Sweep};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_redis::{RegistryLayout, Template};

use super::{BenchRedis, sweeper};
use crate::bench::{Bench, progress};
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "redis-expiry";
const EVERY: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(10);

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    bench.runtime.block_on(compare(bench, table))
}

async fn compare(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let all = bench.sizes.owners * bench.sizes.each;
    let due = all / 100;
    let place = BenchRedis::new().await?;
    progress(format!("{due} keys that expire soon among {} that do not", all - due));
    let living =
        "for i = ARGV[1], ARGV[2] do redis.call('SET', 'k' .. i, '1', 'EX', '36000') end return 1";
    place.fill(living, all - due).await?;
    let dying =
        "for i = ARGV[1], ARGV[2] do redis.call('SET', 'd' .. i, '1', 'PX', '3000') end return 1";
    place.fill(dying, due).await?;
    let size = || async { place.ask::<u64>(&redis::cmd("DBSIZE")).await };
    let ours = reclaim_all(&place, due).await?;
    // By now those of Redis are overdue, too: the fill and our own wait took longer than they live.
    tokio::time::sleep(AFTER).await;
    let mut cmd = redis::cmd("INFO");
    let info: String = place.ask(cmd.arg("stats")).await?;
    let expired = info.lines().find_map(|line| line.strip_prefix("expired_keys:"));
    let expired: f64 = expired.unwrap_or("0").trim().parse()?;
    ensure!(size().await? > 0, "the server is empty");
    let what = format!("expired by Redis within {} s, of {due}", AFTER.as_secs());
    table.measure(NAME, what, Figure::count(expired));
    let bound = EVERY.as_secs_f64() + 1.0;
    let what = format!("ours: all {due} reclaimed after their deadline");
    let limit = ("one interval and a second", Figure::seconds(bound));
    table.compare(
        NAME,
        what,
        Figure::seconds(ours),
        limit,
        ours / bound,
        Some(FigureTarget::AtMost(1.0)),
    );
    Ok(())
}

/// How long after their deadline the last entry is gone, with a pass every second.
async fn reclaim_all(place: &BenchRedis, due: usize) -> Result<f64> {
    let layout = RegistryLayout {
        registry_key: "ours:registry".to_owned(),
        heartbeat_key: Template::new("ours:heartbeat:{owner}", "owner")
            .expect("it has a place for the owner"),
        heartbeat_ttl: Duration::from_secs(2),
        shards: 1,
    };
    let registry = place.ours.registry(SystemId::new(Kind::Registry, "ours")?, layout)?;
    let owner = Name::new("mortal")?;
    let beat = registry.start(&owner, 3_000).await?;
    let claim = Claim::exact(owner, beat.incarnation);
    let keys: Result<Vec<Name>> = (0..due).map(|i| Ok(Name::new(&format!("e{i}"))?)).collect();
    registry.register(&claim, &keys?, TakePolicy::Always).await?;
    let sweeper = sweeper(place, Arc::new(registry.clone()));
    let (_stopper, stop) = StopSignal::channel();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        sweeper.pass(PassMode::Reclaim, 0, &stop).await;
        let census = registry.census().await?;
        if census.population == 0 {
            return Ok(census.now_ms.saturating_sub(beat.deadline_ms) as f64 / 1e3);
        }
        ensure!(Instant::now() < deadline, "it does not go: {census:?}");
        tokio::time::sleep(EVERY).await;
    }
}
