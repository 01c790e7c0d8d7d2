//! An owner without `#[tokio::main]`: the program has its own runtime, and keeps it for as long as
//! heartbeats are to be sent.
//!
//! `cargo run -p lapsed --example owner`

use std::time::Duration;

use lapsed::{RegistryMember, RegistrySystem};
use tokio::runtime::{Builder, Runtime};

fn main() -> lapsed::Result<()> {
    // One thread of its own, so that heartbeats are sent while this one is busy.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a thread can be started");
    let (devices, me) = runtime.block_on(join())?;
    println!("{} holds imei-1 as incarnation {}", me.name(), me.incarnation());

    work_without_async();
    println!("still alive after twice its TTL: {}", me.is_live());
    leave(&runtime, devices, me)
}

async fn join() -> lapsed::Result<(RegistrySystem, RegistryMember)> {
    let lapsed = lapsed::open("memory:").await?;
    let devices = lapsed.registry("devices").ttl(Duration::from_millis(1_500)).start().await?;
    let me = devices.join("i-1").await?;
    me.register("imei-1").await?;
    Ok((devices, me))
}

fn work_without_async() {
    std::thread::sleep(Duration::from_millis(3_000));
}

fn leave(runtime: &Runtime, devices: RegistrySystem, me: RegistryMember) -> lapsed::Result<()> {
    println!("left, {} entry taken back", runtime.block_on(me.leave())?.reclaimed);
    runtime.block_on(devices.stop());
    Ok(())
}
