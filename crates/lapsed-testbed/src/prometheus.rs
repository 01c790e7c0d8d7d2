//! A real Prometheus that reads one target, for checking rules and dashboards by asking.

use std::fs::{self, OpenOptions};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::port::Port;
use crate::process::Process;
use crate::{TestbedError, TestbedResult, http_call, paths, spawner, until};

const START_LIMIT: Duration = Duration::from_secs(60);
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// How many ports are tried when another process takes one first.
const STARTS_MAX: usize = 5;

/// A server. Dropping it kills the process and waits for its end.
pub struct Prometheus {
    process: Process,
    port: Port,
    dir: TempDir,
}

impl Prometheus {
    /// Starts a server that scrapes `/metrics` of `target` (`HOST:PORT`) at this interval, as the
    /// job `lapsed`.
    pub fn start(target: &str, every: Duration) -> TestbedResult<Self> {
        let mut last = TestbedError::new("no port tried");
        for _ in 0..STARTS_MAX {
            let dir = tempfile::tempdir()?;
            let server = Self { process: Process::default(), port: Port::free()?, dir };
            match server.launch(target, every) {
                Ok(()) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The base URL of its HTTP API.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }

    fn launch(&self, target: &str, every: Duration) -> TestbedResult<()> {
        let dir = self.dir.path();
        let every = every.as_millis();
        let config = format!(
            "global:\n  scrape_interval: {every}ms\n  scrape_timeout: {every}ms\nscrape_configs:\n  \
             - job_name: lapsed\n    static_configs:\n      - targets: ['{target}']\n"
        );
        fs::write(dir.join("prometheus.yml"), config)?;
        let log_path = dir.join("log");
        let log = OpenOptions::new().create(true).append(true).open(&log_path)?;
        let mut command = spawner::dies_with_parent(&paths::prometheus()?)?;
        command.arg("--config.file=prometheus.yml").arg("--storage.tsdb.path=data");
        command.arg(format!("--web.listen-address=127.0.0.1:{}", self.port.number()));
        command.current_dir(dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.process.start(command)?;
        let started = until("it to be ready", START_LIMIT, || match self.process.ended()? {
            Some(status) => Err(TestbedError::new(format!("it ended with {status}"))),
            None => Ok(self.is_ready().then_some(())),
        });
        started.map_err(|error| {
            let said = fs::read_to_string(&log_path).unwrap_or_default();
            TestbedError::new(format!("Prometheus did not start: {error}\n{said}"))
        })
    }

    /// It answers before it can be asked for anything.
    fn is_ready(&self) -> bool {
        let answer = http_call(self.port.number(), "GET", "/-/ready", &[], LOOK_LIMIT);
        answer.is_ok_and(|answer| answer.status == 200)
    }
}
