//! What the simulation has found, each as the shortest exercise that shows it: a disk that answers an
//! error to one sync, and what must be true of the store after it.

use std::sync::Arc;
use std::time::Duration;

use futures::executor::block_on;
use lapsed_core::clock::ManualClock;
use lapsed_core::owner::{Claim, Incarnation, OwnerStore};
use lapsed_core::receipt::Retention;
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::sweep::{
    Batch, BatchId, Cursor, PageRequest, PassMode, Suspect, Sweep, TidyLimits,
};
use lapsed_core::{Error, Name};
use lapsed_embedded::{Embedded, EmbeddedRegistry, Options};
use lapsed_sim::disk::{Disk, Keep, Lies, SyncFault};
use lapsed_sim::run::{RunPlan, run};
use lapsed_sim::scenario::Scenario;
use lapsed_sim::system::system_id;

const TTL_MS: u64 = 10_000;

struct Store {
    disk: Disk,
    clock: ManualClock,
    registry: Arc<EmbeddedRegistry>,
    _store: Embedded,
}

fn open(disk: Disk, clock: ManualClock) -> Store {
    let options = Options { clock: Arc::new(clock.clone()), ..Options::default() };
    let bytes = disk.clone();
    let store = Embedded::with_backend(options, move |file| bytes.handle(file))
        .expect("nothing fails here");
    let registry =
        store.registry(system_id(), Duration::from_millis(TTL_MS)).expect("nothing fails here");
    Store { disk, clock, registry, _store: store }
}

impl Store {
    fn new() -> Store {
        open(Disk::new(Lies::Never), ManualClock::at(1_000_000))
    }

    /// The power fails, and comes back.
    fn crashed(self) -> Store {
        self.disk.cut_power(Keep::Nothing);
        let (disk, clock) = (self.disk.clone(), self.clock.clone());
        drop(self);
        open(disk, clock)
    }

    fn wait(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    fn start(&self, owner: &str) -> Claim {
        let beat = block_on(self.registry.start(&name(owner), TTL_MS)).expect("nothing fails here");
        Claim::exact(name(owner), beat.incarnation)
    }

    fn hold(&self, claim: &Claim, keys: &[&str]) {
        let keys: Vec<Name> = keys.iter().map(|key| name(key)).collect();
        block_on(self.registry.register(claim, &keys, TakePolicy::Always))
            .expect("nothing fails here");
    }

    fn suspects(&self) -> Vec<Suspect> {
        let after = Cursor::default();
        let request = PageRequest { after, limit: 100, undeclared_max: None };
        block_on(self.registry.suspects(request)).expect("nothing fails here").suspects
    }

    fn reclaim(&self, number: u64) -> Result<u64, Error> {
        let id = BatchId { sweeper: Arc::from("s"), number };
        let suspects = self.suspects();
        let batch = Batch { id, suspects, act: PassMode::Reclaim, term: None };
        block_on(self.registry.reclaim(batch)).map(|answer| answer.outcomes.len() as u64)
    }

    fn fails(&self, keep: Keep) {
        self.disk.set_sync_fault(Some(SyncFault::Error(keep)));
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("nothing fails here")
}

#[test]
fn an_ended_owner_whose_reclaim_was_undone_is_listed_again() {
    let store = Store::new();
    let claim = store.start("a");
    store.hold(&claim, &["k1", "k2"]);
    store.wait(TTL_MS);
    store.fails(Keep::Nothing);
    assert!(store.reclaim(1).is_err());
    assert_eq!(store.suspects().len(), 2, "the next pass finds them");
    assert_eq!(store.reclaim(2).unwrap(), 2);
}

#[test]
fn an_end_that_was_answered_survives_a_restart() {
    for held in [&["k1"][..], &[]] {
        let store = Store::new();
        let claim = store.start("a");
        if !held.is_empty() {
            store.hold(&claim, held);
        }
        store.wait(TTL_MS);
        store.fails(Keep::Nothing);
        let limits = TidyLimits {
            rows: 10,
            undeclared_max: None,
            retention: Retention::default(),
            term: None,
        };
        let failed = match held.is_empty() {
            true => block_on(store.registry.tidy(limits)).is_err(),
            false => store.reclaim(1).is_err(),
        };
        assert!(failed);
        assert!(matches!(block_on(store.registry.beat(&claim)), Err(Error::Lost(_))));
        let store = store.crashed();
        assert!(matches!(block_on(store.registry.beat(&claim)), Err(Error::Lost(_))), "{held:?}");
    }
}

#[test]
fn a_start_whose_failed_commit_reached_the_disk_is_live() {
    let store = Store::new();
    store.fails(Keep::Everything);
    assert!(block_on(store.registry.start(&name("a"), TTL_MS)).is_err());
    let beat = block_on(store.registry.beat(&Claim::newest(name("a")))).unwrap();
    assert_eq!(beat.incarnation, Incarnation(1));
    assert_eq!(block_on(store.registry.census()).unwrap().owners_live, 1);
}

#[test]
fn an_undone_start_does_not_hide_the_previous_incarnation() {
    let store = Store::new();
    let first = store.start("a");
    store.fails(Keep::Nothing);
    assert!(block_on(store.registry.start(&name("a"), TTL_MS)).is_err());
    let beat = block_on(store.registry.beat(&Claim::newest(name("a")))).unwrap();
    assert_eq!(Some(beat.incarnation), first.incarnation);
}

#[test]
fn recent_deaths_are_counted_right_after_a_restart() {
    let store = Store::new();
    let early = store.start("early");
    store.wait(1_000);
    let late = store.start("late");
    store.hold(&late, &["k2"]);
    store.hold(&early, &["k1"]);
    store.wait(TTL_MS / 2);
    block_on(store.registry.beat(&early)).unwrap();
    store.wait(TTL_MS / 2);
    assert_eq!(store.reclaim(1).unwrap(), 1, "the one started last dies first");
    store.wait(TTL_MS - 100);
    assert_eq!(store.reclaim(2).unwrap(), 1);
    let store = store.crashed();
    store.wait(200);
    assert_eq!(block_on(store.registry.census()).unwrap().owners_died_recently, 1);
}

/// A disk error came between the end of an owner in memory and its write: the owner had ended, and the census went
/// on counting it as live. It takes a disk that fails within a batch, so the seed that found it tells the story.
#[test]
fn the_census_counts_an_end_whose_write_failed() {
    let scenario = Scenario::named("everything").expect("it exists");
    let done = run(RunPlan { scenario, ..RunPlan::of_seed(1_008_479) });
    done.unwrap_or_else(|failure| panic!("{failure}"));
}
