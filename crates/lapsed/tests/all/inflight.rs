//! A job from its queue to its end.

use std::sync::Mutex;

use lapsed::{Every, Manual};

use crate::stores::{each, ms, until};

#[tokio::test]
async fn a_job_is_completed_failed_or_given_back() {
    for (lapsed, _folder) in each().await {
        let jobs = lapsed.inflight("jobs").sweep(Manual).start().await.unwrap();
        let me = jobs.join("worker-1").await.unwrap();
        assert!(me.take("mail").await.unwrap().is_none());
        let id = jobs.enqueue("mail", "one").await.unwrap();
        assert!(!jobs.enqueue_as(&id, "mail", "one").await.unwrap(), "it is there already");
        let job = me.take("mail").await.unwrap().unwrap();
        assert_eq!((job.id(), job.payload(), job.crashes()), (id.as_str(), "one", 0));
        assert!(job.give_back().await.unwrap());
        assert_eq!(jobs.queued("mail").await.unwrap(), 1);
        assert!(me.take("mail").await.unwrap().unwrap().complete().await.unwrap());
        jobs.enqueue("mail", "two").await.unwrap();
        assert!(me.take("mail").await.unwrap().unwrap().fail("no such address").await.unwrap());
        assert_eq!(jobs.queued("mail").await.unwrap(), 0);
    }
}

#[tokio::test]
async fn the_job_of_a_dead_worker_is_back_on_its_queue_and_its_late_completion_is_refused() {
    for (lapsed, _folder) in each().await {
        let jobs = lapsed.inflight("jobs").ttl(ms(300)).sweep(Every(ms(50))).start().await.unwrap();
        jobs.enqueue("mail", "one").await.unwrap();
        let dead = jobs.join("worker-1").await.unwrap();
        let late = dead.take("mail").await.unwrap().unwrap();
        drop(dead);
        until("it is back", || async { jobs.queued("mail").await.unwrap() == 1 }).await;
        assert!(!late.complete().await.unwrap());
        let job = jobs.join("worker-2").await.unwrap().take("mail").await.unwrap().unwrap();
        assert_eq!(job.crashes(), 1);
    }
}

#[tokio::test]
async fn a_worker_that_leaves_puts_its_jobs_back_with_receipts() {
    for (lapsed, _folder) in each().await {
        let jobs = lapsed.inflight("jobs").sweep(Manual).start().await.unwrap();
        jobs.enqueue("mail", "one").await.unwrap();
        let me = jobs.join("worker-1").await.unwrap();
        me.take("mail").await.unwrap().unwrap();
        assert_eq!(me.leave().await.unwrap().reclaimed, 1);
        assert_eq!(jobs.queued("mail").await.unwrap(), 1);
        assert_eq!(jobs.receipts(10).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_handler_works_on_every_job_until_the_system_is_stopped() {
    let lapsed = lapsed::open("memory:").await.unwrap();
    let jobs = lapsed.inflight("jobs").start().await.unwrap();
    jobs.enqueue("mail", "one").await.unwrap();
    jobs.enqueue("mail", "two").await.unwrap();
    let done = Mutex::new(Vec::new());
    let work = |payload: String| async {
        done.lock().unwrap().push(payload);
        Ok::<(), std::io::Error>(())
    };
    let stopping = async {
        until("both are done", || async { done.lock().unwrap().len() == 2 }).await;
        jobs.clone().stop().await;
    };
    let (worked, ()) = tokio::join!(jobs.worker("worker-1", "mail", 2, work), stopping);
    worked.unwrap();
    assert_eq!(jobs.queued("mail").await.unwrap(), 0);
}
