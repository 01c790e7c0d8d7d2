//! Starts the processes of the demonstration, and stops each by its pid. They do not outlive the demonstration:
//! the kernel kills each of them, even a frozen one, when its parent ends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use lapsed_server::failure::Failure;

/// Environment variables that would override the configuration; the child processes do not inherit them.
const OVERRIDES: &[&str] = &[
    "LAPSED_LISTEN",
    "LAPSED_DATA",
    "LAPSED_TOKEN",
    "LAPSED_URL",
    "JANITOR_INTERVAL_MS",
    "CLEANUP_INTERVAL",
    "ORPHAN_MAX_AGE",
    "MITRA_AUTO_OFFLINE_SWEEP_SECONDS",
    "HEARTBEAT_MIRROR_INTERVAL_SECONDS",
    "VALKEY_ONLINE_MIRROR_SWEEP_SECONDS",
];

/// A temporary folder that is removed when this value is dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn make() -> Result<Folder, Failure> {
        let name = format!("lapsed-demo-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }

    pub fn data(&self) -> PathBuf {
        self.0.join("data")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child process; a thread reads the lines that it prints. It is killed when this value is dropped.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts the process in a process group of its own: signals of the terminal reach only the parent, which
    /// then stops its children in order.
    fn start(mut command: Command, stderr: Stdio) -> Result<Process, Failure> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr).process_group(0);
        let mut child = command.spawn()?;
        let (heard, lines) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if heard.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Process { child, lines })
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Sends a signal, unless the process has ended. Its pid cannot have been reused: only this value waits for it.
    fn signal(&mut self, signal: Signal) -> Result<(), Failure> {
        if self.child.try_wait()?.is_none()
            && let Some(pid) = self.pid()
        {
            kill_process(pid, signal).map_err(|e| Failure::failed(format!("a signal: {e}")))?;
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that runs this program as a child which the kernel kills when its parent ends.
fn ourselves() -> Result<Command, Failure> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(&program);
    command.args(["lease-child", "--parent", &std::process::id().to_string(), "--"]).arg(program);
    for name in OVERRIDES {
        command.env_remove(name);
    }
    Ok(command)
}

/// The daemon that the demonstration starts, and its URL.
pub struct DemoDaemon {
    process: Process,
    url: String,
}

impl DemoDaemon {
    /// Starts a daemon with this configuration and token, and waits up to 20 s until it listens.
    pub fn start(
        folder: &Folder,
        config: &str,
        token: Option<&str>,
    ) -> Result<DemoDaemon, Failure> {
        let (file, log) = (folder.0.join("lapsed.toml"), folder.0.join("log"));
        std::fs::write(&file, config)?;
        let mut command = ourselves()?;
        command.arg("serve").arg("-c").arg(&file);
        command.envs(token.map(|token| ("LAPSED_TOKEN", token)));
        let process = Process::start(command, std::fs::File::create(&log)?.into())?;
        let line = process.lines.recv_timeout(Duration::from_secs(20));
        let url = line.ok().and_then(|l| l.strip_prefix("listening on ").map(str::to_owned));
        let url = url.ok_or_else(|| Failure::failed(why(&log)))?;
        Ok(DemoDaemon { process, url })
    }

    /// Whether the daemon process has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.process.child.try_wait(), Ok(None))
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Asks the daemon to drain, and waits up to 10 s until it has ended.
    pub fn stop(&mut self) {
        let _ = self.process.signal(Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The error that the daemon logged last, as the reason why it did not start.
fn why(log: &Path) -> String {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    let error = said.lines().rev().find_map(|line| line.strip_prefix("error: "));
    format!("the demo's daemon did not start: {}", error.unwrap_or("it did not say why"))
}

/// An owner or an actor, in a process of its own.
pub struct DemoProcess {
    name: String,
    process: Process,
    stdin: Option<ChildStdin>,
}

impl DemoProcess {
    /// Starts this program with `args`; it finds the token in its environment.
    pub fn start(name: &str, args: &[&str], token: Option<&str>) -> Result<DemoProcess, Failure> {
        let mut command = ourselves()?;
        command.args(args).envs(token.map(|token| ("LAPSED_TOKEN", token)));
        let mut process = Process::start(command, Stdio::null())?;
        let stdin = process.child.stdin.take();
        Ok(DemoProcess { name: name.to_owned(), process, stdin })
    }

    /// Whether the process has ended, for whatever reason.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.process.child.try_wait(), Ok(None))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// The next line that the process has printed, if there is one.
    pub fn heard(&self) -> Option<String> {
        self.process.lines.try_recv().ok()
    }

    pub fn kill(&mut self) -> Result<(), Failure> {
        self.process.signal(Signal::KILL)
    }

    pub fn freeze(&mut self) -> Result<(), Failure> {
        self.process.signal(Signal::STOP)
    }

    pub fn thaw(&mut self) -> Result<(), Failure> {
        self.process.signal(Signal::CONT)
    }

    /// Asks the process to retire and end, by a line on its stdin.
    pub fn leave(&mut self) -> Result<(), Failure> {
        if let Some(stdin) = &mut self.stdin {
            writeln!(stdin, "leave")?;
            stdin.flush()?;
        }
        Ok(())
    }

    pub fn stop(&mut self) {
        let _ = self.kill();
    }
}
