//! The other process of a story: this very program, called with a part to play. To be frozen and killed.

use std::io::Write;
use std::process::Command;
use std::sync::Arc;

use futures::future::join_all;
use lapsed_core::inflight::{Finish, InflightStore, JobOutcome, Worker};
use lapsed_core::sweep::Sweep;
use lapsed_core::sweep::policy::Policy;
use lapsed_testbed::Program;

use crate::jobs::{id, patient, system};
use crate::rescue::many_orphans::{SHORT, of_mails};
use crate::story::{connect, name, pass, sweeper_called};

const PART: &str = "LAPSED_TEST_PART";
const URL: &str = "LAPSED_TEST_URL";

/// Recovers, in small batches, until it is killed.
pub const SWEEPER: &str = "sweeper";
/// With a profile behind it: puts jobs of that system back, in small batches, until it is killed.
pub const RESCUER: &str = "rescuer ";
/// Takes the jobs that there are, and completes them on request.
pub const WORKER: &str = "worker";

/// Starts this program with that part.
pub fn start(part: &str, url: &str) -> Program {
    let own = std::env::current_exe().unwrap();
    let prepare = |command: &mut Command| {
        command.args(["inflight_child::inflight_worker_process", "--exact", "--nocapture", "-q"]);
        command.env(PART, part).env(URL, url);
    };
    let program = Program::start(&own, prepare).unwrap();
    // What the test harness says before.
    loop {
        let line = program.line(crate::story::LIMIT).unwrap();
        if line == "begins" {
            return program;
        }
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// The entry point of a child process. It does nothing unless another test has started it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inflight_worker_process() {
    let (Ok(part), Ok(url)) = (std::env::var(PART), std::env::var(URL)) else { return };
    println!();
    say("begins");
    match part.as_str() {
        SWEEPER => sweep(&url).await,
        WORKER => work(&url).await,
        rescuer if rescuer.starts_with(RESCUER) => rescue(&rescuer[RESCUER.len()..], &url).await,
        other => panic!("there is no part {other}"),
    }
}

async fn sweep(url: &str) {
    let redis = connect(url);
    let sweep: Arc<dyn Sweep> = Arc::new(redis.inflight(id(), patient()).unwrap());
    let called = format!("recoverer-{}", std::process::id());
    let sweeper = sweeper_called(&called, &sweep, &redis, Policy { batch: 5, ..Policy::default() });
    sweep.census().await.unwrap();
    say("recovers");
    loop {
        pass(&sweeper).await;
    }
}

async fn rescue(profile: &str, url: &str) {
    let redis = connect(url);
    let sweep: Arc<dyn Sweep> = of_mails(&redis, profile, SHORT);
    let called = format!("rescuer-{}", std::process::id());
    let sweeper = sweeper_called(&called, &sweep, &redis, crate::rescue::bit_by_bit());
    loop {
        pass(&sweeper).await;
    }
}

/// Completes each twice over: by the handle, which knows that it was lost, and past it, as a program
/// would that never asks.
async fn work(url: &str) {
    let redis = connect(url);
    let jobs = redis.inflight(id(), patient()).unwrap();
    let worker = Worker::start(Arc::new(system(&redis, &jobs)), "frozen").await.unwrap();
    let held = worker.take(&name("q"), 40, std::time::Duration::ZERO).await.unwrap();
    say(&format!("holds {}", held.len()));
    let endless = || std::future::pending::<Result<(), String>>();
    let working = join_all(held.iter().map(|job| worker.work(job, endless())));
    let mut go = String::new();
    let going = tokio::task::spawn_blocking(move || std::io::stdin().read_line(&mut go).map(drop));
    let (worked, went) = tokio::join!(working, going);
    went.unwrap().unwrap();
    for job in &held {
        let ticket = job.ticket(worker.incarnation());
        let done = jobs.finish(&[ticket], &Finish::Complete).await.unwrap().remove(0);
        say(&format!("{} {}", if done.is_lost() { "refused" } else { "done" }, job.id));
    }
    let cancelled = worked.iter().all(|one| matches!(one, Ok(JobOutcome::Cancelled)));
    say(if cancelled { "cancelled" } else { "went on" });
}
