#![allow(clippy::unwrap_used)]
use lapsed_core::Name;
use lapsed_core::clock::SystemClock;

use super::*;
use crate::owners::slot::Touched;
use crate::store_clock::StoreClock;

const TTL_MS: u64 = 100;
const PAGE: usize = 500;

struct Owners {
    due: DueOwners,
    slots: Vec<Arc<Slot>>,
    start_ms: u64,
}

/// Owners that hold one entry each, and whose deadline is the same.
fn owners(count: u64) -> Owners {
    let store_clock = Arc::new(StoreClock::new(SystemClock::shared(), 0, false));
    let start_ms = store_clock.now_ms();
    let context = SlotContext::new(store_clock);
    let mut due = DueOwners::new(context.clone());
    let name = Name::new("o").unwrap();
    let slots = (1..=count).map(|i| {
        let slot = Slot::pending(context.clone(), name.clone(), i, TTL_MS, start_ms);
        slot.begin(start_ms + TTL_MS);
        slot.hold_one();
        Arc::new(slot)
    });
    let slots: Vec<_> = slots.collect();
    slots.iter().for_each(|slot| due.admit(slot.clone(), start_ms, 0));
    Owners { due, slots, start_ms }
}

/// Reclaims all owners as passes do, and counts how many owners were looked at.
fn work_for(count: u64) -> u64 {
    let Owners { mut due, start_ms, .. } = owners(count);
    let now_ms = start_ms + TTL_MS;
    let (mut from, mut ended) = ((0, 0), 0);
    while ended < count {
        due.advance(now_ms, 0);
        assert_eq!(due.heads(now_ms, 1_000).suspects, count - ended);
        let page = due.reclaimable(from, None, PAGE);
        due.looked_at += page.len() as u64;
        for (place, slot) in page {
            from = place;
            assert!(slot.end_if(Ending::Dead, now_ms, |_| Ok::<_, ()>(())).is_some());
            due.note_end(&slot);
            slot.drop_one();
            due.note_emptied(&slot);
            ended += 1;
        }
    }
    assert_eq!(due.heads(now_ms, 1_000).died_recently, count);
    assert_eq!(due.heads(now_ms + 1_000, 1_000).died_recently, 0);
    due.looked_at
}

#[test]
fn the_work_grows_with_the_dead_and_not_with_their_square() {
    let (some, many) = (work_for(2_000), work_for(20_000));
    assert!(many <= 11 * some, "{some} looks for 2,000 owners and {many} for 20,000");
}

#[test]
fn a_reclaimable_owner_that_beats_is_spared() {
    let Owners { mut due, slots, start_ms } = owners(3);
    let now_ms = start_ms + TTL_MS;
    due.advance(now_ms, 0);
    assert_eq!(due.heads(now_ms, 1_000).overdue, 3);
    for later_ms in [1, 2] {
        assert!(matches!(slots[1].beat(now_ms + later_ms), Touched::Until(_)));
    }
    due.advance(now_ms + 2, 0);
    let listed = due.reclaimable((0, 0), None, 9);
    let listed: Vec<u64> = listed.into_iter().map(|(place, _)| place.1).collect();
    assert_eq!((listed, due.heads(now_ms, 1_000).suspects), (vec![1, 3], 2));
    due.advance(now_ms + 2 + TTL_MS, 0);
    assert_eq!(due.heads(now_ms, 1_000).overdue, 3);
}

#[test]
fn an_overdue_owner_is_listed_by_whether_it_holds_something() {
    let Owners { mut due, slots, start_ms } = owners(2);
    let now_ms = start_ms + TTL_MS;
    due.advance(now_ms, 0);
    slots[0].drop_one();
    due.advance(now_ms, 0);
    assert_eq!(due.overdue_empty(None, 9).len(), 1);
    assert_eq!(due.overdue_empty(Some(0), 9).len(), 0);
    assert_eq!(due.reclaimable((0, 0), Some(1), 9).len(), 0, "the first is the empty one");
    assert_eq!(due.reclaimable((0, 0), Some(2), 9).len(), 1);
    slots[0].hold_one();
    due.advance(now_ms, 0);
    assert_eq!(due.reclaimable((0, 0), Some(1), 9).len(), 1);
    assert_eq!(due.heads(now_ms, 1_000).suspects, 2);
}

#[test]
fn an_absence_spares_overdue_owners_again() {
    let Owners { mut due, start_ms, .. } = owners(2);
    let now_ms = start_ms + TTL_MS;
    due.advance(now_ms, 0);
    assert_eq!(due.heads(now_ms, 1_000).overdue, 2);
    due.advance(now_ms, now_ms);
    assert_eq!(due.heads(now_ms, 1_000).overdue, 0);
}

/// The brake lets a fleet through in steps; a page continues where the last one stopped.
#[test]
fn the_first_overdue_owners_are_those_that_the_brake_allows() {
    let Owners { mut due, slots, start_ms } = owners(6);
    let now_ms = start_ms + TTL_MS;
    due.advance(now_ms, 0);
    let listed = |due: &mut DueOwners, max| -> Vec<u64> {
        due.reclaimable((0, 0), max, 9).into_iter().map(|(place, _)| place.1).collect()
    };
    assert_eq!(listed(&mut due, Some(3)), [1, 2, 3]);
    assert_eq!(listed(&mut due, Some(1)), [1]);
    assert_eq!(listed(&mut due, Some(4)), [1, 2, 3, 4]);
    slots[1].end_if(Ending::Dead, now_ms, |_| Ok::<_, ()>(())).unwrap().unwrap();
    due.note_end(&slots[1]);
    assert_eq!(listed(&mut due, Some(3)), [1, 2, 3, 4], "an ended one is listed besides");
    assert_eq!(listed(&mut due, Some(0)), [2]);
    assert!(matches!(slots[0].beat(now_ms), Touched::Until(_)));
    due.advance(now_ms, 0);
    assert_eq!(listed(&mut due, Some(2)), [2, 3, 4]);
    assert_eq!(listed(&mut due, Some(99)), [2, 3, 4, 5, 6]);
    assert_eq!(listed(&mut due, None), [2, 3, 4, 5, 6]);
}
