//! etcd and ZooKeeper, each a single server, for benchmarks of leases: durable as they come.
//!
//! Their data lies in a folder that the caller chooses, so that it is on the disk that is measured.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::port::Port;
use crate::process::Process;
use crate::{TestbedError, TestbedResult, paths, spawner, until};

const START_LIMIT: Duration = Duration::from_secs(60);
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// How many ports are tried when another process takes one first.
const STARTS_MAX: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoordinatorEngine {
    Etcd,
    ZooKeeper,
}

/// A server. Dropping it kills the process and waits for its end; the data stays.
pub struct Coordinator {
    process: Process,
    engine: CoordinatorEngine,
    client: Port,
    /// Where others of its kind would reach it.
    peers: Port,
    dir: PathBuf,
}

impl Coordinator {
    /// Starts one on free ports with its data below `dir`, and waits until it answers.
    pub fn start(engine: CoordinatorEngine, dir: &Path) -> TestbedResult<Self> {
        let mut last = TestbedError::new("no port tried");
        for nth in 0..STARTS_MAX {
            let dir = dir.join(format!("{engine:?}-{nth}").to_lowercase());
            fs::create_dir_all(&dir)?;
            let (client, peers) = (Port::free()?, Port::free()?);
            let server = Self { process: Process::default(), engine, client, peers, dir };
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.client.number()
    }

    /// The version that the server reports.
    pub fn version(&self) -> TestbedResult<String> {
        let (question, mark) = match self.engine {
            CoordinatorEngine::Etcd => ("GET /version HTTP/1.0\r\n\r\n", "\"etcdserver\":\""),
            CoordinatorEngine::ZooKeeper => ("srvr", "Zookeeper version: "),
        };
        let said = self.ask(question)?;
        let version = said.split_once(mark).map(|(_, rest)| rest.split(['"', '-', ',']).next());
        let unknown = || TestbedError::new(format!("it does not tell its version: {said}"));
        Ok(version.flatten().ok_or_else(unknown)?.to_owned())
    }

    fn launch(&self) -> TestbedResult<()> {
        let log_path = self.dir.join("server.log");
        let log = OpenOptions::new().create(true).append(true).open(&log_path)?;
        let mut command = match self.engine {
            CoordinatorEngine::Etcd => self.etcd()?,
            CoordinatorEngine::ZooKeeper => self.zookeeper()?,
        };
        command.current_dir(&self.dir).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        self.process.start(command)?;
        let started = until("its first answer", START_LIMIT, || match self.process.ended()? {
            Some(status) => Err(TestbedError::new(format!("it ended with {status}"))),
            None => Ok(self.answers().then_some(())),
        });
        started.map_err(|error| {
            let said = fs::read_to_string(&log_path).unwrap_or_default();
            TestbedError::new(format!("{:?} did not start: {error}\n{said}", self.engine))
        })
    }

    fn etcd(&self) -> TestbedResult<Command> {
        let url = |port: &Port| format!("http://127.0.0.1:{}", port.number());
        let (clients, peers) = (url(&self.client), url(&self.peers));
        let mut command = spawner::dies_with_parent(&paths::etcd()?)?;
        command.args(["--name", "alone", "--log-level", "error", "--data-dir"]);
        command.arg(self.dir.join("data"));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("alone={peers}")]);
        Ok(command)
    }

    fn zookeeper(&self) -> TestbedResult<Command> {
        let config = self.dir.join("zoo.cfg");
        let text = format!(
            "dataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
             tickTime=2000\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n",
            self.dir.join("data").display(),
            self.port(),
        );
        fs::write(&config, text)?;
        let mut command = spawner::dies_with_parent(&paths::java()?)?;
        command.arg("-cp").arg(paths::zookeeper_jar()?);
        command.arg("org.apache.zookeeper.server.ZooKeeperServerMain").arg(config);
        Ok(command)
    }

    fn answers(&self) -> bool {
        let (question, answer) = match self.engine {
            CoordinatorEngine::Etcd => ("GET /health HTTP/1.0\r\n\r\n", "\"health\":\"true\""),
            // Asked `ruok` it says yes before it takes sessions.
            CoordinatorEngine::ZooKeeper => ("srvr", "Mode: "),
        };
        self.ask(question).is_ok_and(|said| said.contains(answer))
    }

    /// Says something on a connection of its own and reads until its end.
    fn ask(&self, question: &str) -> TestbedResult<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port()))?;
        stream.set_read_timeout(Some(LOOK_LIMIT))?;
        stream.write_all(question.as_bytes())?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said)
    }
}
