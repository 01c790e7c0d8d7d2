//! Cases about orphans, the guard and passes.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{SessionsFixture, batch_id, keys_of, name, names, profile};
use crate::name::Name;
use crate::receipt::Reason;
use crate::schedule::StopSignal;
use crate::sweep::policy::Policy;
use crate::sweep::{Cursor, Outcome, PageRequest, PassMode, PassReport, Refusal, Stopped};

pub async fn orphans_are_deleted_and_active_sessions_are_not(f: SessionsFixture) {
    let live = f.connected("live", &["x", "y"]).await;
    f.disconnected(&["a", "b", "c"]).await;
    assert!(f.suspects().await.is_empty(), "their grace runs");
    f.outlive(f.grace, &[&live]).await;
    assert_eq!(f.sessions.orphans(10).await.unwrap().len(), 3);
    let census = f.sessions.census().await.unwrap();
    assert_eq!((census.population, census.suspects, census.orphans), (5, 3, 3));
    let report = f.sweep().await;
    assert_eq!((report.reclaimed, report.stopped), (3, Stopped::Done), "{report:?}");
    assert_eq!(f.session("a").await, None);
    assert_eq!(f.references("x").await, 1);
    let again = f.sweep().await;
    assert_eq!((again.reclaimed, again.suspects), (0, 0));
    let census = f.sessions.census().await.unwrap();
    assert_eq!((census.population, census.suspects, census.owners_live), (2, 0, 1));
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 0);
}

pub async fn a_session_that_was_never_connected_is_deleted_after_one_grace(f: SessionsFixture) {
    f.activate(&["s"]).await;
    (f.advance)(f.grace).await;
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 0);
    let suspects = f.suspects().await;
    assert_eq!(keys_of(&suspects), ["s"]);
    assert_eq!((suspects[0].reason, suspects[0].incarnation.0), (Reason::NeverConnected, 0));
    assert_eq!(suspects[0].owner, name("s"), "it has no broadcaster");
    assert_eq!(f.sweep().await.reclaimed, 1);
    assert_eq!(f.receipts().await[0].reason, Reason::NeverConnected);
}

/// The session was an orphan when the page was read, and a client connects before the batch
/// arrives.
pub async fn trap_b2_a_reconnect_before_the_reclaim_wins(f: SessionsFixture) {
    f.orphaned(&["s", "t"]).await;
    let suspects = f.suspects().await;
    assert_eq!(keys_of(&suspects), ["s", "t"]);
    let server = f.start("again").await;
    f.connect(&server, "s").await;
    f.connect(&server, "t").await;
    f.disconnect(&server, "t").await;
    let answer = f.reclaim(suspects.clone()).await;
    let refused = |id: &str| {
        let at = suspects.iter().position(|s| s.key.as_str() == id).unwrap();
        answer.outcomes[at].clone()
    };
    assert_eq!(refused("s"), Outcome::Refused(Refusal::Active));
    assert_eq!(refused("t"), Outcome::Refused(Refusal::Alive), "its grace has begun anew");
    assert_eq!(f.references("s").await, 1);
    assert!(f.receipts().await.is_empty());
}

pub async fn trap_b2_a_resume_before_the_reclaim_wins(f: SessionsFixture) {
    f.orphaned(&["s"]).await;
    let suspects = f.suspects().await;
    f.sessions.resume(&name("s")).await.unwrap().unwrap();
    let answer = f.reclaim(suspects).await;
    assert_eq!(answer.outcomes, [Outcome::Refused(Refusal::Alive)]);
    assert!(f.session("s").await.is_some());
}

/// The count falls to 0 here and rises there, in either order, many times: whenever somebody is
/// connected, the session is not among those without a client.
pub async fn trap_b3_an_active_session_is_never_among_the_orphans(f: SessionsFixture) {
    let one = f.connected("one", &["s"]).await;
    let two = f.start("two").await;
    for _ in 0..20 {
        futures::join!(f.disconnect(&one, "s"), f.connect(&two, "s"));
        let session = f.session("s").await.unwrap();
        assert_eq!((session.references, session.disconnected_ms, session.due_ms), (1, None, None));
        assert_eq!(f.sessions.disconnected_count().await.unwrap(), 0);
        futures::join!(f.connect(&one, "s"), f.disconnect(&two, "s"));
        assert_eq!(f.sessions.disconnected_count().await.unwrap(), 0);
    }
    f.outlive(f.grace, &[&one, &two]).await;
    assert!(f.sessions.orphans(10).await.unwrap().is_empty());
    assert!(f.suspects().await.is_empty());
    assert_eq!(f.sweep().await.reclaimed, 0);
    assert_eq!(f.references("s").await, 1);
}

/// A suspect that was refused as active is no longer in the index of the next pass.
pub async fn trap_b4_a_refused_suspect_is_not_listed_again(f: SessionsFixture) {
    f.orphaned(&["s"]).await;
    let suspects = f.suspects().await;
    let server = f.start("again").await;
    f.connect(&server, "s").await;
    assert_eq!(f.reclaim(suspects).await.outcomes, [Outcome::Refused(Refusal::Active)]);
    f.outlive(f.grace, &[&server]).await;
    assert!(f.suspects().await.is_empty());
    let report = f.sweep().await;
    assert_eq!((report.suspects, report.reclaimed), (0, 0), "{report:?}");
    assert!(report.skipped.is_empty(), "{report:?}");
    assert_eq!(f.sessions.census().await.unwrap().suspects, 0);
}

/// The pointer already leads to a newer session of the same broadcaster.
pub async fn trap_b7_the_sweep_keeps_a_newer_sessions_pointer(f: SessionsFixture) {
    f.sessions.activate(&name("old"), &profile("1", "b")).await.unwrap();
    f.sessions.activate(&name("new"), &profile("2", "b")).await.unwrap();
    let server = f.start("server").await;
    f.connect(&server, "new").await;
    f.outlive(f.grace, &[&server]).await;
    let suspects = f.suspects().await;
    assert_eq!(keys_of(&suspects), ["old"]);
    assert_eq!(suspects[0].owner, name("b"), "its broadcaster's");
    assert_eq!(f.sweep().await.reclaimed, 1);
    assert_eq!(f.sessions.of_broadcaster(&name("b")).await.unwrap(), Some(name("new")));
    f.disconnect(&server, "new").await;
    f.outlive(f.grace, &[&server]).await;
    assert_eq!(f.sweep().await.reclaimed, 1);
    assert_eq!(f.sessions.of_broadcaster(&name("b")).await.unwrap(), None);
}

/// At the end of its grace, to the millisecond, and not before.
pub async fn trap_b8_no_session_is_deleted_a_millisecond_early(f: SessionsFixture) {
    f.disconnected(&["s"]).await;
    let session = f.session("s").await.unwrap();
    let due_ms = session.due_ms.unwrap();
    assert_eq!(due_ms, session.disconnected_ms.unwrap() + f.grace_ms());
    (f.advance)(f.grace / 2).await;
    loop {
        // The answer is at most as old as the clock that is read after it.
        let (orphans, now_ms) = (f.sessions.orphans(10).await.unwrap(), f.now_ms().await);
        if now_ms >= due_ms {
            break;
        }
        assert!(orphans.is_empty(), "{} ms early", due_ms - now_ms);
        (f.advance)(Duration::from_millis(1)).await;
    }
    assert_eq!(f.sessions.orphans(10).await.unwrap(), names(&["s"]), "equal counts as expired");
    assert_eq!(f.sweep().await.reclaimed, 1);
}

/// No answer has more entries than requested, and only orphans are read.
pub async fn trap_b9_limits_are_honoured(f: SessionsFixture) {
    let living: Vec<String> = (0..100).map(|i| format!("live-{i:03}")).collect();
    let living: Vec<&str> = living.iter().map(String::as_str).collect();
    let server = f.connected("living", &living).await;
    f.disconnected(&["first"]).await;
    let dead: Vec<String> = (0..24).map(|i| format!("dead-{i:02}")).collect();
    let dead: Vec<&str> = dead.iter().map(String::as_str).collect();
    f.outlive(f.grace / 10, &[&server]).await;
    f.disconnected(&dead).await;
    f.outlive(f.grace, &[&server]).await;
    let some = f.sessions.orphans(10).await.unwrap();
    assert_eq!((some.len(), &some[0]), (10, &name("first")), "the longest overdue first");
    let (mut after, mut seen) = (Cursor::default(), BTreeSet::new());
    loop {
        let request = PageRequest { after: after.clone(), limit: 7, undeclared_max: None };
        let page = f.sessions.suspects(request).await.unwrap();
        assert!(page.suspects.len() <= 7);
        assert_eq!(page.examined, page.suspects.len() as u64);
        let Some(last) = page.suspects.last() else { break };
        after = f.sessions.after(last);
        for suspect in page.suspects {
            assert!(seen.insert(suspect.key.clone()), "{suspect:?} twice");
        }
    }
    assert_eq!(seen.len(), 25);
}

/// Both see the same suspects; each counts only what the store says it did.
pub async fn two_sweepers_count_each_reclaim_once(f: SessionsFixture) {
    let ids: Vec<String> = (0..100).map(|i| format!("s{i:03}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    f.connected("dead", &["r1", "r2", "r3"]).await;
    f.orphaned(&ids).await;
    f.elapse().await;
    let policy = Policy { batch: 7, ..Policy::default() };
    let (one, two) = futures::join!(
        f.pass("one", PassMode::Reclaim, policy.clone()),
        f.pass("two", PassMode::Reclaim, policy.clone()),
    );
    assert_eq!(one.released + two.released, 3, "{one:?} {two:?}");
    assert_eq!(one.owners_ended + two.owners_ended, 1);
    let receipts = f.receipts().await;
    assert_eq!(one.reclaimed + two.reclaimed, receipts.len() as u64, "{one:?} {two:?}");
    let distinct: BTreeSet<&str> = receipts.iter().map(|r| r.key.as_str()).collect();
    assert_eq!(distinct.len(), receipts.len(), "each once");
    // The grace of released sessions began in these passes; it may be over before a slow one ends.
    let orphans: Vec<&str> = distinct.into_iter().filter(|key| !key.starts_with('r')).collect();
    assert_eq!(orphans, ids);
}

/// The same set, and the dry run leaves no trace.
pub async fn a_dry_run_lists_what_a_pass_does(f: SessionsFixture) {
    f.connected("overdue", &["r1", "r2"]).await;
    f.orphaned(&["a", "b"]).await;
    f.elapse().await;
    let named = |report: &PassReport| -> BTreeSet<Name> {
        report.entries.iter().map(|e| e.key.clone()).collect()
    };
    let dry = f.pass("dry", PassMode::DryRun, Policy::default()).await;
    assert!(dry.dry_run && f.receipts().await.is_empty());
    let census = f.sessions.census().await.unwrap();
    assert_eq!((census.population, census.owners_overdue), (4, 1), "nobody was declared dead");
    assert_eq!((f.references("r1").await, f.references("r2").await), (1, 1));
    let real = f.sweep().await;
    assert_eq!(named(&dry), named(&real));
    assert_eq!((dry.reclaimed, dry.released), (2, 2), "{dry:?}");
    assert_eq!((real.reclaimed, real.released), (2, 2), "{real:?}");
    assert!(real.entries.iter().all(|e| e.receipt.is_some()));
}

/// Three at a time: each pass says why it stopped, and the next continues from there.
pub async fn a_pass_that_stops_early_resumes(f: SessionsFixture) {
    let ids = ["a", "b", "c", "d", "e"];
    f.connected("dead", &["r1", "r2", "r3"]).await;
    f.orphaned(&ids).await;
    f.elapse().await;
    let policy = Policy { batch: 2, max_ops: Some(3), ..Policy::default() };
    let sweeper = f.sweeper("s", policy);
    let (_stopper, stop) = StopSignal::channel();
    let (mut taken, mut released) = (BTreeSet::new(), 0);
    for expected in [Stopped::Ops, Stopped::Ops, Stopped::Done] {
        let report = sweeper.pass(PassMode::Reclaim, 100, &stop).await;
        assert_eq!(report.stopped, expected, "{report:?}");
        assert!(report.reclaimed + report.released <= 3);
        released += report.released;
        taken.extend(report.entries.into_iter().map(|e| e.key.to_string()));
    }
    assert_eq!(released, 3);
    assert_eq!(taken, ids.map(str::to_owned).into());
}

/// A page is a hint: listing something twice must not count it twice.
pub async fn the_same_suspect_twice_in_a_batch_counts_once(f: SessionsFixture) {
    let server = f.connected("server", &["r"]).await;
    f.sessions.end(&server).await.unwrap();
    f.orphaned(&["s"]).await;
    let suspects = f.suspects().await;
    assert_eq!(keys_of(&suspects), ["r", "s"]);
    let twice: Vec<_> = suspects.iter().flat_map(|s| [s.clone(), s.clone()]).collect();
    let answer = f.reclaim(twice).await;
    for (suspect, outcomes) in suspects.iter().zip(answer.outcomes.chunks(2)) {
        match suspect.key.as_str() {
            "r" => assert_eq!(outcomes, [Outcome::Released, Outcome::Gone]),
            _ => assert!(
                matches!(outcomes, [Outcome::Reclaimed(Some(_)), Outcome::Gone]),
                "{outcomes:?}"
            ),
        }
    }
    assert_eq!(f.receipts().await.len(), 1);
}

/// Two terms: the batch of the first, sent late, is refused in the store's own step.
pub async fn trap_x5_a_stalled_leader_is_refused_by_the_store(f: SessionsFixture) {
    let server = f.connected("server", &["r"]).await;
    f.sessions.end(&server).await.unwrap();
    f.disconnected(&["s"]).await;
    let system = f.sessions.system().clone();
    let first = f.store.campaign(&system, "one", f.grace_ms() / 2).await.unwrap().unwrap();
    (f.advance)(f.grace).await;
    let suspects = f.suspects().await;
    let second = f.store.campaign(&system, "two", 60_000).await.unwrap().unwrap();
    assert!(second.number > first.number);
    let late = f.reclaim_as(&batch_id("s", 1), Some(first.number), suspects.clone()).await;
    assert_eq!(late.outcomes, vec![Outcome::Refused(Refusal::NotLeader); 2]);
    assert!(f.receipts().await.is_empty());
    assert_eq!(f.references("r").await, 1);
    let current = f.reclaim_as(&batch_id("s", 2), Some(second.number), suspects).await;
    assert!(current.outcomes.contains(&Outcome::Released), "{current:?}");
    assert_eq!(f.receipts().await.len(), 1);
}
