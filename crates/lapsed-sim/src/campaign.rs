//! A campaign: many histories on several threads, and the account of each scenario.
//!
//! A seed is run by one thread from its first step to its last, so what it does depends on the seed
//! alone. Threads take seeds in ascending order; when a promise is broken, seeds that were taken are
//! run to their end, and the smallest one that failed is reported. The report is therefore the same
//! for any number of threads.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::history::{HistoryKind, HistoryReport};
use crate::promise::BrokenPromise;
use crate::random::mix;

/// What a campaign is asked to run.
pub struct CampaignPlan<'a> {
    /// The first seed; the others follow it.
    pub from: u64,
    /// The number of seeds.
    pub seeds: u64,
    /// No further seed is begun after this time.
    pub limit: Option<Duration>,
    pub threads: usize,
    /// The histories of a seed.
    pub histories: &'a (dyn Fn(u64) -> Vec<HistoryKind> + Sync),
    /// Whether every line of every trace goes to stdout.
    pub printed: bool,
}

/// The sum over the histories of one scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScenarioAccount {
    pub histories: u64,
    /// The processor time that they took.
    pub busy: Duration,
    /// How many lines their traces have.
    pub lines: u64,
    /// A hash over the traces of all histories, whatever their order.
    pub digest: u64,
    /// How often each kind of event happened.
    pub counts: BTreeMap<&'static str, u64>,
}

/// The accounts of a campaign, by scenario.
#[derive(Debug)]
pub struct SeedCampaign {
    began: Instant,
    accounts: BTreeMap<&'static str, ScenarioAccount>,
}

/// The end of one history, as a thread reports it.
struct HistoryEnd {
    seed: u64,
    scenario: &'static str,
    busy: Duration,
    outcome: Result<HistoryReport, Box<BrokenPromise>>,
}

/// How long the campaign waits for news before it reports its progress all the same.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

impl SeedCampaign {
    pub fn new() -> Self {
        SeedCampaign { began: Instant::now(), accounts: BTreeMap::new() }
    }

    /// Runs the plan and calls `progress` every five seconds.
    pub fn run(
        plan: &CampaignPlan<'_>,
        progress: impl Fn(&SeedCampaign),
    ) -> Result<SeedCampaign, Box<BrokenPromise>> {
        let (mut campaign, mut told) = (SeedCampaign::new(), Instant::now());
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut failure: Option<Box<BrokenPromise>> = None;
        std::thread::scope(|scope| {
            let (ends, inbox) = channel();
            for _ in 0..plan.threads.max(1) {
                let (ends, next, stop, began) = (ends.clone(), &next, &stop, campaign.began);
                scope.spawn(move || run_seeds(plan, began, next, stop, &ends));
            }
            drop(ends);
            loop {
                match inbox.recv_timeout(PROGRESS_EVERY.saturating_sub(told.elapsed())) {
                    Ok(HistoryEnd { seed, scenario, busy, outcome: Ok(done) }) => {
                        campaign.add(scenario, seed, busy, &done);
                    }
                    Ok(HistoryEnd { seed, outcome: Err(broken), .. }) => {
                        stop.store(true, Ordering::Relaxed);
                        if failure.as_ref().is_none_or(|known| seed < known.seed) {
                            failure = Some(broken);
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                if told.elapsed() >= PROGRESS_EVERY {
                    progress(&campaign);
                    told = Instant::now();
                }
            }
        });
        failure.map_or(Ok(campaign), Err)
    }

    /// The accounts by scenario.
    pub fn accounts(&self) -> &BTreeMap<&'static str, ScenarioAccount> {
        &self.accounts
    }

    /// The number of histories of all scenarios.
    pub fn histories(&self) -> u64 {
        self.accounts.values().map(|account| account.histories).sum()
    }

    /// One line about what was reached so far.
    pub fn progress(&self) -> String {
        let (histories, took) = (self.histories(), self.began.elapsed());
        let rate = histories as f64 / took.as_secs_f64().max(1e-9);
        format!("{histories} histories in {:.1} s, {rate:.1} histories/s", took.as_secs_f64())
    }

    fn add(&mut self, scenario: &'static str, seed: u64, busy: Duration, done: &HistoryReport) {
        let account = self.accounts.entry(scenario).or_default();
        account.histories += 1;
        account.busy += busy;
        account.lines += done.digest.1;
        account.digest = account.digest.wrapping_add(mix(done.digest.0 ^ mix(seed)));
        for (kind, count) in &done.counts {
            *account.counts.entry(kind).or_default() += count;
        }
    }
}

fn run_seeds(
    plan: &CampaignPlan<'_>,
    began: Instant,
    next: &AtomicU64,
    stop: &AtomicBool,
    ends: &Sender<HistoryEnd>,
) {
    while !stop.load(Ordering::Relaxed) && plan.limit.is_none_or(|limit| began.elapsed() < limit) {
        let nth = next.fetch_add(1, Ordering::Relaxed);
        let Some(seed) = plan.from.checked_add(nth).filter(|_| nth < plan.seeds) else { return };
        for kind in (plan.histories)(seed) {
            let begun = thread_time();
            let outcome = kind.run(seed, plan.printed);
            let (busy, failed) = (thread_time().saturating_sub(begun), outcome.is_err());
            let _ = ends.send(HistoryEnd { seed, scenario: kind.scenario(), busy, outcome });
            if failed {
                return;
            }
        }
    }
}

/// The processor time of this thread: on a busy machine the clock says little.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Default for SeedCampaign {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for SeedCampaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (scenario, account) in &self.accounts {
            writeln!(f, "{scenario:<12} {account}")?;
        }
        write!(f, "{}; no promise was broken", self.progress())
    }
}

impl fmt::Display for ScenarioAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScenarioAccount { histories, busy, lines, digest, counts } = self;
        let rate = *histories as f64 / busy.as_secs_f64().max(1e-9);
        write!(f, "{histories:>8} histories, {rate:>6.1}/s per core, {lines:>10} trace lines ")?;
        write!(f, "({digest:016x}):")?;
        for (nth, (kind, count)) in counts.iter().enumerate() {
            write!(f, "{} {count} {kind}", if nth == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// A random first seed, short enough to be typed.
pub fn fresh_base() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    mix(since.unwrap_or_default().as_nanos() as u64) >> 24
}
