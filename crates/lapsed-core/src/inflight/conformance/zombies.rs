//! Those who were taken for dead and come back (P5).

use std::sync::Arc;
use std::time::Duration;

use super::{InflightFixture, bare, ids_of, job, name};
use crate::error::Error;
use crate::inflight::{Finish, Finished, JobOutcome, JobPlace, Worker};
use crate::schedule::StopSignal;

/// The job was recovered; the beat that arrives afterwards is answered `Lost` and makes nothing.
pub async fn trap_e2_a_late_heartbeat_revives_nothing(f: InflightFixture) {
    let (zombie, jobs) = f.working("w", &["a"]).await;
    (f.advance)(f.ttl).await;
    assert_eq!(f.sweep().await.reclaimed, 1);
    match f.inflight.beat(&zombie).await {
        Err(Error::Lost(lost)) => assert_eq!(lost.held, [name("a")]),
        other => panic!("{other:?}"),
    }
    let counts = f.counts().await;
    assert_eq!((counts.queued, counts.in_flight), (1, 0));
    let other = f.start("other").await;
    let taken = f.take(&other, 10).await;
    assert_eq!(ids_of(&taken), ["a"]);
    assert!(f.inflight.beat(&zombie).await.is_err());
    assert_eq!(f.complete(&other, &taken[0]).await, Finished::Done);
    assert_eq!(f.complete(&zombie, &jobs[0]).await, Finished::Gone);
    assert_eq!(f.job("a").await, None);
}

/// The slow one completes while the other works on it: refused, and nothing changes.
pub async fn trap_e9_a_late_completion_is_refused(f: InflightFixture) {
    let (zombie, late) = f.working("slow", &["a"]).await;
    (f.advance)(f.ttl).await;
    assert_eq!(f.sweep().await.reclaimed, 1);
    let ways = [Finish::Complete, Finish::Fail { error: "late".to_owned() }];
    for how in &ways {
        let refused = f.finish(&zombie, &late[0], how.clone()).await;
        assert!(refused.is_lost(), "{how:?}");
        assert_eq!(f.place("a").await, JobPlace::Queued);
    }
    let other = f.start("other").await;
    let taken = f.take(&other, 1).await;
    for how in &ways {
        let refused = f.finish(&zombie, &late[0], how.clone()).await;
        assert!(refused.is_lost(), "{how:?}");
        let refused = f.inflight.finish(&[bare(&late[0])], how).await.unwrap();
        assert_eq!(refused, [Finished::Superseded], "{how:?}");
    }
    assert_eq!(f.complete(&other, &taken[0]).await, Finished::Done);
    let counts = f.counts().await;
    assert_eq!((counts.completed, counts.dead), (1, 0));
}

/// The same worker, alive all the time, gave it back and took it again: its first claim is over.
pub async fn trap_e9_an_earlier_claim_is_refused(f: InflightFixture) {
    let (claim, first) = f.working("w", &["a"]).await;
    f.finish(&claim, &first[0], Finish::GiveBack(crate::inflight::rules::QueueEnd::Front)).await;
    let second = f.take(&claim, 1).await;
    assert_eq!(f.complete(&claim, &first[0]).await, Finished::Superseded);
    assert_eq!(f.complete(&claim, &second[0]).await, Finished::Done);
}

pub async fn a_dead_incarnation_takes_and_registers_nothing(f: InflightFixture) {
    let zombie = f.start("w").await;
    (f.advance)(f.ttl).await;
    f.sweep().await;
    f.enqueue(&["a"]).await;
    let taken = f.inflight.take(&zombie, &name("q"), 1).await;
    assert!(matches!(taken, Err(Error::Lost(_))), "{taken:?}");
    let registered = f.inflight.register(&zombie, &[job("b")]).await;
    assert!(matches!(registered, Err(Error::Lost(_))), "{registered:?}");
    assert_eq!((f.place("a").await, f.job("b").await), (JobPlace::Queued, None));
}

/// One batch of one job declares it dead: from then on it completes none of the others, though they
/// have not moved yet.
pub async fn a_fenced_worker_is_refused_before_its_jobs_have_moved(f: InflightFixture) {
    let (zombie, jobs) = f.working("w", &["a", "b"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    let answer = f.reclaim(suspects[..1].to_vec()).await;
    assert_eq!(answer.owners_ended, 1);
    let left = jobs.iter().find(|job| job.id == suspects[1].key).unwrap();
    assert_eq!(f.complete(&zombie, left).await, Finished::OwnerEnded);
    let refused = f.inflight.finish(&[bare(left)], &Finish::Complete).await.unwrap();
    assert_eq!(refused, [Finished::OwnerEnded]);
    match f.place(left.id.as_str()).await {
        JobPlace::InFlight { ended, .. } => assert!(ended.is_some()),
        other => panic!("{other:?}"),
    }
    assert_eq!(f.sweep().await.reclaimed, 1);
    assert_eq!(f.counts().await.queued, 2);
}

/// Another process ends the owner: the work is dropped, and nothing is reported to the store.
pub async fn a_worker_cancels_jobs_of_a_lost_owner(f: InflightFixture) {
    let worker = Worker::start(Arc::new(f.system()), "w").await.unwrap();
    f.enqueue(&["a"]).await;
    let job = worker.take(&name("q"), 1, Duration::ZERO).await.unwrap().remove(0);
    f.inflight.end(worker.owner().claim()).await.unwrap();
    let endless = std::future::pending::<Result<(), String>>();
    let worked = worker.work(&job, endless).await.unwrap();
    assert_eq!(worked, JobOutcome::Cancelled);
    assert_eq!(f.sweep().await.reclaimed, 1);
    assert_eq!(f.place("a").await, JobPlace::Queued);
}

/// It runs several jobs at once, failed jobs become dead letters, and it holds nothing after it
/// stopped.
pub async fn a_worker_runs_until_it_is_stopped(f: InflightFixture) {
    let system = Arc::new(f.system());
    let worker = Worker::start(system.clone(), "w").await.unwrap();
    let ids: Vec<String> = (0..20).map(|i| format!("j{i:02}")).collect();
    f.enqueue(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (stopper, stop) = StopSignal::channel();
    let work = |job: crate::inflight::Claimed| async move {
        match job.id.as_str() {
            "j07" => Err("unlucky"),
            _ => Ok(()),
        }
    };
    let queue = name("q");
    let stopping = async {
        while f.counts().await.completed < 19 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while f.counts().await.dead < 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stopper.stop();
    };
    let (ran, ()) = futures::join!(worker.run(&queue, 3, &stop, work), stopping);
    ran.unwrap();
    assert_eq!(worker.retire().await.unwrap().reclaimed, 0);
    let counts = f.counts().await;
    assert_eq!((counts.completed, counts.dead, counts.in_flight), (19, 1, 0));
    let JobPlace::Dead { error, .. } = f.place("j07").await else { panic!("it is not") };
    assert_eq!(error.as_deref(), Some("unlucky"));
}
