//! The cost of a pass depends on the dead owners, not on the live ones: one owner dies and leaves
//! 10,000 entries, among a million live entries and among 20,000.
//!
//! Each side has its own store and its own sweeper with the default policy, which keeps the batch
//! size that it has learned, as a daemon's does. The time is that of the whole pass.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lapsed_core::Name;
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, PassReport, Stopped, Sweep, Sweeper, SweeperParts};

use crate::bench::{Bench, progress};
use crate::bench_store::{BenchStore, OpenedRegistry, key};
use crate::rounds::{Side, take_turns};
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "pass";
const FEW: usize = 20_000;
/// Short, so that a round need not wait long for a death.
const THRESHOLD: Duration = Duration::from_millis(300);
const TTL_MS: u64 = 200;
const ATTEMPTS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let many = bench.million()?.copy(bench.path("pass-many"))?;
    let few = bench.create("pass-few", FEW / bench.sizes.each, bench.sizes.each)?;
    let (mut among_many, mut among_few) = (PassBench::new(&many)?, PassBench::new(&few)?);
    let dying = bench.sizes.dying;
    progress("letting owners die");
    let mut sides: Vec<Side<'_>> = vec![
        Box::new(|| bench.runtime.block_on(among_many.round(dying))),
        Box::new(|| bench.runtime.block_on(among_few.round(dying))),
    ];
    let figures = take_turns(bench.sizes.rounds, &mut sides)?;
    drop(sides);
    table.compare(
        NAME,
        format!("evicting {dying} among {} that live", many.entries()),
        Figure::ms(figures.of(0)),
        (&format!("among {FEW}"), Figure::ms(figures.of(1))),
        figures.ratio(0, 1),
        Some(FigureTarget::AtMost(1.5)),
    );
    for scene in [among_many, among_few] {
        drop(scene.sweeper);
        scene.open.close()?;
    }
    Ok(())
}

/// A store, its sweeper, and how many have died there.
struct PassBench {
    open: OpenedRegistry,
    sweeper: Sweeper,
    deaths: u64,
    next_key: u64,
}

impl PassBench {
    fn new(store: &BenchStore) -> Result<Self> {
        let open = store.open_with(THRESHOLD)?;
        let sweeper = Sweeper::new(
            SweeperParts::new(
                "bench".to_owned(),
                open.registry.clone(),
                Arc::new(open.store.clone()),
            )
            .policy(Policy { timeout: Duration::from_secs(60), ..Policy::default() }),
        );
        Ok(PassBench { open, sweeper, deaths: 0, next_key: store.entries() as u64 })
    }

    /// Lets one owner die and times the pass that reclaims its entries, in milliseconds. If the
    /// machine was so busy that the store's away grace applies, the pass reclaims nothing and is
    /// repeated.
    async fn round(&mut self, dying: usize) -> Result<f64> {
        for _ in 0..ATTEMPTS {
            self.let_one_die(dying).await?;
            let began = Instant::now();
            let report = self.pass().await;
            let took_ms = began.elapsed().as_secs_f64() * 1e3;
            if report.stopped == Stopped::Done && report.reclaimed == dying as u64 {
                return Ok(took_ms);
            }
            progress(format!("once more: {report:?}"));
            self.clear().await?;
        }
        bail!("the machine is too busy for a pass that is not interrupted");
    }

    async fn pass(&self) -> PassReport {
        let (_stopper, stop) = StopSignal::channel();
        self.sweeper.pass(PassMode::Reclaim, 0, &stop).await
    }

    /// Evicts what an interrupted pass has left.
    async fn clear(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.open.registry.census().await?.suspects > 0 {
            ensure!(Instant::now() < deadline, "what is left is not evicted");
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.pass().await;
        }
        Ok(())
    }

    async fn let_one_die(&mut self, dying: usize) -> Result<()> {
        self.deaths += 1;
        let registry = &self.open.registry;
        let name = Name::new(&format!("mortal-{}", self.deaths))?;
        let keys: Vec<Name> = (0..dying as u64).map(|i| key(self.next_key + i)).collect();
        self.next_key += dying as u64;
        // The commit may take longer than the TTL; there is no sweep meanwhile, so the owner is not
        // lost.
        let beat = registry.start(&name, TTL_MS).await?;
        let claim = Claim::exact(name, beat.incarnation);
        registry.register(&claim, &keys, TakePolicy::Always).await?;
        self.wait_until_dead(dying).await.context("waiting for a death")
    }

    /// Past its deadline, and past the grace that the store gives after it was busy for long.
    async fn wait_until_dead(&self, dying: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let census = self.open.registry.census().await?;
            let spared = census.now_ms < census.back_ms + THRESHOLD.as_millis() as u64;
            if census.suspects == dying as u64 && !spared {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "it does not die: {census:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
