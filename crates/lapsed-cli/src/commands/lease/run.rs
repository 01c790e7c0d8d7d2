//! `lapsed lease run`: a command that runs only while its lease is held.
//!
//! The command never outlives the lease: when renewals go unanswered it is told to end so early that
//! it is gone before the lease may be somebody else's, and when this process is killed the kernel
//! kills it. What it started itself is reached as long as it stays in the command's process group.

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

use super::keeper::Keeper;
use super::{HELD, LOST, held, host, key, of_leases, request, time, wait};
use crate::backend::lease_backend::LeaseRequest;
use crate::backend::{self, Backend};
use crate::cli::lease::{LeaseChild, Run};
use lapsed_server::failure::Failure;

/// How often to look up even when nothing is heard: a host that slept tells nobody.
const LOOK: Duration = Duration::from_millis(250);

/// How long letting go may take.
const RELEASE: Duration = Duration::from_secs(5);

/// What is passed on to the command.
const PASSED: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// What happens while it runs.
pub enum ChildEvent {
    /// A child may have ended.
    Child,
    /// Somebody sent this process a signal.
    Signal(Signal),
    /// The store says that the lease is lost, and why.
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
    let backend = backend::open(&args.target).map_err(not_got)?;
    let held = hold(&*backend, args, &wanted, wait);
    let ended = held.and_then(|held| held.run(&*backend, args, grace));
    let closed = backend.close();
    let code = ended?;
    closed?;
    match code {
        0 => Ok(()),
        code => Err(Failure::Silent(code)),
    }
}

/// Whatever went wrong, the lease is not there and the command was not started.
fn not_got(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(what) => Failure::Told(HELD, format!("the lease was not acquired: {what}")),
        other => other,
    }
}

struct Held {
    system: SystemId,
    grant: Grant,
    sent: Sent,
    clock: SystemClock,
}

/// Trust counts from when it was asked for the last time: what was granted later lasts longer.
fn hold(
    backend: &dyn Backend,
    args: &Run,
    wanted: &LeaseRequest,
    wait: Duration,
) -> Result<Held, Failure> {
    let system = of_leases(backend, args.key.system.as_deref()).map_err(not_got)?;
    let clock = SystemClock::new();
    let mut sent = Sent::now(&clock);
    let mut acquired = backend.acquire(&system, wanted, wait).map_err(not_got)?;
    if !wait.is_zero() && matches!(acquired, Acquired::Granted(_)) {
        // It may have waited for long: the same request again says what is left of it.
        sent = Sent::now(&clock);
        acquired = backend.acquire(&system, wanted, Duration::ZERO).map_err(not_got)?;
    }
    match acquired {
        Acquired::Granted(grant) => Ok(Held { system, grant, sent, clock }),
        Acquired::Held(grant) => Err(Failure::Told(HELD, held(&wanted.key, &grant))),
    }
}

impl Held {
    /// The command's exit code, or the one that says that the lease was lost.
    fn run(self, backend: &dyn Backend, args: &Run, grace: Duration) -> Result<u8, Failure> {
        let ticket = self.grant.ticket();
        let ttl = Duration::from_millis(self.grant.ttl_ms);
        let keeper = Keeper {
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
            let keeper = &keeper;
            scope.spawn(move || keeper.renew(&stopped, &tell));
            // This very thread starts it: to the kernel it is the parent.
            let code = self
                .start(args)
                .and_then(|child| Ward { child, keeper, grace, ending: None }.watch(&events));
            drop(stop);
            code
        });
        drop(end);
        let _ = signals.join();
        // A store that does not answer must not keep anybody waiting who has what he came for.
        let limit = ttl.min(RELEASE);
        match backend.release(&self.system, &ticket, limit) {
            Ok(answer) => tracing::debug!(key = %ticket.key, ?answer, "released"),
            Err(failure) => tracing::warn!(%failure, "not released: the lease ends by itself"),
        }
        code
    }

    /// In a process group of its own, unless it is to read from the terminal.
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

/// The command, watched over.
struct Ward<'k> {
    child: Child,
    keeper: &'k Keeper<'k>,
    grace: Duration,
    /// It was told to end because of the lease, and is killed then.
    ending: Option<Instant>,
}

impl Ward<'_> {
    fn watch(mut self, events: &Receiver<ChildEvent>) -> Result<u8, Failure> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(if self.ending.is_some() { LOST } else { code(status) });
            }
            self.see_to_it();
            let wait = match self.ending {
                Some(until) => until.saturating_duration_since(Instant::now()).min(LOOK),
                None => self.until_worried().min(LOOK),
            };
            match events.recv_timeout(wait.max(Duration::from_millis(1))) {
                Ok(ChildEvent::Signal(signal)) => self.pass_on(signal),
                Ok(ChildEvent::Lost(why)) => self.end(&why, self.grace),
                Ok(ChildEvent::Child) | Err(RecvTimeoutError::Timeout) => {}
                // Whoever renews and listens has gone: only the command's end is left to see.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            }
        }
    }

    /// How long renewals may still go unanswered before the command is told to end: it must be gone
    /// when trust is.
    fn until_worried(&self) -> Duration {
        self.keeper.trusted_for().saturating_sub(self.last_grace())
    }

    fn last_grace(&self) -> Duration {
        self.grace.min(self.keeper.ttl / 3)
    }

    fn see_to_it(&mut self) {
        match self.ending {
            Some(until) if Instant::now() >= until => self.send(Signal::KILL),
            Some(_) => {}
            None if self.until_worried().is_zero() => {
                let left = self.keeper.trusted_for().min(self.last_grace());
                self.end("no renewal was answered for too long", left);
            }
            None => {}
        }
    }

    fn end(&mut self, why: &str, grace: Duration) {
        if self.ending.is_some() {
            return;
        }
        let key = &self.keeper.ticket.key;
        tracing::error!(%key, "the lease is lost: {why}; ending the command");
        self.ending = Some(Instant::now() + grace);
        self.send(Signal::TERM);
        self.send(Signal::CONT);
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// To the command and what it started.
    fn send(&self, signal: Signal) {
        let Some(pid) = self.pid() else { return };
        // A child that is just being started has no group yet.
        if std::io::stdin().is_terminal()
            || rustix::process::kill_process_group(pid, signal).is_err()
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// To the command alone, as if it had been sent there. What a terminal sends, it has sent there.
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

/// Tells of signals until `ended`.
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

/// Dies with its parent, and turns into the command.
pub fn become_command(args: &LeaseChild) -> Result<(), Failure> {
    let told = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    told.map_err(|error| {
        Failure::failed(format!("the command would outlive whoever started it: {error}"))
    })?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if parent != Some(args.parent.cast_signed()) {
        return Err(Failure::failed("whoever started it is gone"));
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
