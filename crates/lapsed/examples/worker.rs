//! A worker dies with a job: the job goes back to its queue, and another worker does it.
//!
//! `cargo run -p lapsed --example worker`

use std::time::Duration;

use lapsed::Every;

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapsed::Result<()> {
    let ms = Duration::from_millis;
    let lapsed = lapsed::open("memory:").await?;
    let jobs = lapsed.inflight("jobs").ttl(ms(500)).sweep(Every(ms(50))).start().await?;
    jobs.enqueue_as("m-1", "mail", "ada@example").await?;
    let dying = jobs.join("worker-1").await?;
    let job = dying.take("mail").await?.expect("it was just enqueued");
    println!("worker-1 takes {} and dies", job.id());
    drop(dying);

    jobs.enqueue_as("m-2", "mail", "nobody").await?;
    let done = std::cell::Cell::new(0);
    let work = |address: String| {
        done.set(done.get() + 1);
        println!("a mail to {address}");
        async move { if address == "nobody" { Err("no such address") } else { Ok(()) } }
    };
    let stopping = async {
        while done.get() < 2 {
            tokio::time::sleep(ms(20)).await;
        }
        jobs.clone().stop().await;
    };
    let (worked, ()) = tokio::join!(jobs.worker("worker-2", "mail", 1, work), stopping);
    worked?;
    println!("m-2 is {}", jobs.explain("m-2").await?.verdict);
    println!("worker-1 is too late: {}", !job.complete().await?);
    Ok(())
}
