//! Object stores: SeaweedFS and moto speak S3, Azurite speaks Azure Blob, and s3rver speaks S3 without
//! minding any condition.
//!
//! Each has one bucket ([`BUCKET`]) from the start. They take seconds to start: tests share one a
//! program ([`ObjectServer::shared`]) and keep apart by prefixes.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::port::Port;
use crate::process::Process;
use crate::{TestbedError, TestbedResult, http_call, paths, spawner, until};

/// The bucket, or container, that there is.
pub const BUCKET: &str = "lapsed-test";

const START_LIMIT: Duration = Duration::from_secs(60);
const CALL_LIMIT: Duration = Duration::from_secs(20);
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// How many sets of ports are tried when another process takes one first.
const STARTS_MAX: usize = 3;

/// The account of Azurite, and the key that everybody knows.
const AZURE_ACCOUNT: &str = "devstoreaccount1";
const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// A permission signed by that key, for making the container without a client: everything, until 2099.
const AZURE_PERMISSION: &str = "sv=2021-12-02&ss=b&srt=sco&sp=rwdlac&se=2099-01-01T00%3A00%3A00Z\
    &sig=tznf%2BUguWwNe%2B7oTyobyNUc7TDthIuY2m9EdDOYdBvE%3D";

/// A header by which moto recognizes a request to S3; it checks no signatures.
const MOTO_SIGNED: &str = "AWS4-HMAC-SHA256 Credential=lapsed/20260101/us-east-1/s3/aws4_request, \
    SignedHeaders=host, Signature=none";

/// moto's own server has a thread a request, and checks and writes in two steps: two racing writers
/// can both win, though rarely enough for a probe not to notice. With one thread it holds.
const MOTO: &str = "\
import sys
from werkzeug.serving import run_simple
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication, MotoRequestHandler, create_backend_app)
app = DomainDispatcherApplication(create_backend_app)
run_simple('127.0.0.1', int(sys.argv[1]), app, threaded=False, request_handler=MotoRequestHandler)
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectEngine {
    Seaweed,
    Moto,
    Azurite,
    S3rver,
}

impl ObjectEngine {
    /// Those that hold what they promise.
    pub const GOOD: [Self; 3] = [Self::Seaweed, Self::Moto, Self::Azurite];

    pub fn url(self) -> String {
        let scheme = if self == Self::Azurite { "az" } else { "s3" };
        format!("{scheme}://{BUCKET}")
    }

    /// The address for a client, by way of this port: the server's own, or a proxy's.
    pub fn endpoint_by(self, port: u16) -> String {
        match self {
            Self::Azurite => format!("http://127.0.0.1:{port}/{AZURE_ACCOUNT}"),
            _ => format!("http://127.0.0.1:{port}"),
        }
    }

    /// Who may do everything: the access key id, or the account, and its secret.
    pub fn credentials(self) -> (&'static str, &'static str) {
        match self {
            Self::Azurite => (AZURE_ACCOUNT, AZURE_KEY),
            // The only ones that s3rver knows.
            Self::S3rver => ("S3RVER", "S3RVER"),
            _ => ("lapsed", "lapsed-secret"),
        }
    }

    /// How many ports it listens on.
    fn ports(self) -> usize {
        if self == Self::Seaweed { 4 } else { 1 }
    }
}

/// A server. Dropping it kills the process, waits for its end and removes the folder.
pub struct ObjectServer {
    process: Process,
    engine: ObjectEngine,
    ports: Vec<Port>,
    dir: TempDir,
}

impl ObjectServer {
    /// Starts one, waits until it answers and makes the bucket.
    pub fn start(engine: ObjectEngine) -> TestbedResult<Self> {
        let mut last = TestbedError::new("no port tried");
        for _ in 0..STARTS_MAX {
            let ports = (0..engine.ports()).map(|_| Port::free()).collect::<TestbedResult<_>>()?;
            let dir = folder()?;
            let server = Self { process: Process::default(), engine, ports, dir };
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The server that all tests of this program share; it runs until the program ends.
    pub fn shared(engine: ObjectEngine) -> &'static ObjectServer {
        type Shared = OnceLock<std::result::Result<ObjectServer, String>>;
        static SERVERS: [Shared; 4] = [const { OnceLock::new() }; 4];
        let start = || ObjectServer::start(engine).map_err(|error| error.to_string());
        match SERVERS[engine as usize].get_or_init(start) {
            Ok(server) => server,
            Err(words) => panic!("{words}"),
        }
    }

    pub fn engine(&self) -> ObjectEngine {
        self.engine
    }

    /// The port for requests.
    pub fn port(&self) -> u16 {
        self.ports[0].number()
    }

    /// SIGSTOP: connections stay open and nothing is answered, until `thaw`.
    pub fn freeze(&self) -> TestbedResult<()> {
        self.process.signal(Signal::STOP)
    }

    /// SIGCONT: what arrived meanwhile is carried out now.
    pub fn thaw(&self) -> TestbedResult<()> {
        self.process.signal(Signal::CONT)
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill(&self) -> TestbedResult<()> {
        self.process.kill()
    }

    /// Starts it again on the same ports and folder, and waits until it answers; kills it first if it
    /// still runs. SeaweedFS has what it had; the others keep nothing.
    pub fn restart(&self) -> TestbedResult<()> {
        self.kill()?;
        self.launch()
    }

    fn launch(&self) -> TestbedResult<()> {
        let log = self.dir.path().join("server.log");
        let out = OpenOptions::new().create(true).append(true).open(&log)?;
        let mut command = self.command()?;
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command.stdout(out.try_clone()?).stderr(out);
        self.run(command).map_err(|error| {
            let _ = self.process.kill();
            let said = fs::read_to_string(&log).unwrap_or_default();
            TestbedError::new(format!("{:?} did not start: {error}\n{said}", self.engine))
        })
    }

    fn command(&self) -> TestbedResult<Command> {
        let port = self.port().to_string();
        let node = |script: &str| {
            let mut command = spawner::dies_with_parent(&paths::node()?)?;
            command.arg(paths::node_modules()?.join(script));
            Ok::<_, TestbedError>(command)
        };
        match self.engine {
            ObjectEngine::Seaweed => self.seaweed(),
            ObjectEngine::Moto => {
                let mut command = spawner::dies_with_parent(&paths::python()?)?;
                command.args(["-c", MOTO, &port]);
                Ok(command)
            }
            ObjectEngine::Azurite => {
                let mut command = node("azurite/dist/src/blob/main.js")?;
                command.args(["--blobHost", "127.0.0.1", "--blobPort", &port]);
                command.args(["--inMemoryPersistence", "--skipApiVersionCheck"]);
                command.args(["--disableTelemetry", "--silent"]);
                Ok(command)
            }
            ObjectEngine::S3rver => {
                let mut command = node("s3rver/bin/s3rver.js")?;
                command.args(["-a", "127.0.0.1", "-p", &port, "-d", "data"]);
                command.args(["--configure-bucket", BUCKET, "--silent"]);
                Ok(command)
            }
        }
    }

    /// Master, volume server, filer and S3 in one process; each has another port 10,000 higher.
    fn seaweed(&self) -> TestbedResult<Command> {
        let (key, secret) = self.engine.credentials();
        let config = self.dir.path().join("s3.json");
        let may = r#"["Admin","Read","Write","List","Tagging"]"#;
        let credentials = format!(r#"[{{"accessKey":"{key}","secretKey":"{secret}"}}]"#);
        let who = format!(r#"{{"name":"test","credentials":{credentials},"actions":{may}}}"#);
        fs::write(&config, format!(r#"{{"identities":[{who}]}}"#))?;
        let mut command = spawner::dies_with_parent(&paths::seaweed()?)?;
        // It leaves sockets there.
        command.env("TMPDIR", self.dir.path());
        command.args(["-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
        command.args(["-dir=.", "-filer", "-s3", "-s3.config=s3.json"]);
        // These would listen on ports that every server of its kind wants.
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
        command.args(["-master.volumeSizeLimitMB=64", "-volume.max=20", "-master.telemetry=false"]);
        // Catalogues that it would serve on ports of their own.
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
        for (port, part) in self.ports.iter().zip(["s3", "master", "volume", "filer"]) {
            command.arg(format!("-{part}.port={}", port.number()));
            command.arg(format!("-{part}.port.grpc={}", port.number() + 10_000));
        }
        Ok(command)
    }

    fn run(&self, command: Command) -> TestbedResult<()> {
        self.process.start(command)?;
        until("its bucket", START_LIMIT, || {
            if let Some(status) = self.process.ended()? {
                return Err(TestbedError::new(format!("it ended with {status}")));
            }
            Ok(self.make_bucket().unwrap_or(false).then_some(()))
        })
    }

    /// Whether there is a bucket now.
    fn make_bucket(&self) -> TestbedResult<bool> {
        let path = format!("/{BUCKET}");
        let signed = ("authorization", MOTO_SIGNED);
        let call = |port: u16, method: &str, target: &str, headers: &[(&str, &str)]| {
            http_call(port, method, target, headers, LOOK_LIMIT)
        };
        let status = match self.engine {
            ObjectEngine::Seaweed => {
                let filer = self.ports[3].number();
                let made = http_call(filer, "POST", &format!("/buckets{path}/"), &[], CALL_LIMIT)?;
                // S3 itself is the last to be ready, and refuses requests without a signature.
                let asked = call(self.port(), "GET", &path, &[])?;
                if asked.status == 403 { made.status } else { 0 }
            }
            ObjectEngine::Moto => call(self.port(), "PUT", &path, &[signed])?.status,
            ObjectEngine::Azurite => {
                let container = format!("/{AZURE_ACCOUNT}{path}?restype=container");
                let target = format!("{container}&{AZURE_PERMISSION}");
                call(self.port(), "PUT", &target, &[])?.status
            }
            ObjectEngine::S3rver => call(self.port(), "GET", "/", &[]).map(|_| 200)?,
        };
        // It may be there since the last look.
        Ok((200..300).contains(&status) || status == 409)
    }
}

/// A folder of its own. One that is shared lives as long as its process and is then nobody's: the next
/// process that comes along removes it.
fn folder() -> TestbedResult<TempDir> {
    const PREFIX: &str = "lapsed-objects-";
    for file in fs::read_dir(std::env::temp_dir())?.flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if let Some(pid) = pid
            && !Path::new("/proc").join(pid).exists()
        {
            let _ = fs::remove_dir_all(file.path());
        }
    }
    let prefix = format!("{PREFIX}{}-", std::process::id());
    Ok(tempfile::Builder::new().prefix(&prefix).tempdir()?)
}

#[cfg(test)]
mod tests {
    use super::{ObjectEngine, ObjectServer};

    #[test]
    fn each_starts_with_its_bucket() {
        for engine in ObjectEngine::GOOD.into_iter().chain([ObjectEngine::S3rver]) {
            let server = ObjectServer::start(engine).unwrap();
            server.kill().unwrap();
        }
    }
}
