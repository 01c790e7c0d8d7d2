//! A beat costs the same however much its owner holds: the same number of owners, holding 10 entries
//! each and 1,000 each, by key and by handle.

use anyhow::Result;
use lapsed_core::owner::OwnerStore;

use crate::beats::{BeatOrder, rate};
use crate::bench::{Bench, progress};
use crate::bench_store::OpenedRegistry;
use crate::rounds::{Side, take_turns};
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "flat";
const OWNERS: usize = 1_000;
const FEW: usize = 10;

/// One of the two populations.
struct Population {
    open: OpenedRegistry,
    turns: BeatOrder,
}

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let many = bench.sizes.owners * bench.sizes.each / OWNERS;
    let (few, much) = (populate(bench, FEW)?, populate(bench, many)?);
    progress("beating");
    let by_key = |held: &Population| {
        rate(&held.turns.claims, |claim| held.open.registry.beat_now(claim).is_some())
    };
    let by_handle = |held: &Population| rate(&held.turns.handles, |handle| handle.beat().is_some());
    let mut sides: Vec<Side<'_>> = vec![
        Box::new(|| by_key(&much)),
        Box::new(|| by_key(&few)),
        Box::new(|| by_handle(&much)),
        Box::new(|| by_handle(&few)),
    ];
    let figures = take_turns(3 * bench.sizes.rounds, &mut sides)?;
    drop(sides);
    let what = |how: &str| format!("{how}, {OWNERS} owners holding {many} each");
    for (side, how) in [(0, "by key"), (2, "by handle")] {
        let ours = Figure::per_second(figures.of(side));
        let other = ("holding 10 each", Figure::per_second(figures.of(side + 1)));
        let within = Some(FigureTarget::Within(0.9, 1.1));
        table.compare(NAME, what(how), ours, other, figures.ratio(side, side + 1), within);
    }
    for held in [few, much] {
        drop(held.turns);
        held.open.close()?;
    }
    Ok(())
}

fn populate(bench: &Bench, each: usize) -> Result<Population> {
    let store = bench.create(&format!("flat-{each}"), OWNERS, each)?;
    let open = store.open()?;
    let claims = bench.runtime.block_on(store.claims(&open))?;
    let turns = BeatOrder::draw(&open.registry, &claims, bench.sizes.beats)?;
    Ok(Population { open, turns })
}
