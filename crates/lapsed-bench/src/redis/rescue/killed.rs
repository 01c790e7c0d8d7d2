//! From `kill -9` of a real worker until its job is back on its queue: default settings of both sides, and a pass every 3 s as the
//! daemon makes it. All systems at the same time, each in a database of its own.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use futures::future::try_join_all;
use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::PassMode;
use lapsed_core::{Kind, SystemId};
use lapsed_redis::RescueLayout;
use lapsed_testbed::{Program, paths};

use super::super::BenchRedis;
use super::{NAME, at_database, sweeper};
use crate::bench::progress;
use crate::table::{Figure, FigureTable, FigureTarget};

/// One system: its profile, its program beside the tests of the profile, and within how many seconds a job is to be back.
struct Killed {
    profile: &'static str,
    program: &'static str,
    limit_s: f64,
}

const SYSTEMS: [Killed; 5] = [
    Killed { profile: "celery", program: "celery_worker.py", limit_s: 15.0 },
    Killed { profile: "rq", program: "rq_worker.py", limit_s: 15.0 },
    Killed { profile: "bullmq", program: "bullmq_worker.mjs", limit_s: 35.0 },
    Killed { profile: "dramatiq", program: "dramatiq_worker.py", limit_s: 65.0 },
    Killed { profile: "sidekiq", program: "sidekiq_worker.rb", limit_s: 65.0 },
];

/// How often the daemon looks.
const EVERY: Duration = Duration::from_secs(3);
/// A worker that is not killed for so long has sent a heartbeat, and lapsed has looked at it.
const AT_WORK: Duration = Duration::from_secs(12);
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest that a system spares everybody after the server was started.
const SERVER_UP: Duration = Duration::from_secs(95);

pub async fn measure(place: &BenchRedis, up_since: Instant, table: &mut FigureTable) -> Result<()> {
    progress("a worker of each system is killed: until its job is back");
    tokio::time::sleep((up_since + SERVER_UP).saturating_duration_since(Instant::now())).await;
    let all = SYSTEMS.iter().enumerate().map(|(nth, system)| back_after_s(place, system, nth + 5));
    let took = try_join_all(all).await?;
    for (system, seconds) in SYSTEMS.iter().zip(took) {
        let what =
            format!("{}: from kill -9 until the job is back, default settings", system.profile);
        let limit = ("the limit", Figure::seconds(system.limit_s));
        let target = Some(FigureTarget::AtMost(1.0));
        table.compare(
            NAME,
            what,
            Figure::seconds(seconds),
            limit,
            seconds / system.limit_s,
            target,
        );
    }
    Ok(())
}

async fn back_after_s(place: &BenchRedis, system: &Killed, database: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let url = format!("redis://127.0.0.1:{}/{database}", place.server.port());
    let client = start(system, folder.path(), &url, &["add", "a"])?;
    wait_for(&client, "added").await?;
    let worker = start(system, folder.path(), &url, &["work", "w1"])?;
    let line = wait_for(&worker, "started a").await?;
    let redis = at_database(place, database)?;
    let id = SystemId::new(Kind::Inflight, system.profile)?;
    let layout = RescueLayout::new(system.profile, RecoveryPolicy::default());
    let sweeper = sweeper(&redis, redis.rescued_inflight(id, layout)?);
    let (_stopper, stop) = StopSignal::channel();
    let began = Instant::now();
    let mut killed: Option<Instant> = None;
    loop {
        let looked = Instant::now();
        let report = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
        if report.reclaimed > 0 {
            let at = killed.with_context(|| format!("{}: its worker lives", system.profile))?;
            return Ok(at.elapsed().as_secs_f64());
        }
        ensure!(began.elapsed() < PATIENCE, "{}: not back: {report:?}", system.profile);
        // Just after a pass: the next one is as far away as it can be.
        if killed.is_none() && began.elapsed() > AT_WORK {
            kill(&worker, &line)?;
            killed = Some(Instant::now());
        }
        tokio::time::sleep((looked + EVERY).saturating_duration_since(Instant::now())).await;
    }
}

/// Starts the program in a folder from which Node finds its packages.
fn start(system: &Killed, folder: &Path, url: &str, args: &[&str]) -> Result<Arc<Program>> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lapsed-redis/tests/all/rescue");
    let copy = folder.join(system.program);
    std::fs::copy(programs.join(system.program), &copy)?;
    let modules = folder.join("node_modules");
    if !modules.exists() {
        symlink(testbed(paths::rescue_node_modules())?, modules)?;
    }
    let interpreter: PathBuf = match copy.extension().and_then(|end| end.to_str()) {
        Some("mjs") => testbed(paths::node())?,
        Some("rb") => testbed(paths::ruby())?,
        _ => testbed(paths::rescue_python())?,
    };
    let program = Program::start(&interpreter, |command| {
        command.arg(copy).args(args).env("REDIS_URL", url);
        command.env("SLOW", "600000").env("LATE", "1").env("LOCK", "30000");
    });
    Ok(Arc::new(testbed(program)?))
}

/// Reads what a program prints until a line begins like this.
async fn wait_for(program: &Arc<Program>, begin: &'static str) -> Result<String> {
    let program = Arc::clone(program);
    let wait = move || loop {
        let line = testbed(program.line(PATIENCE))?;
        if line.starts_with(begin) {
            return Ok(line);
        }
    };
    tokio::task::spawn_blocking(wait).await?
}

/// Kills the worker, and the work horse of RQ, which would otherwise work on.
fn kill(worker: &Program, line: &str) -> Result<()> {
    let horse = line.split_whitespace().nth(2);
    testbed(worker.kill())?;
    if let Some(horse) = horse {
        // A child that dies with its parent may be gone already.
        Command::new("kill").args(["-9", horse]).stderr(Stdio::null()).status()?;
    }
    Ok(())
}

fn testbed<T>(result: lapsed_testbed::TestbedResult<T>) -> Result<T> {
    result.map_err(|error| anyhow!("{error}"))
}
