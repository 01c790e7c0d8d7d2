//! Jobs from being enqueued until their worker is done with them: ours beside the job queues in use today, each with its own
//! library and workers, on the same server. The jobs do nothing, so that all that is measured is the queue.

use std::time::Instant;

use anyhow::{Result, ensure};
use lapsed_core::inflight::{Finish, Finished, InflightStore, JOBS_MAX};

use super::BenchRedis;
use super::inflight::lapsed::BenchJobs;
use super::inflight::peers::{self, JOB_PEERS};
use crate::bench::{Bench, progress};
use crate::rounds::median;
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "redis-jobs";

/// Workers at a time, as many as a peer's worker takes at a time where it can be told.
const WORKERS: usize = 64;
/// The peers are slower: so many jobs take each of them seconds.
const PEERS_SHARE: usize = 20;

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    bench.runtime.block_on(compare(bench, table))
}

async fn compare(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let place = BenchRedis::new().await?;
    let jobs = bench.sizes.takes;
    let one = ours(bench, &place, jobs, 1, table).await?;
    ours(bench, &place, jobs, 16, table).await?;
    let mut best = ("", 0.0);
    let few = jobs / PEERS_SHARE;
    for (nth, peer) in JOB_PEERS.iter().enumerate() {
        if !peer.is_here() {
            progress(format!("{}: left out, there is no `go` to build it with", peer.name));
            continue;
        }
        progress(format!("{}: {few} jobs enqueued, taken and completed", peer.name));
        let done = peers::recover(&place, peer, nth + 1, few).await?;
        ensure!(!done.is_cut_off, "{} did not complete {few} jobs in time", peer.name);
        let rate = few as f64 / (done.took_ms / 1e3);
        let what = format!("{} {}: {}", peer.name, done.version, done.call);
        table.measure(NAME, what, Figure::per_second(rate));
        if rate > best.1 {
            best = (peer.name, rate);
        }
    }
    let what = format!("enqueue, take, complete, {WORKERS} workers: beside the best of them");
    let other = (best.0, Figure::per_second(best.1));
    let target = Some(FigureTarget::AtLeast(3.0));
    table.compare(NAME, what, Figure::per_second(one), other, one / best.1, target);
    Ok(())
}

/// Jobs a second: the median of several rounds.
async fn ours(
    bench: &Bench,
    place: &BenchRedis,
    jobs: usize,
    at_a_time: usize,
    table: &mut FigureTable,
) -> Result<f64> {
    progress(format!("ours: {jobs} jobs enqueued, taken and completed, {at_a_time} at a time"));
    let system = BenchJobs::open(place, &format!("cycled-{at_a_time}")).await?;
    let mut rates = Vec::new();
    for round in 0..bench.sizes.rounds.min(3) {
        let began = Instant::now();
        let workers = (0..WORKERS)
            .map(|nth| worker(&system, format!("worker-{round}-{nth}"), jobs / WORKERS, at_a_time));
        let workers = futures::future::try_join_all(workers);
        let all = jobs / WORKERS * WORKERS;
        futures::future::try_join(system.enqueue(&format!("round-{round}"), all), workers).await?;
        rates.push(all as f64 / began.elapsed().as_secs_f64());
    }
    let rate = median(rates);
    let what =
        format!("ours: {WORKERS} workers, {at_a_time} at a time, enqueued {JOBS_MAX} a call");
    table.measure(NAME, what, Figure::per_second(rate));
    Ok(rate)
}

/// Takes and completes `jobs` jobs.
async fn worker(system: &BenchJobs, owner: String, jobs: usize, at_a_time: usize) -> Result<()> {
    let claim = system.start(&owner).await?;
    let mut done = 0;
    while done < jobs {
        let limit = at_a_time.min(jobs - done);
        let taken = system.inflight.take(&claim, &system.queue, limit).await?;
        let tickets: Vec<_> = taken.jobs.iter().map(|job| job.ticket(taken.incarnation)).collect();
        if tickets.is_empty() {
            // The next jobs are being enqueued; a worker of the library waits longer.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            continue;
        }
        let finished = system.inflight.finish(&tickets, &Finish::Complete).await?;
        ensure!(finished.iter().all(|one| *one == Finished::Done), "a worker lost a job");
        done += tickets.len();
    }
    Ok(())
}
