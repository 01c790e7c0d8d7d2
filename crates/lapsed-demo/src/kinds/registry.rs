//! A gateway that devices are connected to.

use serde_json::json;

use super::{DemoKind, Group};
use crate::show::player::{ActorClient, DemoActor};
use lapsed_server::failure::Failure;
use lapsed_server::print::plural;

/// Where the system is reached.
const REGISTRY: &str = "/v1/registry/devices";

/// What the show does with `registry`.
pub const SHOWN: DemoKind = DemoKind {
    system: "registry/devices",
    section: include_str!("registry.toml"),
    role: "gateway",
    actor_name: "gateway",
    actors: "gateways",
    seats: 4,
    actor: || Box::new(GatewayActor::default()),
    per_owner: true,
    sentence,
    prepare: |_| Ok(()),
    now_and_then: |_, _| Ok(()),
    specials: &[],
};

fn sentence(of: &Group<'_>) -> String {
    format!(
        "{} {}: {} taken back{}",
        of.first.owner,
        of.gone,
        plural(of.number(), "connection", "connections"),
        of.late
    )
}

/// How many devices are connected at a time.
const DEVICES: u64 = 25;

#[derive(Default)]
pub struct GatewayActor {
    life: u64,
    devices: Vec<String>,
}

impl GatewayActor {
    /// One that nobody else has: the last digits of an IMEI.
    fn device(desk: &ActorClient) -> String {
        format!("imei-3563070424{:05}", desk.below(100_000))
    }

    /// One device goes, another comes.
    fn swap(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        let gone = self.devices.swap_remove(desk.below(self.devices.len() as u64) as usize);
        let mut body = desk.claim(self.life);
        body["key"] = json!(gone);
        desk.post(REGISTRY, "unregister", body.clone())?;
        let new = Self::device(desk);
        body["key"] = json!(new);
        desk.post(REGISTRY, "register", body)?;
        self.devices.push(new);
        Ok(())
    }
}

impl DemoActor for GatewayActor {
    fn enter(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        self.life = desk.start(REGISTRY)?;
        self.devices = (0..DEVICES).map(|_| Self::device(desk)).collect();
        let mut body = desk.claim(self.life);
        body["keys"] = json!(self.devices);
        desk.post(REGISTRY, "register_many", body)?.expect().map(|_| ())
    }

    fn tick(&mut self, desk: &ActorClient) -> Result<bool, Failure> {
        if !desk.beat(REGISTRY, self.life)? {
            return Ok(false);
        }
        if desk.one_in(2) {
            self.swap(desk)?;
        }
        Ok(true)
    }

    fn leave(&mut self, desk: &ActorClient) -> Result<(), Failure> {
        desk.retire(REGISTRY, self.life)
    }
}
