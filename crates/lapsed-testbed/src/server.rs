//! One Redis or Valkey server of its own: started, killed, frozen and brought back at will.
//!
//! Its port and its folder stay the same from `start` to drop, whatever happens to the process.

mod conf;

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::port::Port;
use crate::process::Process;
use crate::resp::RespConnection;
use crate::settable_clock::ENV;
use crate::{SettableClock, TestbedError, TestbedResult, paths, spawner, until};

/// How long a server may take from its start to its first answer.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long one command may take.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// How long one probe of a starting server may take.
const LOOK_LIMIT: Duration = Duration::from_millis(500);
/// How many ports are tried when another process takes one first.
const PORTS_MAX: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Redis,
    Valkey,
}

impl Engine {
    /// For what must hold on both.
    pub const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    fn program(self) -> TestbedResult<PathBuf> {
        match self {
            Self::Redis => paths::redis_server(),
            Self::Valkey => paths::valkey_server(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing is kept: a restart begins empty.
    None,
    /// Every write is on disk before it is answered.
    Aof,
    /// On disk at `SAVE` and at `stop`; a kill loses what came after.
    Rdb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortChoice {
    Free,
    /// The caller knows this port to be free; if it is in use, the start fails.
    Fixed(u16),
}

#[derive(Debug, Clone)]
pub struct ServerOptions {
    pub engine: Engine,
    pub persistence: Persistence,
    pub port: PortChoice,
    /// Lines of the server's configuration, last and so decisive. A `requirepass` here is also used
    /// by [`RedisServer::command`] and told in [`RedisServer::url`].
    pub extra: Vec<(String, String)>,
    /// `None`: the clock of this machine. Not for Debian's Redis, see [`SettableClock`].
    pub clock: Option<SettableClock>,
}

impl ServerOptions {
    /// No persistence, a free port, nothing extra.
    pub fn new(engine: Engine) -> Self {
        Self {
            engine,
            persistence: Persistence::None,
            port: PortChoice::Free,
            extra: Vec::new(),
            clock: None,
        }
    }

    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    pub fn port(mut self, port: PortChoice) -> Self {
        self.port = port;
        self
    }

    pub fn extra(mut self, key: &str, value: &str) -> Self {
        self.extra.push((key.to_owned(), value.to_owned()));
        self
    }

    pub fn clock(mut self, clock: &SettableClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Starts a server and waits until it answers. The error holds its log.
    pub fn start(self) -> TestbedResult<RedisServer> {
        RedisServer::start_with(self)
    }

    pub(crate) fn password(&self) -> Option<&str> {
        let mut passwords = self.extra.iter().filter(|(key, _)| key == "requirepass");
        passwords.next_back().map(|(_, value)| value.as_str())
    }
}

/// A server. Dropping it kills the process, waits for its end and removes the folder.
pub struct RedisServer {
    // Before the folder, so that the process is gone when its folder goes.
    process: Process,
    port: Port,
    options: ServerOptions,
    dir: TempDir,
}

impl RedisServer {
    /// A server that keeps nothing, on a free port; waits until it answers.
    pub fn start(engine: Engine) -> TestbedResult<Self> {
        Self::start_with(ServerOptions::new(engine))
    }

    fn start_with(options: ServerOptions) -> TestbedResult<Self> {
        for _ in 1..PORTS_MAX {
            let server = Self::prepare(options.clone())?;
            match server.launch() {
                Err(_) if options.port == PortChoice::Free && server.found_port_taken() => {}
                result => return result.map(|()| server),
            }
        }
        let server = Self::prepare(options)?;
        server.launch().map(|()| server)
    }

    fn prepare(options: ServerOptions) -> TestbedResult<Self> {
        let port = match options.port {
            PortChoice::Free => Port::free()?,
            PortChoice::Fixed(number) => Port::fixed(number),
        };
        let dir = tempfile::Builder::new().prefix("lapsed-testbed-").tempdir()?;
        fs::write(conf::file(dir.path()), conf::text(&options, port.number(), dir.path()))?;
        Ok(Self { process: Process::default(), port, options, dir })
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `redis://127.0.0.1:PORT/0`, with the password if there is one.
    pub fn url(&self) -> String {
        let password = self.options.password().map(|p| format!(":{p}@")).unwrap_or_default();
        format!("redis://{password}127.0.0.1:{}/0", self.port())
    }

    /// Of the process, frozen or not; `None` when it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Where its data and its `server.log` are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// SIGKILL; returns when the process is gone. Nothing to do if it is.
    pub fn kill(&self) -> TestbedResult<()> {
        self.process.kill()
    }

    /// SIGTERM: the server saves what it is asked to keep. Returns when the process is gone.
    pub fn stop(&self) -> TestbedResult<()> {
        self.process.terminate()
    }

    /// Starts it again on the same port and folder, and waits until it answers; kills it first if
    /// it still runs.
    pub fn restart(&self) -> TestbedResult<()> {
        self.kill()?;
        self.launch()
    }

    /// SIGSTOP: connections stay open and nothing is answered, until `thaw`.
    pub fn freeze(&self) -> TestbedResult<()> {
        self.process.signal(Signal::STOP)?;
        // The signal may reach it in the middle of an answer.
        let stat = format!("/proc/{}/stat", self.pid().unwrap_or_default());
        until("its standstill", START_LIMIT, || {
            let stat = fs::read_to_string(&stat).unwrap_or_default();
            let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
            Ok((state.is_empty() || state.starts_with('T')).then_some(()))
        })
    }

    /// SIGCONT: what arrived meanwhile is carried out now.
    pub fn thaw(&self) -> TestbedResult<()> {
        self.process.signal(Signal::CONT)
    }

    /// One command on a connection of its own; the answer as text (see [`crate::resp::Reply`]). A
    /// refusal by the server is an `Err` with its words.
    pub fn command(&self, args: &[&str]) -> TestbedResult<String> {
        let mut connection = self.connect(CALL_LIMIT)?;
        let reply = connection.call(args).map_err(|e| e.during(args.join(" ")))?;
        Ok(reply.to_string())
    }

    /// A connection, authenticated if need be, on which every call may take `limit`.
    pub fn connect(&self, limit: Duration) -> TestbedResult<RespConnection> {
        let mut connection = RespConnection::open(self.port(), limit)?;
        if let Some(password) = self.options.password() {
            connection.call(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// One field of `INFO`, empty if there is none.
    pub fn info(&self, field: &str) -> TestbedResult<String> {
        Ok(field_of(&self.command(&["INFO"])?, field).to_owned())
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
        let program = self.options.engine.program()?;
        let mut command = match &self.options.clock {
            None => spawner::dies_with_parent(&program)?,
            Some(clock) => {
                let mut command = spawner::dies_with_parent(Path::new(ENV))?;
                command.args(clock.arguments(&program)?);
                command
            }
        };
        command.arg(conf::file(self.dir())).current_dir(self.dir());
        command.stdin(std::process::Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.run(command).map_err(|error| {
            let _ = self.kill();
            let what = format!("{:?} on port {} did not start", self.options.engine, self.port());
            TestbedError::new(format!("{what}: {error}\n{}", self.log()))
        })
    }

    fn run(&self, command: Command) -> TestbedResult<()> {
        self.process.start(command)?;
        self.options.clock.iter().for_each(|clock| clock.note(self.pid()));
        until("its first answer", START_LIMIT, || {
            if let Some(status) = self.process.ended()? {
                return Err(TestbedError::new(format!("it ended with {status}")));
            }
            Ok(self.answers().then_some(()))
        })
    }

    /// Whether it is this very process that answers, and not a stranger on the same port.
    fn answers(&self) -> bool {
        let info = self.connect(LOOK_LIMIT).and_then(|mut c| c.call(&["INFO", "server"]));
        let pid = self.pid().map(|pid| pid.to_string());
        info.is_ok_and(|info| Some(field_of(&info.to_string(), "process_id")) == pid.as_deref())
            && self.connect(LOOK_LIMIT).and_then(|mut c| c.call(&["PING"])).is_ok()
    }

    fn found_port_taken(&self) -> bool {
        self.log().contains("Address already in use")
    }
}

/// The value of `field` in an answer of lines `field:value`.
pub(crate) fn field_of<'a>(answer: &'a str, field: &str) -> &'a str {
    let value = |line: &'a str| line.strip_prefix(field)?.strip_prefix(':');
    answer.lines().find_map(value).unwrap_or_default().trim_end()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::{Engine, RedisServer, ServerOptions};

    /// What makes `start` try another port, for the port itself and for a cluster's bus.
    #[test]
    fn an_occupied_port_is_detected() {
        for engine in Engine::ALL {
            for offset in [0, 10_000] {
                let options = ServerOptions::new(engine).extra("cluster-enabled", "yes");
                let server = RedisServer::prepare(options).unwrap();
                let place = (Ipv4Addr::LOCALHOST, server.port() + offset);
                let stranger = TcpListener::bind(place).unwrap();
                server.launch().unwrap_err();
                assert!(server.found_port_taken(), "{}", server.log());
                drop(stranger);
                server.launch().unwrap();
            }
        }
    }
}
