//! One process of the show. Lives until it is told to leave, or whoever started it is gone. What it
//! says on stdout is told to the audience after its name.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use lapsed_core::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use ureq::http::Method;

use super::super::api::{Api, DemoAnswer};
use super::super::owner::listen;
use crate::args::DemoPlayer;
use crate::kinds::playing;
use lapsed_server::failure::Failure;
use lapsed_server::print;

/// How often it does something: several times within its TTL.
const TICK: Duration = Duration::from_millis(800);

/// What it says when it is there; this alone is not told.
pub const READY: &str = "ready";

/// What it says when it was told that it is no longer what it believed to be.
const TOLD: &str = "is told that it was declared dead; it begins a new life";

/// What a role does.
pub trait DemoActor {
    /// Begins, also after it was lost.
    fn enter(&mut self, desk: &ActorClient) -> Result<(), Failure>;
    /// Beats, and does its work; whether it is still what it believes to be.
    fn tick(&mut self, desk: &ActorClient) -> Result<bool, Failure>;
    fn leave(&mut self, desk: &ActorClient) -> Result<(), Failure>;
}

/// Lives. Why it could not go on is told, too.
pub fn run(args: &DemoPlayer) -> Result<(), Failure> {
    let lived = live(args, &ActorClient::new(args));
    if let Err(failure) = &lived {
        print::line(&format!("has to stop: {failure}"))?;
    }
    lived
}

fn live(args: &DemoPlayer, desk: &ActorClient) -> Result<(), Failure> {
    let told = listen();
    let kind = playing(&args.role)
        .ok_or_else(|| Failure::usage(format!("nobody plays {:?}", args.role)))?;
    let mut part = (kind.actor)();
    part.enter(desk)?;
    print::line(READY)?;
    loop {
        match told.recv_timeout(TICK) {
            Ok(()) => return part.leave(desk),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if !part.tick(desk)? {
            print::line(TOLD)?;
            part.enter(desk)?;
        }
    }
}

/// The daemon, as one player asks it.
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

    /// Of so many chances one.
    pub fn one_in(&self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    pub fn below(&self, end: u64) -> u64 {
        self.clock.random() % end.max(1)
    }

    pub fn post(&self, system: &str, operation: &str, body: Value) -> Result<DemoAnswer, Failure> {
        self.api.send(Method::POST, &format!("{system}/{operation}"), body)
    }

    /// A new life in a system that has owners.
    pub fn start(&self, system: &str) -> Result<u64, Failure> {
        let begun = self.post(system, "start", json!({ "owner": self.name }))?.expect()?;
        begun["incarnation"].as_u64().ok_or_else(|| Failure::failed("a start without a number"))
    }

    /// Whether that life goes on.
    pub fn beat(&self, system: &str, life: u64) -> Result<bool, Failure> {
        let answer = self.post(system, "beat", self.claim(life))?;
        if answer.is_lost() {
            return Ok(false);
        }
        answer.expect().map(|_| true)
    }

    pub fn retire(&self, system: &str, life: u64) -> Result<(), Failure> {
        self.post(system, "retire", self.claim(life))?.expect().map(|_| ())
    }

    pub fn claim(&self, life: u64) -> Value {
        json!({ "owner": self.name, "incarnation": life })
    }
}
