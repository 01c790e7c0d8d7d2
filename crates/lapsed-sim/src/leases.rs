//! Leases on an object store: holders, deciders and sweepers in processes that are frozen and killed,
//! on a bucket whose answers come late or never, under a virtual clock, from one seed.
//!
//! Read in this order: [`executor`](crate::executor) (one step at a time, in the order of the seed), [`bucket`] (what an
//! S3 server does and does not promise), [`actors`] (who does what), [`check`] (what must be true in the
//! end), [`bug`] (what all of this must find).

pub mod actors;
pub mod bucket;
pub mod bug;
pub mod check;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::clock::Clock;
use lapsed_core::{Kind, SystemId};
use lapsed_object::{LeasesLayout, ObjectConfig, ObjectStore};

use crate::executor::{Executor, ProcessClock, World};
use crate::leases::actors::{Actor, LeaseLog, TTL};
use crate::leases::bucket::{BucketFaults, SimBucket};
use crate::leases::bug::LeaseBug;
use crate::leases::check::{LeaseEnd, ended};
use crate::promise::{Broken, BrokenPromise, Promise};

/// The name of this simulation for `--scenario`.
pub const SCENARIO: &str = "leases";

/// The width of a bucket of the expiry index.
const WIDTH: Duration = Duration::from_secs(5);

/// How long a key is kept that nobody uses: shorter than some processes stand still.
const FORGET_AFTER: Duration = Duration::from_secs(2);

/// How long the phase with faults lasts.
const FAULTS_FOR: Duration = Duration::from_secs(150);

/// A run in which no promise was broken.
#[derive(Clone, Debug)]
pub struct LeaseRunReport {
    /// How often each kind of event happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// A hash of its trace, and how many lines it has.
    pub digest: (u64, u64),
}

pub fn run(
    seed: u64,
    bug: Option<LeaseBug>,
    printed: bool,
) -> Result<LeaseRunReport, Box<BrokenPromise>> {
    let world = World::new(seed, printed);
    let context = LeaseContext {
        bucket: SimBucket::new(&world, bug),
        log: Arc::default(),
        world: world.clone(),
        bug,
    };
    let mut executor = Executor::new(&world);
    context.inject_faults(&mut executor);
    let judged = context
        .settle_and_judge(&mut executor)
        .and_then(|end| check::check(&context.log.lock(), &end));
    match judged {
        Ok(()) => {
            let counts = context.log.lock().counts.clone();
            Ok(LeaseRunReport { counts, digest: world.trace().digest() })
        }
        Err(broken) => {
            let (at_ms, tail) = (world.now().as_millis() as u64, world.trace().tail());
            Err(Box::new(BrokenPromise { seed, scenario: SCENARIO, at_ms, broken, tail }))
        }
    }
}

/// The stores, the log and the world of one run.
struct LeaseContext {
    world: Arc<World>,
    bucket: Arc<SimBucket>,
    log: Arc<LeaseLog>,
    bug: Option<LeaseBug>,
}

impl LeaseContext {
    /// A process that has just begun: nothing in its caches, and a wall clock that may be off.
    fn actor(&self, number: usize) -> Actor {
        let off_ms = self.world.random.between(0, 20_000) as i64 - 10_000;
        let clock = ProcessClock::shared(&self.world, off_ms);
        let store = self.open(number, clock.clone());
        let id = SystemId::new(Kind::Leases, "locks").expect("it is well-formed");
        let forget_after = Some(FORGET_AFTER);
        let layout = LeasesLayout { bucket: WIDTH, forget_after, ..LeasesLayout::default() };
        let leases = store.leases(id, layout).expect("the layout is a good one");
        Actor {
            world: self.world.clone(),
            log: self.log.clone(),
            who: format!("p{number}"),
            clock,
            leases,
            store,
            bug: self.bug,
        }
    }

    /// Opens a client for one process.
    fn open(&self, number: usize, clock: Arc<dyn Clock>) -> Arc<ObjectStore> {
        let text = |text: &str| Some(text.to_owned());
        let config = ObjectConfig {
            endpoint: text("http://s3.test"),
            region: text("r"),
            access_key_id: text("k"),
            secret_access_key: text("s"),
            allow_http: true,
            requests_per_hour: 10_000_000,
            ..ObjectConfig::new("sim", "s3://bucket")
        };
        let line = Arc::new(self.bucket.line(&format!("p{number}")));
        ObjectStore::open_over(config, clock, line).expect("the configuration is a good one")
    }

    fn begin(&self) -> usize {
        let number = self.world.new_process();
        let actor = self.actor(number);
        self.world.spawn(number, actor.clone().hold());
        self.world.spawn(number, actor.clone().hold());
        self.world.spawn(number, actor.clone().decide());
        self.world.spawn(number, actor.sweep());
        number
    }

    /// Injects faults into daemons, stores and connections until the phase with faults ends.
    fn inject_faults(&self, executor: &mut Executor) {
        let random = &self.world.random;
        let mut processes: Vec<usize> = (0..3).map(|_| self.begin()).collect();
        while self.world.now() < FAULTS_FOR {
            self.bucket.set_faults(match random.between(0, 3) {
                0 => BucketFaults::default(),
                1 => BucketFaults { lost: 0.02, unanswered: 0.05, overloaded: 0.02 },
                2 => BucketFaults { lost: 0.0, unanswered: 0.2, overloaded: 0.0 },
                _ => BucketFaults { lost: 0.1, unanswered: 0.1, overloaded: 0.1 },
            });
            let which = random.between(0, processes.len() as u64 - 1) as usize;
            match random.between(0, 3) {
                0 => {
                    self.world.note("chaos", format_args!("p{} is killed", processes[which]));
                    self.world.kill(processes[which]);
                    processes[which] = self.begin();
                    self.log.count("killed");
                }
                1 => {
                    self.world.note("chaos", format_args!("p{} stands still", processes[which]));
                    self.world.freeze(processes[which]);
                    self.log.count("frozen");
                }
                _ => processes.iter().for_each(|process| self.world.thaw(*process)),
            }
            let until = self.world.now() + Duration::from_millis(random.between(1_000, 15_000));
            executor.run(until);
        }
        // Kills all processes: what they had started is never finished.
        processes.iter().for_each(|process| self.world.kill(*process));
        executor.run(self.world.now());
    }

    /// Ends all faults, sweeps expired leases and checks the final state.
    fn settle_and_judge(&self, executor: &mut Executor) -> Result<LeaseEnd, Broken> {
        self.bucket.set_faults(BucketFaults::default());
        let number = self.world.new_process();
        let (actor, end) = (self.actor(number), Arc::new(std::sync::Mutex::new(None)));
        let told = end.clone();
        self.world.spawn(number, async move {
            actor.clock.sleep(TTL * 4 + WIDTH * 4 + Duration::from_secs(60)).await;
            let ended = ended(&actor).await;
            *told.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(ended);
        });
        executor.run(self.world.now() + Duration::from_secs(7_200));
        let end = end.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let stuck = || Err(Broken::new(Promise::P2, "two hours were not enough to tidy up"));
        end.unwrap_or_else(stuck)
    }
}
