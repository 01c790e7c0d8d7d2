#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn at(now_ms: u64) -> ClockReading {
    ClockReading::exact(now_ms, 0)
}

fn held(now_ms: u64, ttl_ms: u64) -> LeaseRecord {
    let mut record = LeaseRecord::default();
    assert_eq!(record.acquire(&name("a"), ttl_ms, None, &at(now_ms)), AcquireOutcome::Granted);
    record
}

fn staged(text: &str) -> StagedState {
    StagedState { txn: name("t"), state: LeaseState::Json(text.into()) }
}

#[test]
fn trap_d8_a_deadline_equal_to_now_has_passed_everywhere() {
    let record = held(1_000, 500);
    assert!(record.expired(&at(1_499)).is_none());
    assert!(record.expired(&at(1_500)).is_some());
    let marker = DecisionMarker::new(Decision::Commit, 500, &at(1_000));
    assert!(!marker.is_expired(&at(1_499)));
    assert!(marker.is_expired(&at(1_500)));
    let mut cleared = record.clone();
    assert_eq!(cleared.clear(&at(1_499), None), None);
    assert_eq!(cleared, record);
    assert_eq!(cleared.clear(&at(1_500), None).unwrap().token, LeaseToken(1));
    assert!(cleared.lease.is_none());
}

#[test]
fn trap_d5_a_token_outlives_its_lease() {
    let mut record = held(0, 10);
    record.release(LeaseToken(1), None).unwrap();
    assert_eq!(record.token, LeaseToken(1));
    record.acquire(&name("b"), 10, None, &at(5));
    record.clear(&at(15), None).unwrap();
    record.acquire(&name("c"), 10, None, &at(20));
    assert_eq!(record.token, LeaseToken(3));
    assert_eq!(record.check(LeaseToken(1)).unwrap_err().why, LossReason::Superseded);
    assert_eq!(record.check(LeaseToken(9)).unwrap_err().why, LossReason::Unknown);
    assert_eq!(record.check(LeaseToken(0)).unwrap_err().why, LossReason::Unknown);
}

#[test]
fn only_the_same_request_gets_the_same_answer() {
    let (request, other) = (name("r1"), name("r2"));
    let mut record = LeaseRecord::default();
    assert_eq!(record.acquire(&name("a"), 10, Some(&request), &at(0)), AcquireOutcome::Granted);
    let before = record.clone();
    assert_eq!(record.acquire(&name("a"), 10, Some(&request), &at(1)), AcquireOutcome::Repeated);
    assert_eq!(record.acquire(&name("b"), 10, Some(&request), &at(1)), AcquireOutcome::Held);
    assert_eq!(record.acquire(&name("a"), 10, Some(&other), &at(1)), AcquireOutcome::Held);
    assert_eq!(record.acquire(&name("a"), 10, None, &at(1)), AcquireOutcome::Held);
    assert_eq!(record, before);
}

#[test]
fn a_renewal_never_shortens() {
    let mut record = held(0, 100);
    record.renew(LeaseToken(1), Some(10), &at(5)).unwrap();
    assert_eq!(record.lease.as_ref().unwrap().deadline_ms, 100);
    record.renew(LeaseToken(1), None, &at(95)).unwrap();
    assert_eq!(record.lease.as_ref().unwrap().deadline_ms, 105);
}

#[test]
fn trap_d9_staged_state_follows_its_decision() {
    let mut record = held(0, 10);
    record.stage(LeaseToken(1), Some(staged("new"))).unwrap();
    assert_eq!(record.clear(&at(10), None), None, "undecided: it is left alone");
    let mut committed = record.clone();
    let cleared = committed.clear(&at(10), Some(Decision::Commit)).unwrap();
    assert_eq!(cleared.staged, Some((name("t"), Decision::Commit)));
    assert_eq!(committed.state, Some(LeaseState::Json("new".into())));
    let mut rolled_back = record.clone();
    rolled_back.clear(&at(10), Some(Decision::Rollback)).unwrap();
    assert_eq!((rolled_back.state, rolled_back.staged), (None, None));
    record.release(LeaseToken(1), Some(Decision::Commit)).unwrap();
    assert_eq!(record.state, Some(LeaseState::Json("new".into())));
}

#[test]
fn after_an_absence_a_lease_has_a_whole_ttl() {
    let record = held(1_000, 500);
    let back = |now_ms| ClockReading::exact(now_ms, 4_000);
    assert!(record.expired(&back(4_499)).is_none());
    assert!(record.expired(&back(4_500)).is_some());
    let later = held(4_000, 100);
    assert!(later.expired(&back(4_100)).is_some(), "it was never cut off");
}

#[test]
fn an_inexact_clock_is_read_on_the_safe_side() {
    let bounds =
        |earliest, latest| ClockReading { judging_ms: earliest, granting_ms: latest, back_ms: 0 };
    let mut record = LeaseRecord::default();
    record.acquire(&name("a"), 1_000, None, &bounds(10_000, 10_900));
    assert_eq!(record.lease.as_ref().unwrap().deadline_ms, 11_900, "never less than the TTL");
    assert!(record.expired(&bounds(11_899, 12_800)).is_none(), "perhaps over is not over");
    assert!(record.expired(&bounds(11_900, 12_800)).is_some());
}

#[test]
fn trap_d5_a_new_record_starts_above_the_floor() {
    let mut record = LeaseRecord::default();
    record.begin_above(7);
    record.acquire(&name("a"), 1_000, None, &at(0));
    assert_eq!(record.token, LeaseToken(8));
    record.begin_above(100);
    assert_eq!(record.token, LeaseToken(8), "only a record without a token asks the floor");
    let why = |token| LeaseRecord::loss_without_record(LeaseToken(token), 7).why;
    assert_eq!([why(0), why(7), why(8)], {
        use LossReason::{Ended, Unknown};
        [Unknown, Ended, Unknown]
    });
}

#[test]
fn only_a_free_record_without_a_state_may_be_forgotten() {
    let mut record = held(0, 1_000);
    assert_eq!(record.idle(500), IdleRecord::Kept);
    record.release(LeaseToken(1), None).unwrap();
    assert_eq!(record.idle(500), IdleRecord::ForgetAt(1_500), "counted from the deadline");
    record.state = Some(LeaseState::Json(1.into()));
    assert_eq!(record.idle(500), IdleRecord::Kept);
    let mut late = held(0, 1_000);
    late.clear(&at(9_000), None);
    assert_eq!(late.idle(500), IdleRecord::ForgetAt(9_500), "counted from when it was cleared");
    late.acquire(&name("b"), 1_000, None, &at(9_100));
    assert_eq!(late.idle(500), IdleRecord::Kept);
    // As an older version has written it.
    let old: LeaseRecord =
        serde_json::from_str(r#"{"token":3,"lease":null,"state":null,"staged":null}"#).unwrap();
    assert_eq!((old.token, old.idle(500)), (LeaseToken(3), IdleRecord::Undated));
}

#[derive(Clone, Debug)]
enum Step {
    Acquire,
    Renew(u64),
    Release(u64),
    Clear,
    State(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Acquire),
        (0..6u64).prop_map(Step::Renew),
        (0..6u64).prop_map(Step::Release),
        Just(Step::Clear),
        (0..6u64).prop_map(Step::State),
    ]
}

proptest! {
    /// Whatever is done in whatever order: tokens never go back, only the holder's token changes
    /// anything, and what was refused changed nothing.
    #[test]
    fn only_the_newest_token_acts(steps in prop::collection::vec((step(), 0..20u64), 1..60)) {
        let (mut record, mut now) = (LeaseRecord::default(), 0);
        for (step, pass) in steps {
            now += pass;
            let now = at(now);
            record.clear(&now, None);
            let before = record.clone();
            let result = match step {
                Step::Acquire => {
                    let attempt = record.acquire(&name("a"), 15, None, &now);
                    prop_assert_eq!(attempt == AcquireOutcome::Granted, before.lease.is_none());
                    prop_assert_eq!(record.token.0, before.token.0 + u64::from(before.lease.is_none()));
                    continue;
                }
                Step::Clear => continue,
                Step::Renew(token) => (token, record.renew(LeaseToken(token), None, &now)),
                Step::Release(token) => (token, record.release(LeaseToken(token), None)),
                Step::State(token) => {
                    (token, record.set_state(LeaseToken(token), Some(LeaseState::Json(token.into()))))
                }
            };
            let rightful = before.lease.is_some() && LeaseToken(result.0) == before.token;
            prop_assert_eq!(result.1.is_ok(), rightful);
            prop_assert_eq!(record.token, before.token);
            if !rightful {
                prop_assert_eq!(&record, &before);
            }
        }
    }
}
