#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

const NOW_MS: u64 = 1_000_000;
const STALE_MS: u64 = 90_000;

/// What a truth does to one provider.
#[derive(Clone, Copy, Debug)]
enum Event {
    Online,
    Offline,
    Active(bool),
    Sessions(u64),
    /// Beats do not take a version.
    Beat,
    Refresh,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => Just(Event::Online),
        2 => Just(Event::Offline),
        1 => any::<bool>().prop_map(Event::Active),
        1 => (0u64..4).prop_map(Event::Sessions),
        2 => Just(Event::Beat),
        1 => Just(Event::Refresh),
    ]
}

/// Every state of such a truth, with its heartbeat on the mirror's clock: one event per second.
fn told(events: &[Event]) -> Vec<(ProviderState, Option<u64>)> {
    let mut state = ProviderState {
        id: name("p"),
        version: 0,
        epoch: 0,
        online: false,
        active: true,
        sessions: 0,
        beat_age_ms: None,
    };
    let (mut beat_ms, mut told) = (None, Vec::new());
    for (at, event) in events.iter().enumerate() {
        let at_ms = NOW_MS - 500_000 + at as u64 * 1_000;
        state.version = next_version(state.version, 0, at as u64);
        let epoch = state.version;
        match *event {
            Event::Online => {
                (state.online, state.epoch, beat_ms) = (true, epoch, Some(at_ms));
            }
            Event::Offline if state.online => (state.online, state.epoch) = (false, epoch),
            Event::Active(active) => state.active = active,
            Event::Sessions(sessions) => state.sessions = sessions,
            Event::Beat if state.online => beat_ms = Some(at_ms),
            Event::Offline | Event::Beat | Event::Refresh => {}
        }
        if !matches!(event, Event::Beat) {
            told.push((state.clone(), beat_ms));
        }
    }
    told
}

/// What a mirror does when it decides to set a provider offline.
fn decide_offline(row: &mut MirrorRow, now_ms: u64) {
    let beat_ms = row.beat_ms.unwrap_or(0);
    if row.online && row.pending_offline.is_none() && now_ms >= beat_ms + STALE_MS {
        let pending = PendingOffline { epoch: row.epoch, beat_ms, decided_ms: now_ms };
        (row.online, row.beat_ms, row.pending_offline) = (false, None, Some(pending));
    }
}

proptest! {
    /// C2, C8: in whatever order, and however often, states arrive: the newest is what stays.
    #[test]
    fn trap_c8_updates_in_any_order_end_in_the_newest_state(
        events in vec(event(), 1..20),
        order in vec(any::<Index>(), 0..60),
    ) {
        let told = told(&events);
        prop_assume!(!told.is_empty());
        let mut row = MirrorRow::default();
        for (state, beat_ms) in order.iter().map(|at| at.get(&told)) {
            let known = row.version;
            let taken = row.apply(state, *beat_ms, NOW_MS);
            prop_assert_eq!(taken, known.is_none_or(|known| known < state.version));
            prop_assert!(row.version >= known, "it never goes back");
        }
        // Whatever was left out comes at last, in the worst order.
        for (state, beat_ms) in told.iter().rev() {
            row.apply(state, *beat_ms, NOW_MS);
        }
        let (newest, beat_ms) = told.last().unwrap();
        prop_assert_eq!(row, MirrorRow {
            version: Some(newest.version),
            epoch: newest.epoch,
            online: newest.online,
            deactivated: !newest.active,
            sessions: newest.sessions,
            beat_ms: beat_ms.filter(|_| newest.online),
            pending_offline: None,
        });
    }

    /// C5, C1: a provider that is pending offline stays so until the truth knows or a newer toggle
    /// arrives, and no update makes a heartbeat later than the last one sent.
    #[test]
    fn trap_c5_pending_offline_lasts_until_a_newer_toggle(
        events in vec(event(), 1..20),
        order in vec((any::<Index>(), any::<bool>()), 1..60),
    ) {
        let told = told(&events);
        prop_assume!(!told.is_empty());
        let mut row = MirrorRow::default();
        let later_ms = NOW_MS + STALE_MS;
        for (at, silent) in &order {
            let before = row.clone();
            let (state, beat_ms) = at.get(&told);
            row.apply(state, *beat_ms, NOW_MS);
            prop_assert!(!(row.online && row.pending_offline.is_some()));
            prop_assert!(row.online || row.beat_ms.is_none(), "C10: {:?}", row);
            if let Some(pending) = before.pending_offline && row.online {
                prop_assert!(row.epoch > pending.epoch, "{:?} then {:?}", before, row);
            }
            let last_ms = told.iter().filter_map(|(_, beat_ms)| *beat_ms).max();
            prop_assert!(row.beat_ms <= last_ms);
            if *silent {
                decide_offline(&mut row, later_ms);
            }
        }
        for (state, beat_ms) in told.iter().rev() {
            row.apply(state, *beat_ms, NOW_MS);
        }
        let (newest, _) = told.last().unwrap();
        let pending_offline = row.pending_offline.is_some_and(|pending| pending.epoch == newest.epoch && newest.online);
        prop_assert_eq!(row.pending_offline.is_some(), pending_offline, "{:?}", row);
        prop_assert_eq!(row.online, newest.online && !pending_offline);
        prop_assert_eq!((row.version, row.epoch), (Some(newest.version), newest.epoch));
    }

    /// A beat from a clock that is ahead is not believed beyond now.
    #[test]
    fn trap_c11_no_heartbeat_is_later_than_now(beat_ms in any::<u64>(), now_ms in any::<u64>()) {
        let state = ProviderState {
            id: name("p"),
            version: 1,
            epoch: 1,
            online: true,
            active: true,
            sessions: 0,
            beat_age_ms: None,
        };
        let mut row = MirrorRow::default();
        row.apply(&state, Some(beat_ms), now_ms);
        prop_assert_eq!(row.beat_ms, Some(beat_ms.min(now_ms)));
    }

    #[test]
    fn trap_x7_a_version_is_above_all_earlier_ones(
        last in 0..u64::MAX, floor in 0..u64::MAX, now_us in any::<u64>(),
    ) {
        let next = next_version(last, floor, now_us);
        prop_assert!(next > last && next > floor && next >= now_us);
    }

    /// Random changes of the sessions of two providers: an ended session stays ended, no provider
    /// exceeds its capacity, and a provider that gets one session more is named.
    #[test]
    fn sessions_end_once_and_capacity_holds(changes in vec(change(), 1..80), max in 0u64..4) {
        let mut sessions: BTreeMap<Name, WorkSession> = BTreeMap::new();
        let count = |sessions: &BTreeMap<Name, WorkSession>, provider: &Name| {
            let mine = |one: &&WorkSession| one.occupies() && one.provider.as_ref() == Some(provider);
            sessions.values().filter(mine).count() as u64
        };
        let providers = [name("a"), name("b")];
        for change in &changes {
            let before = sessions.get(change.session()).cloned();
            let counts = providers.clone().map(|provider| count(&sessions, &provider));
            let Ok(Some(SessionStep { session, onto })) = step(before.as_ref(), change) else {
                continue;
            };
            prop_assert_eq!(&session.id, change.session());
            prop_assert_ne!(Some(&session), before.as_ref(), "a step changes something");
            if onto.as_ref().is_some_and(|onto| count(&sessions, onto) >= max) {
                continue;
            }
            prop_assert!(before.is_none_or(|before| !before.status.is_over()), "{:?}", change);
            sessions.insert(session.id.clone(), session);
            for (provider, had) in providers.iter().zip(counts) {
                let has = count(&sessions, provider);
                prop_assert_eq!(has > had, onto.as_ref() == Some(provider), "{:?}", change);
                prop_assert!(has <= had.max(max) && has.abs_diff(had) <= 1);
            }
        }
        for provider in &providers {
            prop_assert!(count(&sessions, provider) <= max);
        }
    }

    /// A change that was made can be asked for again, as after an answer that was lost: it is that already.
    #[test]
    fn a_repeated_session_change_changes_nothing(changes in vec(change(), 1..40)) {
        let mut sessions: BTreeMap<Name, WorkSession> = BTreeMap::new();
        for change in &changes {
            if let Ok(Some(made)) = step(sessions.get(change.session()), change) {
                prop_assert_eq!(step(Some(&made.session), change), Ok(None));
                sessions.insert(made.session.id.clone(), made.session);
            }
        }
    }

    /// C7: an available provider is reachable and has room; an older heartbeat makes nobody
    /// available.
    #[test]
    fn trap_c7_available_providers_are_reachable(
        flags in any::<(bool, bool, bool)>(),
        sessions in 0u64..5,
        age_ms in proptest::option::of(0u64..200_000),
        older_ms in 0u64..200_000,
    ) {
        let (online, active, require_ping) = flags;
        let id = name("p");
        let one = ProviderState {
            id, version: 1, epoch: 1, online, active, sessions, beat_age_ms: age_ms,
        };
        let settings = AvailabilitySettings { require_ping, ..AvailabilitySettings::default() };
        let available = settings.is_available(&one);
        prop_assert!(!available || (settings.is_reachable(&one) && online && active));
        prop_assert!(!available || sessions < settings.max_customers_per_mitra);
        let older = ProviderState { beat_age_ms: age_ms.map(|age_ms| age_ms + older_ms), ..one };
        prop_assert!(available || !settings.is_available(&older));
    }
}

fn change() -> impl Strategy<Value = SessionChange> {
    let session = || select(vec![name("s"), name("t"), name("u"), name("v")]);
    let provider = || select(vec![name("a"), name("b")]);
    prop_oneof![
        3 => (session(), provider()).prop_map(|(session, provider)| SessionChange::Accept {
            session,
            provider
        }),
        2 => (session(), provider())
            .prop_map(|(session, to)| SessionChange::Reroute { session, to }),
        1 => session().prop_map(|session| SessionChange::Extend { session }),
        1 => session().prop_map(|session| SessionChange::Resume { session }),
        1 => session().prop_map(|session| SessionChange::End { session }),
        1 => session().prop_map(|session| SessionChange::Expire { session }),
        1 => session().prop_map(|session| SessionChange::Cancel { session }),
    ]
}
