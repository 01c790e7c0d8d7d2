//! Many at once, on the same providers: who is last has seen what came before.

use std::sync::Arc;

use lapsed_availability::{Flipped, ProviderState, SessionChange, SessionOutcome, Truth};

use crate::fixture::{Bench, STALE_MS, address, batch, flip_of, name};

/// C8: whatever order the changes end in, the state with the highest version has the right count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_c8_the_highest_version_has_the_right_count() {
    let b = Arc::new(Bench::new().await);
    b.there(&["a", "b"]).await;
    let mut workers = Vec::new();
    for worker in 0..6 {
        let b = b.clone();
        workers.push(tokio::spawn(async move {
            let mut told: Vec<ProviderState> = Vec::new();
            for n in 0..8 {
                let session = name(&format!("s-{worker}-{n}"));
                let (from, to) = if n % 2 == 0 { ("a", "b") } else { ("b", "a") };
                let changes = [
                    SessionChange::Accept { session: session.clone(), provider: name(from) },
                    SessionChange::Reroute { session: session.clone(), to: name(to) },
                    SessionChange::End { session },
                ];
                // The last ones stay.
                let changes = if n < 6 { &changes[..] } else { &changes[..2] };
                for change in changes {
                    let done = b.change(change.clone(), 1_000).await;
                    let SessionOutcome::Done { touched, .. } = done else { panic!("{done:?}") };
                    told.extend(touched);
                }
            }
            told
        }));
    }
    let mut newest: std::collections::BTreeMap<_, ProviderState> = Default::default();
    let mut versions = std::collections::BTreeSet::new();
    for worker in workers {
        for state in worker.await.unwrap() {
            assert!(versions.insert((state.id.clone(), state.version)), "a version is taken once");
            let known = newest.entry(state.id.clone()).or_insert_with(|| state.clone());
            if known.version < state.version {
                *known = state;
            }
        }
    }
    for (id, state) in newest {
        let truth = b.state(id.as_str()).await;
        assert_eq!((state.version, state.sessions), (truth.version, truth.sessions), "{id}");
        assert_eq!(truth.sessions, 6);
    }
}

/// Concurrent callers accept only as many sessions as the provider has room for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_provider_gets_more_sessions_than_its_maximum() {
    let b = Arc::new(Bench::new().await);
    b.there(&["a"]).await;
    let accept = |n: u32| {
        let b = b.clone();
        tokio::spawn(async move { b.accept(&format!("s{n}"), "a", 3).await })
    };
    let mut accepted = 0;
    for outcome in (0..12).map(accept).collect::<Vec<_>>() {
        accepted += usize::from(matches!(outcome.await.unwrap(), SessionOutcome::Done { .. }));
    }
    assert_eq!((accepted, b.state("a").await.sessions), (3, 3));
}

/// A session is accepted by one of many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_taken_once() {
    let b = Arc::new(Bench::new().await);
    b.there(&["a", "b", "c", "d"]).await;
    let accept = |who: &'static str| {
        let b = b.clone();
        tokio::spawn(async move { b.accept("s", who, 3).await })
    };
    let mut done = 0;
    for outcome in ["a", "b", "c", "d"].map(accept) {
        done += usize::from(matches!(
            outcome.await.unwrap(),
            SessionOutcome::Done { changed: true, .. }
        ));
    }
    assert_eq!(done, 1);
    assert_eq!(b.truth.count_available(&Default::default()).await.unwrap(), 4);
}

/// C6: several sweepers flip the same providers, each in another order: one log row and one receipt each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_c6_many_sweepers_flip_once() {
    let b = Arc::new(Bench::new().await);
    let ids: Vec<String> = (0..40).map(|n| format!("p{n:02}")).collect();
    let states = b.there(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    b.age("1000 s");
    let logged = b.log().len();
    let mut sweepers = Vec::new();
    for sweeper in 0..4_u64 {
        let truth = b.daemon(&address(&b.url()));
        let mut flips: Vec<_> = states.iter().map(flip_of).collect();
        flips.rotate_left(sweeper as usize * 7);
        if sweeper % 2 == 0 {
            flips.reverse();
        }
        sweepers.push(tokio::spawn(async move {
            let answers = truth.flip(&batch(sweeper), &flips, STALE_MS).await.unwrap();
            answers.iter().filter(|answer| matches!(answer, Flipped::Offline(..))).count()
        }));
    }
    let mut flipped = 0;
    for sweeper in sweepers {
        flipped += sweeper.await.unwrap();
    }
    assert_eq!((flipped, b.receipts().await.len(), b.log().len() - logged), (40, 40, 40));
}

/// Beats, toggles, flips and the application's own writes, all at once: there is no deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_do_not_deadlock() {
    let b = Arc::new(Bench::new().await);
    let ids: Vec<String> = (0..12).map(|n| format!("p{n:02}")).collect();
    b.there(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut workers = Vec::new();
    for worker in 0..6 {
        let b = b.clone();
        let mut names: Vec<_> = ids.iter().map(|id| name(id)).collect();
        names.rotate_left(worker * 2);
        workers.push(tokio::spawn(async move {
            for round in 0..6_u64 {
                match worker % 3 {
                    0 => drop(b.truth.beat(&names).await.unwrap()),
                    1 => {
                        let beats: Vec<_> = names.iter().map(|id| (id.clone(), 0)).collect();
                        b.truth.note_beats(&beats, u64::MAX).await.unwrap();
                        let ids: Vec<_> = names.iter().map(|id| (id.clone(), 0)).collect();
                        assert_eq!(b.truth.refresh(&ids).await.unwrap().len(), 12);
                    }
                    _ => {
                        let online = round % 2 == 1;
                        b.truth.set_online(&names[0], online).await.unwrap();
                        let states = b.truth.read(&names).await.unwrap();
                        let flips: Vec<_> = states.iter().map(flip_of).collect();
                        let number = round * 10 + worker as u64;
                        b.truth.flip(&batch(number), &flips, 0).await.unwrap();
                    }
                }
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    assert!(!b.server.log().contains("deadlock"), "{}", b.server.log());
}
