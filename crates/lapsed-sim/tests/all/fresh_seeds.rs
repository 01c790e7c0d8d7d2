//! Fresh random seeds, for about 20 seconds (`LAPSED_SIM_SECONDS` for longer). What fails prints
//! its seed; run that again with `lapsed-sim --scenario NAME --seed N --trace`.

use std::time::Duration;

use lapsed_sim::campaign::{SeedCampaign, fresh_base};
use lapsed_sim::jobs;
use lapsed_sim::leases;
use lapsed_sim::run::RunPlan;

#[test]
fn fresh_seeds_pass() {
    let seconds = std::env::var("LAPSED_SIM_SECONDS").ok().and_then(|s| s.parse().ok());
    let limit = Duration::from_secs(seconds.unwrap_or(20));
    let base = fresh_base();
    println!("fresh seeds from {base}");
    let mut campaign = SeedCampaign::new();
    for seed in base.. {
        if campaign.took() >= limit {
            break;
        }
        if let Err(failure) = campaign.run(RunPlan::of_seed(seed)) {
            panic!("{failure}");
        }
        match jobs::run(seed, None, false) {
            Ok(done) => campaign.add_jobs(&done.counts),
            Err(failure) => panic!("{failure}"),
        }
        match leases::run(seed, None, false) {
            Ok(done) => campaign.add_leases(&done.counts),
            Err(failure) => panic!("{failure}"),
        }
    }
    println!("{campaign}");
}
