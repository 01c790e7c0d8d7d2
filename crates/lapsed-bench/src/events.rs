//! Server-sent events: what a hundred listeners cost the sweeps that make the receipts.
//!
//! The server is the real `lapsed serve` on an embedded store, with one registry. A pass reclaims
//! 10,000 entries, and one begins every second: 10,000 events a second, to each of 100 listeners on
//! the loopback. The other side is the same passes while nobody listens. What is compared is how many
//! entries a second the passes reclaim while they run, as they report it themselves. The listeners
//! share the machine with the server; they read, count bytes, and look at the last id only.

mod listeners;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use self::listeners::{Listeners, NonReaders};
use crate::bench::{Bench, progress};
use crate::http::{HttpBenchServer, binary};
use crate::rounds::{Side, median, take_turns};
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "events";

/// Who listens, and who connects and never reads.
const LISTENERS: usize = 100;
const NON_READERS: usize = 20;

/// What a pass reclaims, and how often one begins.
const PASS: usize = 10_000;
const EVERY: Duration = Duration::from_secs(1);

/// The most keys that one call registers.
const KEYS: usize = 1_000;

const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let Some(binary) = binary()? else {
        table.skip(NAME, "build lapsed first (`cargo build --release`), or set LAPSED_BIN");
        return Ok(());
    };
    let system = format!(
        "heartbeat_ttl = \"1s\"\nsweep = {{ every = \"1d\", max_ops = {PASS} }}\nbrake = {{ share = 1.0 }}"
    );
    let dir = bench.path("events");
    let server = HttpBenchServer::start(&binary, &dir, "write_timeout = \"2s\"", &system)?;
    drop(server.connect(bench)?);
    let stage = EventsBench { bench, server, agent: agent(), lives: std::cell::Cell::new(0) };
    progress(format!("{LISTENERS} listeners at {}", stage.server.address));
    let told = std::cell::RefCell::new(Vec::new());
    let heard = || {
        let round = stage.passes_with_listeners(EVERY)?;
        let rate = round.swept_per_second;
        told.borrow_mut().push(round);
        Ok(rate)
    };
    let mut sides: Vec<Side<'_>> =
        vec![Box::new(heard), Box::new(|| stage.passes_without_listeners())];
    let figures = take_turns(bench.sizes.rounds, &mut sides)?;
    drop(sides);
    table.compare(
        NAME,
        format!("sweeps, {LISTENERS} listeners, 10,000 events/s to each"),
        Figure::per_second(figures.of(0)),
        ("nobody listens", Figure::per_second(figures.of(1))),
        figures.ratio(0, 1),
        Some(FigureTarget::AtLeast(0.9)),
    );
    show(table, &told.into_inner());
    let flood = stage.passes_with_listeners(Duration::ZERO)?;
    table.measure(
        NAME,
        "deliveries, passes back to back",
        Figure::per_second(flood.delivered_per_second),
    );
    stage.ignore(table)
}

fn show(table: &mut FigureTable, rounds: &[Round]) {
    let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
    let wanted = (PASS * LISTENERS) as f64 / EVERY.as_secs_f64();
    let delivered = of(|round| round.delivered_per_second);
    table.compare(
        NAME,
        "deliveries, a pass a second",
        Figure::per_second(delivered),
        ("10,000 to each of 100", Figure::per_second(wanted)),
        delivered / wanted,
        Some(FigureTarget::AtLeast(1.0)),
    );
    let late = Figure::ms(of(|round| round.late_ms));
    table.measure(NAME, "slowest listener has all, after the end of a pass", late);
    let busy = Figure::count(of(|round| round.server_cores));
    table.measure(NAME, "cores that the server used meanwhile", busy);
    let busy = Figure::count(of(|round| round.client_cores));
    table.measure(NAME, "cores that the listeners used meanwhile", busy);
}

/// The server, and what is asked of it.
struct EventsBench<'a> {
    bench: &'a Bench,
    server: HttpBenchServer,
    agent: ureq::Agent,
    lives: std::cell::Cell<usize>,
}

/// What was seen while others listened.
struct Round {
    swept_per_second: f64,
    delivered_per_second: f64,
    late_ms: f64,
    server_cores: f64,
    client_cores: f64,
}

impl EventsBench<'_> {
    /// Runs passes at this interval while all listeners are connected.
    fn passes_with_listeners(&self, every: Duration) -> Result<Round> {
        self.prepare()?;
        let listeners = Listeners::connect(self.bench, self.server.address, LISTENERS)?;
        let (server, client) = (cpu(self.server.child.id())?, cpu(std::process::id())?);
        let began = Instant::now();
        let (mut rates, mut late) = (Vec::new(), Vec::new());
        for pass in 0..self.passes() {
            let due = began + every * pass as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            rates.push(self.pass()?);
            let ended = Instant::now();
            if every > Duration::ZERO || pass + 1 == self.passes() {
                listeners.until(self.newest()?, PATIENCE)?;
                late.push(ended.elapsed().as_secs_f64() * 1e3);
            }
        }
        // The last pass has its second, too.
        let took = began.elapsed().max(every * self.passes() as u32).as_secs_f64();
        let events = (self.passes() * PASS * LISTENERS) as f64;
        Ok(Round {
            swept_per_second: median(rates),
            delivered_per_second: events / took,
            late_ms: median(late),
            server_cores: (cpu(self.server.child.id())? - server) / took,
            client_cores: (cpu(std::process::id())? - client) / took,
        })
    }

    /// Runs the same passes without listeners: entries reclaimed per second.
    fn passes_without_listeners(&self) -> Result<f64> {
        self.prepare()?;
        let began = Instant::now();
        let mut rates = Vec::new();
        for pass in 0..self.passes() {
            let due = began + EVERY * pass as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            rates.push(self.pass()?);
        }
        Ok(median(rates))
    }

    /// Some that never read: how many are dropped, and what they cost in memory until then.
    fn ignore(&self, table: &mut FigureTable) -> Result<()> {
        self.prepare()?;
        let idlers = NonReaders::connect(self.server.address, NON_READERS)?;
        let before = memory(self.server.child.id())?;
        let mut most = before;
        let mut dropped = 0.0;
        for _ in 0..self.passes() {
            self.pass()?;
        }
        let deadline = Instant::now() + PATIENCE;
        while dropped < NON_READERS as f64 && Instant::now() < deadline {
            most = most.max(memory(self.server.child.id())?);
            dropped = self.counted("lapsed_events_dropped_total")?;
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(idlers);
        let all = ("that never read", Figure::count(NON_READERS as f64));
        let what = "listeners that were dropped";
        let ratio = dropped / NON_READERS as f64;
        table.compare(
            NAME,
            what,
            Figure::count(dropped),
            all,
            ratio,
            Some(FigureTarget::Within(1.0, 1.0)),
        );
        let each = (most - before) / NON_READERS as f64;
        table.measure(NAME, "memory for each of them, at most", Figure { value: each, unit: "B" });
        Ok(())
    }

    fn passes(&self) -> usize {
        self.bench.sizes.told_passes
    }

    /// As many entries of dead owners as all passes together reclaim.
    fn prepare(&self) -> Result<()> {
        for _ in 0..self.passes() {
            let life = self.lives.get();
            self.lives.set(life + 1);
            let owner = format!("instance-{life:06}");
            for page in 0..PASS / KEYS {
                let key = |i: usize| format!("{:015}", (life * PASS + page * KEYS + i) as u64);
                let keys: Vec<String> = (0..KEYS).map(key).collect();
                self.post(
                    "/v1/registry/default/register_many",
                    json!({ "owner": owner, "keys": keys }),
                )?;
            }
        }
        let wanted = (self.passes() * PASS) as u64;
        let deadline = Instant::now() + PATIENCE;
        while self.get("/v1/sweeps/registry/default")?["census"]["suspects"].as_u64()
            != Some(wanted)
        {
            ensure!(Instant::now() < deadline, "the owners do not die");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// One pass: entries a second.
    fn pass(&self) -> Result<f64> {
        let report = self.post("/v1/sweeps/registry/default", json!({}))?;
        let count = report["reclaimed"].as_u64().unwrap_or(0);
        ensure!(count == PASS as u64, "a pass should reclaim {PASS}: {report}");
        let took_ms = report["took_ms"].as_f64().context("a pass says how long it took")?;
        Ok(count as f64 / took_ms.max(1.0) * 1e3)
    }

    fn newest(&self) -> Result<u64> {
        let page = self.get("/v1/receipts?limit=1")?;
        let id = page["receipts"][0]["id"].as_str().context("there are receipts")?;
        Ok(id.rsplit('-').next().unwrap_or_default().parse()?)
    }

    fn counted(&self, series: &str) -> Result<f64> {
        let text = self.agent.get(self.url("/metrics")).call()?.into_body().read_to_string()?;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(value.with_context(|| format!("{series} is missing"))?.parse()?)
    }

    fn get(&self, path: &str) -> Result<Value> {
        Ok(self.agent.get(self.url(path)).call()?.into_body().read_json()?)
    }

    fn post(&self, path: &str, body: Value) -> Result<Value> {
        Ok(self.agent.post(self.url(path)).send_json(body)?.into_body().read_json()?)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address)
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().proxy(None).timeout_global(Some(PATIENCE)).build().new_agent()
}

/// Processor time of a process so far, in seconds. The kernel counts in hundredths.
fn cpu(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit_once(')').context("reading its processor time")?.1;
    let ticks = after.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}

/// Memory of a process, in bytes.
fn memory(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).context("reading its memory")?;
    Ok(kib.parse::<f64>()? * 1024.0)
}
