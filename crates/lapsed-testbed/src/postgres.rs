//! One PostgreSQL server of its own: started, killed, frozen and brought back at will.
//!
//! A server is a postmaster and one process a connection. It is stopped, killed and frozen as a whole:
//! what is left of one whose postmaster alone was killed still works on what it had begun.
//!
//! It refuses to run as root: there it runs as `nobody`, who then owns its folder.

mod family;
mod folder;
mod proxy;
mod standby;

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::port::Port;
use crate::process::Process;
use crate::settable_clock::ENV;
use crate::{SettableClock, TestbedError, TestbedResult, paths, spawner, until};

use family::Family;
use folder::Folder;

pub use proxy::PostgresProxy;

/// How long a server may take from its start to its first connection, recovery included.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long the server may take to exit.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How long one piece of SQL may take.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// How many ports are tried when another process takes one first.
const PORTS_MAX: usize = 10;

/// Who may do everything, without a password.
pub const POSTGRES_USER: &str = "lapsed";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Survives a kill, since the system keeps what was written; not the loss of power.
    Process,
    /// Every commit is on disk before it is answered.
    Disk,
}

#[derive(Debug, Clone)]
pub struct PostgresOptions {
    pub durability: Durability,
    /// Settings, last and so decisive.
    pub extra: Vec<(String, String)>,
    /// Lines of `pg_hba.conf`, first and so decisive. Without any, everybody on loopback is trusted.
    pub hba: Vec<String>,
    /// Certificate and key, in PEM: the server then speaks TLS, too.
    pub tls: Option<(String, String)>,
    /// `None`: the clock of this machine.
    pub clock: Option<SettableClock>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Process,
            extra: Vec::new(),
            hba: Vec::new(),
            tls: None,
            clock: None,
        }
    }
}

impl PostgresOptions {
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    pub fn extra(mut self, key: &str, value: &str) -> Self {
        self.extra.push((key.to_owned(), value.to_owned()));
        self
    }

    pub fn hba(mut self, line: &str) -> Self {
        self.hba.push(line.to_owned());
        self
    }

    pub fn tls(mut self, certificate: &str, key: &str) -> Self {
        self.tls = Some((certificate.to_owned(), key.to_owned()));
        self
    }

    pub fn clock(mut self, clock: &SettableClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Starts a server and waits until it takes connections. The error holds its log.
    pub fn start(self) -> TestbedResult<PostgresServer> {
        PostgresServer::start_with(self)
    }
}

/// A server. Dropping it kills its processes and removes the folder.
pub struct PostgresServer {
    // Before the folder, so that the process is gone when its folder goes.
    process: Process,
    port: Port,
    options: PostgresOptions,
    folder: Folder,
    databases: AtomicU64,
}

impl PostgresServer {
    /// Starts a server with the default options.
    pub fn start() -> TestbedResult<Self> {
        Self::start_with(PostgresOptions::default())
    }

    /// One for all tests of a program that do it no harm; each takes a [`database`](Self::database).
    pub fn shared() -> TestbedResult<&'static Self> {
        static SHARED: OnceLock<std::result::Result<PostgresServer, String>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| Self::start().map_err(|error| error.to_string()));
        shared.as_ref().map_err(|error| TestbedError::new(error.clone()))
    }

    fn start_with(options: PostgresOptions) -> TestbedResult<Self> {
        let mut tries = 0;
        loop {
            let server = Self::prepare(options.clone())?;
            tries += 1;
            match server.launch() {
                Err(_) if tries < PORTS_MAX && server.found_port_taken() => {}
                result => return result.map(|()| server),
            }
        }
    }

    fn prepare(options: PostgresOptions) -> TestbedResult<Self> {
        let (port, folder) = (Port::free()?, Folder::new(options.durability)?);
        folder.write("postgresql.auto.conf", &settings(&options, port.number()))?;
        if !options.hba.is_empty() {
            folder.write("pg_hba.conf", &(options.hba.join("\n") + "\n"))?;
        }
        if let Some((certificate, key)) = &options.tls {
            folder.write("server.crt", certificate)?;
            folder.write("server.key", key)?;
        }
        let databases = AtomicU64::new(0);
        Ok(Self { process: Process::default(), port, options, folder, databases })
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn options(&self) -> &PostgresOptions {
        &self.options
    }

    /// `postgres://lapsed@127.0.0.1:PORT/DATABASE`; the database `postgres` is always there.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{POSTGRES_USER}@127.0.0.1:{}/{database}", self.port())
    }

    /// Creates an empty database with a new name, and returns the name.
    pub fn database(&self) -> TestbedResult<String> {
        let name = format!("story_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"))?;
        Ok(name)
    }

    /// Of the postmaster, frozen or not; `None` when it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Where its data and its `server.log` are.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// SIGKILL to all of it at one instant, as a crash of its machine would be; returns when all are gone.
    /// Nothing to do if it does not run.
    pub fn kill(&self) -> TestbedResult<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        let family = Family::freeze(pid, START_LIMIT)?;
        family.signal(Signal::KILL)?;
        self.process.kill()?;
        family.await_end(STOP_LIMIT)
    }

    /// A fast shutdown: transactions are undone, clients told, everything written.
    pub fn stop(&self) -> TestbedResult<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        Family::of(pid)?.signal(Signal::CONT)?;
        self.process.signal(Signal::CONT)?;
        self.process.signal(Signal::INT)?;
        until("its end after SIGINT", STOP_LIMIT, || self.process.ended()).map(|_| ())
    }

    /// Starts it again on the same port and folder; kills it first if it still runs.
    pub fn restart(&self) -> TestbedResult<()> {
        self.kill()?;
        self.launch()
    }

    /// SIGSTOP to all of it: connections stay open and nothing is answered, until `thaw`.
    pub fn freeze(&self) -> TestbedResult<()> {
        let pid = self.pid().ok_or_else(|| TestbedError::new("not running"))?;
        Family::freeze(pid, START_LIMIT).map(|_| ())
    }

    /// SIGCONT: what arrived meanwhile is carried out now.
    pub fn thaw(&self) -> TestbedResult<()> {
        let pid = self.pid().ok_or_else(|| TestbedError::new("not running"))?;
        Family::of(pid)?.signal(Signal::CONT)?;
        self.process.signal(Signal::CONT)
    }

    /// Runs SQL on a connection of its own: the rows as lines, fields between `|`. A refusal by the
    /// server is an `Err` with its words.
    pub fn sql(&self, database: &str, sql: &str) -> TestbedResult<String> {
        let (said, complaint) = (tempfile::NamedTempFile::new()?, tempfile::NamedTempFile::new()?);
        let mut command = spawner::dies_with_parent(&paths::psql()?)?;
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql]);
        command.arg(self.url(database)).env_remove("PGOPTIONS");
        command.stdin(Stdio::null()).stdout(said.reopen()?).stderr(complaint.reopen()?);
        let psql = Process::default();
        psql.start(command)?;
        let status = until("the end of psql", CALL_LIMIT, || psql.ended())?;
        if !status.success() {
            let complaint = fs::read_to_string(complaint.path())?;
            return Err(TestbedError::new(complaint.trim_end()).during(sql));
        }
        Ok(fs::read_to_string(said.path())?.trim_end().to_owned())
    }

    /// What the server has logged since its first start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_else(|error| format!("no log: {error}"))
    }

    fn log_file(&self) -> PathBuf {
        self.dir().join("server.log")
    }

    fn launch(&self) -> TestbedResult<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.log_file())?;
        let program = paths::postgres()?;
        let mut command = match &self.options.clock {
            None => folder::as_its_user(&program)?,
            Some(clock) => {
                let mut command = folder::as_its_user(Path::new(ENV))?;
                command.args(clock.arguments(&program)?);
                command
            }
        };
        command.arg("-D").arg(self.dir()).current_dir(self.dir());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.run(command).map_err(|error| {
            let _ = self.kill();
            let what = format!("PostgreSQL on port {} did not start", self.port());
            TestbedError::new(format!("{what}: {error}\n{}", self.log()))
        })
    }

    fn run(&self, command: Command) -> TestbedResult<()> {
        self.process.start(command)?;
        self.options.clock.iter().for_each(|clock| clock.note(self.pid()));
        until("its readiness", START_LIMIT, || {
            if let Some(status) = self.process.ended()? {
                return Err(TestbedError::new(format!("it ended with {status}")));
            }
            Ok(self.is_ready().then_some(()))
        })
    }

    /// What the postmaster itself says in its pid file: its pid first, its state in line eight.
    fn is_ready(&self) -> bool {
        let file = fs::read_to_string(self.dir().join("postmaster.pid")).unwrap_or_default();
        let line = |n: usize| file.lines().nth(n).map(str::trim);
        let is_up = matches!(line(7), Some("ready" | "standby"));
        line(0).and_then(|pid| pid.parse().ok()) == self.pid() && is_up
    }

    fn found_port_taken(&self) -> bool {
        self.log().contains("Address already in use")
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // All of it, before the folder goes.
        let _ = self.kill();
    }
}

/// Its settings, as lines of a configuration file.
fn settings(options: &PostgresOptions, port: u16) -> String {
    let sync = if options.durability == Durability::Disk { "on" } else { "off" };
    let port = port.to_string();
    let tls = if options.tls.is_some() { "on" } else { "off" };
    let own = [
        ("listen_addresses", "127.0.0.1"),
        ("port", &port),
        ("unix_socket_directories", ""),
        ("fsync", sync),
        ("full_page_writes", sync),
        ("ssl", tls),
        ("max_connections", "300"),
        ("shared_buffers", "32MB"),
        ("max_wal_size", "64MB"),
        ("min_wal_size", "2MB"),
        ("log_line_prefix", "%m [%p] "),
    ];
    let extra = options.extra.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let line = |(key, value): (&str, &str)| format!("{key} = '{}'\n", value.replace('\'', "''"));
    own.into_iter().chain(extra).map(line).collect()
}

/// `setpriv` and its arguments for a program that must not be root.
fn demoted() -> Vec<OsString> {
    ["--reuid", folder::NOBODY, "--regid", folder::NOBODY, "--clear-groups"].map(Into::into).into()
}
