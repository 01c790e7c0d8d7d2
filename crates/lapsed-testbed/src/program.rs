//! Runs another program during a test, such as a worker in another language. The test talks to it in lines.
//!
//! Like a server it dies with the test process, and is signalled only by its pid.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::process::Process;
use crate::{TestbedError, TestbedResult, spawner, until};

/// A program that runs. Dropping it kills the process and waits for its end.
pub struct Program {
    process: Process,
    name: String,
    input: Mutex<Option<ChildStdin>>,
    lines: Mutex<Receiver<String>>,
}

impl Program {
    /// Starts it; `prepare` sets its arguments, environment and folder. Its stderr is the test's stderr.
    pub fn start(program: &Path, prepare: impl FnOnce(&mut Command)) -> TestbedResult<Self> {
        let mut command = spawner::dies_with_parent(program)?;
        prepare(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let name = words(&command);
        let process = Process::default();
        let (input, output) = process.start_piped(command).map_err(|e| e.during(&name))?;
        let (sender, lines) = channel();
        thread::spawn(move || forward(output, &sender));
        Ok(Self { process, name, input: Mutex::new(Some(input)), lines: Mutex::new(lines) })
    }

    /// Reads the next line of its stdout, without the line's end. An error if the program ends first, or
    /// prints nothing for `limit`.
    pub fn line(&self, limit: Duration) -> TestbedResult<String> {
        match lock(&self.lines).recv_timeout(limit) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                Err(TestbedError::new(format!("{}: said nothing for {limit:?}", self.name)))
            }
            Err(RecvTimeoutError::Disconnected) => Err(TestbedError::new(format!(
                "{}: said nothing more ({})",
                self.name,
                self.ended()?.map_or("it still runs".to_owned(), |status| status.to_string())
            ))),
        }
    }

    /// Writes a line to the program's stdin.
    pub fn say(&self, line: &str) -> TestbedResult<()> {
        let mut input = lock(&self.input);
        let input = input.as_mut().ok_or_else(|| TestbedError::new("its input is closed"))?;
        Ok(writeln!(input, "{line}").and_then(|()| input.flush())?)
    }

    /// `None` if it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Its exit status, if it has ended without being killed.
    pub fn ended(&self) -> TestbedResult<Option<ExitStatus>> {
        self.process.ended()
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&self) -> TestbedResult<()> {
        self.process.kill()
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(&self) -> TestbedResult<()> {
        self.process.terminate()
    }

    /// SIGSTOP: alive, but it does nothing.
    pub fn freeze(&self) -> TestbedResult<()> {
        self.process.signal(Signal::STOP)
    }

    /// SIGCONT: continues where it was stopped.
    pub fn thaw(&self) -> TestbedResult<()> {
        self.process.signal(Signal::CONT)
    }

    /// Closes its stdin and waits until it has ended.
    pub fn finish(&self, limit: Duration) -> TestbedResult<ExitStatus> {
        *lock(&self.input) = None;
        until(&format!("the end of {}", self.name), limit, || self.ended())
    }
}

/// Its lines until its end.
fn forward(output: ChildStdout, lines: &Sender<String>) {
    for line in BufReader::new(output).lines() {
        match line {
            // A receiver that went away must not block the program: keep reading.
            Ok(line) => drop(lines.send(line)),
            Err(_) => return,
        }
    }
}

/// What was started, after `setpriv` and its own arguments.
fn words(command: &Command) -> String {
    let words = command.get_args().skip_while(|word| *word != "--").skip(1);
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
