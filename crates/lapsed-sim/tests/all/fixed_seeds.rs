//! The fixed seeds: the same every time, over all scenarios; and the proof that a seed repeats.

use lapsed_sim::campaign::{CampaignPlan, SeedCampaign};
use lapsed_sim::history::HistoryKind;
use lapsed_sim::run::{RunPlan, run};
use lapsed_sim::scenario::SCENARIOS;

/// The number of fixed seeds of each scenario.
const SEEDS: u64 = 20;

fn runs(from: u64) {
    let every = |scenario| HistoryKind::Registry { scenario, bug: None };
    let histories = |_: u64| SCENARIOS.iter().map(every).collect();
    let (seeds, threads) = (SEEDS / 2, 1);
    let plan =
        CampaignPlan { from, seeds, limit: None, threads, histories: &histories, printed: false };
    match SeedCampaign::run(&plan, |_| {}) {
        Ok(campaign) => println!("{campaign}"),
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn the_first_half_of_the_fixed_seeds_passes() {
    runs(1);
}

#[test]
fn the_second_half_of_the_fixed_seeds_passes() {
    runs(1 + SEEDS / 2);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for scenario in SCENARIOS {
        for seed in [7, 8] {
            let plan = RunPlan { scenario, ..RunPlan::of_seed(seed) };
            let (first, second) = (run(plan).expect("it passes"), run(plan).expect("it passes"));
            assert_eq!(first.digest, second.digest, "{} seed {seed}", scenario.name);
            assert!(first.digest.1 > 500, "{} seed {seed} hardly does anything", scenario.name);
        }
        let other = run(RunPlan { scenario, ..RunPlan::of_seed(9) }).expect("it passes");
        let seventh = run(RunPlan { scenario, ..RunPlan::of_seed(7) }).expect("it passes");
        assert_ne!(other.digest, seventh.digest, "{}: seeds 7 and 9 differ", scenario.name);
    }
}
