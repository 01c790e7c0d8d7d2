//! A process of lapsed is killed in the middle of a batch, again and again: each job is back once, with one receipt. The process is
//! real and gets SIGKILL; whatever call it had sent is carried out by the server or not.

use std::collections::BTreeSet;
use std::time::Instant;

use super::faults::{self, Random, leave_many, waiting};
use super::many_orphans::{SHORT, account, leave, of_mails};
use super::*;
use crate::inflight_child::{RESCUER, start};

lapsed_testbed::steady_async_tests! {
    a_process_that_is_killed_in_a_batch_leaves_each_job_of_rq_once,
    a_process_that_is_killed_in_a_batch_leaves_each_job_of_bullmq_once,
    a_process_that_is_killed_in_a_batch_leaves_each_job_of_sidekiq_once,
}

async fn a_process_that_is_killed_in_a_batch_leaves_each_job_of_rq_once() {
    killed_again_and_again("rq", 4).await;
}

async fn a_process_that_is_killed_in_a_batch_leaves_each_job_of_bullmq_once() {
    killed_again_and_again("bullmq", 4).await;
}

async fn a_process_that_is_killed_in_a_batch_leaves_each_job_of_sidekiq_once() {
    killed_again_and_again("sidekiq", 4).await;
}

macro_rules! fifty_times {
    ($($profile:ident),*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "takes minutes: make rescue"]
            async fn $profile() {
                killed_again_and_again(stringify!($profile), 50).await;
            }
        )*
    };
}

mod fifty_times {
    use super::killed_again_and_again;

    fifty_times!(rq, dramatiq, bullmq, celery, sidekiq, asynq, resque, streams);
}

/// How many jobs there are for each time that a process is killed; more than it can put back in its time.
const JOBS_EACH: usize = 40;

pub fn leave_orphans(app: &App, profile: &str, jobs: usize) {
    match faults::PROFILES.contains(&profile) {
        true => leave_many(app, profile, jobs, b"{}"),
        false => leave(app, profile, jobs, "x"),
    }
}

/// How many are back.
pub fn back(app: &App, profile: &str) -> usize {
    match faults::PROFILES.contains(&profile) {
        true => waiting(app, profile).len(),
        // Those of a stream are entries again: what is no longer pending.
        false if profile == "streams" => {
            (account(app, profile).0 - account(app, profile).1).try_into().unwrap()
        }
        false => account(app, profile).0.try_into().unwrap(),
    }
}

async fn killed_again_and_again(profile: &'static str, times: usize) {
    let jobs = times * JOBS_EACH;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_orphans(&app, profile, jobs);
    let mut random = Random(u64::from(std::process::id()) | 1);
    let (began, mut killed) = (Instant::now(), 0);
    while killed < times && back(&app, profile) < jobs {
        let before = back(&app, profile);
        let lapsed = start(&format!("{RESCUER}{profile}"), &server.url());
        eventually("the first batch", async || (back(&app, profile) > before).then_some(())).await;
        tokio::time::sleep(Duration::from_micros(random.below(50_000))).await;
        lapsed.kill().unwrap();
        killed += 1;
    }
    let left = jobs - back(&app, profile);
    let redis = connect(&server.url());
    put_back(&of_mails(&redis, profile, SHORT), &redis, left as u64).await;
    let found = receipts(&redis, &id()).await;
    let keys: BTreeSet<&str> = found.iter().map(|receipt| receipt.key.as_str()).collect();
    let numbers: BTreeSet<u64> = found.iter().map(|receipt| receipt.id.seq).collect();
    println!(
        "{profile}: killed {killed} times in {:.0} s, {jobs} jobs, {left} of them left for the last process, receipts {}, \
         of different jobs {}, with different numbers {}, back {}",
        began.elapsed().as_secs_f64(),
        found.len(),
        keys.len(),
        numbers.len(),
        back(&app, profile),
    );
    assert_eq!((found.len(), keys.len(), numbers.len()), (jobs, jobs, jobs), "{profile}");
    assert_eq!(back(&app, profile), jobs, "{profile}");
    assert!(left > 0 && killed == times, "{profile}: killed {killed} times, {left} were left");
}
