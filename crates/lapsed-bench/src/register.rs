//! Durable registrations by a thousand callers at once, with a million entries present, against one
//! commit a call on the same disk.
//!
//! One commit a call is done in two ways: the same library on the same store with one caller that
//! waits for each answer; and redb itself, without the library, on a copy of the same file, one
//! commit for each row in the same table. Every call registers a key that is not there yet.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use lapsed_core::owner::Claim;
use lapsed_core::registry::Registry;
use redb::{Database, TableDefinition};

use crate::bench::{Bench, progress};
use crate::bench_store::{id, key};
use crate::rounds::{Side, take_turns};
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "register";
const CALLERS: usize = 1_000;

type Rows<'n> = TableDefinition<'n, &'static [u8], &'static [u8]>;

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let store = bench.million()?.copy(bench.path("register"))?;
    let bare = bench.million()?.copy(bench.path("register-bare"))?;
    progress("opening it twice");
    let open = store.open()?;
    let claims = Arc::new(bench.runtime.block_on(store.claims(&open))?);
    let operations = Arc::new(open.operations()?);
    let database = Database::open(bare.file()).context("opening the copy")?;
    let (shared, alone) = (bench.sizes.registers_shared, bench.sizes.registers_alone);
    let next = Cell::new(store.entries() as u64);
    let take = |count: usize| next.replace(next.get() + count as u64);
    progress("registering");
    let mut sides: Vec<Side<'_>> = vec![
        Box::new(|| bench.runtime.block_on(together(&operations, &claims, take(shared), shared))),
        Box::new(|| bench.runtime.block_on(one_by_one(&operations, &claims, take(alone), alone))),
        Box::new(|| bare_rows(&database, take(alone), alone)),
    ];
    let figures = take_turns(bench.sizes.rounds, &mut sides)?;
    drop(sides);
    let ours = Figure::per_second(figures.of(0));
    let what = format!("{CALLERS} callers, {} entries present", store.entries());
    for (side, other_is) in
        [(1, "one caller: one commit a call"), (2, "bare redb: one commit a call")]
    {
        let other = (other_is, Figure::per_second(figures.of(side)));
        let target = Some(FigureTarget::AtLeast(20.0));
        table.compare(NAME, what.clone(), ours, other, figures.ratio(0, side), target);
    }
    drop(operations);
    open.close()?;
    remove(&[store.dir(), bare.dir()])
}

/// Registers `count` new keys by a thousand callers, each waiting for its own answer.
async fn together(
    registry: &Arc<Registry>,
    claims: &Arc<Vec<Claim>>,
    first: u64,
    count: usize,
) -> Result<f64> {
    let each = count / CALLERS;
    let began = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (registry, claims) = (registry.clone(), claims.clone());
            let from = first + (caller * each) as u64;
            tokio::spawn(async move { register(&registry, &claims, from, each).await })
        })
        .collect();
    for caller in callers {
        caller.await??;
    }
    Ok((each * CALLERS) as f64 / began.elapsed().as_secs_f64())
}

async fn one_by_one(
    registry: &Registry,
    claims: &[Claim],
    first: u64,
    count: usize,
) -> Result<f64> {
    let began = Instant::now();
    register(registry, claims, first, count).await?;
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// One call after the other.
async fn register(registry: &Registry, claims: &[Claim], first: u64, count: usize) -> Result<()> {
    for number in first..first + count as u64 {
        registry.register(holder(claims, number), &key(number)).await?;
    }
    Ok(())
}

/// Whose the `number`th key is: anybody's.
fn holder(claims: &[Claim], number: u64) -> &Claim {
    &claims[(number.wrapping_mul(2_654_435_761) % claims.len() as u64) as usize]
}

/// The same rows as the library writes, and nothing else.
fn bare_rows(database: &Database, first: u64, count: usize) -> Result<f64> {
    let id = id()?;
    let held = format!("{id}/held");
    let began = Instant::now();
    for number in first..first + count as u64 {
        let key = key(number);
        let holder = (number % 1_000).to_be_bytes();
        let txn = database.begin_write()?;
        {
            let mut held = txn.open_table(Rows::new(&held))?;
            held.insert([&holder, key.as_str().as_bytes()].concat().as_slice(), &holder[..])?;
        }
        txn.commit()?;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

fn remove(dirs: &[&Path]) -> Result<()> {
    dirs.iter().try_for_each(|dir| Ok(std::fs::remove_dir_all(dir)?))
}
