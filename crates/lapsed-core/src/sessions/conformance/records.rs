//! What is remembered of what was deleted, and what is put back from it.

use super::{SessionsFixture, batch_id, name, profile};
use crate::owner::Claim;
use crate::receipt::{Reason, Receipt, Retention};
use crate::sessions::SessionProfile;
use crate::sweep::{Outcome, TidyLimits};
use crate::system::Restored;

fn refused(answer: Restored) -> String {
    match answer {
        Restored::Refused { why } => why,
        Restored::Restored { .. } => panic!("it was put back"),
    }
}

fn seq_of(receipts: &[Receipt], id: &str) -> u64 {
    receipts.iter().find(|r| r.key.as_str() == id).map(|r| r.id.seq).expect("a receipt for it")
}

/// Which clock, which deadline, how late; whose it was, and what it carried.
pub async fn receipts_contain_the_evidence(f: SessionsFixture) {
    f.sessions.activate(&name("s"), &profile("v", "b")).await.unwrap();
    let server = f.start("server").await;
    f.connect(&server, "s").await;
    f.disconnect(&server, "s").await;
    let due_ms = f.session("s").await.unwrap().due_ms.unwrap();
    f.outlive(f.grace * 2, &[&server]).await;
    let report = f.sweep().await;
    assert_eq!(report.reclaimed, 1, "{report:?}");
    let receipts = f.receipts().await;
    let receipt = &receipts[0];
    assert_eq!((&receipt.key, &receipt.owner), (&name("s"), &name("b")));
    assert_eq!((receipt.incarnation.0, receipt.reason), (0, Reason::Orphaned));
    assert_eq!(receipt.evidence.deadline_ms, due_ms);
    assert_eq!(receipt.evidence.late_ms, receipt.evidence.judged_ms - due_ms);
    assert!(receipt.evidence.late_ms >= f.grace_ms() / 2, "{receipt:?}");
    assert!(receipt.sweeper.starts_with('s'), "{receipt:?}");
    assert!(receipt.removed.to_string().contains("\"v\""), "{receipt:?}");
    let one = f.store.receipt(f.sessions.system(), receipt.id.seq).await.unwrap().unwrap();
    assert_eq!(one, *receipt);
}

/// The answer was lost, the batch was not: its receipts are found by its number, and only its. What
/// was settled as not carried out never will be.
pub async fn a_lost_answer_is_settled_by_batch(f: SessionsFixture) {
    f.orphaned(&["a", "b", "c"]).await;
    let suspects = f.suspects().await;
    let carry = async |number, suspects| {
        f.reclaim_as(&batch_id("s", number), None, suspects).await.outcomes
    };
    carry(1, suspects[..2].to_vec()).await;
    carry(2, suspects[2..].to_vec()).await;
    let settled = async |number| f.settle(&batch_id("s", number)).await;
    assert_eq!((settled(1).await, settled(2).await, settled(3).await), (2, 1, 0));
    let server = f.connected("server", &["r"]).await;
    f.sessions.end(&server).await.unwrap();
    f.orphaned(&["d"]).await;
    let late = f.suspects().await;
    assert_eq!(late.len(), 2);
    let gone = vec![Outcome::Gone; 2];
    assert_eq!(carry(3, late.clone()).await, gone, "settled: it never will be");
    assert_eq!(carry(2, late.clone()).await, gone, "delivered twice: carried out once");
    assert_eq!((f.receipts().await.len(), f.references("r").await), (3, 1));
    let done = carry(4, late).await;
    assert!(done.contains(&Outcome::Released), "{done:?}");
    assert!(done.iter().any(|o| matches!(o, Outcome::Reclaimed(Some(_)))), "{done:?}");
}

/// It comes back disconnected, with a whole grace, as it was; once, and never over another.
pub async fn restore_works_once_and_only_if_the_key_is_free(f: SessionsFixture) {
    let whole = SessionProfile { config_json: Some("{\"x\":1}".to_owned()), ..profile("v", "b") };
    f.sessions.activate(&name("a"), &whole).await.unwrap();
    f.activate(&["t"]).await;
    (f.advance)(f.grace).await;
    assert_eq!(f.sweep().await.reclaimed, 2);
    let receipts = f.receipts().await;
    let (a, t) = (seq_of(&receipts, "a"), seq_of(&receipts, "t"));
    f.activate(&["t"]).await;
    let before_ms = f.now_ms().await;
    let back = f.sessions.restore(a).await.unwrap();
    assert!(matches!(back, Restored::Restored { ref key, .. } if key == "a"), "{back:?}");
    let session = f.session("a").await.unwrap();
    assert_eq!((session.references, &session.profile), (0, &whole));
    assert!(session.disconnected_ms.unwrap() >= before_ms, "{session:?}");
    assert!(session.due_ms.unwrap() >= before_ms + f.grace_ms(), "{session:?}");
    assert_eq!(f.sessions.of_broadcaster(&name("b")).await.unwrap(), Some(name("a")));
    assert!(refused(f.sessions.restore(a).await.unwrap()).contains("before"));
    assert!(refused(f.sessions.restore(t).await.unwrap()).contains("taken"));
    assert!(refused(f.sessions.restore(t.max(a) + 99).await.unwrap()).contains("no receipt"));
    let marked = f.receipts().await.into_iter().find(|r| r.id.seq == a);
    assert!(marked.unwrap().restored_ms.is_some());
    (f.advance)(f.grace).await;
    f.sweep().await;
    assert_eq!(f.session("a").await, None, "and its grace runs like any other's");
}

pub async fn restoring_a_session_keeps_a_newer_sessions_pointer(f: SessionsFixture) {
    f.sessions.activate(&name("old"), &profile("1", "b")).await.unwrap();
    (f.advance)(f.grace).await;
    assert_eq!(f.sweep().await.reclaimed, 1);
    f.sessions.activate(&name("new"), &profile("2", "b")).await.unwrap();
    let seq = seq_of(&f.receipts().await, "old");
    assert!(matches!(f.sessions.restore(seq).await.unwrap(), Restored::Restored { .. }));
    assert_eq!(f.sessions.of_broadcaster(&name("b")).await.unwrap(), Some(name("new")));
}

/// Retention is by count and by age; an owner whose record was removed gets `Lost`.
pub async fn receipts_and_owners_beyond_retention_are_removed(f: SessionsFixture) {
    let gone = f.connected("server", &["r"]).await;
    f.orphaned(&["a", "b", "c"]).await;
    f.elapse().await;
    let report = f.sweep().await;
    assert_eq!((report.reclaimed, report.released), (3, 1), "{report:?}");
    let tidy = |age_ms, count| {
        let retention = Retention { age_ms, count, ..Retention::default() };
        let limits = TidyLimits { rows: 100, undeclared_max: None, retention, term: None };
        let sessions = f.sessions.clone();
        async move { sessions.tidy(limits).await.unwrap() }
    };
    let by_count = tidy(u64::MAX, 2).await;
    assert_eq!((by_count.receipts_pruned, by_count.owners_forgotten), (1, 0));
    assert_eq!(f.receipts().await.len(), 2);
    f.elapse().await;
    let by_age = tidy(1, 100).await;
    assert_eq!(by_age.receipts_pruned, 2);
    assert!(by_age.owners_forgotten >= 1, "{by_age:?}");
    assert!(f.sessions.beat(&gone).await.is_err());
    let next = f.start("server").await;
    assert!(next.incarnation > gone.incarnation, "numbers are not used again");
    assert!(f.sessions.beat(&Claim::newest(name("server"))).await.is_ok());
}
