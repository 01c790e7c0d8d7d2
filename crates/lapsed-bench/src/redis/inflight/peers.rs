//! Other job queues and their own recovery, run by their own libraries: the programs in `peers/`.
//!
//! A program prepares its orphans and says so; from the word that it gets then to its result is what
//! it takes. It measures itself, so that starting an interpreter counts for nothing. Somebody else's
//! GETs come less often here than elsewhere, because they share the machine with what is measured.
//!
//! Not among them: apalis, whose script gives all jobs of a worker to one `unpack`. With 8,000 and more
//! that fails, at every attempt: there is no time to measure.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use lapsed_testbed::resp::{Reply, RespConnection};
use lapsed_testbed::{Program, paths};
use serde::{Deserialize, Serialize};

use super::super::BenchRedis;
use super::super::probe::{Probe, p99};
use crate::bench::beside;

/// How long preparing may take, and recovering. What takes longer is reported as a lower bound.
const PREPARE_LIMIT: Duration = Duration::from_secs(600);
const RECOVER_LIMIT: Duration = Duration::from_secs(300);
pub const GET_EVERY: Duration = Duration::from_millis(5);
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub struct Peer {
    pub name: &'static str,
    program: &'static str,
    language: Language,
}

enum Language {
    Node,
    Python,
    /// With the job systems that only the rescue knows.
    RescuePython,
    /// Built before it is started, from the folder of that name.
    Go,
}

pub const BULLMQ: Peer = Peer { name: "BullMQ", program: "bullmq.js", language: Language::Node };
pub const RQ: Peer = Peer { name: "RQ", program: "rq_peer.py", language: Language::Python };
const KOMBU: Peer = Peer { name: "kombu", program: "kombu_peer.py", language: Language::Python };
pub const DRAMATIQ: Peer =
    Peer { name: "Dramatiq", program: "dramatiq_peer.py", language: Language::RescuePython };
pub const CELERY: Peer =
    Peer { name: "Celery", program: "celery_peer.py", language: Language::RescuePython };

pub const PEERS: [Peer; 3] = [BULLMQ, RQ, KOMBU];

/// The peers that are timed from a job's enqueueing until its worker is done with it. asynq is built with `go`, and left out
/// where there is none.
pub const JOB_PEERS: [Peer; 5] = [
    Peer { name: "BullMQ", program: "bullmq_jobs.js", language: Language::Node },
    Peer { name: "RQ", program: "rq_jobs.py", language: Language::Python },
    Peer { name: "Celery", program: "celery_jobs.py", language: Language::RescuePython },
    Peer { name: "Dramatiq", program: "dramatiq_jobs.py", language: Language::RescuePython },
    Peer { name: "asynq", program: "asynq", language: Language::Go },
];

impl Peer {
    /// Whether it can run here: only a program in Go cannot, where there is no `go`.
    pub fn is_here(&self) -> bool {
        let go = || Command::new("go").arg("version").stdout(Stdio::null()).status();
        !matches!(self.language, Language::Go) || go().is_ok_and(|status| status.success())
    }
}

/// What a peer's recovery took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerRecovery {
    pub peer: &'static str,
    pub version: String,
    pub call: String,
    pub orphans: usize,
    /// True: it was given up at the limit, and would have taken longer.
    pub is_cut_off: bool,
    pub took_ms: f64,
    /// Counted when it was done; not known of one that was cut off.
    pub recovered: Option<u64>,
    /// The longest single command or script (SLOWLOG).
    pub longest_script_ms: f64,
    /// The longest that nobody else was served because of one call: transactions count as a whole.
    pub longest_hold_ms: f64,
    /// The p99 latency of an unrelated client's GETs meanwhile, in milliseconds.
    pub p99_ms: f64,
}

/// The first thing that a program says.
#[derive(Debug, Deserialize)]
struct Ready {
    version: String,
    call: String,
}

/// The last thing that it says.
#[derive(Debug, Deserialize)]
struct Done {
    took_ms: f64,
    recovered: Option<u64>,
}

/// A peer's program that has left its orphans and waits.
pub struct PreparedPeer(Program);

/// Lets a peer leave `orphans` jobs in a database of its own, for somebody else to put back.
pub fn prepare(
    place: &BenchRedis,
    peer: &Peer,
    database: usize,
    orphans: usize,
) -> Result<PreparedPeer> {
    empty(place, database)?;
    let program = start(place, peer, database, orphans)?;
    let _: Ready = parse(&testbed(program.line(PREPARE_LIMIT))?)?;
    Ok(PreparedPeer(program))
}

/// Ends the program, and empties its database.
pub fn end(prepared: PreparedPeer, place: &BenchRedis, database: usize) -> Result<()> {
    testbed(prepared.0.kill())?;
    empty(place, database)
}

/// Lets a peer recover `orphans` jobs in a database of its own.
pub async fn recover(
    place: &BenchRedis,
    peer: &Peer,
    database: usize,
    orphans: usize,
) -> Result<PeerRecovery> {
    empty(place, database)?;
    let program = start(place, peer, database, orphans)?;
    let ready: Ready = parse(&testbed(program.line(PREPARE_LIMIT))?)?;
    place.watch_slow().await?;
    watch_holds(place)?;
    let probe = Probe::every(place.server.port(), GET_EVERY)?;
    let began = Instant::now();
    testbed(program.say("go"))?;
    let said = program.line(RECOVER_LIMIT);
    let is_cut_off = said.is_err() && began.elapsed() >= RECOVER_LIMIT;
    let done = match said {
        Err(_) if is_cut_off => {
            let took_ms = began.elapsed().as_secs_f64() * 1e3;
            testbed(program.kill())?;
            Done { took_ms, recovered: None }
        }
        said => parse(&testbed(said)?)?,
    };
    // A blocked GET is answered when the server is free again, however the peer ended.
    until_served(place)?;
    let p99_ms = p99(probe.stop()?);
    ensure!(
        is_cut_off || done.recovered == Some(orphans as u64),
        "{} put back {:?} of {orphans}",
        peer.name,
        done.recovered
    );
    let recovery = PeerRecovery {
        peer: peer.name,
        version: ready.version,
        call: ready.call,
        orphans,
        is_cut_off,
        took_ms: done.took_ms,
        recovered: done.recovered,
        longest_script_ms: longest_script_ms(place).await?,
        longest_hold_ms: longest_hold_ms(place)?,
        p99_ms,
    };
    empty(place, database)?;
    Ok(recovery)
}

fn start(place: &BenchRedis, peer: &Peer, database: usize, orphans: usize) -> Result<Program> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(peer.program);
    let none = PathBuf::new();
    let (program, script, modules) = match peer.language {
        Language::Go => (build(&source, peer.name)?, None, none),
        Language::Node => {
            (testbed(paths::node())?, Some(source), testbed(paths::peer_node_modules())?)
        }
        Language::Python => (testbed(paths::peer_python())?, Some(source), none),
        Language::RescuePython => (testbed(paths::rescue_python())?, Some(source), none),
    };
    let url = format!("redis://127.0.0.1:{}/{database}", place.server.port());
    testbed(Program::start(&program, |command| {
        command.args(script).arg(url).arg(orphans.to_string());
        command.env("NODE_PATH", modules).env("PYTHONDONTWRITEBYTECODE", "1");
    }))
}

/// Builds a program beside this executable.
fn build(source: &Path, name: &str) -> Result<PathBuf> {
    let built = beside(&format!("peer-{name}"))?;
    let mut go = Command::new("go");
    go.current_dir(source).env("GOFLAGS", "-buildvcs=false");
    let status = go.arg("build").arg("-o").arg(&built).arg(".").status().context("running go")?;
    ensure!(status.success(), "{name} could not be built: {status}");
    Ok(built)
}

fn parse<T: for<'a> Deserialize<'a>>(line: &str) -> Result<T> {
    serde_json::from_str(line).with_context(|| format!("what a peer said: {line}"))
}

fn testbed<T>(result: lapsed_testbed::TestbedResult<T>) -> Result<T> {
    result.map_err(|error| anyhow!("{error}"))
}

fn connect(place: &BenchRedis) -> Result<RespConnection> {
    testbed(RespConnection::open(place.server.port(), Duration::from_secs(60)))
}

fn empty(place: &BenchRedis, database: usize) -> Result<()> {
    let mut connection = connect(place)?;
    testbed(connection.call(&["SELECT", &database.to_string()]))?;
    testbed(connection.call(&["FLUSHDB", "SYNC"]))?;
    Ok(())
}

/// A script that wrote cannot be ended, only waited for.
fn until_served(place: &BenchRedis) -> Result<()> {
    let deadline = Instant::now() + PREPARE_LIMIT;
    let mut connection = connect(place)?;
    loop {
        match connection.call(&["PING"]) {
            Ok(_) => return Ok(()),
            Err(error) if !error.to_string().starts_with("BUSY") => return Err(anyhow!("{error}")),
            Err(_) => ensure!(Instant::now() < deadline, "a script holds the server for ever"),
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

async fn longest_script_ms(place: &BenchRedis) -> Result<f64> {
    let mut cmd = ::redis::cmd("SLOWLOG");
    let rows: Vec<super::super::Slow> = place.ask(cmd.arg("GET").arg(20_000)).await?;
    Ok(rows.iter().map(|row| row.2).max().unwrap_or(0) as f64 / 1e3)
}

/// From now on the longest call is remembered. SLOWLOG has the commands of a transaction one by one.
fn watch_holds(place: &BenchRedis) -> Result<()> {
    let mut connection = connect(place)?;
    testbed(connection.call(&["CONFIG", "SET", "latency-monitor-threshold", "1"]))?;
    testbed(connection.call(&["LATENCY", "RESET"]))?;
    Ok(())
}

fn longest_hold_ms(place: &BenchRedis) -> Result<f64> {
    let events = testbed(connect(place)?.call(&["LATENCY", "LATEST"]))?;
    let Reply::List(events) = events else { return Ok(0.0) };
    Ok(events.iter().filter_map(hold_ms).max().unwrap_or(0) as f64)
}

/// Of one event (its name, when, the latest, the longest): the longest, if it is a call's.
fn hold_ms(event: &Reply) -> Option<i64> {
    match event {
        Reply::List(parts) => match &parts[..] {
            [name, _, _, Reply::Integer(longest)] if name.to_string().ends_with("command") => {
                Some(*longest)
            }
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, longest: i64) -> Reply {
        let number = Reply::Integer;
        Reply::List(vec![Reply::Text(name.into()), number(1), number(2), number(longest)])
    }

    #[test]
    fn only_calls_hold_the_server() {
        assert_eq!(hold_ms(&event("command", 7)), Some(7));
        assert_eq!(hold_ms(&event("fast-command", 3)), Some(3));
        assert_eq!(hold_ms(&event("expire-cycle", 9)), None);
        assert_eq!(hold_ms(&Reply::Nil), None);
    }

    #[test]
    fn what_a_peer_says_is_understood_or_shown() {
        let done: Done = parse(r#"{"took_ms":1.5,"recovered":3}"#).unwrap();
        assert_eq!((done.took_ms, done.recovered), (1.5, Some(3)));
        let error = parse::<Done>("Error: no").unwrap_err();
        assert!(error.to_string().contains("Error: no"), "{error}");
    }
}
