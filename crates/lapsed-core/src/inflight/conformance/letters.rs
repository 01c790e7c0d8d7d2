//! Dead letters, and what is put back from receipts.

use super::{InflightFixture, ids_of, job_with, name};
use crate::inflight::rules::{DeadLetterReason, OnDeath, QueueEnd, RecoveryPolicy};
use crate::inflight::{Finish, Finished, JobPlace};
use crate::system::{Restored, System};

fn refused(answer: Restored) -> String {
    match answer {
        Restored::Refused { why } => why,
        Restored::Restored { .. } => panic!("it was put back"),
    }
}

fn is_restored(answer: &Restored, id: &str) -> bool {
    matches!(answer, Restored::Restored { key, .. } if key == id)
}

pub async fn a_failed_job_is_a_dead_letter(f: InflightFixture) {
    let (claim, jobs) = f.working("w", &["a"]).await;
    let how = Finish::Fail { error: "no such \"file\": é".to_owned() };
    assert_eq!(f.finish(&claim, &jobs[0], how.clone()).await, Finished::Done);
    assert_eq!(f.finish(&claim, &jobs[0], how).await, Finished::Superseded);
    let JobPlace::Dead { why, error, .. } = f.place("a").await else { panic!("it is not") };
    assert_eq!((why, error.as_deref()), (DeadLetterReason::Failed, Some("no such \"file\": é")));
    let counts = f.counts().await;
    assert_eq!((counts.dead, counts.in_flight), (1, 0));
    assert_eq!(f.job("a").await.unwrap().payload, "payload of a");
}

pub async fn dead_letters_are_paged_put_back_and_deleted(f: InflightFixture) {
    let (claim, jobs) = f.working("w", &["c", "a", "b"]).await;
    for job in &jobs {
        f.finish(&claim, job, Finish::Fail { error: job.id.to_string() }).await;
    }
    let page = |after: Option<&'static str>| {
        let inflight = f.inflight.clone();
        async move {
            let letters = inflight.dead(after.map(name).as_ref(), 2).await.unwrap();
            letters.into_iter().map(|job| job.id.to_string()).collect::<Vec<_>>()
        }
    };
    assert_eq!(page(None).await, ["a", "b"]);
    assert_eq!(page(Some("b")).await, ["c"]);
    assert!(f.inflight.put_back(&name("b"), QueueEnd::Back).await.unwrap());
    assert!(!f.inflight.put_back(&name("b"), QueueEnd::Back).await.unwrap(), "it is no letter now");
    assert!(f.inflight.delete(&name("c")).await.unwrap());
    assert!(!f.inflight.delete(&name("c")).await.unwrap());
    assert!(!f.inflight.delete(&name("b")).await.unwrap(), "only letters are deleted");
    assert!(!f.inflight.put_back(&name("nobody"), QueueEnd::Front).await.unwrap());
    assert_eq!(page(None).await, ["a"]);
    assert_eq!(ids_of(&f.take(&claim, 10).await), ["b"]);
    let counts = f.counts().await;
    assert_eq!((counts.dead, counts.dropped, counts.in_flight), (1, 1, 1));
}

/// Putting a dead letter back is an operator's decision, so its crashes are cleared.
pub async fn a_dead_letter_put_back_has_no_crashes(f: InflightFixture) {
    let f = f.with(RecoveryPolicy { crashes_max: 2, ..RecoveryPolicy::default() }).await;
    f.enqueue(&["a"]).await;
    f.crash("one").await;
    f.crash("two").await;
    assert!(matches!(f.place("a").await, JobPlace::Dead { why: DeadLetterReason::Crashes, .. }));
    assert!(f.inflight.put_back(&name("a"), QueueEnd::Front).await.unwrap());
    assert_eq!(f.job("a").await.unwrap().crashes, 0);
    f.crash("three").await;
    assert_eq!(f.place("a").await, JobPlace::Queued, "one crash is one crash");
}

/// From the receipt, once, and not over another job of that id.
pub async fn restore_brings_back_what_was_dropped(f: InflightFixture) {
    let jobs = [job_with("a", OnDeath::Drop), job_with("t", OnDeath::Drop)];
    f.inflight.enqueue(&jobs).await.unwrap();
    let claim = f.start("w").await;
    assert_eq!(f.take(&claim, 2).await.len(), 2);
    (f.advance)(f.ttl).await;
    assert_eq!(f.sweep().await.reclaimed, 2);
    assert_eq!(f.job("a").await, None);
    f.enqueue(&["t"]).await;
    let ((a, _), (t, _)) = (f.recovered("a").await, f.recovered("t").await);
    assert!(is_restored(&f.inflight.restore(a).await.unwrap(), "a"));
    let back = f.job("a").await.unwrap();
    assert_eq!((back.place, back.payload.as_str()), (JobPlace::Queued, "payload of a"));
    assert!(refused(f.inflight.restore(a).await.unwrap()).contains("before"));
    assert!(refused(f.inflight.restore(t).await.unwrap()).contains("taken"));
    assert!(refused(f.inflight.restore(t.max(a) + 99).await.unwrap()).contains("no receipt"));
    let marked = f.receipts().await.into_iter().find(|r| r.id.seq == a);
    assert!(marked.unwrap().restored_ms.is_some());
    f.counts().await;
}

pub async fn restore_brings_back_a_dead_letter(f: InflightFixture) {
    let f =
        f.with(RecoveryPolicy { on_death: OnDeath::DeadLetter, ..RecoveryPolicy::default() }).await;
    f.working("w", &["a"]).await;
    (f.advance)(f.ttl).await;
    assert_eq!(f.sweep().await.reclaimed, 1);
    let (seq, _) = f.recovered("a").await;
    assert!(is_restored(&f.inflight.restore(seq).await.unwrap(), "a"));
    assert_eq!(f.place("a").await, JobPlace::Queued);
    assert!(refused(f.inflight.restore(seq).await.unwrap()).contains("before"));
    assert_eq!(f.counts().await.dead, 0);
}

/// A job that was put back is on its queue, taken or completed, so there is nothing to restore.
pub async fn restore_refuses_a_job_that_exists(f: InflightFixture) {
    f.working("w", &["a"]).await;
    (f.advance)(f.ttl).await;
    f.sweep().await;
    let (seq, _) = f.recovered("a").await;
    assert!(refused(f.inflight.restore(seq).await.unwrap()).contains("queue"));
    let other = f.start("other").await;
    let taken = f.take(&other, 1).await;
    refused(f.inflight.restore(seq).await.unwrap());
    f.complete(&other, &taken[0]).await;
    refused(f.inflight.restore(seq).await.unwrap());
    assert_eq!((f.job("a").await, f.counts().await.completed), (None, 1));
}

pub async fn explain_says_where_a_job_is(f: InflightFixture) {
    let system = f.system();
    let verdict = |id: &'static str| {
        let system = &system;
        async move { system.explain(id).await.unwrap().verdict }
    };
    let (claim, jobs) = f.working("w", &["held", "failed", "done"]).await;
    f.enqueue(&["queued"]).await;
    f.finish(&claim, &jobs[1], Finish::Fail { error: "no".to_owned() }).await;
    f.complete(&claim, &jobs[2]).await;
    assert_eq!((verdict("held").await, verdict("queued").await), ("live".into(), "queued".into()));
    assert_eq!(verdict("failed").await, "dead_letter");
    assert_eq!((verdict("done").await, verdict("w").await), ("unknown".into(), "live".into()));
    (f.advance)(f.ttl).await;
    assert_eq!(verdict("held").await, "overdue");
    assert_eq!(f.sweep().await.reclaimed, 1);
    assert_eq!((verdict("held").await, verdict("w").await), ("queued".into(), "dead".into()));
}
