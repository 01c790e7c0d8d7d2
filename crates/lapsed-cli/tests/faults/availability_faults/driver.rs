//! Providers that beat, toggle, fall silent, are deactivated and have sessions: 2,000 beats a second, and
//! everything else at random, spread over all daemons.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::client::Client;
use super::history::{Change, History};
use super::random::SeededRandom;
use super::sessions::Sessions;
use super::world::{STALE_SECONDS, World};

/// Groups of providers, each with one call per interval: more than 2,000 beats per second, since
/// some providers are silent at times.
const GROUPS: usize = 10;
const GROUP: usize = 60;
const BEAT_EVERY: Duration = Duration::from_millis(250);

/// How many change things at random, and how long each rests in between.
const MUTATORS: usize = 4;
const REST: Duration = Duration::from_millis(25);

/// How many ask who is available, and how often.
const READERS: usize = 2;
const LIST_EVERY: Duration = Duration::from_millis(100);

/// What a provider does besides beating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProviderBehaviour {
    /// Nothing: it must never be set offline.
    Steady,
    /// Goes online and offline at random.
    Flighty,
    /// Falls silent without a word, and comes back.
    Mortal,
    /// Is deactivated and activated at random.
    Suspended,
}

impl ProviderBehaviour {
    fn of(nth: usize) -> ProviderBehaviour {
        match nth % 10 {
            0..=4 => ProviderBehaviour::Steady,
            5 | 6 => ProviderBehaviour::Flighty,
            7 | 8 => ProviderBehaviour::Mortal,
            _ => ProviderBehaviour::Suspended,
        }
    }
}

struct Provider {
    id: String,
    habit: ProviderBehaviour,
    beats: AtomicBool,
}

/// All of them, and when to stop.
pub struct Driver {
    providers: Vec<Provider>,
    calm: AtomicBool,
    over: AtomicBool,
}

/// What runs; its history is what it is for.
pub struct Running<'scope> {
    driver: &'scope Driver,
    mutators: Vec<ScopedJoinHandle<'scope, History>>,
    others: Vec<ScopedJoinHandle<'scope, History>>,
    history: History,
}

impl Driver {
    pub fn new(world: &World) -> Driver {
        let provider = |nth: usize| Provider {
            id: format!("00000000-0000-4000-8000-{nth:012}"),
            habit: ProviderBehaviour::of(nth),
            beats: AtomicBool::new(true),
        };
        let providers: Vec<Provider> = (0..GROUPS * GROUP).map(provider).collect();
        let ids: Vec<String> = providers.iter().map(|one| one.id.clone()).collect();
        world.make_providers(&ids);
        Driver { providers, calm: AtomicBool::new(false), over: AtomicBool::new(false) }
    }

    /// Sets all providers online and starts the threads.
    pub fn start<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        world: &'scope World,
        seed: u64,
    ) -> Running<'scope> {
        let groups: Vec<_> =
            (0..GROUPS).map(|nth| scope.spawn(move || self.group(world, nth))).collect();
        let mutator = |nth| scope.spawn(move || self.mutate(world, nth, seed));
        let mutators = (0..MUTATORS).map(mutator).collect();
        let readers = (0..READERS).map(|nth| scope.spawn(move || self.read(world, nth)));
        let others = groups.into_iter().chain(readers).collect();
        Running { driver: self, mutators, others, history: History::default() }
    }

    /// Whether it beats (or would, if it were let).
    pub fn beats(&self, id: &str) -> bool {
        let found = self.providers.iter().find(|one| one.id == id);
        found.is_some_and(|one| one.beats.load(Ordering::SeqCst))
    }

    pub fn providers(&self) -> usize {
        self.providers.len()
    }

    /// The beats of one group, until all is over.
    fn group(&self, world: &World, nth: usize) -> History {
        let mut client = Client::new(world, nth);
        let own = &self.providers[nth * GROUP..(nth + 1) * GROUP];
        for one in own {
            client.change(&one.id, Change::Online);
        }
        while !self.over.load(Ordering::SeqCst) {
            let began = Instant::now();
            let beating = own.iter().filter(|one| one.beats.load(Ordering::SeqCst));
            let ids: Vec<String> = beating.map(|one| one.id.clone()).collect();
            let offline = client.beat(&ids);
            // As a real one would: told that it is not online, it says that it is.
            let start_long_lived = own.iter().filter(|one| one.habit == ProviderBehaviour::Steady);
            let told = start_long_lived.filter(|one| offline.contains(&one.id)).take(3);
            for one in told {
                client.change(&one.id, Change::Online);
            }
            rest(began + BEAT_EVERY);
        }
        client.history
    }

    fn read(&self, world: &World, nth: usize) -> History {
        let mut client = Client::new(world, nth);
        while !self.over.load(Ordering::SeqCst) {
            let began = Instant::now();
            client.list();
            let _ = client.call("GET", "beacon", None);
            let _ = client.call("GET", "count", None);
            rest(began + LIST_EVERY);
        }
        client.history
    }

    /// Everything else at random, until it is to be calm. Each provider is one mutator's own, so that what
    /// it is told comes in an order.
    fn mutate(&self, world: &World, nth: usize, seed: u64) -> History {
        let mut client = Client::new(world, nth);
        let mut random = SeededRandom::new(seed ^ (nth as u64) << 32);
        let mut sessions = Sessions::new(nth);
        let own: Vec<&Provider> = self.providers.iter().skip(nth).step_by(MUTATORS).collect();
        let mut silent: Vec<(&Provider, Instant)> = Vec::new();
        while !self.calm.load(Ordering::SeqCst) {
            let began = Instant::now();
            let one = *random.pick(&own);
            match one.habit {
                ProviderBehaviour::Steady => {
                    let other = &random.pick(&self.providers).id;
                    sessions.step(&mut client, &mut random, &one.id, other);
                }
                ProviderBehaviour::Flighty => {
                    let change = *random.pick(&[Change::Online, Change::Offline]);
                    client.change(&one.id, change);
                }
                ProviderBehaviour::Mortal if one.beats.swap(false, Ordering::SeqCst) => {
                    silent.push((one, Instant::now() + self.silence(&mut random)));
                }
                ProviderBehaviour::Mortal => {}
                ProviderBehaviour::Suspended => {
                    let change = *random.pick(&[Change::Activate, Change::Deactivate]);
                    if client.change(&one.id, change) && change == Change::Activate {
                        client.change(&one.id, Change::Online);
                    }
                }
            }
            silent.retain(|(one, until)| {
                let back = Instant::now() >= *until && client.change(&one.id, Change::Online);
                if back {
                    one.beats.store(true, Ordering::SeqCst);
                }
                !back
            });
            rest(began + REST);
        }
        sessions.tell(&mut client.history);
        client.history
    }

    /// Some come back before anybody noticed, some long after.
    fn silence(&self, random: &mut SeededRandom) -> Duration {
        Duration::from_millis(random.below(3_000 * STALE_SECONDS as usize) as u64)
    }
}

impl Running<'_> {
    /// Nothing is changed any more; those who beat go on.
    pub fn end_faults(&mut self) {
        self.driver.calm.store(true, Ordering::SeqCst);
        for one in self.mutators.drain(..) {
            self.history.merge(one.join().unwrap());
        }
    }

    /// Stops all threads and returns their history.
    pub fn end(mut self) -> History {
        self.end_faults();
        self.driver.over.store(true, Ordering::SeqCst);
        for one in std::mem::take(&mut self.others) {
            self.history.merge(one.join().unwrap());
        }
        std::mem::take(&mut self.history)
    }
}

/// A panic elsewhere ends the others, too: they are waited for.
impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.driver.calm.store(true, Ordering::SeqCst);
        self.driver.over.store(true, Ordering::SeqCst);
    }
}

fn rest(until: Instant) {
    thread::sleep(until.saturating_duration_since(Instant::now()));
}
