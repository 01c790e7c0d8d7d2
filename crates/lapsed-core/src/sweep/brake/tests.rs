//! The brake's decisions, with the record that a store would keep.

use super::*;
use crate::sweep::AdoptObservation;

const TTL_MS: u64 = 90_000;
const EVERY_MS: u64 = 60_000;

fn brake_of(policy: BrakePolicy) -> Brake {
    let brake = Brake::new(policy, Duration::from_millis(TTL_MS));
    brake.set_interval(Duration::from_millis(EVERY_MS));
    brake
}

fn brake() -> Brake {
    brake_of(BrakePolicy::default())
}

impl Brake {
    /// A pass of the only process: the store accepts what the brake decides.
    fn pass(&self, census: &Census) -> BrakeVerdict {
        self.observe(census);
        let BrakeDecision { verdict, next } = self.decide(census, "only");
        if let Some(next) = next {
            assert_eq!(next.version, self.record().version + 1);
            self.set(next);
        }
        verdict
    }

    fn order(&self, setting: BrakeSetting) {
        self.set(self.record().ordered(setting));
    }
}

fn over(reason: &str) -> BrakeSetting {
    BrakeSetting::Override { reason: reason.to_owned() }
}

fn census(now_ms: u64, live: u64, overdue: u64, recently: u64) -> Census {
    Census {
        now_ms,
        store: "s1".into(),
        owners_live: live,
        owners_overdue: overdue,
        owners_died_recently: recently,
        ..Census::default()
    }
}

/// A census of a store that shows entries and no owners.
fn entries(now_ms: u64, all: u64, due: u64, recently: u64) -> Census {
    Census {
        now_ms,
        store: "s1".into(),
        population: all,
        suspects: due,
        orphans: due,
        entries_tracked: all,
        entries_due_recently: recently,
        ..Census::default()
    }
}

fn is_held_for_mass(verdict: &BrakeVerdict) -> bool {
    matches!(verdict, BrakeVerdict::Held { by: HeldBy::MassDeath, .. })
}

#[test]
fn one_or_both_of_two_owners_dying_is_not_a_mass_death() {
    assert_eq!(brake().pass(&census(1, 1, 1, 0)), BrakeVerdict::Open);
    assert_eq!(brake().pass(&census(1, 0, 2, 0)), BrakeVerdict::Open);
}

#[test]
fn all_but_one_of_a_small_fleet_silent_at_once_is_a_mass_death() {
    for (live, overdue, recently) in [(1, 2, 0), (0, 3, 0), (1, 1, 1), (1, 8, 0), (0, 9, 0)] {
        let verdict = brake().pass(&census(1, live, overdue, recently));
        assert!(is_held_for_mass(&verdict), "{live} live, {overdue} overdue: {verdict:?}");
    }
    for (live, overdue) in [(2, 1), (2, 7), (9, 0)] {
        assert_eq!(brake().pass(&census(1, live, overdue, 0)), BrakeVerdict::Open, "{live} live");
    }
}

#[test]
fn the_brake_of_a_small_fleet_opens_by_itself() {
    let brake = brake();
    assert!(is_held_for_mass(&brake.pass(&census(0, 1, 2, 0))));
    let one = BrakeVerdict::Opening { max: 1, of: Counted::Owners };
    assert_eq!(brake.pass(&census(TTL_MS, 1, 2, 0)), one);
    assert_eq!(brake.pass(&census(TTL_MS + EVERY_MS, 1, 1, 1)), one);
    assert_eq!(brake.pass(&census(TTL_MS + 2 * EVERY_MS, 1, 0, 2)), BrakeVerdict::Open);
}

#[test]
fn from_min_owners_on_the_share_decides() {
    assert!(is_held_for_mass(&brake().pass(&census(1, 4, 6, 0))), "6 of 10 owners");
    assert!(is_held_for_mass(&brake().pass(&entries(1, 10, 6, 6))), "6 of 10 entries");
    assert_eq!(brake().pass(&entries(1, 9, 9, 9)), BrakeVerdict::Open, "too few entries");
}

#[test]
fn deaths_without_anything_that_is_due_are_not_held() {
    let over = Census { entries_died_recently: 20, ..entries(1, 4, 0, 0) };
    assert_eq!(brake().pass(&over), BrakeVerdict::Open);
}

#[test]
fn a_step_waits_for_half_an_interval_after_the_one_before() {
    let brake = brake();
    assert!(is_held_for_mass(&brake.pass(&census(0, 8, 12, 0))));
    let step = |max| BrakeVerdict::Opening { max, of: Counted::Owners };
    assert_eq!(brake.pass(&census(TTL_MS, 8, 12, 0)), step(2));
    let next_ms = TTL_MS + EVERY_MS / 2;
    let held = BrakeVerdict::Held { by: HeldBy::MassDeath, until_ms: Some(next_ms) };
    assert_eq!(brake.pass(&census(next_ms - 1, 8, 10, 2)), held);
    assert_eq!(brake.pass(&census(next_ms, 8, 10, 2)), step(4));
}

#[test]
fn a_hold_lasts_for_the_threshold_that_was_set_last() {
    let brake = brake();
    brake.set_threshold(Duration::from_millis(2 * TTL_MS));
    let held = BrakeVerdict::Held { by: HeldBy::MassDeath, until_ms: Some(2 * TTL_MS) };
    assert_eq!(brake.pass(&census(0, 8, 12, 0)), held);
}

#[test]
fn a_hold_is_for_whoever_is_overdue_since_its_end_at_the_latest() {
    let hold = MassHold::begin(1_000, 90);
    assert!(!hold.is_of_others(1_090));
    assert!(hold.is_of_others(1_091));
}

#[test]
fn the_last_verdict_and_the_setting_are_known() {
    let brake = brake();
    assert_eq!((brake.last(), brake.setting()), (None, BrakeSetting::Auto));
    brake.order(over("a drill"));
    let verdict = brake.pass(&census(1, 8, 12, 0));
    let system = SystemId::new(crate::Kind::Registry, "r").unwrap();
    brake.conclude(&system, &verdict, 1);
    assert_eq!(brake.last(), Some(BrakeVerdict::Overridden { reason: "a drill".to_owned() }));
    let overriding = over("a drill");
    assert_eq!((overriding.as_str(), overriding.reason()), ("override", Some("a drill")));
    assert_eq!((BrakeSetting::Hold.as_str(), BrakeSetting::Hold.reason()), ("hold", None));
    assert_eq!(BrakeSetting::Auto.as_str(), "auto");
}

#[test]
fn overdue_owners_are_spared_while_the_brake_holds() {
    let brake = brake();
    assert!(!brake.would_spare(&census(1, 12, 8, 0)));
    assert!(brake.would_spare(&census(1, 8, 12, 0)));
}

#[test]
fn shares_and_steps_are_above_0_and_at_most_1() {
    for (share, is_valid) in
        [(0.0, false), (-0.1, false), (0.01, true), (1.0, true), (1.01, false), (f64::NAN, false)]
    {
        let policy = BrakePolicy { share, ..BrakePolicy::default() };
        assert_eq!(policy.check().is_ok(), is_valid, "share {share}");
        let policy = BrakePolicy { step: share, ..BrakePolicy::default() };
        assert_eq!(policy.check().is_ok(), is_valid, "step {share}");
    }
}

#[test]
fn more_than_the_share_at_once_is_held() {
    assert_eq!(brake().pass(&census(1, 9, 11, 0)), BrakeVerdict::Open, "0.55 exactly");
    assert!(is_held_for_mass(&brake().pass(&census(1, 8, 12, 0))));
}

#[test]
fn deaths_spread_over_a_threshold_count_together() {
    assert!(is_held_for_mass(&brake().pass(&census(1, 5, 5, 10))));
}

#[test]
fn trap_x3_the_brake_opens_automatically_in_steps() {
    let brake = brake();
    let start = 1_000;
    assert!(matches!(brake.pass(&census(start, 2, 98, 0)), BrakeVerdict::Held { .. }));
    let almost = start + TTL_MS - 1;
    assert!(matches!(brake.pass(&census(almost, 2, 98, 0)), BrakeVerdict::Held { .. }));
    let mut now = start + TTL_MS;
    let mut left = 98;
    let mut granted = Vec::new();
    while left > 0 {
        let BrakeVerdict::Opening { max, of: Counted::Owners } =
            brake.pass(&census(now, 2, left, 98 - left))
        else {
            panic!("still closed with {left} left");
        };
        granted.push(max);
        left = left.saturating_sub(max as u64);
        now += EVERY_MS;
    }
    assert_eq!(granted, [10, 20, 40, 80], "a step at a time, each twice the one before");
    assert_eq!(brake.pass(&census(now, 2, 0, 98)), BrakeVerdict::Open);
    assert_eq!(brake.record().hold, None, "the next mass death is held anew");
}

/// The race of two processes for a step: both read the same record, the store accepts one of them.
#[test]
fn a_step_is_granted_once_to_two_processes_that_want_it_at_the_same_moment() {
    let (one, other) = (brake(), brake());
    one.pass(&census(0, 2, 98, 0));
    let now = census(TTL_MS, 2, 98, 0);
    let read = one.record();
    for brake in [&one, &other] {
        brake.set(read.clone());
        brake.observe(&now);
    }
    let (first, second) = (one.decide(&now, "one"), other.decide(&now, "other"));
    assert_eq!(first.verdict, BrakeVerdict::Opening { max: 10, of: Counted::Owners });
    let version = |decision: &BrakeDecision| decision.next.as_ref().unwrap().version;
    assert_eq!(version(&first), version(&second), "a compare-and-set accepts one of them");
    other.set(first.next.unwrap());
    assert!(is_held_for_mass(&other.decide(&now, "other").verdict), "no second step right away");
    let later = census(TTL_MS + EVERY_MS / 2, 2, 88, 10);
    let BrakeVerdict::Opening { max, .. } = other.decide(&later, "other").verdict else {
        panic!("half an interval later the next step is due");
    };
    assert_eq!(max, 20);
}

/// A single pass has no memory; all that it knows is in the record.
#[test]
fn single_passes_with_a_shared_record_open_as_a_daemon_does() {
    let mut record = BrakeRecord::default();
    let mut verdicts = Vec::new();
    for at in [0, 1, 2, 3] {
        let process = brake();
        process.set(record);
        verdicts.push(process.pass(&census(at * EVERY_MS, 2, 98, 0)));
        record = process.record();
    }
    assert!(is_held_for_mass(&verdicts[0]) && is_held_for_mass(&verdicts[1]), "{verdicts:?}");
    assert_eq!(verdicts[2], BrakeVerdict::Opening { max: 10, of: Counted::Owners });
    assert_eq!(verdicts[3], BrakeVerdict::Opening { max: 20, of: Counted::Owners });
}

#[test]
fn an_absence_while_opening_holds_this_process_and_leaves_the_steps_of_the_others() {
    let brake = brake();
    brake.pass(&census(0, 2, 98, 0));
    assert!(matches!(brake.pass(&census(TTL_MS, 2, 98, 0)), BrakeVerdict::Opening { .. }));
    brake.note_unreachable("no answer");
    let verdict = brake.pass(&census(TTL_MS + 5, 2, 98, 0));
    assert!(matches!(verdict, BrakeVerdict::Held { by: HeldBy::StoreAway, .. }), "{verdict:?}");
    assert_eq!(brake.record().hold.unwrap().steps, 1);
}

/// A store that refuses a call (a missing permission, no memory) looks like one that was away: the cause is told.
#[test]
fn a_hold_after_a_failed_call_names_the_call() {
    let brake = brake();
    brake.note_unreachable("this user lacks a permission for `reclaim`");
    let at = census(5, 3, 1, 0);
    let held = brake.pass(&at);
    let words = brake.describe(&held, at.now_ms);
    assert!(words.contains("this user lacks a permission for `reclaim`"), "{words}");
    let open = brake.pass(&census(5 + TTL_MS, 3, 1, 0));
    assert_eq!(brake.describe(&open, 5 + TTL_MS), "open");
    let other = Census { store: "s2".into(), ..census(6 + TTL_MS, 3, 1, 0) };
    let held = brake.pass(&other);
    assert!(!brake.describe(&held, other.now_ms).contains("permission"), "that was before");
}

#[test]
fn a_restart_of_the_store_starts_the_hold_over() {
    let brake = brake();
    brake.pass(&census(0, 2, 98, 0));
    assert!(matches!(brake.pass(&census(TTL_MS, 2, 98, 0)), BrakeVerdict::Opening { .. }));
    let back = Census { back_ms: TTL_MS + 5, ..census(TTL_MS + 9, 2, 98, 0) };
    let verdict = brake.pass(&back);
    assert!(matches!(verdict, BrakeVerdict::Held { by: HeldBy::StoreAway, .. }), "{verdict:?}");
    assert_eq!(brake.record().hold, None);
}

#[test]
fn after_an_absence_or_a_restart_the_brake_holds_for_a_threshold() {
    let brake = brake();
    assert_eq!(brake.pass(&census(5, 3, 1, 0)), BrakeVerdict::Open);
    let other = Census { store: "s2".into(), ..census(1_000, 3, 1, 0) };
    let held = BrakeVerdict::Held { by: HeldBy::StoreAway, until_ms: Some(1_000 + TTL_MS) };
    assert_eq!(brake.pass(&other), held);
    let later = Census { store: "s2".into(), ..census(1_000 + TTL_MS, 3, 1, 0) };
    assert_eq!(brake.pass(&later), BrakeVerdict::Open);
}

#[test]
fn the_operators_setting_comes_first_and_an_override_ends_after_one_pass() {
    let brake = brake();
    brake.order(BrakeSetting::Hold);
    let held = BrakeVerdict::Held { by: HeldBy::Operator, until_ms: None };
    assert_eq!(brake.pass(&census(5, 9, 1, 0)), held);
    brake.order(over("they are gone"));
    let open = BrakeVerdict::Overridden { reason: "they are gone".into() };
    assert_eq!(brake.preview(&census(99, 0, 100, 0)), open);
    assert_eq!(brake.pass(&census(99, 0, 100, 0)), open);
    assert_eq!((brake.setting(), brake.record().hold), (BrakeSetting::Auto, None));
    assert!(is_held_for_mass(&brake.pass(&census(100, 0, 100, 0))), "it was one pass");
}

#[test]
fn other_processes_wait_while_a_pass_uses_an_override() {
    let (one, other) = (brake(), brake());
    one.order(over("drill"));
    let now = census(1_000, 9, 1, 0);
    assert!(matches!(one.pass(&now), BrakeVerdict::Overridden { .. }));
    other.set(one.record());
    let waits = BrakeVerdict::Held { by: HeldBy::OtherPass, until_ms: Some(1_000 + WAIVER_MS) };
    assert_eq!(other.decide(&now, "other").verdict, waits);
    let killed = census(1_000 + WAIVER_MS, 9, 1, 0);
    assert_eq!(other.decide(&killed, "other").verdict, BrakeVerdict::Open, "it runs out");
    other.set(one.record().ended_by("only").unwrap());
    assert_eq!(other.decide(&now, "other").verdict, BrakeVerdict::Open);
}

#[test]
fn a_hold_that_stays_opens_when_a_person_decides() {
    let brake = brake_of(BrakePolicy { stay: true, ..BrakePolicy::default() });
    let stays = BrakeVerdict::Held { by: HeldBy::MassDeath, until_ms: None };
    assert_eq!(brake.pass(&census(0, 2, 98, 0)), stays);
    assert_eq!(brake.pass(&census(100 * TTL_MS, 2, 98, 0)), stays);
    brake.order(over("one pass"));
    assert!(brake.pass(&census(100 * TTL_MS, 2, 98, 0)).is_open());
    assert_eq!(brake.pass(&census(101 * TTL_MS, 2, 30, 68)), stays, "an override is one pass");
    brake.order(BrakeSetting::Auto);
    let verdict = brake.pass(&census(101 * TTL_MS, 2, 30, 68));
    assert_eq!(verdict, BrakeVerdict::Opening { max: 10, of: Counted::Owners });
}

#[test]
fn a_hold_that_no_pass_has_ended_does_not_open_for_a_later_mass_death() {
    let brake = brake();
    assert!(is_held_for_mass(&brake.pass(&census(0, 2, 98, 0))));
    // They came back, no pass ran for a day, and others fell silent a second ago.
    let later = 86_400_000;
    let others = Census { oldest_late_ms: 1_000, ..census(later, 2, 98, 0) };
    let held = BrakeVerdict::Held { by: HeldBy::MassDeath, until_ms: Some(later + TTL_MS) };
    assert_eq!(brake.pass(&others), held);
    let same = Census { oldest_late_ms: TTL_MS, ..census(later + TTL_MS, 2, 98, 0) };
    assert!(matches!(brake.pass(&same), BrakeVerdict::Opening { .. }));
}

#[test]
fn auto_does_not_shorten_a_hold_that_opens_by_itself() {
    let brake = brake();
    brake.pass(&census(0, 2, 98, 0));
    brake.order(BrakeSetting::Auto);
    assert!(is_held_for_mass(&brake.pass(&census(TTL_MS - 1, 2, 98, 0))));
}

#[test]
fn most_entries_due_within_a_threshold_are_a_mass_death_that_opens_in_steps() {
    let brake = brake();
    assert_eq!(brake.pass(&entries(0, 500, 275, 275)), BrakeVerdict::Open, "0.55 exactly");
    assert_eq!(brake.pass(&entries(0, 9, 9, 9)), BrakeVerdict::Open, "too few to tell");
    assert_eq!(brake.pass(&entries(0, 500, 500, 30)), BrakeVerdict::Open, "an old backlog");
    assert!(is_held_for_mass(&brake.pass(&entries(0, 500, 500, 500))));
    let step = brake.pass(&entries(TTL_MS, 500, 500, 0));
    assert_eq!(step, BrakeVerdict::Opening { max: 50, of: Counted::Entries });
    let step = brake.pass(&entries(TTL_MS + EVERY_MS, 450, 450, 0));
    assert_eq!(step, BrakeVerdict::Opening { max: 90, of: Counted::Entries });
    assert_eq!(brake.pass(&entries(TTL_MS + 2 * EVERY_MS, 360, 0, 0)), BrakeVerdict::Open);
    assert_eq!(brake.record().hold, None);
}

#[test]
fn entries_that_run_out_by_themselves_are_judged_only_if_passes_are_frequent() {
    let all_due = Census { entries_run_out: true, ..entries(0, 500, 500, 500) };
    assert_eq!(brake().pass(&all_due), BrakeVerdict::Open);
    let brake = brake();
    brake.set_interval(Duration::from_millis(TTL_MS / 2));
    assert!(is_held_for_mass(&brake.pass(&all_due)));
}

#[test]
fn entries_that_were_reclaimed_within_a_threshold_count_with_those_that_are_due() {
    let spread = |left, died| Census {
        entries_died_recently: died,
        entries_died_last_half: died,
        ..entries(0, left, 100, 100)
    };
    assert_eq!(brake().pass(&spread(400, 100)), BrakeVerdict::Open, "200 of 500");
    assert!(is_held_for_mass(&brake().pass(&spread(300, 200))), "300 of 500");
    assert!(is_held_for_mass(&brake().pass(&Census { population: 8, ..spread(8, 12) })));
    assert_eq!(
        brake().pass(&Census { entries_due_recently: 0, ..spread(300, 200) }),
        BrakeVerdict::Open
    );
}

/// As many became due in the last threshold as still have to: nobody came back, and it is like that every day.
#[test]
fn entries_that_run_out_by_themselves_at_a_steady_rate_are_not_held() {
    for due in [1, 10, 100, 250] {
        let brake = brake();
        brake.set_interval(Duration::from_millis(TTL_MS / 2));
        let steady = Census {
            entries_run_out: true,
            entries_died_recently: 500,
            entries_died_last_half: 250,
            ..entries(0, 500 + due, due, due)
        };
        assert_eq!(brake.pass(&steady), BrakeVerdict::Open, "{due} due");
        let most = Census { entries_died_last_half: 500, ..entries(0, 250, 110, 110) };
        let most = Census { entries_run_out: true, entries_died_recently: 600, ..most };
        assert!(is_held_for_mass(&brake.pass(&most)), "{most:?}");
    }
}

#[test]
fn an_override_by_the_operator_does_not_end_observing() {
    let brake = brake();
    let observation = AdoptObservation { total: 5, ..AdoptObservation::default() };
    let blind = Census { observation: Some(observation.clone()), ..census(5, 0, 5, 0) };
    let observing = BrakeVerdict::Held { by: HeldBy::Observing, until_ms: None };
    assert_eq!(brake.pass(&blind), observing);
    brake.order(over("they are dead"));
    assert_eq!(brake.pass(&blind), observing);
    let observation = Some(AdoptObservation { confirmed_ms: Some(5), ..observation });
    let verdict = brake.pass(&Census { observation, ..blind });
    assert!(matches!(verdict, BrakeVerdict::Overridden { .. }), "it was not used up: {verdict:?}");
}
