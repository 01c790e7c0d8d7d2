//! The processes of the demo: started here, and stopped here by their pids.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Pace;
use crate::failure::Failure;

/// A folder of the demo's own, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn make() -> Result<Folder, Failure> {
        let name = format!("lapsed-demo-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child process whose lines are heard.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(mut command: Command) -> Result<Process, Failure> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
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

    /// Only ever a process of our own that has not been waited for: its pid cannot be another's.
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

fn ourselves() -> Result<Command, Failure> {
    Ok(Command::new(std::env::current_exe()?))
}

/// The daemon of the demo.
pub struct Daemon {
    process: Process,
    url: String,
}

impl Daemon {
    pub fn start(folder: &Folder, pace: Pace) -> Result<Daemon, Failure> {
        let config = folder.0.join("lapsed.toml");
        std::fs::write(
            &config,
            format!(
                "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.demo]\nurl = \"embedded:{}\"\n\n\
                 [[system]]\nkind = \"registry\"\nname = \"default\"\nstore = \"demo\"\n\
                 heartbeat_ttl = \"{}ms\"\nsweep = {{ every = \"{}ms\" }}\n",
                folder.0.join("data").display(),
                pace.ttl().as_millis(),
                pace.every().as_millis()
            ),
        )?;
        let mut command = ourselves()?;
        command.arg("serve").arg("-c").arg(&config);
        for name in ["LAPSED_LISTEN", "LAPSED_DATA", "LAPSED_TOKEN", "JANITOR_INTERVAL_MS"] {
            command.env_remove(name);
        }
        let process = Process::start(command)?;
        let line = process.lines.recv_timeout(Duration::from_secs(20));
        let url = line.ok().and_then(|l| l.strip_prefix("listening on ").map(str::to_owned));
        let url = url.ok_or_else(|| Failure::failed("the demo's daemon did not start"))?;
        Ok(Daemon { process, url })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Asks it to drain and waits for it.
    pub fn stop(&mut self) {
        let _ = self.process.signal(Signal::TERM);
        let patience = Instant::now() + Duration::from_secs(10);
        while matches!(self.process.child.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// One owner.
pub struct Player {
    name: String,
    process: Process,
    stdin: Option<ChildStdin>,
}

impl Player {
    pub fn start(name: &str, daemon: &Daemon, pace: Pace) -> Result<Player, Failure> {
        let mut command = ourselves()?;
        let beat = pace.ttl().as_millis() / 3;
        command.args(["demo-owner", name, "--url", daemon.url(), "--every-ms", &beat.to_string()]);
        let mut process = Process::start(command)?;
        let stdin = process.child.stdin.take();
        Ok(Player { name: name.to_owned(), process, stdin })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// The next thing it said.
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

    /// Asks it to leave gracefully.
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
