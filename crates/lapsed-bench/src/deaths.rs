//! Many owners that die together: 1,000,000 owners that hold one entry each, and as many entries of 100
//! owners. The time of a pass grows with what is reclaimed, not with the square of the number of owners.
//!
//! The brake lets everything through, so that one pass reclaims everything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, Sweep, Sweeper, SweeperParts};

use crate::bench::{Bench, progress};
use crate::bench_store::BenchStore;
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "deaths";
const FEW: usize = 100;
const TTL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(120);

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let entries = bench.sizes.owners * bench.sizes.each;
    let many = seconds(bench, entries, 1)?;
    let few = seconds(bench, FEW, entries / FEW)?;
    table.compare(
        NAME,
        format!("{entries} owners die together, one entry each"),
        Figure::seconds(many),
        (&format!("{FEW} owners with as many entries"), Figure::seconds(few)),
        many / few,
        Some(FigureTarget::AtMost(2.0)),
    );
    Ok(())
}

/// How long the pass takes that reclaims everything.
fn seconds(bench: &Bench, owners: usize, each: usize) -> Result<f64> {
    let dir = bench.path(&format!("deaths-{owners}"));
    let store = BenchStore::create_mortal(&bench.runtime, dir, owners, each, TTL)?;
    let seconds = bench.runtime.block_on(reclaim_all(&store))?;
    std::fs::remove_dir_all(store.dir())?;
    Ok(seconds)
}

async fn reclaim_all(store: &BenchStore) -> Result<f64> {
    let open = store.open_with(TTL)?;
    let entries = store.entries() as u64;
    let patience = Instant::now() + PATIENCE;
    loop {
        let census = open.registry.census().await?;
        let is_spared = census.now_ms < census.back_ms + TTL.as_millis() as u64;
        if census.suspects == entries && !is_spared {
            break;
        }
        ensure!(Instant::now() < patience, "they do not die: {census:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let brake = BrakePolicy { share: 1.0, ..BrakePolicy::default() };
    let parts =
        SweeperParts::new("bench".to_owned(), open.registry.clone(), Arc::new(open.store.clone()))
            .brake(Arc::new(Brake::new(brake, TTL)))
            .policy(Policy { timeout: Duration::from_secs(60), ..Policy::default() });
    let sweeper = Sweeper::new(parts);
    progress(format!("{} owners die", store.owners));
    let began = Instant::now();
    let mut reclaimed = 0;
    while reclaimed < entries {
        let (_stopper, stop) = StopSignal::channel();
        let report = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
        reclaimed += report.reclaimed;
        ensure!(began.elapsed() < PATIENCE * 10, "not all are reclaimed: {report:?}");
    }
    let seconds = began.elapsed().as_secs_f64();
    drop(sweeper);
    open.close()?;
    Ok(seconds)
}
