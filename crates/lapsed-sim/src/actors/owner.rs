//! Owners: half use the library's `Owner` handle, half send beats themselves. After their end some
//! go on as zombies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapsed_core::clock::{Clock, jittered, within};
use lapsed_core::owner::{Claim, Owner, OwnerOptions, OwnerStore};
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::{Error, Name, Result};

use crate::bug::Bug;
use crate::bug::clock::{BuggyClock, ClockBug};
use crate::clock::ProcessTime;
use crate::remote::SimRemote;
use crate::run_context::{OwnerProcess, RunContext, THRESHOLD_MS};

/// How long an owner waits for one answer.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// Starts a new process that registers entries under `name`.
pub fn join(context: &Arc<RunContext>, name: &Name) {
    let process = context.process(&context.new_name(name.as_str()));
    let leaving = Arc::new(AtomicBool::new(false));
    let actor = Actor {
        remote: context.remote(&process),
        clock: context.clock(&process),
        context: context.clone(),
        process: process.clone(),
        leaving: leaving.clone(),
        name: name.clone(),
        ttl_ms: context.world.random.between(4_000, THRESHOLD_MS),
        beats_late: context.world.random.odds(context.beats_late()),
        held: Vec::new(),
    };
    let by_hand = context.world.random.odds(0.5);
    let task = match by_hand {
        true => context.world.spawn(actor.run_by_hand()),
        false => context.world.spawn(actor.run_with_handle()),
    };
    context.owners().push(OwnerProcess { name: name.clone(), process, leaving, task });
}

struct Actor {
    context: Arc<RunContext>,
    process: Arc<ProcessTime>,
    remote: Arc<SimRemote>,
    clock: Arc<dyn Clock>,
    leaving: Arc<AtomicBool>,
    name: Name,
    ttl_ms: u64,
    /// Whether it sends its beats shortly before the deadline, and sometimes just after it.
    beats_late: bool,
    /// The keys that it believes to hold.
    held: Vec<Name>,
}

/// How an incarnation ended for its process.
enum Exit {
    Lost,
    Left,
}

/// What the store's answer means for the owner.
#[derive(PartialEq, Eq)]
enum StoreAnswer {
    /// The call succeeded, failed or had no answer: the owner goes on.
    Fine,
    /// The store answered `Lost`.
    Lost,
}

impl Actor {
    async fn run_by_hand(mut self) {
        while let Some(claim) = self.start().await {
            self.reassert(&claim).await;
            match self.live(&claim).await {
                Exit::Left => return,
                Exit::Lost => self.act_as_zombie(&claim).await,
            }
            if self.context.world.random.odds(0.3) {
                return;
            }
        }
    }

    /// An incarnation by hand, or nothing once it is quiet.
    async fn start(&self) -> Option<Claim> {
        while !self.context.is_quiet() {
            let started = self.remote.start(&self.name, self.ttl_ms);
            match within(&*self.clock, PATIENCE, started).await {
                Some(Ok(beat)) => return Some(Claim::exact(self.name.clone(), beat.incarnation)),
                _ => self.pause(self.ttl_ms / 4).await,
            }
        }
        None
    }

    async fn live(&mut self, claim: &Claim) -> Exit {
        loop {
            let beats_late = self.beats_late && !self.context.is_quiet();
            self.pause(if beats_late { self.ttl_ms * 9 / 10 } else { self.ttl_ms / 3 }).await;
            if self.leaves(claim).await {
                return Exit::Left;
            }
            let beat = within(&*self.clock, PATIENCE, self.remote.beat(claim)).await;
            if matches!(beat, Some(Err(Error::Lost(_)))) {
                return Exit::Lost;
            }
            if self.do_something(claim).await == StoreAnswer::Lost {
                return Exit::Lost;
            }
        }
    }

    async fn run_with_handle(mut self) {
        loop {
            if self.context.is_quiet() {
                return;
            }
            let Ok(owner) = self.start_handle().await else {
                self.pause(self.ttl_ms / 4).await;
                continue;
            };
            let owner = Arc::new(owner);
            let number = owner.incarnation().0;
            self.context.world.sim().handles.insert(number, Arc::downgrade(&owner));
            let claim = owner.claim().clone();
            self.reassert(&claim).await;
            match self.live_with_handle(&owner).await {
                Exit::Left => return,
                Exit::Lost => self.act_as_zombie(&claim).await,
            }
            if self.context.world.random.odds(0.3) {
                return;
            }
        }
    }

    async fn start_handle(&self) -> Result<Owner> {
        let options = OwnerOptions {
            timeout: PATIENCE,
            ..OwnerOptions::with_ttl(Duration::from_millis(self.ttl_ms))
        };
        let clock = match self.context.world.bug() {
            Some(Bug::HandleTrustsMonotonicAlone) => {
                BuggyClock::shared(self.clock.clone(), ClockBug::MonotonicAlone)
            }
            _ => self.clock.clone(),
        };
        Owner::start(self.remote.clone(), clock, self.name.as_str(), options).await
    }

    async fn live_with_handle(&mut self, owner: &Arc<Owner>) -> Exit {
        loop {
            let pause = jittered(&*self.clock, Duration::from_millis(self.ttl_ms / 3), 0.3);
            if within(&*self.clock, pause, owner.lost()).await.is_some() {
                return Exit::Lost;
            }
            if self.leaves(owner.claim()).await {
                return Exit::Left;
            }
            if owner.is_live() && self.do_something(owner.claim()).await == StoreAnswer::Lost {
                return Exit::Lost;
            }
        }
    }

    /// Ends the incarnation if it was asked to leave. Its entries are left to the sweepers.
    async fn leaves(&self, claim: &Claim) -> bool {
        if !self.leaving.load(Ordering::Relaxed) {
            return false;
        }
        for _ in 0..3 {
            match within(&*self.clock, PATIENCE, self.remote.end(claim)).await {
                Some(Ok(_) | Err(Error::Lost(_))) => return true,
                _ => self.pause(500).await,
            }
        }
        true
    }

    /// Registers or unregisters keys at random.
    async fn do_something(&mut self, claim: &Claim) -> StoreAnswer {
        if self.context.is_quiet() {
            return StoreAnswer::Fine;
        }
        let random = self.context.world.random.clone();
        let newest = Claim::newest(self.name.clone());
        let claim = if random.odds(0.05) { &newest } else { claim };
        match random.between(0, 9) {
            0..=4 => {
                let keys = self.context.keys(4);
                let take = if random.odds(0.7) { TakePolicy::Always } else { TakePolicy::IfFree };
                self.held.extend(keys.iter().cloned());
                let asked = self.remote.register(claim, &keys, take);
                told(within(&*self.clock, PATIENCE, asked).await)
            }
            5 | 6 if !self.held.is_empty() => {
                let count = self.held.len().min(2);
                let keys: Vec<Name> = self.held.drain(..count).collect();
                let asked = self.remote.unregister(claim, &keys);
                told(within(&*self.clock, PATIENCE, asked).await)
            }
            _ => StoreAnswer::Fine,
        }
    }

    /// A new incarnation registers the keys that the previous one held, unless another owner has
    /// them.
    async fn reassert(&mut self, claim: &Claim) {
        self.held.sort();
        self.held.dedup();
        self.held.truncate(12);
        if !self.held.is_empty() {
            let asked = self.remote.register(claim, &self.held, TakePolicy::IfFree);
            let _ = within(&*self.clock, PATIENCE, asked).await;
        }
    }

    /// Sends calls of an ended incarnation; the store must refuse all of them.
    async fn act_as_zombie(&self, claim: &Claim) {
        for _ in 0..self.context.world.random.between(0, 3) {
            let keys = self.context.keys(2);
            match self.context.world.random.between(0, 3) {
                0 => drop(within(&*self.clock, PATIENCE, self.remote.beat(claim)).await),
                1 => {
                    let asked = self.remote.register(claim, &keys, TakePolicy::Always);
                    let _ = within(&*self.clock, PATIENCE, asked).await;
                }
                2 => {
                    let asked = self.remote.unregister(claim, &keys);
                    let _ = within(&*self.clock, PATIENCE, asked).await;
                }
                _ => drop(within(&*self.clock, PATIENCE, self.remote.end(claim)).await),
            }
            self.pause(300).await;
        }
    }

    async fn pause(&self, span_ms: u64) {
        let pause = jittered(&*self.clock, Duration::from_millis(span_ms.max(1)), 0.2);
        self.clock.sleep(pause).await;
        self.process.running().await;
    }
}

fn told<T>(answer: Option<Result<T>>) -> StoreAnswer {
    match answer {
        Some(Err(Error::Lost(_))) => StoreAnswer::Lost,
        _ => StoreAnswer::Fine,
    }
}
