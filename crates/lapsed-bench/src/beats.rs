//! Beats with a million entries held, against the deadline map of [`peer`](crate::naive_registry).
//!
//! All sides beat the same owners in the same random order, on one thread, and read the time once a
//! beat. Names and handles are laid out in that order beforehand, as a caller has its own at hand:
//! finding them costs neither side anything. Ours also goes on mirroring deadlines to disk meanwhile.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use lapsed_core::Name;
use lapsed_core::owner::{BeatHandle, Claim, OwnerStore};
use lapsed_core::registry::{HEARTBEAT_TTL_MS, Registry};
use lapsed_embedded::EmbeddedRegistry;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::bench::{Bench, progress};
use crate::naive_registry::{NaiveRegistry, NumberedNaiveRegistry};
use crate::rounds::{Figures, Side, take_turns};
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "beats";

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let store = bench.million()?.copy(bench.path("beats"))?;
    progress("opening it, and the peer beside it");
    let open = store.open()?;
    let claims = bench.runtime.block_on(store.claims(&open))?;
    let names: Vec<String> = claims.iter().map(|claim| claim.owner.to_string()).collect();
    let mut plain = NaiveRegistry::new(&names, HEARTBEAT_TTL_MS);
    let mut numbered = NumberedNaiveRegistry::new(&names, HEARTBEAT_TTL_MS);
    let operations = open.operations()?;
    let registry = &open.registry;
    let turns = BeatOrder::draw(registry, &claims, bench.sizes.beats)?;
    let (claims, handles) = (&turns.claims, &turns.handles);
    progress("beating");
    let mut sides: Vec<Side<'_>> = vec![
        Box::new(|| rate(claims, |claim| plain.beat(claim.owner.as_str()).is_some())),
        Box::new(|| rate(claims, |claim| numbered.beat(claim.owner.as_str()).is_some())),
        Box::new(|| rate(claims, |claim| registry.beat_now(claim).is_some())),
        Box::new(|| bench.runtime.block_on(rate_of_trait(registry, claims))),
        Box::new(|| bench.runtime.block_on(rate_of_operation(&operations, claims))),
        Box::new(|| rate(handles, |handle| handle.beat().is_some())),
    ];
    let figures = take_turns(bench.sizes.rounds, &mut sides)?;
    drop(sides);
    drop(operations);
    report(table, &figures, store.entries());
    drop(turns);
    open.close()
}

/// The first peer is the one that the targets speak of; the second is there to be seen.
fn report(table: &mut FigureTable, figures: &Figures, entries: usize) {
    let by_key = Some(FigureTarget::AtLeast(3.0));
    let by_handle = Some(FigureTarget::AtLeast(10.0));
    let (names, numbers) = ((0, "map + BTreeSet of names"), (1, "map + BTreeSet of numbers"));
    let rows = [
        (2, format!("by key, {entries} entries held"), names, by_key),
        (3, "by key, asynchronously (the store's trait)".to_owned(), names, by_key),
        (4, "by key, with a time limit (`Registry`)".to_owned(), names, None),
        (5, "by handle".to_owned(), names, by_handle),
        (2, "by key".to_owned(), numbers, None),
        (5, "by handle".to_owned(), numbers, None),
    ];
    for (side, what, (peer, peer_is), target) in rows {
        let ours = Figure::per_second(figures.of(side));
        let other = (peer_is, Figure::per_second(figures.of(peer)));
        table.compare(NAME, what, ours, other, figures.ratio(side, peer), target);
    }
}

/// Who beats when, by claim and by handle.
pub struct BeatOrder {
    pub claims: Vec<Claim>,
    pub handles: Vec<Arc<dyn BeatHandle>>,
}

impl BeatOrder {
    /// Draws the order of `beats` beats at random.
    pub fn draw(registry: &EmbeddedRegistry, owners: &[Claim], beats: usize) -> Result<BeatOrder> {
        let handle = |claim: &Claim| {
            let life = claim.incarnation.context("the claim names a life")?;
            registry.beat_handle(&claim.owner, life).context("a live owner has a handle")
        };
        let handles: Vec<Arc<dyn BeatHandle>> = owners.iter().map(handle).collect::<Result<_>>()?;
        let mut random = SmallRng::seed_from_u64(7);
        let mut turns =
            BeatOrder { claims: Vec::with_capacity(beats), handles: Vec::with_capacity(beats) };
        for _ in 0..beats {
            let i = random.random_range(0..owners.len());
            let own_name = Name::new(owners[i].owner.as_str())?;
            turns.claims.push(Claim { owner: own_name, ..owners[i] });
            turns.handles.push(handles[i].clone());
        }
        Ok(turns)
    }
}

pub fn rate<T>(turns: &[T], mut beat: impl FnMut(&T) -> bool) -> Result<f64> {
    let began = Instant::now();
    for turn in turns {
        anyhow::ensure!(black_box(beat(turn)), "somebody was declared dead");
    }
    Ok(turns.len() as f64 / began.elapsed().as_secs_f64())
}

async fn rate_of_trait(registry: &EmbeddedRegistry, claims: &[Claim]) -> Result<f64> {
    let began = Instant::now();
    for claim in claims {
        black_box(registry.beat(claim).await?);
    }
    Ok(claims.len() as f64 / began.elapsed().as_secs_f64())
}

async fn rate_of_operation(registry: &Registry, claims: &[Claim]) -> Result<f64> {
    let began = Instant::now();
    for claim in claims {
        black_box(registry.beat(claim).await?);
    }
    Ok(claims.len() as f64 / began.elapsed().as_secs_f64())
}
