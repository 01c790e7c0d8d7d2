//! Group commit: callers wait for a durable commit, and many callers share one.
//!
//! A job runs inside the batch's transaction and leaves what to do once the outcome is known. If
//! any job meets a failing disk the whole batch is undone and everybody in it is told.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lapsed_core::{Error, Result};
use tokio::sync::oneshot;

use crate::disk::Disk;
use crate::fault::{Fault, Tried, disk_full};
use crate::tx::{Changed, Tx};

/// The most jobs that share one commit.
const BATCH_MAX: usize = 4_096;
/// How often the thread looks up when nobody asks for anything.
const TICK: Duration = Duration::from_millis(50);

/// The longest that a batch waits for more callers.
const LULL_MAX: Duration = Duration::from_millis(10);

/// One caller's wish: first run, then told how the commit went.
trait Job: Send {
    /// `Err` only when the whole batch must be undone.
    fn run(&mut self, tx: &mut Tx<'_>) -> Tried<()>;
    fn finish(self: Box<Self>, outcome: Result<()>);
}

struct Task<T, W, D> {
    work: Option<W>,
    done: D,
    value: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, W, D> Job for Task<T, W, D>
where
    T: Send,
    W: FnOnce(&mut Tx<'_>) -> Tried<T> + Send,
    D: FnOnce(&T) + Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Tried<()> {
        let Some(work) = self.work.take() else { return Ok(()) };
        match work(tx) {
            Ok(value) => self.value = Some(Ok(value)),
            Err(Fault::Said(error)) => self.value = Some(Err(error)),
            Err(fault) => return Err(fault),
        }
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<()>) {
        let answer = match (self.value, outcome) {
            (Some(Ok(value)), Ok(())) => {
                (self.done)(&value);
                Ok(value)
            }
            (Some(Err(said)), _) => Err(said),
            (_, Err(error)) => Err(error),
            (None, Ok(())) => return,
        };
        let _ = self.reply.send(answer);
    }
}

enum Message {
    Job(Box<dyn Job>),
    Quit,
}

/// Something that the store itself wants written.
pub(crate) type Chore<'a> = Box<dyn FnOnce(&mut Tx<'_>) -> Tried<()> + Send + 'a>;

/// Why a batch was undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undone {
    /// The database refuses everything from now on and must be opened anew.
    DiskFailed,
    /// It works, but a row could not be read.
    RowUnreadable,
}

/// What the writer tells its store.
pub(crate) trait Keeper: Send + Sync {
    /// Goes into every batch, last: the time, so that it never goes back, and what is written once
    /// for all jobs of a batch.
    fn stamp(&self, tx: &mut Tx<'_>) -> Tried<()>;
    /// A batch is durable: what it changed of what is kept in memory.
    fn committed(&self, changed: Changed);
    /// Regularly, also when nothing happens. The chore is run at once.
    fn tick(&self) -> Option<Chore<'_>>;
    /// A batch was undone: memory must be brought back in line with the disk.
    fn undone(&self, why: Undone);
}

/// Runs jobs: on a thread of its own, or at once in the caller (in memory, for simulation).
pub(crate) struct Writer {
    disk: Arc<Disk>,
    mode: Mode,
}

enum Mode {
    Thread { jobs: Sender<Message>, thread: Mutex<Option<JoinHandle<()>>> },
    Inline { turn: Mutex<()>, keeper: Weak<dyn Keeper> },
}

impl Writer {
    pub fn threaded(disk: Arc<Disk>, keeper: Weak<dyn Keeper>) -> Result<Writer> {
        let (jobs, inbox) = channel();
        let worker = Worker { disk: disk.clone(), keeper };
        let thread = std::thread::Builder::new()
            .name("lapsed-writer".to_owned())
            .spawn(move || worker.run(&inbox))
            .map_err(|error| Error::Unavailable {
                store: disk.name.clone(),
                what: format!("its writer thread cannot be started: {error}"),
            })?;
        Ok(Writer { disk, mode: Mode::Thread { jobs, thread: Mutex::new(Some(thread)) } })
    }

    pub fn inline(disk: Arc<Disk>, keeper: Weak<dyn Keeper>) -> Writer {
        Writer { disk, mode: Mode::Inline { turn: Mutex::default(), keeper } }
    }

    /// Runs `work` in the next batch and `done` once it is durable, then answers.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx<'_>) -> Tried<T> + Send + 'static,
        done: impl FnOnce(&T) + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job: Box<dyn Job> = Box::new(Task { work: Some(work), done, value: None, reply });
        match &self.mode {
            Mode::Thread { jobs, .. } => {
                let _ = jobs.send(Message::Job(job));
            }
            Mode::Inline { turn, keeper } => {
                let _turn = turn.lock().expect(LOCK);
                if let Some(keeper) = keeper.upgrade() {
                    run_batch(&self.disk, &*keeper, vec![job]);
                }
            }
        }
        answer.await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Finishes what was asked for and ends the thread.
    pub fn quit(&self) {
        if let Mode::Thread { jobs, thread } = &self.mode {
            let _ = jobs.send(Message::Quit);
            if let Some(thread) = thread.lock().expect(LOCK).take()
                && thread.thread().id() != std::thread::current().id()
            {
                let _ = thread.join();
            }
        }
    }

    fn closed(&self) -> Error {
        Error::Unavailable { store: self.disk.name.clone(), what: "it is closed".to_owned() }
    }
}

const LOCK: &str = "no holder of this lock panics";

struct Worker {
    disk: Arc<Disk>,
    keeper: Weak<dyn Keeper>,
}

impl Worker {
    fn run(&self, inbox: &Receiver<Message>) {
        let mut last = Last::default();
        loop {
            let mut jobs = Vec::new();
            let quit = match inbox.recv_timeout(TICK) {
                Ok(Message::Job(job)) => {
                    jobs.push(job);
                    gather(inbox, &mut jobs, &last)
                }
                Ok(Message::Quit) | Err(RecvTimeoutError::Disconnected) => true,
                Err(RecvTimeoutError::Timeout) => false,
            };
            let Some(keeper) = self.keeper.upgrade() else { return };
            if !jobs.is_empty() {
                let (jobs_before, began) = (jobs.len(), Instant::now());
                run_batch(&self.disk, &*keeper, jobs);
                last = Last { jobs: jobs_before, took: began.elapsed() };
            }
            if quit {
                return;
            }
            if let Some(chore) = keeper.tick() {
                let done = self.disk.has_room().then(|| commit(&self.disk, &*keeper, chore));
                if let Some(Err((error, Some(why)))) = done {
                    tracing::warn!(%error, "beats were not mirrored");
                    keeper.undone(why);
                }
            }
        }
    }
}

/// The batch before this one.
#[derive(Default)]
struct Last {
    jobs: usize,
    took: Duration,
}

/// Takes what is waiting already, and waits a little for as many as came last time: callers that
/// were just answered are on their way back, and without them every other commit is a small one.
/// A caller that was alone is not made to wait. Whether it was told to quit.
fn gather(inbox: &Receiver<Message>, jobs: &mut Vec<Box<dyn Job>>, last: &Last) -> bool {
    let until = Instant::now() + (last.took / 4).min(LULL_MAX);
    while jobs.len() < BATCH_MAX {
        let next = match inbox.try_recv() {
            Err(TryRecvError::Empty) if jobs.len() < last.jobs => {
                inbox.recv_timeout(until.saturating_duration_since(Instant::now()))
            }
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => return true,
            Ok(message) => Ok(message),
        };
        match next {
            Ok(Message::Job(job)) => jobs.push(job),
            Err(RecvTimeoutError::Timeout) => return false,
            Ok(Message::Quit) | Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
    false
}

fn run_batch(disk: &Disk, keeper: &dyn Keeper, mut jobs: Vec<Box<dyn Job>>) {
    let outcome = match disk.has_room() {
        true => commit(disk, keeper, |tx| jobs.iter_mut().try_for_each(|job| job.run(tx))),
        false => Err((disk_full(&disk.name), None)),
    };
    if let Err((_, Some(why))) = outcome {
        keeper.undone(why);
    }
    for job in jobs {
        job.finish(outcome.clone().map_err(|(error, _)| error));
    }
}

/// One transaction. On an error, whether there is something to bring back in line.
fn commit(
    disk: &Disk,
    keeper: &dyn Keeper,
    work: impl FnOnce(&mut Tx<'_>) -> Tried<()>,
) -> std::result::Result<(), (Error, Option<Undone>)> {
    let told = |fault: Fault| {
        let why = match fault {
            Fault::Disk(_) => Undone::DiskFailed,
            Fault::Row(_) | Fault::Said(_) => Undone::RowUnreadable,
        };
        (fault.told(&disk.name), Some(why))
    };
    let database = disk.database().map_err(|error| (error, None))?;
    let txn = database.begin_write().map_err(|e| told(e.into()))?;
    let ran = {
        let mut tx = Tx::new(&txn);
        work(&mut tx).and_then(|()| keeper.stamp(&mut tx)).map(|()| tx.into_aftermath())
    };
    match ran {
        Ok(aftermath) => {
            txn.commit().map_err(|e| told(e.into()))?;
            keeper.committed(aftermath.changed);
            aftermath.then.into_iter().for_each(|change| change());
            Ok(())
        }
        Err(fault) => {
            let _ = txn.abort();
            Err(told(fault))
        }
    }
}
