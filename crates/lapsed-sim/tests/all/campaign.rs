//! A campaign on several threads gives the account of one thread, and reports the same failure.

use std::collections::BTreeMap;
use std::time::Duration;

use lapsed_sim::campaign::{CampaignPlan, ScenarioAccount, SeedCampaign};
use lapsed_sim::history::HistoryKind;
use lapsed_sim::jobs::bug::JobBug;
use lapsed_sim::promise::BrokenPromise;

fn run(
    threads: usize,
    seeds: u64,
    histories: &(dyn Fn(u64) -> Vec<HistoryKind> + Sync),
) -> Result<SeedCampaign, Box<BrokenPromise>> {
    let plan = CampaignPlan { from: 1, seeds, limit: None, threads, histories, printed: false };
    SeedCampaign::run(&plan, |_| {})
}

/// The accounts without the time that they took.
fn accounts(campaign: &SeedCampaign) -> BTreeMap<&'static str, ScenarioAccount> {
    let timeless =
        |account: &ScenarioAccount| ScenarioAccount { busy: Duration::ZERO, ..account.clone() };
    campaign.accounts().iter().map(|(name, account)| (*name, timeless(account))).collect()
}

#[test]
fn many_threads_give_the_account_of_one() {
    let one = run(1, 8, &HistoryKind::of_seed).unwrap_or_else(|failure| panic!("{failure}"));
    let four = run(4, 8, &HistoryKind::of_seed).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(one.histories(), 40);
    assert_eq!(accounts(&one), accounts(&four));
    assert!(accounts(&one).values().all(|account| account.lines > 100));
}

/// The bug is found by few seeds only, so threads are past the first failing one when it fails.
#[test]
fn many_threads_report_the_smallest_failing_seed() {
    let histories = |_: u64| vec![HistoryKind::Jobs(Some(JobBug::NoCrashLimit))];
    let one = run(1, 60, &histories).expect_err("the bug is found");
    let four = run(4, 60, &histories).expect_err("the bug is found");
    assert_eq!((one.seed, one.at_ms), (four.seed, four.at_ms));
    assert_eq!(one.tail, four.tail);
    assert!(one.seed > 1, "the first seed fails already: this shows nothing");
}
