//! A runner of things that only one may do at a time: holds leases, renews them, lets go of them.

use serde_json::json;

use super::{DemoKind, Group};
use crate::show::player::{ActorClient, DemoActor};
use lapsed_server::failure::Failure;

/// Where the system is reached.
const LEASES: &str = "/v1/leases/locks";

/// What the show does with `leases`.
pub const SHOWN: DemoKind = DemoKind {
    system: "leases/locks",
    section: include_str!("leases.toml"),
    role: "runner",
    actor_name: "runner",
    actors: "runners",
    seats: 3,
    actor: || Box::new(LeaseActor::default()),
    per_owner: true,
    sentence,
    prepare: |_| Ok(()),
    now_and_then: |_, _| Ok(()),
    specials: &[],
};

fn sentence(of: &Group<'_>) -> String {
    let keys: Vec<_> = of.group.iter().map(|receipt| receipt.key.as_str()).collect();
    let (keys, owner) = (keys.join(" and "), &of.first.owner);
    format!("the lease on {keys} of {owner} is cleared{}", of.late)
}

/// What there is to hold.
const KEYS: &[&str] = &[
    "nightly-report",
    "billing-close",
    "reindex",
    "backup",
    "rollup",
    "digest",
    "vacuum",
    "rotate-keys",
];

/// How many it holds at the most.
const HELD_MAX: usize = 2;

#[derive(Default)]
pub struct LeaseActor {
    held: Vec<(&'static str, u64)>,
}

impl LeaseActor {
    fn acquire(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        let key = KEYS[desk.below(KEYS.len() as u64) as usize];
        let answer = desk.post(LEASES, "acquire", json!({ "key": key, "owner": desk.name }))?;
        if let (200, Some(token)) = (answer.status, answer.body["token"].as_u64())
            && !self.held.iter().any(|(held, _)| *held == key)
        {
            self.held.push((key, token));
        }
        Ok(())
    }

    /// Whether all that it holds is still its own.
    fn renew(&mut self, desk: &ActorClient) -> Result<bool, Failure> {
        let before = self.held.len();
        let mut kept = Vec::new();
        for (key, token) in self.held.drain(..) {
            let answer = desk.post(LEASES, "renew", json!({ "key": key, "token": token }))?;
            if answer.status == 200 {
                kept.push((key, token));
            }
        }
        self.held = kept;
        Ok(self.held.len() == before)
    }

    fn release(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        if let Some((key, token)) = self.held.pop() {
            desk.post(LEASES, "release", json!({ "key": key, "token": token }))?;
        }
        Ok(())
    }
}

impl DemoActor for LeaseActor {
    fn enter(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        self.acquire(desk)
    }

    fn tick(&mut self, desk: &ActorClient) -> Result<bool, Failure> {
        if !self.renew(desk)? {
            return Ok(false);
        }
        if desk.one_in(6) {
            self.release(desk)?;
        }
        if self.held.len() < HELD_MAX {
            self.acquire(desk)?;
        }
        Ok(true)
    }

    fn leave(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        while !self.held.is_empty() {
            self.release(desk)?;
        }
        Ok(())
    }
}
