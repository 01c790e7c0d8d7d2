//! `lapsed lease run`: a command that runs only while its lease is held.
//!
//! The command never outlives the lease. When renewals are not answered, the command gets SIGTERM so early that
//! it has ended before another owner can acquire the lease; when this process is killed, the kernel kills the
//! command. Processes that the command starts get the same signals while they stay in its process group.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use lapsed_core::clock::SystemClock;
use lapsed_core::leases::{Acquired, Grant};
use lapsed_core::owner::trust::Sent;
use lapsed_core::{Name, SystemId};
use rustix::process::{Pid, Signal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::renewer::LeaseRenewer;
use super::{HELD, LOST, held, host, key, of_leases, request, time, wait};
use crate::backend;
use crate::kinds::leases::args::{LeaseChild, Run};
use crate::kinds::leases::backend::{LeaseBackend, LeaseRequest, lease_backend};
use lapsed_server::failure::Failure;

/// The longest time between two checks of the deadline: no event reports that the host was suspended.
const LOOK: Duration = Duration::from_millis(250);

/// The time limit for releasing the lease.
const RELEASE: Duration = Duration::from_secs(5);

/// The signals that are forwarded to the command.
const PASSED: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// What can happen while the command runs.
pub enum ChildEvent {
    /// SIGCHLD arrived: the command may have ended.
    Child,
    /// This process received a signal that it forwards.
    Signal(Signal),
    /// The store answered that the lease is lost, for this reason.
    Lost(String),
}

pub fn run(args: &Run) -> Result<(), Failure> {
    let grace = time("--grace", Some(&args.grace))?.unwrap_or_default();
    let owner = args.owner.clone().unwrap_or_else(|| format!("{}-{}", host(), std::process::id()));
    let wanted = LeaseRequest {
        key: key(&args.key)?,
        owner: Name::new(&owner)?,
        ttl: time("--ttl", args.ttl.as_deref())?,
        request: Some(request()?),
    };
    let wait = wait(args.wait.as_deref())?;
    let backend = backend::open(&args.target).map_err(not_acquired)?;
    let leases = lease_backend(&*backend);
    let held = hold(leases, args, &wanted, wait);
    let ended = held.and_then(|held| held.run(leases, args, grace));
    let closed = backend.close();
    let code = ended?;
    closed?;
    match code {
        0 => Ok(()),
        code => Err(Failure::Silent(code)),
    }
}

/// A failure before the command was started, with the exit code for a lease that was not acquired.
fn not_acquired(failure: Failure) -> Failure {
    match failure {
        failed @ (Failure::Failed(_) | Failure::Store(..)) => {
            Failure::Told(HELD, format!("the lease was not acquired: {failed}"))
        }
        other => other,
    }
}

struct Held {
    system: SystemId,
    grant: Grant,
    sent: Sent,
    clock: SystemClock,
}

/// Acquires the lease. The deadline is counted from the moment when the last request was sent, because the grant
/// happened later and so lasts at least as long.
fn hold(
    backend: &dyn LeaseBackend,
    args: &Run,
    wanted: &LeaseRequest,
    wait: Duration,
) -> Result<Held, Failure> {
    let system = of_leases(backend, args.key.system.as_deref()).map_err(not_acquired)?;
    let clock = SystemClock::new();
    let mut sent = Sent::now(&clock);
    let mut acquired = backend.acquire(&system, wanted, wait).map_err(not_acquired)?;
    if !wait.is_zero() && matches!(acquired, Acquired::Granted(_)) {
        // The first request may have waited for long; the same request again returns the remaining time.
        sent = Sent::now(&clock);
        acquired = backend.acquire(&system, wanted, Duration::ZERO).map_err(not_acquired)?;
    }
    match acquired {
        Acquired::Granted(grant) => Ok(Held { system, grant, sent, clock }),
        Acquired::Held(grant) => Err(Failure::Told(HELD, held(&wanted.key, &grant))),
    }
}

impl Held {
    /// Runs the command and releases the lease; the exit code of the command, or that of a lost lease.
    fn run(self, backend: &dyn LeaseBackend, args: &Run, grace: Duration) -> Result<u8, Failure> {
        let ticket = self.grant.ticket();
        let ttl = Duration::from_millis(self.grant.ttl_ms);
        let renewer = LeaseRenewer {
            backend,
            clock: &self.clock,
            system: &self.system,
            ticket: &ticket,
            ttl,
            trust: Mutex::new(self.sent.trust(self.grant.left())),
        };
        let (tell, events) = channel();
        let (stop, stopped) = channel();
        let (end, ended) = oneshot::channel();
        let signals = listen(tell.clone(), ended)?;
        let code = std::thread::scope(|scope| {
            let renewer = &renewer;
            scope.spawn(move || renewer.renew(&stopped, &tell));
            // This thread must start the command: the kernel ties the death signal to the thread that forks.
            let code = self.start(args).and_then(|child| {
                RunningCommand { child, renewer, grace, ending: None }.watch(&events)
            });
            drop(stop);
            code
        });
        drop(end);
        let _ = signals.join();
        // The command is done: a store that does not answer must not delay the exit for long.
        let limit = ttl.min(RELEASE);
        match backend.release(&self.system, &ticket, limit) {
            Ok(answer) => tracing::debug!(key = %ticket.key, ?answer, "released"),
            Err(failure) => tracing::warn!(%failure, "not released: the lease ends by itself"),
        }
        code
    }

    /// Starts the command in a process group of its own, unless stdin is a terminal, which it may read.
    fn start(&self, args: &Run) -> Result<Child, Failure> {
        let Grant { namespace, key, owner, token, .. } = &self.grant;
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["lease-child", "--parent", &std::process::id().to_string(), "--"])
            .args(&args.command)
            .env("LAPSED_LEASE_SYSTEM", self.system.to_string())
            .env("LAPSED_LEASE_NAMESPACE", namespace.as_str())
            .env("LAPSED_LEASE_KEY", key.as_str())
            .env("LAPSED_LEASE_OWNER", owner.as_str())
            .env("LAPSED_LEASE_TOKEN", token.to_string());
        if !std::io::stdin().is_terminal() {
            command.process_group(0);
        }
        Ok(command.spawn()?)
    }
}

/// The running command, which is ended when its lease is lost.
struct RunningCommand<'k> {
    child: Child,
    renewer: &'k LeaseRenewer<'k>,
    grace: Duration,
    /// When the command is killed, if it already got SIGTERM because of the lease.
    ending: Option<Instant>,
}

impl RunningCommand<'_> {
    fn watch(mut self, events: &Receiver<ChildEvent>) -> Result<u8, Failure> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(if self.ending.is_some() { LOST } else { code(status) });
            }
            self.end_if_due();
            let wait = match self.ending {
                Some(until) => until.saturating_duration_since(Instant::now()).min(LOOK),
                None => self.time_until_end().min(LOOK),
            };
            match events.recv_timeout(wait.max(Duration::from_millis(1))) {
                Ok(ChildEvent::Signal(signal)) => self.pass_on(signal),
                Ok(ChildEvent::Lost(why)) => self.end(&why, self.grace),
                Ok(ChildEvent::Child) | Err(RecvTimeoutError::Timeout) => {}
                // The threads that renew and receive signals have ended: only wait for the command.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            }
        }
    }

    /// How long renewals may still be unanswered before the command gets SIGTERM, so that it has ended when this
    /// process can no longer rely on the lease.
    fn time_until_end(&self) -> Duration {
        self.renewer.trusted_for().saturating_sub(self.last_grace())
    }

    fn last_grace(&self) -> Duration {
        self.grace.min(self.renewer.ttl / 3)
    }

    fn end_if_due(&mut self) {
        match self.ending {
            Some(until) if Instant::now() >= until => self.send(Signal::KILL),
            Some(_) => {}
            None if self.time_until_end().is_zero() => {
                let left = self.renewer.trusted_for().min(self.last_grace());
                self.end("no renewal was answered for too long", left);
            }
            None => {}
        }
    }

    fn end(&mut self, why: &str, grace: Duration) {
        if self.ending.is_some() {
            return;
        }
        let key = &self.renewer.ticket.key;
        tracing::error!(%key, "the lease is lost: {why}; ending the command");
        self.ending = Some(Instant::now() + grace);
        self.send(Signal::TERM);
        self.send(Signal::CONT);
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Sends a signal to the command's process group.
    fn send(&self, signal: Signal) {
        let Some(pid) = self.pid() else { return };
        // A child that has just been started may not have its group yet.
        if std::io::stdin().is_terminal()
            || rustix::process::kill_process_group(pid, signal).is_err()
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Forwards a signal to the command alone. A terminal has already sent its SIGINT and SIGQUIT to the command.
    fn pass_on(&self, signal: Signal) {
        let by_terminal = signal == Signal::INT || signal == Signal::QUIT;
        if by_terminal && std::io::stdin().is_terminal() {
            return;
        }
        if let Some(pid) = self.pid() {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Sends an event for each signal that this process receives, until `ended`.
fn listen(
    tell: Sender<ChildEvent>,
    ended: oneshot::Receiver<()>,
) -> Result<std::thread::JoinHandle<()>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut all = Vec::new();
    {
        let _inside = runtime.enter();
        all.push((signal(SignalKind::child())?, None));
        for passed in PASSED {
            all.push((signal(SignalKind::from_raw(passed.as_raw()))?, Some(passed)));
        }
    }
    Ok(std::thread::spawn(move || {
        runtime.block_on(async {
            for (mut heard, which) in all {
                let tell = tell.clone();
                tokio::spawn(async move {
                    while heard.recv().await.is_some() {
                        let event = which.map_or(ChildEvent::Child, ChildEvent::Signal);
                        let _ = tell.send(event);
                    }
                });
            }
            let _ = ended.await;
        });
    }))
}

/// Asks the kernel to kill this process when its parent ends, and replaces it by the command.
pub fn become_command(args: &LeaseChild) -> Result<(), Failure> {
    let told = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    told.map_err(|error| {
        Failure::failed(format!(
            "the kernel cannot be asked to end the command with its parent: {error}"
        ))
    })?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if parent != Some(args.parent.cast_signed()) {
        return Err(Failure::failed("the parent process has ended"));
    }
    let (program, rest) = split(&args.command)?;
    let error = Command::new(program).args(rest).exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    let what = format!("{}: {error}", program.to_string_lossy());
    Err(Failure::Told(code, what))
}

fn split(command: &[OsString]) -> Result<(&OsString, &[OsString]), Failure> {
    command.split_first().ok_or_else(|| Failure::usage("there is no command"))
}
