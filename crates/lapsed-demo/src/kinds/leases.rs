//! A runner that acquires leases on tasks, renews them and releases them.

use serde_json::json;

use super::{DemoKind, Group};
use crate::show::actor::{ActorClient, DemoActor};
use lapsed_server::failure::Failure;

/// Path of the system in the daemon's HTTP API.
const LEASES: &str = "/v1/leases/locks";

/// The part of the show that uses `leases`.
pub const SHOWN: DemoKind = DemoKind {
    system: "leases/locks",
    section: include_str!("leases.toml"),
    role: "runner",
    actor_name: "runner",
    actors: "runners",
    actor_count: 3,
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

/// The keys that runners acquire leases on.
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

/// The most leases that a runner holds at a time.
const HELD_MAX: usize = 2;

#[derive(Default)]
pub struct LeaseActor {
    held: Vec<(&'static str, u64)>,
}

impl LeaseActor {
    fn acquire(&mut self, client: &ActorClient) -> Result<(), Failure> {
        let key = KEYS[client.below(KEYS.len() as u64) as usize];
        let answer = client.post(LEASES, "acquire", json!({ "key": key, "owner": client.name }))?;
        if let (200, Some(token)) = (answer.status, answer.body["token"].as_u64())
            && !self.held.iter().any(|(held, _)| *held == key)
        {
            self.held.push((key, token));
        }
        Ok(())
    }

    /// Renews every lease; false if one of them was lost.
    fn renew(&mut self, client: &ActorClient) -> Result<bool, Failure> {
        let before = self.held.len();
        let mut kept = Vec::new();
        for (key, token) in self.held.drain(..) {
            let answer = client.post(LEASES, "renew", json!({ "key": key, "token": token }))?;
            if answer.status == 200 {
                kept.push((key, token));
            }
        }
        self.held = kept;
        Ok(self.held.len() == before)
    }

    fn release(&mut self, client: &ActorClient) -> Result<(), Failure> {
        if let Some((key, token)) = self.held.pop() {
            client.post(LEASES, "release", json!({ "key": key, "token": token }))?;
        }
        Ok(())
    }
}

impl DemoActor for LeaseActor {
    fn enter(&mut self, client: &ActorClient) -> Result<(), Failure> {
        self.acquire(client)
    }

    fn tick(&mut self, client: &ActorClient) -> Result<bool, Failure> {
        if !self.renew(client)? {
            return Ok(false);
        }
        if client.one_in(6) {
            self.release(client)?;
        }
        if self.held.len() < HELD_MAX {
            self.acquire(client)?;
        }
        Ok(true)
    }

    fn leave(&mut self, client: &ActorClient) -> Result<(), Failure> {
        while !self.held.is_empty() {
            self.release(client)?;
        }
        Ok(())
    }
}
