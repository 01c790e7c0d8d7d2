//! Many concurrent callers on few providers, in a folder: the log, the receipts and the rows must
//! agree with what the answers said.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fixture::providers::{Bench, batch, flip_of, name};
use lapsed_availability::{
    Flipped, ProviderState, SessionChange, SessionOutcome, SessionRefusal, Truth,
};
use lapsed_embedded::LogStatus;

/// C6: many sweepers flip the same providers at once; each flip has one log row and one receipt.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn trap_c6_concurrent_sweepers_write_one_log_row_per_flip() {
    let folder = tempfile::tempdir().unwrap();
    let b = Arc::new(Bench::in_folder(folder.path()));
    let ids: Vec<String> = (0..20).map(|n| format!("p{n:02}")).collect();
    let states = b.there(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let sweepers: Vec<_> = (1..=8)
        .map(|number| {
            let (b, states) = (b.clone(), states.clone());
            tokio::spawn(async move {
                let flips: Vec<_> = states.iter().map(flip_of).collect();
                b.truth.flip(&batch(number), &flips, 0).await.unwrap()
            })
        })
        .collect();
    let mut flipped = 0;
    for sweeper in sweepers {
        let answers = sweeper.await.unwrap();
        flipped += answers.iter().filter(|one| matches!(one, Flipped::Offline(..))).count();
    }
    assert_eq!(flipped, 20);
    let offline = b.log().into_iter().filter(|(_, status)| *status == LogStatus::Offline);
    let mut offline: Vec<String> = offline.map(|(id, _)| id).collect();
    offline.sort();
    assert_eq!(offline, ids);
    let mut receipts: Vec<String> = b.receipts().await.iter().map(|r| r.key.to_string()).collect();
    receipts.sort();
    assert_eq!(receipts, ids);
}

/// Concurrent sweepers and toggles on one provider: the log alternates, each answered change has
/// its row, and each version is used once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_log_has_every_flip_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let b = Arc::new(Bench::in_folder(folder.path()));
    b.there(&["p"]).await;
    let changes = Arc::new(AtomicU64::new(1));
    let hands: Vec<_> = (0..6u64)
        .map(|hand| {
            let (b, changes) = (b.clone(), changes.clone());
            tokio::spawn(async move {
                let mut versions = Vec::new();
                for round in 0..25 {
                    let state: ProviderState = match hand % 3 {
                        0 => {
                            let flip = flip_of(&b.state("p").await);
                            let id = batch(hand * 1_000 + round);
                            match b.truth.flip(&id, &[flip], 0).await.unwrap().remove(0) {
                                Flipped::Offline(_, state) => {
                                    changes.fetch_add(1, Ordering::Relaxed);
                                    state
                                }
                                Flipped::Left(_, state) => state.unwrap(),
                            }
                        }
                        _ => {
                            let online = round % 4 != 3;
                            let changed =
                                b.truth.set_online(&name("p"), online).await.unwrap().unwrap();
                            changes.fetch_add(u64::from(changed.changed), Ordering::Relaxed);
                            changed.state
                        }
                    };
                    versions.push(state.version);
                }
                assert!(versions.is_sorted(), "nobody sees a version fall");
                versions
            })
        })
        .collect();
    let mut versions = Vec::new();
    for hand in hands {
        versions.extend(hand.await.unwrap());
    }
    let all = versions.len();
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len(), all, "each version was handed out once");
    let log = b.log();
    assert_eq!(log.len() as u64, changes.load(Ordering::Relaxed));
    let alternates = log.windows(2).all(|pair| pair[0].1 != pair[1].1);
    assert!(alternates && log[0].1 == LogStatus::Online, "{log:?}");
    let last = log.last().unwrap().1 == LogStatus::Online;
    assert_eq!(b.state("p").await.online, last);
}

/// C8: many callers start and end sessions; no provider ever has more than its maximum, and in the
/// end the counts equal the sessions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn trap_c8_capacity_equals_the_number_of_sessions() {
    const MAX: u64 = 3;
    let folder = tempfile::tempdir().unwrap();
    let b = Arc::new(Bench::in_folder(folder.path()));
    b.there(&["a", "b", "c"]).await;
    let hands: Vec<_> = (0..8usize)
        .map(|hand| {
            let b = b.clone();
            tokio::spawn(async move {
                let (mut full, who) = (0, ["a", "b", "c"]);
                for round in 0..12 {
                    let session = name(&format!("s{hand}-{round}"));
                    let (provider, to) = (name(who[(hand + round) % 3]), name(who[round % 3]));
                    for change in [
                        SessionChange::Accept { session: session.clone(), provider },
                        SessionChange::Extend { session: session.clone() },
                        SessionChange::Reroute { session: session.clone(), to },
                        SessionChange::End { session: session.clone() },
                        SessionChange::Cancel { session: session.clone() },
                    ] {
                        match b.truth.change_session(&change, MAX).await.unwrap() {
                            SessionOutcome::Done { touched, .. } => {
                                assert!(touched.iter().all(|state| state.sessions <= MAX));
                            }
                            SessionOutcome::Refused(SessionRefusal::Full { .. }) => full += 1,
                            SessionOutcome::Refused(_) => {}
                        }
                        // Some sessions are left running.
                        if hand == 0
                            && round % 6 == 5
                            && matches!(change, SessionChange::Extend { .. })
                        {
                            break;
                        }
                    }
                }
                full
            })
        })
        .collect();
    let mut full = 0;
    for hand in hands {
        full += hand.await.unwrap();
    }
    let mut running = [0u64; 3];
    for hand in 0..8 {
        for round in 0..12 {
            let session = b.session(&format!("s{hand}-{round}")).await;
            if let Some(session) = session.filter(lapsed_availability::WorkSession::occupies) {
                let at = ["a", "b", "c"].iter().position(|id| session.provider == Some(name(id)));
                running[at.unwrap()] += 1;
            }
        }
    }
    let counts = [b.state("a").await, b.state("b").await, b.state("c").await];
    assert_eq!(counts.map(|state| state.sessions), running, "{full} were refused as full");
}
