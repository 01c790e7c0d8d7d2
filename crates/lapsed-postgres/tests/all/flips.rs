//! Setting the silent offline: who is, who is not, batches that are settled, what is put back.

use lapsed_availability::{Flip, Flipped, ProviderState, Truth};
use lapsed_core::Error;
use lapsed_core::receipt::{Reason, Retention};
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, PassMode, Refusal, TidyLimits};
use lapsed_core::system::Restored;

use crate::fixture::{Bench, STALE_MS, batch, flip_of, flipped, name, system};

fn left(answer: &Flipped) -> (Refusal, Option<ProviderState>) {
    match answer {
        Flipped::Left(why, state) => (*why, state.clone()),
        flipped => panic!("{flipped:?}"),
    }
}

/// A silent provider is set offline with log row and receipt; one that toggled, beat or left is not.
#[tokio::test]
async fn a_flip_takes_the_silent_and_leaves_the_others() {
    let b = Bench::new().await;
    let mut states = b.there(&["silent", "beat", "toggled", "left", "theirs"]).await;
    b.age("1000 s");
    b.truth.beat(&[name("beat")]).await.unwrap();
    b.online("toggled").await;
    b.offline("left").await;
    // The application sets it online by itself, and beats elsewhere.
    b.sql(
        "UPDATE mitra_online_status SET last_online_at = now() - interval '900 s' \
           WHERE mitra_id = 'theirs'",
    );
    states.push(ProviderState { id: name("nobody"), ..states[0].clone() });
    let logged = b.log().len();
    let mut flips: Vec<Flip> = states.iter().map(flip_of).collect();
    flips[0].silent_ms = Some(800_700);
    flips[0].decided_ago_ms = 50;
    let answer = b.truth.flip(&batch(1), &flips, 800_000).await.unwrap();
    let (receipt, state) = flipped(&answer[0]);
    assert_eq!((state.online, state.epoch), (false, state.version));
    assert_eq!((receipt.key.as_str(), receipt.owner.as_str()), ("silent", "silent"));
    assert_eq!(receipt.incarnation.0, states[0].epoch);
    assert_eq!((receipt.reason, receipt.batch), (Reason::HeartbeatStale, 1));
    let evidence = &receipt.evidence;
    assert_eq!((evidence.clock.as_str(), evidence.late_ms), ("postgres", 750));
    assert_eq!(evidence.judged_ms - evidence.deadline_ms, 750);
    assert_eq!(receipt.removed["epoch"], states[0].epoch);
    assert!(receipt.removed["last_heartbeat_at"].as_str().unwrap().starts_with("20"));
    let (why, beaten) = left(&answer[1]);
    let beaten = beaten.unwrap();
    assert!(why == Refusal::Alive && beaten.online && beaten.epoch == beaten.version);
    assert!(beaten.epoch > states[1].epoch, "so that the mirror revives it");
    for at in [2, 3, 4] {
        let (why, state) = left(&answer[at]);
        let state = state.unwrap();
        assert!(why == Refusal::Moved && state.version > states[at].version, "{state:?}");
        assert!(state.epoch > states[at].epoch, "{state:?}");
    }
    assert_eq!(left(&answer[5]), (Refusal::Moved, None));
    assert_eq!(b.log()[logged..], ["silent offline"]);
    let settled = b.truth.settle(&batch(1).id).await.unwrap();
    assert_eq!(settled, std::slice::from_ref(receipt));
    assert_eq!(
        b.postgres.receipt(&system(), receipt.id.seq).await.unwrap().as_ref(),
        Some(receipt)
    );
    assert_eq!(b.receipts().await.len(), 1);
}

/// G1: the statement waits for a lock, and meanwhile the heartbeat becomes too old. What counts is the time of the
/// judgement, not that of the transaction's beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_g1_a_flip_that_waited_for_a_lock_judges_by_the_time_after_it() {
    let b = Bench::new().await;
    let states = b.there(&["a"]).await;
    b.age("59.5 s");
    let holding = b.hold("SELECT 1 FROM mitra_online_status FOR UPDATE", 1.0).await;
    let answer = b.truth.flip(&batch(1), &[flip_of(&states[0])], 60_000).await.unwrap();
    holding.join().unwrap();
    let (receipt, state) = flipped(&answer[0]);
    assert!(!state.online);
    assert!(receipt.evidence.judged_ms >= receipt.evidence.deadline_ms, "{:?}", receipt.evidence);
}

/// G2: a heartbeat and a toggle that are committed while the statement waits for their rows' locks count, although its
/// snapshot is older.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_g2_a_flip_that_waited_for_a_lock_sees_what_was_committed_meanwhile() {
    let b = Bench::new().await;
    let states = b.there(&["beat", "toggled"]).await;
    b.age("1000 s");
    let committed = "UPDATE mitra_online_status SET last_heartbeat_at = now() WHERE mitra_id = 'beat'; \
                     UPDATE mitra_online_status SET last_online_at = now() - interval '900 s' \
                       WHERE mitra_id = 'toggled'";
    let holding = b.hold(committed, 0.5).await;
    let flips: Vec<Flip> = states.iter().map(flip_of).collect();
    let answer = b.truth.flip(&batch(1), &flips, 60_000).await.unwrap();
    holding.join().unwrap();
    assert_eq!((left(&answer[0]).0, left(&answer[1]).0), (Refusal::Alive, Refusal::Moved));
    assert_eq!(b.receipts().await, []);
}

/// For a provider that never used lapsed, only its rows in the tables count.
#[tokio::test]
async fn who_was_never_seen_before_is_judged_by_the_tables() {
    let b = Bench::new().await;
    b.sql("INSERT INTO mitras (id) VALUES ('old'), ('young')");
    b.sql(
        "INSERT INTO mitra_online_status (mitra_id, is_online, last_online_at, last_heartbeat_at) \
           VALUES ('old', true, now() - interval '1 day', NULL), \
           ('young', true, now(), now() - interval '1 day')",
    );
    let states = b.truth.page(None, 9).await.unwrap();
    assert!(states.iter().all(|state| (state.version, state.epoch) == (0, 0)), "{states:?}");
    let flips: Vec<Flip> = states.iter().map(flip_of).collect();
    let answer = b.truth.flip(&batch(1), &flips, 60_000).await.unwrap();
    flipped(&answer[0]);
    assert_eq!(left(&answer[1]).0, Refusal::Alive, "being set online is a sign of life");
}

#[tokio::test]
async fn a_dry_run_says_the_same_and_changes_nothing() {
    let b = Bench::new().await;
    let states = b.there(&["a"]).await;
    b.age("1000 s");
    let dry = Batch { act: PassMode::DryRun, ..batch(1) };
    let answer = b.truth.flip(&dry, &[flip_of(&states[0])], STALE_MS).await.unwrap();
    flipped(&answer[0]);
    assert!(b.state("a").await.online && b.receipts().await.is_empty());
    assert_eq!(b.log(), ["a online"]);
    flipped(&b.flip(1, &states).await[0]);
}

/// A batch that is settled before it arrives is refused for ever; one that comes twice acts once.
#[tokio::test]
async fn a_batch_is_carried_out_once_or_never() {
    let b = Bench::new().await;
    let states = b.there(&["a", "b"]).await;
    b.age("1000 s");
    assert_eq!(b.truth.settle(&batch(1).id).await.unwrap(), []);
    let refused = b.truth.flip(&batch(1), &[flip_of(&states[0])], STALE_MS).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!((b.receipts().await.len(), b.state("a").await.online), (0, true));
    flipped(&b.flip(2, &states[..1]).await[0]);
    for answer in &b.flip(2, &states).await {
        assert!(matches!(answer, Flipped::Left(Refusal::Moved, Some(_))), "{answer:?}");
    }
    assert!(b.state("b").await.online);
    assert_eq!(b.receipts().await.len(), 1);
    assert_eq!(b.truth.settle(&batch(2).id).await.unwrap().len(), 1);
    assert_eq!(b.log().iter().filter(|row| row.ends_with("offline")).count(), 1);
}

/// X5: if this store elects the leader, a leader whose term is over flips no provider.
#[tokio::test]
async fn trap_x5_a_leader_whose_term_is_over_flips_nobody() {
    let b = Bench::new().await;
    let state = b.there(&["a"]).await.pop().unwrap();
    b.age("1000 s");
    let with = |number, term| Batch { term: Some(term), ..batch(number) };
    let flips = [flip_of(&state)];
    let first = b.postgres.campaign(&system(), "one", 600_000).await.unwrap().unwrap();
    b.postgres.resign(&system(), first.number).await.unwrap();
    let late = b.truth.flip(&with(1, first.number), &flips, STALE_MS).await.unwrap();
    assert!(matches!(&late[0], Flipped::Left(Refusal::NotLeader, Some(now)) if now.online));
    let next = b.postgres.campaign(&system(), "two", 600_000).await.unwrap().unwrap();
    let late = b.truth.flip(&with(2, first.number), &flips, STALE_MS).await.unwrap();
    assert!(matches!(&late[0], Flipped::Left(Refusal::NotLeader, _)));
    flipped(&b.truth.flip(&with(3, next.number), &flips, STALE_MS).await.unwrap()[0]);
}

#[tokio::test]
async fn a_flip_is_restored_unless_the_provider_was_toggled_since() {
    let b = Bench::new().await;
    let states = b.there(&["a", "b", "c"]).await;
    b.age("1000 s");
    let answers = b.flip(1, &states).await;
    let seqs: Vec<u64> = answers.iter().map(|answer| flipped(answer).0.id.seq).collect();
    assert!(seqs.is_sorted() && seqs[0] < seqs[2]);
    let (restored, state) = b.truth.restore(seqs[0]).await.unwrap();
    let state = state.unwrap();
    assert!(state.online && state.epoch == state.version);
    let (key, owner) = ("a".to_owned(), "a".to_owned());
    assert_eq!(restored, Restored::Restored { key, owner, incarnation: state.epoch });
    let receipt = b.postgres.receipt(&system(), seqs[0]).await.unwrap().unwrap();
    assert!(receipt.restored_ms.is_some());
    b.online("b").await;
    b.offline("b").await;
    b.sql("UPDATE mitra_online_status SET is_online = true, last_online_at = now() WHERE mitra_id = 'c'");
    for (seq, why) in
        [(seqs[0], "before"), (seqs[1], "since"), (seqs[2], "since"), (7, "no receipt")]
    {
        let (refused, _) = b.truth.restore(seq).await.unwrap();
        assert!(
            matches!(&refused, Restored::Refused { why: said } if said.contains(why)),
            "{refused:?}"
        );
    }
    assert_eq!(b.log()[6..], ["a online", "b online", "b offline"]);
}

#[tokio::test]
async fn receipts_are_pruned_by_age_and_number_a_bounded_part_at_a_time() {
    let b = Bench::new().await;
    let limits = |age_ms, count, rows| TidyLimits {
        rows,
        undeclared_max: None,
        retention: Retention { age_ms, count, ..Retention::default() },
        term: None,
    };
    let hour = 3_600_000;
    let states = b.there(&["a", "b", "c"]).await;
    b.age("1000 s");
    for (number, state) in states.iter().enumerate() {
        flipped(&b.flip(number as u64, std::slice::from_ref(state)).await[0]);
    }
    assert_eq!(b.truth.tidy(limits(hour, 1_000, 100)).await.unwrap().receipts_pruned, 0);
    let before = b.postgres.statements();
    assert_eq!(b.truth.tidy(limits(hour, 1_000, 100)).await.unwrap().receipts_pruned, 0);
    assert_eq!(b.postgres.statements(), before, "there is nothing to tidy, and that is known");
    assert_eq!(b.truth.tidy(limits(hour, 2, 100)).await.unwrap().receipts_pruned, 1);
    let left: Vec<String> = b.receipts().await.iter().map(|r| r.key.to_string()).collect();
    assert_eq!(left, ["b", "c"]);
    b.sql("UPDATE lapsed_receipts SET at = at - interval '2 hours'");
    let other = b.daemon(&crate::fixture::address(&b.url()));
    assert_eq!(other.tidy(limits(hour, 1_000, 1)).await.unwrap().receipts_pruned, 1);
    assert_eq!(other.tidy(limits(hour, 1_000, 1)).await.unwrap().receipts_pruned, 1);
    assert_eq!(other.tidy(limits(hour, 1_000, 1)).await.unwrap().receipts_pruned, 0);
    assert!(b.receipts().await.is_empty());
    let newer = b.there(&["d"]).await;
    b.age("1000 s");
    let seq = flipped(&b.flip(9, &newer).await[0]).0.id.seq;
    assert_eq!(b.receipts().await[0].id.seq, seq);
}

/// G3: somebody else holds a silent provider's row, and rolls back. A statement that skips locked rows would take
/// "nothing there" for "nothing left": the flip waits instead, and nobody is missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_g3_a_flip_waits_for_a_row_that_somebody_rolls_back() {
    let b = Bench::new().await;
    let states = b.there(&["free", "held"]).await;
    b.age("1000 s");
    let beat = "UPDATE mitra_online_status SET last_heartbeat_at = now() WHERE mitra_id = 'held'; \
                SELECT pg_sleep(2); ROLLBACK; BEGIN";
    let holding = b.hold(beat, 0.0).await;
    let flips: Vec<Flip> = states.iter().map(flip_of).collect();
    let answer = b.truth.flip(&batch(1), &flips, 60_000).await.unwrap();
    holding.join().unwrap();
    for answer in &answer {
        assert!(!flipped(answer).1.online, "{answer:?}");
    }
    assert_eq!(b.receipts().await.len(), 2);
}
