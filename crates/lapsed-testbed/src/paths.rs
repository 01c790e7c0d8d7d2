//! Where the servers and clients are that `scripts/servers.sh` installs.
//!
//! Whatever is not there makes that script run, once a process, so that `cargo test` alone works too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::{Error, Result};

/// Redis 7.
pub fn redis_server() -> Result<PathBuf> {
    installed("bin/redis-server")
}

/// Valkey 9.
pub fn valkey_server() -> Result<PathBuf> {
    installed("bin/valkey-server")
}

/// Checks metrics and rules as Prometheus reads them.
pub fn promtool() -> Result<PathBuf> {
    installed("bin/promtool")
}

pub fn node() -> Result<PathBuf> {
    installed("bin/node")
}

/// The folder that holds `ioredis`: what `NODE_PATH` is set to.
pub fn node_modules() -> Result<PathBuf> {
    installed("node/node_modules")
}

/// An interpreter that finds the package `redis`; it needs no `PYTHONPATH`.
pub fn python() -> Result<PathBuf> {
    installed("python/bin/python")
}

/// An interpreter that finds the gem `redis`.
pub fn ruby() -> Result<PathBuf> {
    installed("bin/ruby")
}

/// Starts a program so that it dies with the thread that started it.
pub(crate) fn setpriv() -> Result<PathBuf> {
    installed("bin/setpriv")
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn installed(name: &str) -> Result<PathBuf> {
    let root = workspace().canonicalize()?;
    // Not canonical past the root: a venv's interpreter is a link, and knows its venv by the link's place.
    let path = root.join(".tools").join(name);
    if path.exists() {
        return Ok(path);
    }
    install(&root)?;
    if path.exists() {
        return Ok(path);
    }
    Err(Error::new(format!("scripts/servers.sh succeeded, but .tools/{name} is not there")))
}

fn install(root: &Path) -> Result<()> {
    static DONE: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    DONE.get_or_init(|| run_script(root)).clone().map_err(Error::new)
}

fn run_script(root: &Path) -> std::result::Result<(), String> {
    let script = root.join("scripts/servers.sh");
    let output = Command::new(&script).output().map_err(|e| format!("scripts/servers.sh: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("scripts/servers.sh failed ({}):\n{said}", output.status))
}
