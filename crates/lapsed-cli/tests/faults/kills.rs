//! Kills, freezes, cut connections and failovers, hundreds of them, under load. After each one the account is taken:
//! no acknowledged job is lost or completed twice, no entry is reclaimed twice, and nobody alive is reclaimed.
//!
//! `make kills` runs it; how much is in the environment: `KILLS`, `FREEZES`, `CUTS`, `FAILOVERS`; no further
//! fault is begun after `SECONDS`. The tests that are not
//! ignored show that the account finds what is wrong.

mod account;
pub mod caller;
mod campaign;
mod failovers;
mod ledger;
mod load;
mod planted_wrongs;
mod strikes;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::availability_faults::random::SeededRandom;
use campaign::Campaign;
use load::{Load, LoadParts};
use world::World;

/// How many faults lie between two settlements.
const SETTLE_EVERY: usize = 25;

/// So many of a fault, from the environment.
pub fn wanted(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The load runs for a moment between two faults.
fn some_load(random: &mut SeededRandom) {
    thread::sleep(Duration::from_millis(30 + random.below(120) as u64));
}

#[test]
#[ignore = "a worker process of the campaign, which starts it"]
fn worker_process() {
    worker::run();
}

#[test]
#[ignore = "minutes to hours: make kills"]
fn kills_freezes_and_cuts_keep_the_account() {
    let (kills, freezes, cuts) = (wanted("KILLS", 20), wanted("FREEZES", 4), wanted("CUTS", 8));
    let (seed, limit) = (wanted("SEED", caller::now_ms()), wanted("SECONDS", 0));
    println!("seed {seed}: {kills} kills, {freezes} freezes, {cuts} cuts");
    let (began, mut random) = (Instant::now(), SeededRandom::new(seed));
    let mut world = World::start();
    let parts = LoadParts { jobs: true, sessions: true, leases: true, providers: true };
    let load = Load::start(&world.fleet.urls, &world.fleet.ledger, parts);
    let mut campaign = Campaign::new(&world.fleet, parts);
    let mut struck: BTreeMap<String, u64> = BTreeMap::new();
    for (nth, strike) in strikes::mixed(kills, freezes, cuts, &mut random).into_iter().enumerate() {
        if limit > 0 && began.elapsed().as_secs() >= limit {
            break;
        }
        some_load(&mut random);
        let what = world.strike(strike, &mut random);
        campaign.take(&world.fleet, &format!("fault {nth} ({what})"));
        *struck.entry(what).or_default() += 1;
        if nth % SETTLE_EVERY == SETTLE_EVERY - 1 {
            campaign.settle(&world.fleet, &load, &format!("fault {nth}"));
            let (took, summary) = (began.elapsed().as_secs_f64(), campaign.summary(&world.fleet));
            println!("{took:>6.1} s: {} faults; {summary}", nth + 1);
        }
    }
    campaign.settle(&world.fleet, &load, "the end");
    println!("{struck:?}");
    println!("{:>6.1} s: {}", began.elapsed().as_secs_f64(), campaign.summary(&world.fleet));
}

#[test]
#[ignore = "minutes: make kills"]
fn failovers_of_a_redis_replica_keep_the_account() {
    failovers::redis_replica(wanted("FAILOVERS", 2));
}

#[test]
#[ignore = "minutes: make kills"]
fn failovers_of_a_cluster_master_keep_the_account() {
    failovers::cluster_master(wanted("FAILOVERS", 2));
}

#[test]
#[ignore = "minutes: make kills"]
fn failovers_of_a_postgres_standby_keep_the_account() {
    failovers::postgres_standby(wanted("FAILOVERS", 2));
}
