//! Each planted bug is found by the promise that it breaks, within a bounded number of seeds; the
//! same seeds pass without it.

use lapsed_sim::bug::Bug;
use lapsed_sim::run::{RunPlan, run};
use lapsed_sim::scenario::Scenario;

/// The number of seeds within which a bug must be found.
const SEEDS_MAX: u64 = 150;

fn plan(bug: Bug, seed: u64) -> RunPlan {
    let scenario = Scenario::named(bug.scenario()).expect("a bug names a scenario that exists");
    RunPlan { scenario, bug: Some(bug), ..RunPlan::of_seed(seed) }
}

/// Finds it, then shows that it was the bug that was found.
fn finds(bug: Bug) {
    let failures = (1..=SEEDS_MAX).filter_map(|seed| run(plan(bug, seed)).err());
    let found = failures.into_iter().find(|failure| failure.broken.promise == bug.breaks());
    let failure = found.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS_MAX} seeds"));
    println!("{bug:?}: {} seeds\n{failure}", failure.seed);
    for seed in failure.seed.saturating_sub(2).max(1)..=failure.seed {
        if let Err(failure) = run(RunPlan { bug: None, ..plan(bug, seed) }) {
            panic!("without {bug:?}: {failure}");
        }
    }
}

macro_rules! finds {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test] fn $name() { finds(Bug::$bug); })*

        #[test]
        fn every_bug_is_tested() {
            let tested = [$(Bug::$bug),*];
            let left: Vec<_> = Bug::ALL.iter().filter(|bug| !tested.contains(bug)).collect();
            assert!(left.is_empty(), "{left:?}");
        }
    };
}

finds! {
    p1_guard_outside_the_step: GuardOutsideTheStep,
    p1_no_incarnation_check: NoIncarnationCheck,
    p1_callers_clock_judges: CallersClockJudges,
    p2_cursor_jumps: CursorJumps,
    p3_doubt_counted_as_done: DoubtCountedAsDone,
    p3_doubt_never_settled: DoubtNeverSettled,
    p3_retry_counted_twice: RetryCountedTwice,
    p3_tally_of_intended: TallyOfIntended,
    p4_acknowledged_before_durable: AcknowledgedBeforeDurable,
    p4_checkpoint_not_durable: CheckpointNotDurable,
    p5_dead_may_register: DeadMayRegister,
    p5_beat_revives_the_dead: BeatRevivesTheDead,
    p5_restart_inherits: RestartInherits,
    p5_handle_trusts_monotonic_alone: HandleTrustsMonotonicAlone,
    p6_batch_unbounded: BatchUnbounded,
    p7_no_store_away_grace: NoStoreAwayGrace,
    p7_no_brake: NoBrake,
    p8_stale_census: StaleCensus,
    leader_trust_from_the_answer: TrustFromTheAnswer,
    leader_never_stops: LeaderNeverStops,
    leader_term_not_fenced: TermNotFenced,
    lookup_finds_the_ended: LookupFindsTheEnded,
}
