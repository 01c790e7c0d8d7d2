//! Runs futures one step at a time, in an order that the seed chooses. The clock moves only when no
//! future is ready.
//!
//! Every future belongs to a process. A process can be frozen (its futures are not polled, while the
//! clock runs on) and killed (they are dropped wherever they stand), which is all that SIGSTOP and
//! SIGKILL do.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed_core::clock::Clock;

use crate::random::SimRandom;
use crate::trace::Trace;

/// The true wall clock time at which a run begins.
pub const START_MS: u64 = 1_700_000_000_000;

/// The number of a process.
pub type Process = usize;

type Work = BoxFuture<'static, ()>;

/// What the futures of a run share.
pub struct World {
    /// The source of all randomness in the run.
    pub random: SimRandom,
    state: Mutex<State>,
    trace: Mutex<Trace>,
}

#[derive(Default)]
struct State {
    now: Duration,
    timers: BTreeMap<(Duration, u64), Waker>,
    timers_made: u64,
    frozen: BTreeSet<Process>,
    killed: BTreeSet<Process>,
    /// Whether a process was killed whose futures were not dropped yet.
    has_kills: bool,
    spawned: Vec<(Process, Work)>,
    next_process: Process,
}

impl World {
    pub fn new(seed: u64, printed: bool) -> Arc<World> {
        let (random, trace) = (SimRandom::new(seed), Mutex::new(Trace::new(printed)));
        Arc::new(World { random, state: Mutex::default(), trace })
    }

    /// Adds a line to the trace.
    pub fn note(&self, who: &str, what: std::fmt::Arguments<'_>) {
        let at_ms = self.now().as_millis() as u64;
        self.trace().note(at_ms, who, what);
    }

    /// Locks the trace of the run.
    pub fn trace(&self) -> MutexGuard<'_, Trace> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the run has lasted.
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    pub fn now_ms(&self) -> u64 {
        START_MS + self.now().as_millis() as u64
    }

    /// Allocates a new process number.
    pub fn new_process(&self) -> Process {
        let mut state = self.lock();
        state.next_process += 1;
        state.next_process
    }

    /// Spawns a future that belongs to `process`.
    pub fn spawn(&self, process: Process, work: impl Future<Output = ()> + Send + 'static) {
        self.lock().spawned.push((process, Box::pin(work)));
    }

    /// Stops polling the futures of `process` until it is thawed.
    pub fn freeze(&self, process: Process) {
        self.lock().frozen.insert(process);
    }

    pub fn thaw(&self, process: Process) {
        self.lock().frozen.remove(&process);
    }

    /// Drops all futures of `process`, now and in future.
    pub fn kill(&self, process: Process) {
        let mut state = self.lock();
        state.killed.insert(process);
        state.has_kills = true;
    }

    /// Resolves when the true clock has moved on by `span`.
    pub fn sleep(self: &Arc<Self>, span: Duration) -> BoxFuture<'static, ()> {
        let timer = Timer { world: self.clone(), until: self.now() + span, place: None };
        Box::pin(timer)
    }
}

struct Timer {
    world: Arc<World>,
    until: Duration,
    place: Option<(Duration, u64)>,
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let world = self.world.clone();
        let mut state = world.lock();
        if state.now >= self.until {
            return Poll::Ready(());
        }
        let place = self.place.unwrap_or_else(|| {
            state.timers_made += 1;
            (self.until, state.timers_made)
        });
        state.timers.insert(place, context.waker().clone());
        drop(state);
        self.place = Some(place);
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.world.lock().timers.remove(&place);
        }
    }
}

/// The clock of one process: true monotonic time, and a wall clock with an offset.
pub struct ProcessClock {
    world: Arc<World>,
    wall_off_ms: i64,
}

impl ProcessClock {
    /// A clock whose wall time is ahead by `wall_off_ms`.
    pub fn shared(world: &Arc<World>, wall_off_ms: i64) -> Arc<dyn Clock> {
        Arc::new(ProcessClock { world: world.clone(), wall_off_ms })
    }
}

impl Clock for ProcessClock {
    fn wall_ms(&self) -> u64 {
        self.world.now_ms().saturating_add_signed(self.wall_off_ms)
    }

    fn mono(&self) -> Duration {
        self.world.now()
    }

    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        self.world.sleep(span)
    }

    fn random(&self) -> u64 {
        self.world.random.any()
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

struct Task {
    process: Process,
    work: Work,
    flag: Arc<Flag>,
}

pub struct Executor {
    world: Arc<World>,
    tasks: Vec<Task>,
    /// The places of the tasks that can be polled; kept only for its memory.
    ready: Vec<usize>,
}

impl Executor {
    /// An executor without tasks.
    pub fn new(world: &Arc<World>) -> Executor {
        Executor { world: world.clone(), tasks: Vec::new(), ready: Vec::new() }
    }

    /// Runs all tasks until the clock reaches `until`, or no task and no timer is left.
    pub fn run(&mut self, until: Duration) {
        loop {
            self.admit();
            find_ready(&self.world, &self.tasks, &mut self.ready);
            let Some(which) = self.world.random.pick(&self.ready).copied() else {
                match advance(&self.world, until) {
                    true => continue,
                    false => return,
                }
            };
            let task = &mut self.tasks[which];
            task.flag.0.store(false, Ordering::Release);
            let waker = Waker::from(task.flag.clone());
            if task.work.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.tasks.swap_remove(which);
            }
        }
    }

    /// Adds spawned futures and drops those of killed processes.
    fn admit(&mut self) {
        let (spawned, killed) = {
            let mut state = self.world.lock();
            if state.spawned.is_empty() && !state.has_kills {
                return;
            }
            state.has_kills = false;
            (std::mem::take(&mut state.spawned), state.killed.clone())
        };
        for (process, work) in spawned {
            let flag = Arc::new(Flag(AtomicBool::new(true)));
            self.tasks.push(Task { process, work, flag });
        }
        self.tasks.retain(|task| !killed.contains(&task.process));
    }
}

fn find_ready(world: &World, tasks: &[Task], ready: &mut Vec<usize>) {
    ready.clear();
    let frozen = &world.lock().frozen;
    for (place, task) in tasks.iter().enumerate() {
        if task.flag.0.load(Ordering::Acquire) && !frozen.contains(&task.process) {
            ready.push(place);
        }
    }
}

/// Moves the clock to the next timer; false when there is none before `until`.
fn advance(world: &World, until: Duration) -> bool {
    let mut state = world.lock();
    let Some((next, _)) = state.timers.keys().next().copied() else { return false };
    if next > until {
        state.now = until;
        return false;
    }
    state.now = state.now.max(next);
    let due: Vec<_> = state.timers.range(..=(next, u64::MAX)).map(|(place, _)| *place).collect();
    let wakers: Vec<Waker> = due.iter().filter_map(|place| state.timers.remove(place)).collect();
    drop(state);
    wakers.into_iter().for_each(Waker::wake);
    true
}
