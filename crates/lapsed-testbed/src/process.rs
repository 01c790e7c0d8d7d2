//! One process: signals by its pid, and its end waited for. Knows nothing of what it serves.

use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::{TestbedError, TestbedResult, spawner, until};

/// How long a process may take to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// A process that may or may not run. Its pid is signalled only before its end was waited for, so
/// the signal never reaches a stranger.
#[derive(Default)]
pub(crate) struct Process(Mutex<Option<Child>>);

impl Process {
    /// Starts it; an error if it already runs.
    pub(crate) fn start(&self, command: Command) -> TestbedResult<()> {
        let mut slot = self.lock();
        if running(&mut slot).is_some() {
            return Err(TestbedError::new("already running"));
        }
        *slot = Some(spawner::spawn(command)?);
        Ok(())
    }

    /// Starts it; its input and output, which the command says are piped.
    pub(crate) fn start_piped(&self, command: Command) -> TestbedResult<(ChildStdin, ChildStdout)> {
        self.start(command)?;
        let mut slot = self.lock();
        let pipes = slot.as_mut().map(|child| (child.stdin.take(), child.stdout.take()));
        match pipes {
            Some((Some(input), Some(output))) => Ok((input, output)),
            _ => Err(TestbedError::new("its input and output are not piped")),
        }
    }

    /// `None` if it does not run.
    pub(crate) fn pid(&self) -> Option<u32> {
        running(&mut self.lock()).map(|child| child.id())
    }

    /// Its exit status, if it has ended without being killed.
    pub(crate) fn ended(&self) -> TestbedResult<Option<ExitStatus>> {
        self.lock().as_mut().map_or(Ok(None), |child| Ok(child.try_wait()?))
    }

    /// An error if it does not run.
    pub(crate) fn signal(&self, signal: Signal) -> TestbedResult<()> {
        let mut slot = self.lock();
        let child = running(&mut slot).ok_or_else(|| TestbedError::new("not running"))?;
        Ok(kill_process(Pid::from_child(child), signal)?)
    }

    /// SIGKILL, also to a frozen one, and waits for the end. Nothing to do if it does not run.
    pub(crate) fn kill(&self) -> TestbedResult<()> {
        if let Some(mut child) = self.lock().take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// SIGTERM and waits for the end; past [`GRACE`] SIGKILL.
    pub(crate) fn terminate(&self) -> TestbedResult<()> {
        if self.pid().is_none() {
            return Ok(());
        }
        self.signal(Signal::CONT)?;
        self.signal(Signal::TERM)?;
        let ended = until("its end after SIGTERM", GRACE, || self.ended());
        self.kill()?;
        ended.map(|_| ())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The child, if it has not ended. A frozen one runs.
fn running(slot: &mut Option<Child>) -> Option<&mut Child> {
    slot.as_mut().and_then(|child| match child.try_wait() {
        Ok(None) => Some(child),
        Ok(Some(_)) | Err(_) => None,
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
