//! One actor process of `lapsed demo --serve`. It runs until a line on stdin asks it to leave, or until its parent
//! process ends. The parent prints what an actor writes to stdout, after the name of the actor.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use lapsed_core::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use ureq::http::Method;

use super::super::api::{Api, DemoAnswer};
use super::super::owner::listen;
use crate::args::DemoPlayer;
use crate::kinds::kind_of_role;
use lapsed_server::failure::Failure;
use lapsed_server::print;

/// Time between two steps of an actor: several steps fit into a TTL.
const TICK: Duration = Duration::from_millis(800);

/// The line that an actor prints once it has started; the parent does not show it.
pub const READY: &str = "ready";

/// The line that an actor prints when the daemon answers that it was declared dead.
const TOLD: &str = "is told that it was declared dead; it begins a new incarnation";

/// What the processes of one role do.
pub trait DemoActor {
    /// Starts a new incarnation; called again after the actor was declared dead.
    fn enter(&mut self, client: &ActorClient) -> Result<(), Failure>;
    /// Sends a heartbeat and does one step of work; false if the daemon has declared the actor dead.
    fn tick(&mut self, client: &ActorClient) -> Result<bool, Failure>;
    fn leave(&mut self, client: &ActorClient) -> Result<(), Failure>;
}

/// Runs the actor to its end. The reason of a failure is also printed on stdout, for the parent to show.
pub fn run(args: &DemoPlayer) -> Result<(), Failure> {
    let lived = live(args, &ActorClient::new(args));
    if let Err(failure) = &lived {
        print::line(&format!("has to stop: {failure}"))?;
    }
    lived
}

fn live(args: &DemoPlayer, client: &ActorClient) -> Result<(), Failure> {
    let told = listen();
    let kind = kind_of_role(&args.role)
        .ok_or_else(|| Failure::usage(format!("there is no role {:?}", args.role)))?;
    let mut actor = (kind.actor)();
    actor.enter(client)?;
    print::line(READY)?;
    loop {
        match told.recv_timeout(TICK) {
            Ok(()) => return actor.leave(client),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if !actor.tick(client)? {
            print::line(TOLD)?;
            actor.enter(client)?;
        }
    }
}

/// The HTTP calls of one actor, with its name and a source of random numbers.
pub struct ActorClient {
    pub api: Api,
    pub name: String,
    clock: SystemClock,
}

impl ActorClient {
    fn new(args: &DemoPlayer) -> ActorClient {
        let api = Api::new(&args.url, args.token.as_deref());
        ActorClient { api, name: args.name.clone(), clock: SystemClock::new() }
    }

    /// True with a probability of 1 in `chances`.
    pub fn one_in(&self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    pub fn below(&self, end: u64) -> u64 {
        self.clock.random() % end.max(1)
    }

    pub fn post(&self, system: &str, operation: &str, body: Value) -> Result<DemoAnswer, Failure> {
        self.api.send(Method::POST, &format!("{system}/{operation}"), body)
    }

    /// Starts a new incarnation in a system that has owners; its number.
    pub fn start(&self, system: &str) -> Result<u64, Failure> {
        let begun = self.post(system, "start", json!({ "owner": self.name }))?.expect()?;
        begun["incarnation"].as_u64().ok_or_else(|| Failure::failed("a start without a number"))
    }

    /// Sends a heartbeat; false if the incarnation has ended.
    pub fn beat(&self, system: &str, incarnation: u64) -> Result<bool, Failure> {
        let answer = self.post(system, "beat", self.claim(incarnation))?;
        if answer.is_lost() {
            return Ok(false);
        }
        answer.expect().map(|_| true)
    }

    pub fn retire(&self, system: &str, incarnation: u64) -> Result<(), Failure> {
        self.post(system, "retire", self.claim(incarnation))?.expect().map(|_| ())
    }

    pub fn claim(&self, incarnation: u64) -> Value {
        json!({ "owner": self.name, "incarnation": incarnation })
    }
}
