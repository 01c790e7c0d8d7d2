//! Where the servers and clients are that `scripts/servers.sh` installs.
//!
//! Whatever is not there makes that script run, once a process, so that `cargo test` alone works too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::{TestbedError, TestbedResult};

pub fn redis_server() -> TestbedResult<PathBuf> {
    installed("bin/redis-server")
}

pub fn valkey_server() -> TestbedResult<PathBuf> {
    installed("bin/valkey-server")
}

/// PostgreSQL's server; Debian's, and so of its version.
pub fn postgres() -> TestbedResult<PathBuf> {
    installed("bin/postgres")
}

pub(crate) fn initdb() -> TestbedResult<PathBuf> {
    installed("bin/initdb")
}

/// The program that copies a running server; it lies where the server itself does.
pub(crate) fn pg_basebackup() -> TestbedResult<PathBuf> {
    let server = postgres()?.canonicalize()?;
    Ok(server.with_file_name("pg_basebackup"))
}

pub fn psql() -> TestbedResult<PathBuf> {
    installed("bin/psql")
}

/// SeaweedFS, all of it in one program.
pub(crate) fn seaweed() -> TestbedResult<PathBuf> {
    installed("bin/weed")
}

/// Checks metrics and rules as Prometheus reads them.
pub fn promtool() -> TestbedResult<PathBuf> {
    installed("bin/promtool")
}

/// Prometheus itself; Debian's, and so of its version.
pub(crate) fn prometheus() -> TestbedResult<PathBuf> {
    installed("bin/prometheus")
}

/// Checks units as systemd reads them, without one that runs.
pub fn systemd_analyze() -> TestbedResult<PathBuf> {
    installed("bin/systemd-analyze")
}

/// The interpreter of a venv of its own, whose `bin/` has Schemathesis, Hadolint and the validators of
/// manifests.
pub fn checks_python() -> TestbedResult<PathBuf> {
    installed("checks/bin/python")
}

pub fn chromium() -> TestbedResult<PathBuf> {
    installed("bin/chromium")
}

pub fn chromedriver() -> TestbedResult<PathBuf> {
    installed("bin/chromedriver")
}

pub fn node() -> TestbedResult<PathBuf> {
    installed("bin/node")
}

/// The folder that holds `ioredis`, Azurite and s3rver: what `NODE_PATH` is set to.
pub fn node_modules() -> TestbedResult<PathBuf> {
    installed("node/node_modules")
}

/// An interpreter that finds the packages `redis` and `moto`; it needs no `PYTHONPATH`.
pub fn python() -> TestbedResult<PathBuf> {
    installed("python/bin/python")
}

/// An interpreter that finds the gems `redis` and `sidekiq`.
pub fn ruby() -> TestbedResult<PathBuf> {
    installed("bin/ruby")
}

/// An interpreter that finds the job systems that lapsed rescues: `rq`, `dramatiq`, `celery`.
pub fn rescue_python() -> TestbedResult<PathBuf> {
    installed("rescue/python/bin/python")
}

/// The folder where Node finds BullMQ.
pub fn rescue_node_modules() -> TestbedResult<PathBuf> {
    installed("rescue/node/node_modules")
}

/// asynq beside a test, built from Go; `None` where there is no `go` to build it with.
pub fn rescue_asynq() -> TestbedResult<Option<PathBuf>> {
    match Command::new("go").arg("version").output() {
        Ok(_) => installed("rescue/go/asynq").map(Some),
        Err(_) => Ok(None),
    }
}

/// The folder that holds `bullmq`. Only benchmarks need the peers: tests never install them.
pub fn peer_node_modules() -> TestbedResult<PathBuf> {
    installed_by("peers/node/node_modules", &["--peers"])
}

/// An interpreter that finds the packages `rq` and `kombu`; the same holds for it.
pub fn peer_python() -> TestbedResult<PathBuf> {
    installed_by("peers/python/bin/python", &["--peers"])
}

/// etcd 3.5, also only for benchmarks.
pub fn etcd() -> TestbedResult<PathBuf> {
    installed_by("peers/bin/etcd", &["--peers"])
}

/// What runs ZooKeeper, also only for benchmarks.
pub fn java() -> TestbedResult<PathBuf> {
    installed_by("peers/bin/java", &["--peers"])
}

/// ZooKeeper; it names the others that it needs.
pub fn zookeeper_jar() -> TestbedResult<PathBuf> {
    installed_by("peers/zookeeper.jar", &["--peers"])
}

/// Answers a program's questions for the time in the place of the system, where it is preloaded.
pub(crate) fn libfaketime() -> TestbedResult<PathBuf> {
    installed("lib/libfaketime.so.1")
}

/// Starts a program so that it dies with the thread that started it.
pub(crate) fn setpriv() -> TestbedResult<PathBuf> {
    installed("bin/setpriv")
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn installed(name: &str) -> TestbedResult<PathBuf> {
    installed_by(name, &[])
}

fn installed_by(name: &str, args: &'static [&'static str]) -> TestbedResult<PathBuf> {
    let root = workspace().canonicalize()?;
    // Not canonical past the root: a venv's interpreter is a link, and knows its venv by the link's place.
    let path = root.join(".tools").join(name);
    if path.exists() {
        return Ok(path);
    }
    install(&root, args)?;
    if path.exists() {
        return Ok(path);
    }
    Err(TestbedError::new(format!("scripts/servers.sh succeeded, but .tools/{name} is not there")))
}

/// Runs the script, once a process for each of its forms.
fn install(root: &Path, args: &'static [&'static str]) -> TestbedResult<()> {
    type Done = OnceLock<std::result::Result<(), String>>;
    static SERVERS: Done = OnceLock::new();
    static PEERS: Done = OnceLock::new();
    let done = if args.is_empty() { &SERVERS } else { &PEERS };
    done.get_or_init(|| run_script(root, args)).clone().map_err(TestbedError::new)
}

fn run_script(root: &Path, args: &[&str]) -> std::result::Result<(), String> {
    let script = root.join("scripts/servers.sh");
    let output = Command::new(&script).args(args).output();
    let output = output.map_err(|e| format!("scripts/servers.sh: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("scripts/servers.sh failed ({}):\n{said}", output.status))
}
