//! Servers and daemons break while four daemons take 2,000 beats a second and everything else at random.
//! Afterwards both stores agree, and everything that was answered holds.
//!
//! Each fault is a test with a world of its own. It lasts `LAPSED_FAULT_SECONDS`; `make faults` has a minute
//! of each. Nothing here depends on how fast the machine is: bounds are checked against what was recorded.

mod checker;
mod client;
mod driver;
mod faults;
mod history;
mod observed;
mod planted_faults;
pub mod random;
mod sessions;
mod world;

use std::thread;
use std::time::{Duration, Instant};

use lapsed_testbed::Persistence;

use checker::{Complaint, check_history, check_stores, describe};
use driver::Driver;
use observed::{Observed, observe};
use world::{QUICK, STALE_SECONDS, World};

/// Reached only when something is wrong, on however slow a machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// How many daemons there are.
const DAEMONS: usize = 4;

/// Waits until `done` returns a value, with long pauses to leave the processor to the daemons.
fn until_done<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = done() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident($persistence:ident);)*) => {
        $($(#[$doc])* #[test]
        fn $name() {
            story(stringify!($name), Persistence::$persistence, faults::$name);
        })*
    };
}

faults! {
    /// Killed; what it had written down is there when it is back.
    valkey_killed(Aof);
    valkey_frozen(None);
    valkey_flushed(None);
    /// Killed and empty when it is back, at once.
    valkey_restarted(None);
    valkey_out_of_memory(None);
    postgres_killed(None);
    postgres_restarted(None);
    postgres_fails_commits(None);
    postgres_loses_backends(None);
    postgres_slow(None);
    postgres_frozen(None);
    both_killed(None);
    daemons(None);
}

/// Traffic, a fault in the middle of it, calm, and the reckoning.
fn story(name: &str, persistence: Persistence, fault: fn(&World) -> Vec<u64>) {
    let world = World::new(DAEMONS, persistence, QUICK);
    let driver = Driver::new(&world);
    let seed = history::now_us();
    let (observed, mut history) = thread::scope(|scope| {
        let mut running = driver.start(scope, &world, seed);
        until_done("everybody to be online", || {
            let online =
                world.sql("SELECT count(*) FROM mitra_online_logs WHERE status = 'online'");
            (online.parse::<usize>().unwrap() >= driver.providers()).then_some(())
        });
        let heals = fault(&world);
        running.end_faults();
        let observed = settle(name, &world, &driver);
        let mut history = running.end();
        history.heals_us = heals;
        (observed, history)
    });
    history.listings.sort_by_key(|listing| listing.span.sent_us);
    let complaints = check_history(&observed, &history, STALE_SECONDS);
    let reclaimed = observed.truth.receipts.len();
    eprintln!("{name}: {}; {reclaimed} set offline by sweeps; seed {seed}", history.summary());
    report(name, &world, &complaints);
}

/// Waits until silent providers are offline and both stores agree on every provider.
fn settle(name: &str, world: &World, driver: &Driver) -> Observed {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let observed = observe(world);
        let silent = |row: &&observed::Row| row.online && !driver.beats(&row.id);
        let silent = observed.truth.providers.iter().filter(silent).count();
        let complaints = check_stores(&observed);
        if complaints.is_empty() && silent == 0 && agree(world) == Some(true) {
            return observed;
        }
        if Instant::now() >= deadline {
            report(name, world, &complaints);
            panic!("{name}: {silent} silent providers were never set offline\n{}", world.logs());
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// What the command itself says; `None`: it could not look at everything, on a machine that stood still.
fn agree(world: &World) -> Option<bool> {
    let said = world.run(&["reconcile", world::SYSTEM, "--dry-run", "--json"]);
    let report = said.json();
    (said.code == 0).then(|| report["agree"] == true)
}

fn report(name: &str, world: &World, complaints: &[Complaint]) {
    if complaints.is_empty() {
        return;
    }
    let (count, shown) = (complaints.len(), describe(complaints));
    panic!("{name}: {count} complaints\n{shown}\n{}", world.logs());
}
