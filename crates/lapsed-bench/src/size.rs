//! What a million entries cost: memory, disk, the time to open them, and the size of the binary.
//!
//! A process of its own opens the store, so that the memory is the store's alone and a kill is a
//! kill: it falls into the middle of the writes of that process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lapsed_core::owner::Claim;
use lapsed_core::registry::{HEARTBEAT_TTL_MS, RegistryStore, TakePolicy};
use lapsed_embedded::{Embedded, EmbeddedRegistry, Options};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, progress};
use crate::bench_store::{BenchStore, id, key, owner};
use crate::http::binary;
use crate::rounds::median;
use crate::table::{Figure, FigureTable};

pub const NAME: &str = "size";
const CACHE_SMALL: usize = 16 << 20;
const CACHE_DEFAULT: usize = 256 << 20;
const OPENINGS: usize = 5;
/// How many keys are looked up before the memory in use is read.
const LOOKUPS: u64 = 200_000;
/// How long a process writes before it is killed.
const UNTIL_KILLED: Duration = Duration::from_millis(300);

#[derive(Debug, Serialize, Deserialize)]
struct OpenCost {
    open_ms: f64,
    rss_before: u64,
    rss_opened: u64,
    rss_used: u64,
}

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let store = bench.million()?.copy(bench.path("size"))?;
    let on_disk = std::fs::metadata(store.file())?.len() as f64;
    table.measure(NAME, "on disk, per entry", Figure::bytes(on_disk / store.entries() as f64));
    progress("opening it in a process of its own");
    memory(&store, table)?;
    startup(&store, table)?;
    match binary()? {
        Some(path) => {
            let bytes = std::fs::metadata(path)?.len() as f64;
            table.measure(NAME, "the binary", Figure::bytes(bytes));
        }
        None => table.skip(NAME, "the binary's size: build lapsed first"),
    }
    Ok(())
}

fn memory(store: &BenchStore, table: &mut FigureTable) -> Result<()> {
    let per_entry = |rss: u64, cost: &OpenCost| {
        Figure::bytes(rss.saturating_sub(cost.rss_before) as f64 / store.entries() as f64)
    };
    for (cache, what) in [(CACHE_SMALL, "cache of 16 MiB"), (CACHE_DEFAULT, "cache of 256 MiB")] {
        let (cost, running) = StoreProcess::open(store, cache)?;
        running.close()?;
        let opened = per_entry(cost.rss_opened, &cost);
        table.measure(NAME, format!("memory per entry, opened, {what}"), opened);
        let used = per_entry(cost.rss_used, &cost);
        table.measure(NAME, format!("memory per entry, in use, {what}"), used);
    }
    Ok(())
}

fn startup(store: &BenchStore, table: &mut FigureTable) -> Result<()> {
    let (mut after_close, mut after_kill) = (Vec::new(), Vec::new());
    for _ in 0..OPENINGS {
        let (cost, running) = StoreProcess::open(store, CACHE_DEFAULT)?;
        after_close.push(cost.open_ms);
        running.kill_while_writing()?;
        let (cost, running) = StoreProcess::open(store, CACHE_DEFAULT)?;
        after_kill.push(cost.open_ms);
        running.close()?;
    }
    table.measure(NAME, "start-up after a clean close", Figure::ms(median(after_close)));
    table.measure(NAME, "start-up after a kill", Figure::ms(median(after_kill)));
    Ok(())
}

/// A process that has the store open.
struct StoreProcess {
    child: Child,
}

impl StoreProcess {
    fn open(store: &BenchStore, cache_bytes: usize) -> Result<(OpenCost, StoreProcess)> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--open")
            .arg(store.dir())
            .args(["--cache-bytes", &cache_bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("its output is a pipe")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let cost = serde_json::from_str(&line).context("the process could not open the store")?;
        Ok((cost, StoreProcess { child }))
    }

    fn tell(&mut self, word: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("its input is a pipe")?;
        Ok(writeln!(stdin, "{word}")?)
    }

    fn close(mut self) -> Result<()> {
        self.tell("close")?;
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "the process did not close the store: {status}");
        Ok(())
    }

    fn kill_while_writing(mut self) -> Result<()> {
        self.tell("write")?;
        std::thread::sleep(UNTIL_KILLED);
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other process: opens the store, prints what that cost, then follows the commands on its
/// stdin.
pub fn open_and_wait(dir: &Path, cache_bytes: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rss_before = rss()?;
    let began = Instant::now();
    let store = Embedded::open(dir, Options { cache_bytes, ..Options::default() })?;
    let registry = store.registry(id()?, Duration::from_millis(HEARTBEAT_TTL_MS))?;
    let open_ms = began.elapsed().as_secs_f64() * 1e3;
    let rss_opened = rss()?;
    runtime.block_on(look_up(&registry))?;
    let cost = OpenCost { open_ms, rss_before, rss_opened, rss_used: rss()? };
    println!("{}", serde_json::to_string(&cost)?);
    let mut word = String::new();
    std::io::stdin().read_line(&mut word)?;
    match word.trim() {
        "write" => runtime.block_on(write_until_killed(&registry)),
        _ => {
            drop(registry);
            Ok(store.close()?)
        }
    }
}

async fn look_up(registry: &EmbeddedRegistry) -> Result<()> {
    for number in 0..LOOKUPS {
        registry.find(&[key(number)]).await?;
    }
    Ok(())
}

async fn write_until_killed(registry: &EmbeddedRegistry) -> Result<()> {
    let claim = Claim::newest(owner(0));
    // Far from every other key, and elsewhere each time.
    let first = u64::from(std::process::id()) << 32;
    for number in first.. {
        registry.register(&claim, &[key(number)], TakePolicy::Always).await?;
    }
    Ok(())
}

/// The memory of this process that is in use, in bytes.
fn rss() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("reading its own memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.context("VmRSS is there")?.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}
