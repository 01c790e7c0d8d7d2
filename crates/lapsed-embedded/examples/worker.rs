//! A worker: takes jobs, beats by itself, stops work that it no longer holds, and leaves gracefully.
//!
//! `cargo run -p lapsed-embedded --example worker`

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::inflight::{Claimed, Inflight, InflightParts, NewJob, Worker};
use lapsed_core::schedule::StopSignal;
use lapsed_core::{Kind, Name, SystemId};
use lapsed_embedded::{Embedded, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapsed_core::Result<()> {
    let inflight = open()?;
    let queue = Name::new("mails")?;
    for (id, to) in [("m-1", "ada@example"), ("m-2", "nobody"), ("m-3", "grace@example")] {
        inflight.enqueue(&[NewJob::new(Name::new(id)?, queue.clone(), to)]).await?;
    }

    // Ten lines: whatever becomes of this process, no job is lost.
    let worker = Worker::start(inflight.clone(), "worker-1").await?;
    let (stopper, stop) = StopSignal::channel();
    let working = worker.run(&queue, 2, &stop, |job: Claimed| async move {
        println!("{}: a mail to {}", job.id, job.payload);
        match job.payload.contains('@') {
            true => Ok(()),                         // completed, if it is still this worker's
            false => Err("that is not an address"), // a dead letter
        }
    });
    let told = async { until_empty(&inflight).await.map(|()| stopper.stop()) };
    tokio::try_join!(working, told)?;
    let retired = worker.retire().await?; // what it still held would be back now

    let counts = inflight.counts().await?;
    println!("left, {} given back; {counts:?}", retired.put_back);
    for letter in inflight.dead(None, 10).await? {
        println!("a dead letter: {} {:?}", letter.id, letter.place);
    }
    assert!(counts.balances() && counts.completed == 2 && counts.dead == 1);
    Ok(())
}

fn open() -> lapsed_core::Result<Arc<Inflight>> {
    let ttl = Duration::from_secs(30);
    let id = SystemId::new(Kind::Inflight, "jobs")?;
    let store = Embedded::in_memory(Options::default())?;
    Ok(Arc::new(Inflight::new(
        InflightParts::new(
            store.inflight(id.clone(), ttl, RecoveryPolicy::default())?,
            Arc::new(store),
            ttl,
        )
        .timeout(Duration::from_secs(5))
        .batch(500)
        .sweeper("example".to_owned()),
    )))
}

/// Until every job is completed or a dead letter.
async fn until_empty(inflight: &Inflight) -> lapsed_core::Result<()> {
    loop {
        let counts = inflight.counts().await?;
        if counts.queued + counts.in_flight == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
