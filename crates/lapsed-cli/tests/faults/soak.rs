//! A soak: one daemon on an embedded store, many owners that beat through `beat_many`, some of whom die all the
//! time and are replaced, and a daemon that is restarted in every tenth of the time. Memory, disk, the latency of
//! beats and the lag of reclaims must be the same in the last tenth as in the first.
//!
//! `make soak OWNERS=100000 SECONDS=3600`. The time begins when all owners are there and the first of those who died were
//! reclaimed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lapsed_testbed::Port;
use serde_json::{Value, json};

use crate::kills::caller::{Caller, Told};
use crate::kills::wanted;
use crate::support::{Home, until};

const TTL: Duration = Duration::from_secs(20);

/// Every owner beats this often.
const ROUND: Duration = Duration::from_secs(5);

/// How many heartbeats are in one call.
const BEATS_A_CALL: usize = 500;

/// One of this many owners dies in each round and is replaced.
const CHURN: u64 = 200;

/// How many callers beat, each for its share of the owners.
const CALLERS: usize = 2;

/// A tenth is as good as the first if it is not above it by more than this share and this much.
const SHARE_MAX: f64 = 1.25;

const TENTHS: usize = 10;

/// What was measured in one tenth of the time.
#[derive(Clone, Copy, Debug, Default)]
struct Tenth {
    rss_mb: f64,
    disk_mb: f64,
    beat_p99_ms: f64,
    lag_p99_ms: f64,
}

struct SoakLoad {
    url: String,
    owners: usize,
    /// The latencies of calls in this tenth, in microseconds.
    latencies: Mutex<Vec<u64>>,
    beats: AtomicU64,
    replaced: AtomicU64,
    over: AtomicBool,
}

impl SoakLoad {
    /// Beats for one share of the owners, round after round.
    fn beat(&self, share: usize) {
        let mut caller = Caller::new(std::slice::from_ref(&self.url), 0);
        let mut lives: Vec<u64> = vec![0; self.owners / CALLERS];
        let mut round = 0;
        while !self.over.load(Ordering::SeqCst) {
            let began = Instant::now();
            round += 1;
            let calls = lives.len().div_ceil(BEATS_A_CALL) as u32;
            for (nth, some) in lives.chunks_mut(BEATS_A_CALL).enumerate() {
                self.replace_some(share, nth, round, some);
                self.call(&mut caller, share, nth, some);
                let next = began + ROUND * (nth as u32 + 1) / calls;
                thread::sleep(next.saturating_duration_since(Instant::now()));
                if self.over.load(Ordering::SeqCst) {
                    return;
                }
            }
        }
    }

    /// Some fall silent; from now on somebody else beats in their place.
    fn replace_some(&self, share: usize, nth: usize, round: u64, some: &mut [u64]) {
        for (place, life) in some.iter_mut().enumerate() {
            let which = (share * 7 + nth * BEATS_A_CALL + place) as u64;
            if round > 1 && (which + round).is_multiple_of(CHURN) {
                *life += 1;
                self.replaced.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn call(&self, caller: &mut Caller, share: usize, nth: usize, some: &[u64]) {
        let name =
            |place: usize, life: u64| format!("o-{share}-{}-{life}", nth * BEATS_A_CALL + place);
        let owner = |(place, life): (usize, &u64)| json!({ "owner": name(place, *life) });
        let beats: Vec<Value> = some.iter().enumerate().map(owner).collect();
        let began = Instant::now();
        let told = caller.post("registry/devices/beat_many", &json!({ "beats": beats }));
        let Told::Fine(answer) = told else { return };
        self.latencies.lock().unwrap().push(began.elapsed().as_micros() as u64);
        self.beats.fetch_add(some.len() as u64, Ordering::Relaxed);
        // Whoever was started just now holds one entry.
        for ((place, life), result) in
            some.iter().enumerate().zip(answer["results"].as_array().unwrap())
        {
            if result["started"] == true {
                let owner = name(place, *life);
                let body = json!({ "owner": owner, "keys": [format!("k-{owner}")] });
                caller.post("registry/devices/register", &body);
            }
        }
    }
}

/// The resident memory of a process, in MB.
fn rss_mb(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb = line.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    kb.unwrap_or_default() / 1_024.0
}

fn disk_mb(dir: &Path) -> f64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes: u64 = files.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum();
    bytes as f64 / 1_048_576.0
}

fn p99_ms(latencies: &mut Vec<u64>) -> f64 {
    let mut all = std::mem::take(latencies);
    all.sort_unstable();
    all.get(all.len() * 99 / 100).copied().unwrap_or_default() as f64 / 1_000.0
}

/// What is worse in the last tenth than in the first.
fn worse(first: &Tenth, last: &Tenth) -> Vec<String> {
    let figures = [
        ("memory in MB", first.rss_mb, last.rss_mb, 16.0),
        ("disk in MB", first.disk_mb, last.disk_mb, 8.0),
        ("p99 of beats in ms", first.beat_p99_ms, last.beat_p99_ms, 50.0),
        ("p99 of the lag in ms", first.lag_p99_ms, last.lag_p99_ms, 1_000.0),
    ];
    let is_worse =
        |(_, first, last, slack): &(&str, f64, f64, f64)| *last > first * SHARE_MAX + slack;
    let told = |(what, first, last, _): (&str, f64, f64, f64)| {
        format!("{what}: {first:.1}, then {last:.1}")
    };
    figures.into_iter().filter(is_worse).map(told).collect()
}

#[test]
fn a_figure_that_grows_is_named() {
    let first = Tenth { rss_mb: 100.0, disk_mb: 50.0, beat_p99_ms: 20.0, lag_p99_ms: 900.0 };
    assert!(worse(&first, &Tenth { rss_mb: 120.0, lag_p99_ms: 1_200.0, ..first }).is_empty());
    for last in [
        Tenth { rss_mb: 142.0, ..first },
        Tenth { disk_mb: 71.0, ..first },
        Tenth { beat_p99_ms: 76.0, ..first },
        Tenth { lag_p99_ms: 2_200.0, ..first },
    ] {
        assert_eq!(worse(&first, &last).len(), 1, "{last:?}");
    }
}

#[test]
#[ignore = "an hour: make soak"]
fn memory_disk_latency_and_lag_stay_flat() {
    let (owners, seconds) = (wanted("OWNERS", 2_000) as usize, wanted("SECONDS", 60));
    let home = Home::with(
        &format!("{}s", TTL.as_secs()),
        "sweep = { every = \"1s\" }\nbrake = { share = 1.0 }\nreceipts = { keep_count = 1000 }",
        "body_limit = \"4MiB\"",
    );
    let port = Port::free().unwrap();
    let listen = ["--listen".to_owned(), format!("127.0.0.1:{}", port.number())];
    let serve = || home.serve_at(&listen).unwrap_or_else(|told| panic!("{told}"));
    let mut daemon = serve();
    let load = Arc::new(SoakLoad {
        url: format!("http://127.0.0.1:{}", port.number()),
        owners,
        latencies: Mutex::default(),
        beats: AtomicU64::new(0),
        replaced: AtomicU64::new(0),
        over: AtomicBool::new(false),
    });
    let threads: Vec<_> = (0..CALLERS)
        .map(|share| {
            let load = load.clone();
            thread::spawn(move || load.beat(share))
        })
        .collect();
    let warm = Instant::now();
    while warm.elapsed() < 3 * TTL || daemon.status()["lag"]["samples"].as_u64().unwrap_or(0) == 0 {
        assert!(warm.elapsed() < 30 * TTL, "nobody is reclaimed: {}", daemon.status());
        thread::sleep(Duration::from_millis(500));
    }
    load.latencies.lock().unwrap().clear();
    let (began, mut tenths) = (Instant::now(), Vec::new());
    for nth in 0..TENTHS {
        // In its middle the daemon is stopped, or killed.
        let middle = began + Duration::from_millis(seconds * 100 * (nth as u64) + seconds * 50);
        let end = began + Duration::from_millis(seconds * 100 * (nth as u64 + 1));
        let mut tenth = Tenth::default();
        let mut sample = |until: Instant, pid: u32| {
            while Instant::now() < until {
                tenth.rss_mb = tenth.rss_mb.max(rss_mb(pid));
                tenth.disk_mb = tenth.disk_mb.max(disk_mb(&home.data()));
                thread::sleep(Duration::from_millis(500));
            }
        };
        sample(middle, daemon.pid());
        match nth % 2 {
            0 => drop(daemon.stop()),
            _ => daemon.kill(),
        }
        daemon = serve();
        sample(end, daemon.pid());
        tenth.beat_p99_ms = p99_ms(&mut load.latencies.lock().unwrap());
        tenth.lag_p99_ms = until("the status", || daemon.status()["lag"]["p99_ms"].as_f64());
        println!("tenth {}: {tenth:?}", nth + 1);
        tenths.push(tenth);
    }
    load.over.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let (beats, replaced) =
        (load.beats.load(Ordering::Relaxed), load.replaced.load(Ordering::Relaxed));
    println!(
        "{owners} owners for {seconds} s: {beats} beats, {replaced} owners replaced, {TENTHS} restarts"
    );
    let found = worse(&tenths[0], &tenths[TENTHS - 1]);
    assert!(found.is_empty(), "{found:?}");
}
