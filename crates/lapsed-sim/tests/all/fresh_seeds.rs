//! Fresh random seeds, for about 20 seconds (`LAPSED_SIM_SECONDS` for longer). What fails prints
//! its seed; run that again with `lapsed-sim --scenario NAME --seed N --trace`.

use std::time::Duration;

use lapsed_sim::campaign::{CampaignPlan, SeedCampaign, fresh_base};
use lapsed_sim::history::HistoryKind;

#[test]
fn fresh_seeds_pass() {
    let seconds = std::env::var("LAPSED_SIM_SECONDS").ok().and_then(|s| s.parse().ok());
    let base = fresh_base();
    println!("fresh seeds from {base}");
    let plan = CampaignPlan {
        from: base,
        seeds: u64::MAX,
        limit: Some(Duration::from_secs(seconds.unwrap_or(20))),
        // Other tests run beside this one.
        threads: 1,
        histories: &HistoryKind::of_seed,
        printed: false,
    };
    match SeedCampaign::run(&plan, |_| {}) {
        Ok(campaign) => println!("{campaign}"),
        Err(failure) => panic!("{failure}"),
    }
}
