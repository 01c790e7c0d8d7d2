//! The least that taking a job safely can cost: LMOVE from the queue to the taker's own list, and RPOP
//! from that list when it is done. No owner, no token, no time: nobody notices a death, and a list that
//! is not finished in its order would need LREM.

use std::time::Instant;

use ::redis::Pipeline;
use anyhow::{Result, ensure};
use futures::future::try_join_all;

use super::super::BenchRedis;

const QUEUE: &str = "bare:queue";
/// About what a small job is.
pub const PAYLOAD: &str =
    r#"{"class":"Recorder","args":[1],"jid":"55912d1f47610eeb8eea61cb","retry":true}"#;

#[derive(Debug, Clone, Copy)]
pub struct BareLoad {
    /// How many take and complete at a time, on one multiplexed connection.
    pub callers: usize,
    /// How many commands a caller sends at a time.
    pub depth: usize,
    pub jobs: usize,
}

/// Jobs a second that were taken and completed.
pub async fn take_and_complete(place: &BenchRedis, load: BareLoad) -> Result<f64> {
    let lua = format!(
        "for i = ARGV[1], ARGV[2] do redis.call('LPUSH', '{QUEUE}', '{PAYLOAD}') end return 1"
    );
    place.fill(&lua, load.jobs).await?;
    let began = Instant::now();
    let done = try_join_all((0..load.callers).map(|nth| caller(place, nth, load.depth))).await?;
    let took = began.elapsed();
    let done: usize = done.into_iter().sum();
    ensure!(done == load.jobs, "{done} of {} jobs were completed", load.jobs);
    Ok(load.jobs as f64 / took.as_secs_f64())
}

/// Takes and completes until the queue is empty.
async fn caller(place: &BenchRedis, nth: usize, depth: usize) -> Result<usize> {
    let own = format!("bare:taken:{nth}");
    let (mut take, mut complete) = (::redis::pipe(), ::redis::pipe());
    for _ in 0..depth {
        take.cmd("LMOVE").arg(QUEUE).arg(&own).arg("RIGHT").arg("LEFT");
        complete.cmd("RPOP").arg(&own);
    }
    let mut done = 0;
    loop {
        let taken = some(place, &take).await?;
        let completed = some(place, &complete).await?;
        ensure!(taken == completed, "{taken} taken, {completed} completed");
        done += taken;
        if taken < depth {
            return Ok(done);
        }
    }
}

/// How many of the answers are a job.
async fn some(place: &BenchRedis, pipeline: &Pipeline) -> Result<usize> {
    let answers: Vec<Option<Vec<u8>>> = pipeline.query_async(&mut place.plain.clone()).await?;
    Ok(answers.iter().flatten().count())
}
