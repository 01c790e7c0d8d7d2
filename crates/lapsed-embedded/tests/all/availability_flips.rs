//! Flips in the truth of availability: setting providers offline, settling batches, and restoring.

use std::time::Duration;

use crate::fixture::providers::{
    Bench, STALE_MS, START_MS, batch, flip_of, flipped, log, name, silence, system,
};
use lapsed_availability::{Flip, Flipped, ProviderState, Truth};
use lapsed_core::Error;
use lapsed_core::receipt::{Reason, Retention};
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, Refusal, TidyLimits};
use lapsed_core::system::Restored;
use lapsed_embedded::LogStatus::{Offline, Online};

/// Silent providers are set offline with log row and receipt; those that toggled or sent a
/// heartbeat are not.
#[tokio::test]
async fn a_flip_sets_only_silent_providers_offline() {
    let (b, clock) = Bench::in_memory();
    let mut states = b.there(&["silent", "beat", "toggled", "left"]).await;
    silence(&clock);
    b.truth.beat(&[name("beat")]).await.unwrap();
    b.online("toggled").await;
    b.offline("left").await;
    let nobody = ProviderState { id: name("nobody"), ..states[0].clone() };
    states.push(nobody);
    let logged = b.log().len();
    let mut flips: Vec<Flip> = states.iter().map(flip_of).collect();
    flips[0] = Flip { silent_ms: Some(STALE_MS + 700), decided_ago_ms: 50, ..flips[0].clone() };
    let answer = b.truth.flip(&batch(1), &flips, STALE_MS).await.unwrap();
    let (receipt, state) = flipped(&answer[0]);
    assert_eq!((state.online, state.epoch), (false, state.version));
    assert_eq!((receipt.key.as_str(), receipt.owner.as_str()), ("silent", "silent"));
    assert_eq!(receipt.incarnation.0, states[0].epoch);
    assert_eq!((receipt.reason, receipt.batch), (Reason::HeartbeatStale, 1));
    let evidence = &receipt.evidence;
    assert_eq!((evidence.clock.as_str(), evidence.late_ms), ("embedded", 750));
    assert_eq!(evidence.judged_ms - evidence.deadline_ms, 750);
    assert_eq!(receipt.removed["epoch"], states[0].epoch);
    assert_eq!(receipt.removed["last_heartbeat_ms"], START_MS);
    assert_eq!(b.receipts().await, std::slice::from_ref(receipt));
    let left = |at: usize| match &answer[at] {
        Flipped::Left(why, state) => (*why, state.clone()),
        other => panic!("{other:?}"),
    };
    let (why, beaten) = left(1);
    let beaten = beaten.unwrap();
    assert!(why == Refusal::Alive && beaten.online && beaten.epoch == beaten.version);
    assert!(beaten.epoch > states[1].epoch, "so that the mirror revives it");
    for at in [2, 3] {
        let (why, state) = left(at);
        assert!(why == Refusal::Moved && state.unwrap().version > states[at].version);
    }
    assert_eq!(left(4), (Refusal::Moved, None));
    assert_eq!(b.log()[logged..], log(&[("silent", Offline)]));
    let settled = b.truth.settle(&batch(1).id).await.unwrap();
    assert_eq!(settled, std::slice::from_ref(receipt));
}

/// A provider without any heartbeat is late since the mirror's decision.
#[tokio::test]
async fn without_a_heartbeat_lateness_counts_from_the_decision() {
    let (b, clock) = Bench::in_memory();
    let state = b.there(&["p"]).await.pop().unwrap();
    silence(&clock);
    let flip = Flip { silent_ms: None, decided_ago_ms: 40, ..flip_of(&state) };
    let answer = b.truth.flip(&batch(1), &[flip], STALE_MS).await.unwrap();
    assert_eq!(flipped(&answer[0]).0.evidence.late_ms, 40);
}

/// A batch that is settled before it arrives is refused for ever; a batch that arrives twice acts
/// once.
#[tokio::test]
async fn a_batch_is_carried_out_once_or_never() {
    let (b, clock) = Bench::in_memory();
    let states = b.there(&["a", "b"]).await;
    silence(&clock);
    assert_eq!(b.truth.settle(&batch(1).id).await.unwrap(), []);
    let refused = b.truth.flip(&batch(1), &[flip_of(&states[0])], STALE_MS).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!((b.receipts().await.len(), b.state("a").await.online), (0, true));
    let first = b.flip(2, &states[..1]).await;
    flipped(&first[0]);
    let second = b.flip(2, &states).await;
    for answer in &second {
        assert!(matches!(answer, Flipped::Left(Refusal::Moved, Some(_))), "{answer:?}");
    }
    assert!(b.state("b").await.online);
    assert_eq!(b.receipts().await.len(), 1);
    assert_eq!(b.truth.settle(&batch(2).id).await.unwrap().len(), 1);
    let logged = b.log().iter().filter(|(_, status)| *status == Offline).count();
    assert_eq!(logged, 1);
}

/// X5: if this store keeps the terms, a leader whose term is over flips nobody.
#[tokio::test]
async fn trap_x5_a_leader_whose_term_is_over_flips_nobody() {
    let (b, clock) = Bench::in_memory();
    let state = b.there(&["a"]).await.pop().unwrap();
    let services = b.truth.services();
    let term = services.campaign(&system(), "one", 10_000).await.unwrap().unwrap();
    silence(&clock);
    let with = |number, term| Batch { term: Some(term), ..batch(number) };
    let flips = [flip_of(&state)];
    let late = b.truth.flip(&with(1, term.number), &flips, STALE_MS).await.unwrap();
    assert!(matches!(&late[0], Flipped::Left(Refusal::NotLeader, Some(now)) if now.online));
    let next = b.store.campaign(&system(), "two", 10_000).await.unwrap().unwrap();
    let now = b.truth.flip(&with(2, next.number), &flips, STALE_MS).await.unwrap();
    flipped(&now[0]);
}

#[tokio::test]
async fn a_receipt_is_restored_once_unless_toggled_since() {
    let (b, clock) = Bench::in_memory();
    let states = b.there(&["a", "on", "off"]).await;
    silence(&clock);
    let seqs: Vec<u64> = b.flip(1, &states).await.iter().map(|one| flipped(one).0.id.seq).collect();
    b.online("on").await;
    b.online("off").await;
    b.offline("off").await;
    let logged = b.log().len();
    let (restored, state) = b.truth.restore(seqs[0]).await.unwrap();
    let state = state.unwrap();
    let Restored::Restored { key, owner, incarnation } = restored else { panic!("{restored:?}") };
    assert_eq!((key.as_str(), owner.as_str(), incarnation), ("a", "a", state.epoch));
    assert!(state.online && state.epoch == state.version);
    assert_eq!(state.beat_age_ms, Some(0), "or the next pass would take it again");
    assert_eq!(b.log()[logged..], log(&[("a", Online)]));
    assert!(b.receipts().await[0].restored_ms.is_some());
    for seq in [seqs[0], seqs[1], seqs[2], 99] {
        let (refused, _) = b.truth.restore(seq).await.unwrap();
        assert!(matches!(refused, Restored::Refused { .. }), "{seq}: {refused:?}");
    }
    assert!(!b.state("off").await.online);
    assert_eq!(b.log().len(), logged + 1);
    // A second silence has its own receipt; the first one was used up.
    silence(&clock);
    let again = b.flip(2, &[b.state("a").await]).await;
    let seq = flipped(&again[0]).0.id.seq;
    assert!(matches!(b.truth.restore(seqs[0]).await.unwrap().0, Restored::Refused { .. }));
    assert!(matches!(b.truth.restore(seq).await.unwrap().0, Restored::Restored { .. }));
}

#[tokio::test]
async fn receipts_and_log_are_kept_for_the_retention() {
    let (b, clock) = Bench::in_memory();
    let states = b.there(&["a", "b", "c"]).await;
    silence(&clock);
    b.flip(1, &states).await;
    let limits = |age_ms, count, rows| TidyLimits {
        rows,
        undeclared_max: None,
        retention: Retention { age_ms, count, ..Retention::default() },
        term: None,
    };
    let tidied = b.truth.tidy(limits(3_600_000, 1_000, 100)).await.unwrap();
    assert_eq!((tidied.receipts_pruned, b.log().len()), (0, 6));
    let tidied = b.truth.tidy(limits(3_600_000, 2, 100)).await.unwrap();
    assert_eq!((tidied.receipts_pruned, b.log().len(), b.receipts().await.len()), (1, 2, 2));
    clock.advance(Duration::from_secs(3_601));
    let newer = b.there(&["d"]).await;
    let tidied = b.truth.tidy(limits(3_600_000, 1_000, 1)).await.unwrap();
    assert_eq!((tidied.receipts_pruned, b.log().len()), (1, 2), "a bounded part at a time");
    b.truth.tidy(limits(3_600_000, 1_000, 100)).await.unwrap();
    assert_eq!(b.log(), log(&[("d", Online)]));
    for (id, kept) in [("a", 0), ("c", 0), ("d", 1)] {
        assert_eq!(b.truth.log(&name(id), 9).await.unwrap().len(), kept, "{id}");
    }
    let next = b.truth.logs(0, 1).unwrap()[0].seq;
    b.offline("d").await;
    assert_eq!(b.truth.logs(next, 9).unwrap()[0].seq, next + 1, "numbers go on: {newer:?}");
}
