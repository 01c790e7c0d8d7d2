//! On a real Redis server, started for the purpose: ours beside the algorithms of the originals, in
//! one run, on one server.

pub mod call_cost;
pub mod expiry;
pub mod inflight;
pub mod jobs;
mod original;
pub mod probe;
pub mod registry;
pub mod rescue;
pub mod server_time;
pub mod sessions;

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, Cmd, FromRedisValue};
use anyhow::{Context, Result, ensure};
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, PassReport, Sweep, Sweeper, SweeperParts};
use lapsed_redis::{Redis, RedisAddress};
use lapsed_testbed::{Engine, RedisServer};

/// One call that was slow: its number, when, for how long, what, and who.
type Slow = (u64, u64, u64, Vec<Vec<u8>>, String, String);

/// Calls of one kind, and how long they held the server.
pub struct Calls {
    pub verb: &'static str,
    pub count: f64,
    pub mean_us: f64,
    pub longest_us: f64,
}

/// A server and two ways to it: ours, and a plain one for the peers.
pub struct BenchRedis {
    pub server: RedisServer,
    pub ours: Redis,
    pub plain: MultiplexedConnection,
}

impl BenchRedis {
    /// A fresh server. It writes nothing to disk: what is compared is its work.
    pub async fn new() -> Result<BenchRedis> {
        let server = RedisServer::start(Engine::Redis).map_err(|e| anyhow::anyhow!("{e}"))?;
        let mut address = RedisAddress::new(&server.url());
        address.response_timeout = Duration::from_secs(30);
        let ours = Redis::new(&address)?;
        let config = ::redis::AsyncConnectionConfig::new()
            .set_response_timeout(Some(Duration::from_secs(120)));
        let client = Client::open(server.url())?;
        let plain = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(BenchRedis { server, ours, plain })
    }

    pub async fn ask<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T> {
        Ok(cmd.query_async(&mut self.plain.clone()).await?)
    }

    /// Runs a piece of Lua, for filling: `ARGV` are two numbers, from and to.
    pub async fn fill(&self, lua: &str, count: usize) -> Result<()> {
        const STEP: usize = 5_000;
        for from in (0..count).step_by(STEP) {
            let mut cmd = ::redis::cmd("EVAL");
            cmd.arg(lua).arg(0).arg(from).arg((from + STEP).min(count) - 1);
            let _: i64 = self.ask(&cmd).await?;
        }
        Ok(())
    }

    /// What the server has in memory.
    pub async fn memory(&self) -> Result<f64> {
        let info: String = self.ask(::redis::cmd("INFO").arg("memory")).await?;
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        Ok(line.context("INFO has used_memory")?.trim().parse()?)
    }

    /// Resets SLOWLOG, so that later calls can be told apart.
    pub async fn watch_slow(&self) -> Result<()> {
        for (key, value) in [("slowlog-log-slower-than", "500"), ("slowlog-max-len", "20000")] {
            let mut cmd = ::redis::cmd("CONFIG");
            cmd.arg("SET").arg(key).arg(value);
            let _: String = self.ask(&cmd).await?;
        }
        let _: String = self.ask(::redis::cmd("SLOWLOG").arg("RESET")).await?;
        Ok(())
    }

    /// The longest that the server was held by one call of the kind, in microseconds, and how many
    /// took longer than 2 ms.
    pub async fn slowest(&self, verbs: &[&str]) -> Result<(f64, usize)> {
        let mut cmd = ::redis::cmd("SLOWLOG");
        cmd.arg("GET").arg(20_000);
        let rows: Vec<Slow> = self.ask(&cmd).await?;
        let of_kind = |row: &&Slow| {
            let verb = row.3.first().map(|v| String::from_utf8_lossy(v).to_lowercase());
            verb.is_some_and(|verb| verbs.contains(&verb.as_str()))
        };
        let times: Vec<u64> = rows.iter().filter(of_kind).map(|row| row.2).collect();
        let longest = times.iter().max().copied().unwrap_or(500);
        Ok((longest as f64, times.iter().filter(|us| **us > 2_000).count()))
    }

    /// Forgets which calls there were, and how long each took.
    pub async fn watch_longest(&self) -> Result<()> {
        let mut cmd = ::redis::cmd("CONFIG");
        cmd.arg("SET").arg("latency-tracking-info-percentiles").arg("100");
        let _: String = self.ask(&cmd).await?;
        let _: String = self.ask(::redis::cmd("CONFIG").arg("RESETSTAT")).await?;
        Ok(())
    }

    /// The calls of these kinds since then, by the server's own statistics: wall time, as in SLOWLOG, which
    /// leaves transactions out.
    pub async fn calls(&self, verbs: &[&'static str]) -> Result<Vec<Calls>> {
        let stats: String = self.ask(::redis::cmd("INFO").arg("commandstats")).await?;
        let longest: String = self.ask(::redis::cmd("INFO").arg("latencystats")).await?;
        let field = |info: &str, of: String, name: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(&of));
            let part =
                |line: &str| line.split(',').find_map(|part| part.strip_prefix(name)?.parse().ok());
            line.and_then(part).unwrap_or(0.0)
        };
        let calls = |verb: &&'static str| {
            let of = |what: &str| field(&stats, format!("cmdstat_{verb}:"), what);
            let percentiles = format!("latency_percentiles_usec_{verb}:");
            let longest_us = field(&longest, percentiles, "p100=");
            Calls { verb, count: of("calls="), mean_us: of("usec_per_call="), longest_us }
        };
        Ok(verbs.iter().map(calls).collect())
    }

    /// How long the server has worked so far, by its own processor time, in milliseconds: unlike
    /// SLOWLOG this does not count who else was given the processor meanwhile.
    pub async fn worked(&self) -> Result<f64> {
        let info: String = self.ask(::redis::cmd("INFO").arg("cpu")).await?;
        let field = |name: &str| -> Result<f64> {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            Ok(line.with_context(|| format!("INFO has {name}"))?.trim().parse::<f64>()? * 1e3)
        };
        Ok(field("used_cpu_user_main_thread:")? + field("used_cpu_sys_main_thread:")?)
    }

    /// How often our scripts were called so far, and for how many microseconds together they held the
    /// server (commandstats: wall time as well, but of all of them).
    pub async fn scripts(&self) -> Result<(f64, f64)> {
        let info: String = self.ask(::redis::cmd("INFO").arg("commandstats")).await?;
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let field = |name: &str| {
            let value = line?.split(',').find_map(|part| part.strip_prefix(name))?;
            value.parse::<f64>().ok()
        };
        Ok((field("calls=").unwrap_or(0.0), field("usec=").unwrap_or(0.0)))
    }

    /// How many commands the server carried out, those inside scripts included.
    pub async fn commands(&self) -> Result<f64> {
        let info: String = self.ask(::redis::cmd("INFO").arg("commandstats")).await?;
        let calls = info.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next());
        Ok(calls.filter_map(|n| n.parse::<f64>().ok()).sum())
    }
}

/// A sweeper as the daemon has one on Redis: batches of up to 500, and three quarters of its time at most.
pub fn sweeper(place: &BenchRedis, sweep: Arc<dyn Sweep>) -> Sweeper {
    let store: Arc<dyn Store> = Arc::new(place.ours.clone());
    Sweeper::new(
        SweeperParts::new(format!("bench-{}", sweep.system()), sweep, store).policy(Policy {
            share: 0.75,
            timeout: Duration::from_secs(30),
            ..Policy::default()
        }),
    )
}

/// Runs one pass, which must reclaim `expected` entries.
pub async fn pass(sweeper: &Sweeper, expected: usize) -> Result<PassReport> {
    let (_stopper, stop) = StopSignal::channel();
    let report = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
    ensure!(report.reclaimed == expected as u64, "not {expected}: {report:?}");
    Ok(report)
}
