//! What goes wrong between lapsed and PostgreSQL, with real servers: answers that are lost, commits that
//! fail, a server that is killed, restarted, frozen or slow in the middle of it all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapsed_availability::{Flipped, SessionChange, SessionOutcome, Truth};
use lapsed_core::sweep::Refusal;
use lapsed_core::{Error, Name};
use lapsed_postgres::{PostgresAddress, PostgresTruth};
use lapsed_testbed::PostgresProxy;

use crate::fixture::{Bench, STALE_MS, address, batch, eventually, flip_of, flipped, name};

fn through(b: &Bench) -> (PostgresProxy, PostgresTruth) {
    let proxy = PostgresProxy::start(b.server.port()).unwrap();
    let truth = b.daemon(&address(&proxy.url(&b.database)));
    (proxy, truth)
}

/// The commit was carried out, but its answer was lost: the caller gets "in doubt", and repeating it is harmless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_g5_a_lost_answer_to_a_commit_is_in_doubt_and_can_be_repeated() {
    let b = Bench::new().await;
    b.there(&["a"]).await;
    b.offline("a").await;
    let (proxy, truth) = through(&b);
    truth.count_online().await.unwrap();
    proxy.lose("COMMIT");
    let error = truth.set_online(&name("a"), true).await.unwrap_err();
    assert!(
        matches!(&error, Error::Unavailable { what, .. } if what.contains("may have been")),
        "{error}"
    );
    assert_eq!(proxy.lost(), 1);
    assert!(b.state("a").await.online, "it was carried out");
    let again = truth.set_online(&name("a"), true).await.unwrap().unwrap();
    assert!(!again.changed && again.state.online);
    assert_eq!(b.log(), ["a online", "a offline", "a online"], "one row a flip");
    proxy.lose("COMMIT");
    let accept = SessionChange::Accept { session: name("s"), provider: name("a") };
    truth.change_session(&accept, 3).await.unwrap_err();
    let again = truth.change_session(&accept, 3).await.unwrap();
    assert!(matches!(again, SessionOutcome::Done { changed: false, .. }), "{again:?}");
    assert_eq!(b.state("a").await.sessions, 1);
}

/// A batch in doubt is settled: carried out with its receipts, or never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_in_doubt_is_settled_either_way() {
    let b = Bench::new().await;
    let states = b.there(&["a", "b"]).await;
    b.age("1000 s");
    let (proxy, truth) = through(&b);
    truth.count_online().await.unwrap();
    proxy.lose("COMMIT");
    let flips = [flip_of(&states[0])];
    truth.flip(&batch(1), &flips, STALE_MS).await.unwrap_err();
    assert_eq!(truth.settle(&batch(1).id).await.unwrap().len(), 1, "it was carried out");
    assert!(!b.state("a").await.online);
    let again = truth.flip(&batch(1), &flips, STALE_MS).await.unwrap();
    assert!(matches!(&again[0], Flipped::Left(Refusal::Moved, _)), "{again:?}");
    // Lost before its commit: the first statement is the last that is answered.
    proxy.lose("INSERT");
    let flips = [flip_of(&states[1])];
    truth.flip(&batch(2), &flips, STALE_MS).await.unwrap_err();
    assert_eq!(truth.settle(&batch(2).id).await.unwrap(), [], "it was not");
    let refused = truth.flip(&batch(2), &flips, STALE_MS).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "and never will be: {refused:?}");
    assert!(b.state("b").await.online);
    flipped(&truth.flip(&batch(3), &flips, STALE_MS).await.unwrap()[0]);
    assert_eq!(b.receipts().await.len(), 2);
}

/// A commit that fails (a check that the application makes at the end of a transaction) changes nothing.
#[tokio::test]
async fn a_commit_that_fails_changes_nothing() {
    let b = Bench::new().await;
    let states = b.there(&["a"]).await;
    b.age("1000 s");
    b.sql("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS \
           $$ BEGIN RAISE 'not today' USING ERRCODE = 'internal_error'; END $$; \
           CREATE CONSTRAINT TRIGGER no AFTER INSERT ON mitra_online_logs DEFERRABLE INITIALLY DEFERRED \
           FOR EACH ROW EXECUTE FUNCTION no()");
    let error = b.truth.set_online(&name("a"), false).await.unwrap_err();
    assert!(
        matches!(&error, Error::Unavailable { what, .. } if what.contains("not today")),
        "{error}"
    );
    b.truth.flip(&batch(1), &[flip_of(&states[0])], STALE_MS).await.unwrap_err();
    let now = b.state("a").await;
    assert!(now.online && (now.version, now.epoch) == (states[0].version, states[0].epoch));
    assert!(b.receipts().await.is_empty());
    b.sql("DROP TRIGGER no ON mitra_online_logs");
    assert_eq!(b.truth.settle(&batch(1).id).await.unwrap(), []);
    flipped(&b.flip(2, &states).await[0]);
    assert_eq!(b.log(), ["a online", "a offline"]);
}

/// A server that is slow is only slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_server_is_only_slow() {
    let b = Bench::new().await;
    let states = b.there(&["a", "b"]).await;
    b.age("1000 s");
    let (proxy, truth) = through(&b);
    proxy.delay(Duration::from_millis(20));
    let all = futures::join!(
        async { truth.flip(&batch(1), &[flip_of(&states[0])], STALE_MS).await.unwrap() },
        async { truth.set_online(&name("b"), true).await.unwrap().unwrap() },
        async { truth.refresh(&[(name("a"), 0), (name("b"), 0)]).await.unwrap() },
    );
    flipped(&all.0[0]);
    assert!(all.1.state.online);
    assert_eq!(all.2.len(), 2);
}

/// A transaction that stands still with its server is undone or carried out, never half of it, and settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_freezes_in_the_middle_leaves_nothing_by_halves() {
    let b = Arc::new(Bench::alone().await);
    let ids: Vec<String> = (0..30).map(|n| format!("p{n:02}")).collect();
    let states = b.there(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    b.age("1000 s");
    let limits = PostgresAddress {
        connect_timeout: Duration::from_secs(2),
        call_timeout: Duration::from_secs(2),
        ..PostgresAddress::new(&b.url())
    };
    let hasty = Arc::new(b.daemon(&limits));
    eventually("a first answer", async || hasty.count_online().await.is_ok()).await;
    let flips: Vec<_> = states.iter().map(flip_of).collect();
    let sweeping = {
        let (hasty, flips) = (hasty.clone(), flips.clone());
        tokio::spawn(async move {
            let mut doubtful = Vec::new();
            for (number, flips) in flips.chunks(3).enumerate() {
                if hasty.flip(&batch(number as u64), flips, STALE_MS).await.is_err() {
                    doubtful.push(number as u64);
                }
            }
            doubtful
        })
    };
    b.server.freeze().unwrap();
    eventually("somebody in doubt", async || hasty.count_online().await.is_err()).await;
    b.server.thaw().unwrap();
    let doubtful = sweeping.await.unwrap();
    eventually("an answer", async || hasty.count_online().await.is_ok()).await;
    for number in doubtful {
        let batch = batch(number);
        eventually("a settlement", async || b.truth.settle(&batch.id).await.is_ok()).await;
    }
    let offline = b.log().iter().filter(|row| row.ends_with(" offline")).count();
    assert_eq!(b.receipts().await.len(), offline);
    assert_eq!(b.truth.count_online().await.unwrap() as usize, 30 - offline);
}

/// What was answered, by provider: the highest version.
type Answered = BTreeMap<Name, u64>;

/// Toggles, flips and sessions until the test stops them; errors are ignored.
async fn work(b: Arc<Bench>, worker: u64, going: Arc<AtomicBool>) -> Answered {
    let ids: Vec<Name> = (0..6).map(|n| name(&format!("p{n}"))).collect();
    let mut answered = Answered::new();
    let mut round = 0;
    while going.load(Ordering::Acquire) {
        round += 1;
        let id = &ids[((worker + round) % 6) as usize];
        let session = name(&format!("s-{worker}-{}", round % 4));
        let states = match round % 4 {
            0 => b.truth.set_online(id, round % 8 == 0).await.map(|c| vec![c.unwrap().state]),
            1 => b.truth.refresh(&[(id.clone(), 0)]).await,
            2 => {
                let accept = SessionChange::Accept { session, provider: id.clone() };
                b.truth.change_session(&accept, 100).await.map(|_| Vec::new())
            }
            _ => match b.truth.read(&ids).await {
                Ok(states) => {
                    let flips: Vec<_> = states.iter().map(flip_of).collect();
                    let number = worker * 1_000_000 + round;
                    b.truth.flip(&batch(number), &flips, 0).await.map(|_| Vec::new())
                }
                Err(error) => Err(error),
            },
        };
        match states {
            Ok(states) => states.into_iter().for_each(|state| {
                let known = answered.entry(state.id).or_default();
                *known = state.version.max(*known);
            }),
            Err(error) => {
                assert!(matches!(error, Error::Unavailable { .. }), "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    answered
}

/// Killed or stopped in the middle of commits, and started again: nothing that was answered is lost, and
/// log, receipts, sessions and flags agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_again_and_again_keeps_what_it_answered() {
    let b = Arc::new(Bench::alone().await);
    for n in 0..6 {
        b.add(&format!("p{n}")).await;
    }
    let going = Arc::new(AtomicBool::new(true));
    let workers: Vec<_> =
        (0..4).map(|worker| tokio::spawn(work(b.clone(), worker, going.clone()))).collect();
    for round in 0..4 {
        let flips =
            || b.server.sql(&b.database, "SELECT coalesce(max(id), 0) FROM mitra_online_logs");
        let before = flips().unwrap();
        eventually("work", async || flips().is_ok_and(|now| now != before)).await;
        match round % 2 {
            0 => b.server.kill().unwrap(),
            _ => b.server.stop().unwrap(),
        }
        b.server.restart().unwrap();
    }
    going.store(false, Ordering::Release);
    let mut answered = Answered::new();
    for worker in workers {
        for (id, version) in worker.await.unwrap() {
            let known = answered.entry(id).or_default();
            *known = version.max(*known);
        }
    }
    eventually("an answer", async || b.truth.count_online().await.is_ok()).await;
    assert!(!answered.is_empty());
    for (id, version) in answered {
        assert!(b.state(id.as_str()).await.version >= version, "{id} forgot what it answered");
    }
    let agrees = "SELECT count(*) FROM mitra_online_status s WHERE s.is_online IS DISTINCT FROM \
                  (SELECT l.status = 'online' FROM mitra_online_logs l WHERE l.mitra_id = s.mitra_id \
                  ORDER BY l.id DESC LIMIT 1)";
    assert_eq!(b.sql(agrees), "0", "the last log row says what is");
    let alternates = "SELECT count(*) FROM (SELECT status, lag(status) OVER (PARTITION BY mitra_id \
                      ORDER BY id) AS before FROM mitra_online_logs) l WHERE status = before";
    assert_eq!(b.sql(alternates), "0", "log rows are flips");
    let unpaired = "SELECT count(*) FROM lapsed_receipts r LEFT JOIN lapsed_batches b \
                    ON (b.system, b.sweeper, b.number) = (r.system, r.sweeper, r.batch) AND b.carried_out \
                    WHERE b.number IS NULL";
    assert_eq!(b.sql(unpaired), "0", "a receipt is of a batch that was carried out");
    let kept = "SELECT receipts_kept = (SELECT count(*) FROM lapsed_receipts) FROM lapsed_settings";
    assert_eq!(b.sql(kept), "t");
}
