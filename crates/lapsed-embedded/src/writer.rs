//! Group commit: each caller waits for a durable commit, and many callers share one.
//!
//! A job runs inside the batch's transaction and leaves what to do when the result is known. If any
//! job meets a failing disk, the whole batch is undone and every caller of the batch gets an error.

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

/// Largest number of jobs that share one commit.
const BATCH_MAX: usize = 4_096;
/// How often the thread does its housekeeping while no jobs arrive.
const TICK: Duration = Duration::from_millis(50);

/// Longest time that a batch waits for more callers.
const LULL_MAX: Duration = Duration::from_millis(10);

/// One caller's job: it runs in the transaction, and then learns the result of the commit.
trait Job: Send {
    /// Runs the job. `Err` only if the whole batch must be undone.
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

/// A write that the store itself needs, such as changed deadlines.
pub(crate) type Chore<'a> = Box<dyn FnOnce(&mut Tx<'_>) -> Tried<()> + Send + 'a>;

/// Why a batch was undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undone {
    /// The database refuses everything from now on and must be opened again.
    DiskFailed,
    /// The database works, but a row could not be read.
    RowUnreadable,
}

/// Callbacks from the writer to its store.
pub(crate) trait Keeper: Send + Sync {
    /// Called last in every batch: writes the time, so that the clock never goes back, and what is
    /// written once per batch.
    fn stamp(&self, tx: &mut Tx<'_>) -> Tried<()>;
    /// Called when a batch is durable, with its changes of in-memory state.
    fn committed(&self, changed: Changed);
    /// Called regularly, also without jobs. The returned write is carried out at once.
    fn tick(&self) -> Option<Chore<'_>>;
    /// Called when a batch was undone: in-memory state must be read again from disk.
    fn undone(&self, why: Undone);
}

/// Runs jobs on its own thread or, for in-memory stores, at once in the caller.
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

    /// Runs `work` in the next batch and `done` after the commit, then returns.
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

    /// Finishes pending jobs and ends the thread.
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
                    tracing::warn!(%error, "deadlines could not be written to disk; it is tried again within a second");
                    keeper.undone(why);
                }
            }
        }
    }
}

/// Size and duration of the previous batch.
#[derive(Default)]
struct Last {
    jobs: usize,
    took: Duration,
}

/// Takes the jobs that are waiting, and waits a little for as many as last time: callers that were
/// just answered are about to send their next job, and without them every other commit would be
/// small. A single caller does not have to wait. Returns whether the thread must end.
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

/// Commits one transaction. On an error, returns whether in-memory state must be read again.
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
