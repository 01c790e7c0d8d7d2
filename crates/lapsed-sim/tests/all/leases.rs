//! Leases on an object store: fixed seeds, the proof that a seed repeats, and teeth.

use lapsed_sim::leases::bug::LeaseBug;
use lapsed_sim::leases::run;

/// The fixed seeds; at most so many to find a bug.
const SEEDS_MAX: u64 = 40;

#[test]
fn fixed_seeds() {
    let (mut reclaimed, mut cleared, mut killed, mut told) = (0, 0, 0, 0);
    for seed in 1..=SEEDS_MAX {
        let done = run(seed, None, false).unwrap_or_else(|failure| panic!("{failure}"));
        let count = |what: &str| done.counts.get(what).copied().unwrap_or(0);
        reclaimed += count("reclaimed");
        cleared += count("cleared on the way");
        killed += count("killed");
        told += count("zombies told");
    }
    println!("reclaimed {reclaimed}, cleared {cleared}, killed {killed}, told {told}");
    assert!(reclaimed > 300 && cleared > 100 && killed > 100 && told > 20);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let digest = |seed| run(seed, None, false).unwrap_or_else(|f| panic!("{f}")).digest;
    assert_eq!(digest(7), digest(7));
    assert_ne!(digest(7), digest(8));
}

/// Within seeds that pass without it: those of [`fixed_seeds`].
#[test]
fn every_bug_is_found_by_a_promise_that_it_breaks() {
    for bug in LeaseBug::ALL {
        let failures = (1..=SEEDS_MAX).filter_map(|seed| run(seed, Some(*bug), false).err());
        let found = failures.into_iter().find(|f| bug.breaks().contains(&f.broken.promise));
        let found = found.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS_MAX} seeds"));
        println!("{bug:?}: {} seeds: {}", found.seed, found.broken.what);
    }
}
