//! Group commit: each caller waits for a durable commit, and many callers share one.
//!
//! A job runs inside the batch's transaction and leaves what to do when the result is known. If any
//! job meets a failing disk, the whole batch is undone and every caller of the batch gets an error.
//!
//! The jobs of sweeps wait in a queue of their own. No two of them share a commit, and between two of
//! them everybody else comes first: a caller waits for at most one of them, and a sweep for at most
//! one batch of callers. Callers who arrive while a sweep works share its commit.

use std::collections::VecDeque;
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
    fn run(&mut self, tx: &mut Tx) -> Tried<()>;
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
    W: FnOnce(&mut Tx) -> Tried<T> + Send,
    D: FnOnce(&T) + Send,
{
    fn run(&mut self, tx: &mut Tx) -> Tried<()> {
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
    /// A job that lets others come first.
    Sweep(Box<dyn Job>),
    Quit,
}

/// A write that the store itself needs, such as changed deadlines.
pub(crate) type Chore<'a> = Box<dyn FnOnce(&mut Tx) -> Tried<()> + Send + 'a>;

/// Why a batch was undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undone {
    /// The database refuses everything from now on and must be opened again.
    DiskFailed,
    /// The database works: a row could not be read, or the disk is full.
    BatchOnly,
}

/// Callbacks from the writer to its store.
pub(crate) trait WriterCallbacks: Send + Sync {
    /// Called last in every batch: writes the time, so that the clock never goes back, and what is
    /// written once per batch.
    fn stamp(&self, tx: &mut Tx) -> Tried<()>;
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
    Inline { turn: Mutex<()>, callbacks: Weak<dyn WriterCallbacks> },
}

impl Writer {
    pub fn threaded(disk: Arc<Disk>, callbacks: Weak<dyn WriterCallbacks>) -> Result<Writer> {
        let (jobs, inbox) = channel();
        let worker = Worker { disk: disk.clone(), callbacks };
        let thread = std::thread::Builder::new()
            .name("lapsed-writer".to_owned())
            .spawn(move || worker.run(&inbox))
            .map_err(|error| Error::Unavailable {
                store: disk.name.clone(),
                what: format!("its writer thread cannot be started: {error}"),
            })?;
        Ok(Writer { disk, mode: Mode::Thread { jobs, thread: Mutex::new(Some(thread)) } })
    }

    pub fn inline(disk: Arc<Disk>, callbacks: Weak<dyn WriterCallbacks>) -> Writer {
        Writer { disk, mode: Mode::Inline { turn: Mutex::default(), callbacks } }
    }

    /// Runs `work` in the next batch and `done` after the commit, then returns.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx) -> Tried<T> + Send + 'static,
        done: impl FnOnce(&T) + Send + 'static,
    ) -> Result<T> {
        self.send(Message::Job, work, done).await
    }

    /// The same for the work of a sweep, which lets others come first. It does not keep its place
    /// among the calls of [`Writer::write`].
    pub async fn sweep<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tx) -> Tried<T> + Send + 'static,
        done: impl FnOnce(&T) + Send + 'static,
    ) -> Result<T> {
        self.send(Message::Sweep, work, done).await
    }

    async fn send<T: Send + 'static>(
        &self,
        message: fn(Box<dyn Job>) -> Message,
        work: impl FnOnce(&mut Tx) -> Tried<T> + Send + 'static,
        done: impl FnOnce(&T) + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job: Box<dyn Job> = Box::new(Task { work: Some(work), done, value: None, reply });
        match &self.mode {
            Mode::Thread { jobs, .. } => {
                let _ = jobs.send(message(job));
            }
            Mode::Inline { turn, callbacks } => {
                let _turn = turn.lock().expect(LOCK);
                if let Some(callbacks) = callbacks.upgrade() {
                    run_batch(&self.disk, &*callbacks, vec![job], |_| {});
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
    callbacks: Weak<dyn WriterCallbacks>,
}

impl Worker {
    fn run(&self, inbox: &Receiver<Message>) {
        let mut last = Last::default();
        let mut sweeps = VecDeque::new();
        loop {
            let mut jobs = Vec::new();
            let mut quit = gather(inbox, &mut jobs, &mut sweeps, &last);
            let Some(callbacks) = self.callbacks.upgrade() else { return };
            if !jobs.is_empty() {
                let (jobs_before, began) = (jobs.len(), Instant::now());
                run_batch(&self.disk, &*callbacks, jobs, |_| {});
                last = Last { jobs: jobs_before, took: began.elapsed() };
            }
            while let Some(sweep) = sweeps.pop_front() {
                run_batch(&self.disk, &*callbacks, vec![sweep], |jobs| {
                    quit |= take_waiting(inbox, jobs, &mut sweeps);
                });
                if !quit {
                    break;
                }
            }
            if quit {
                return;
            }
            if self.disk.has_failed() {
                callbacks.undone(Undone::DiskFailed);
            }
            if let Some(chore) = callbacks.tick() {
                let done = self.disk.has_room().then(|| commit(&self.disk, &*callbacks, chore));
                if let Some(Err((error, Some(why)))) = done {
                    tracing::warn!(%error, "deadlines could not be written to disk; it is tried again within a second");
                    callbacks.undone(why);
                }
            }
        }
    }
}

/// Size and duration of the previous batch of callers.
#[derive(Default)]
struct Last {
    jobs: usize,
    took: Duration,
}

/// Takes the jobs that are waiting; if there are none, and no sweep either, waits for one. It waits a
/// little for as many as last time: callers that were just answered are about to send their next job,
/// and without them every other commit would be small. A single caller does not have to wait, nor
/// does a sweep. Returns whether the thread must end.
fn gather(
    inbox: &Receiver<Message>,
    jobs: &mut Vec<Box<dyn Job>>,
    sweeps: &mut VecDeque<Box<dyn Job>>,
    last: &Last,
) -> bool {
    let mut until = None;
    while jobs.len() < BATCH_MAX {
        let next = match inbox.try_recv() {
            Err(TryRecvError::Empty) if jobs.is_empty() && sweeps.is_empty() => {
                inbox.recv_timeout(TICK)
            }
            Err(TryRecvError::Empty) if !jobs.is_empty() && jobs.len() < last.jobs => {
                let lull = || Instant::now() + (last.took / 4).min(LULL_MAX);
                let until = *until.get_or_insert_with(lull);
                inbox.recv_timeout(until.saturating_duration_since(Instant::now()))
            }
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => return true,
            Ok(message) => Ok(message),
        };
        match next {
            Ok(Message::Job(job)) => jobs.push(job),
            Ok(Message::Sweep(job)) => sweeps.push_back(job),
            Err(RecvTimeoutError::Timeout) => return false,
            Ok(Message::Quit) | Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
    false
}

/// Takes the jobs that are waiting. Returns whether the thread must end.
fn take_waiting(
    inbox: &Receiver<Message>,
    jobs: &mut Vec<Box<dyn Job>>,
    sweeps: &mut VecDeque<Box<dyn Job>>,
) -> bool {
    while jobs.len() < BATCH_MAX {
        match inbox.try_recv() {
            Ok(Message::Job(job)) => jobs.push(job),
            Ok(Message::Sweep(job)) => sweeps.push_back(job),
            Err(TryRecvError::Empty) => return false,
            Ok(Message::Quit) | Err(TryRecvError::Disconnected) => return true,
        }
    }
    false
}

/// Runs jobs, and then those that `more` adds, in one batch.
fn run_batch(
    disk: &Disk,
    callbacks: &dyn WriterCallbacks,
    mut jobs: Vec<Box<dyn Job>>,
    more: impl FnOnce(&mut Vec<Box<dyn Job>>),
) {
    let first = jobs.len();
    let work = |tx: &mut Tx| {
        jobs.iter_mut().try_for_each(|job| job.run(tx))?;
        more(&mut jobs);
        jobs[first..].iter_mut().try_for_each(|job| job.run(tx))
    };
    let outcome = match disk.has_room() {
        true => commit(disk, callbacks, work),
        false => Err((disk_full(&disk.name), None)),
    };
    if let Err((_, Some(why))) = outcome {
        callbacks.undone(why);
    }
    for job in jobs {
        job.finish(outcome.clone().map_err(|(error, _)| error));
    }
}

/// Commits one transaction. On an error, returns whether in-memory state must be read again.
fn commit(
    disk: &Disk,
    callbacks: &dyn WriterCallbacks,
    work: impl FnOnce(&mut Tx) -> Tried<()>,
) -> std::result::Result<(), (Error, Option<Undone>)> {
    let told = |fault: Fault| {
        let why = match fault {
            Fault::Disk(_) => Undone::DiskFailed,
            Fault::Full | Fault::Row(_) | Fault::Said(_) => Undone::BatchOnly,
        };
        (fault.told(&disk.name), Some(why))
    };
    let snapshot = disk.read().map_err(|error| (error, None))?;
    let mut tx = Tx::new(snapshot);
    work(&mut tx).and_then(|()| callbacks.stamp(&mut tx)).map_err(told)?;
    let (rows, effects) = tx.into_parts();
    disk.append(rows).map_err(told)?;
    callbacks.committed(effects.changed);
    effects.then.into_iter().for_each(|change| change());
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::sync_channel;

    use futures::FutureExt;

    use super::*;
    use crate::open_store::DiskOptions;

    /// Counts the batches of a writer, which stamps each of them once.
    #[derive(Default)]
    struct BatchCount(AtomicUsize);

    impl WriterCallbacks for BatchCount {
        fn stamp(&self, _: &mut Tx) -> Tried<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        fn committed(&self, _: Changed) {}
        fn tick(&self) -> Option<Chore<'_>> {
            None
        }
        fn undone(&self, _: Undone) {}
    }

    type Order = Arc<Mutex<Vec<&'static str>>>;

    fn noted(order: &Order, what: &'static str) -> impl FnOnce(&mut Tx) -> Tried<()> + use<> {
        let order = order.clone();
        move |_| {
            order.lock().unwrap().push(what);
            Ok(())
        }
    }

    /// The order in which jobs run that arrive while the writer works on `first`, and in how many batches all of them
    /// are. The names of sweeps begin with `s`.
    fn run_during(first: &str, jobs: &[&'static str]) -> (Vec<&'static str>, usize) {
        let bytes = |_| -> Box<dyn redb::StorageBackend> {
            Box::new(redb::backends::InMemoryBackend::new())
        };
        let options =
            DiskOptions { cache_bytes: 1 << 20, checkpoint_bytes: 1 << 20, new_log_id: 1 };
        let disk = Disk::in_memory(Box::new(bytes), options);
        disk.open(|_| Ok(())).unwrap();
        let batches = Arc::new(BatchCount::default());
        let callbacks: Arc<dyn WriterCallbacks> = batches.clone();
        let writer = Writer::threaded(Arc::new(disk), Arc::downgrade(&callbacks)).unwrap();
        let (begun, has_begun) = sync_channel::<()>(1);
        let (free, is_free) = sync_channel::<()>(1);
        let blocks = move |_: &mut Tx| {
            let _ = begun.send(());
            let _ = is_free.recv();
            Ok(())
        };
        // A job is sent when its call is polled for the first time.
        let mut first = match first.starts_with('s') {
            true => writer.sweep(blocks, |()| {}).boxed_local(),
            false => writer.write(blocks, |()| {}).boxed_local(),
        };
        assert!((&mut first).now_or_never().is_none());
        has_begun.recv().unwrap();
        let order = Order::default();
        let mut waiting = vec![first];
        for name in jobs {
            let job = noted(&order, name);
            let mut call = match name.starts_with('s') {
                true => writer.sweep(job, |()| {}).boxed_local(),
                false => writer.write(job, |()| {}).boxed_local(),
            };
            assert!((&mut call).now_or_never().is_none());
            waiting.push(call);
        }
        free.send(()).unwrap();
        futures::executor::block_on(futures::future::try_join_all(waiting)).unwrap();
        writer.quit();
        let order = order.lock().unwrap().clone();
        (order, batches.0.load(Ordering::Relaxed))
    }

    #[test]
    fn callers_come_before_the_next_batch_of_a_sweep() {
        let (order, batches) = run_during("first", &["s1", "s2", "a", "s3", "b"]);
        assert_eq!((&order[..], batches), (&["a", "b", "s1", "s2", "s3"][..], 5));
    }

    #[test]
    fn a_sweep_waits_for_one_batch_of_callers() {
        let callers = vec!["a"; BATCH_MAX];
        let (order, _) = run_during("first", &[&["s1"][..], &callers, &["b", "c"]].concat());
        let at = |name| order.iter().position(|ran| *ran == name).unwrap();
        assert_eq!((at("s1"), at("b")), (BATCH_MAX, BATCH_MAX + 1));
    }

    #[test]
    fn callers_who_arrive_while_a_sweep_works_share_its_commit() {
        let (order, batches) = run_during("s0", &["a", "s1", "b"]);
        assert_eq!((&order[..], batches), (&["a", "b", "s1"][..], 2));
    }
}
