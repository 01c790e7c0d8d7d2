//! A gateway that registers the devices which are connected to it.

use serde_json::json;

use super::{DemoKind, Group};
use crate::show::actor::{ActorClient, DemoActor};
use lapsed_server::failure::Failure;
use lapsed_server::print::plural;

/// Path of the system in the daemon's HTTP API.
const REGISTRY: &str = "/v1/registry/devices";

/// The part of the show that uses `registry`.
pub const SHOWN: DemoKind = DemoKind {
    system: "registry/devices",
    section: include_str!("registry.toml"),
    role: "gateway",
    actor_name: "gateway",
    actors: "gateways",
    actor_count: 4,
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

/// How many devices are connected to a gateway at a time.
const DEVICES: u64 = 25;

#[derive(Default)]
pub struct GatewayActor {
    incarnation: u64,
    devices: Vec<String>,
}

impl GatewayActor {
    /// A random device: an IMEI with random last digits.
    fn device(client: &ActorClient) -> String {
        format!("imei-3563070424{:05}", client.below(100_000))
    }

    /// Unregisters one device and registers another.
    fn swap(&mut self, client: &ActorClient) -> Result<(), Failure> {
        let gone = self.devices.swap_remove(client.below(self.devices.len() as u64) as usize);
        let mut body = client.claim(self.incarnation);
        body["key"] = json!(gone);
        client.post(REGISTRY, "unregister", body.clone())?;
        let new = Self::device(client);
        body["key"] = json!(new);
        client.post(REGISTRY, "register", body)?;
        self.devices.push(new);
        Ok(())
    }
}

impl DemoActor for GatewayActor {
    fn enter(&mut self, client: &ActorClient) -> Result<(), Failure> {
        self.incarnation = client.start(REGISTRY)?;
        self.devices = (0..DEVICES).map(|_| Self::device(client)).collect();
        let mut body = client.claim(self.incarnation);
        body["keys"] = json!(self.devices);
        client.post(REGISTRY, "register_many", body)?.expect().map(|_| ())
    }

    fn tick(&mut self, client: &ActorClient) -> Result<bool, Failure> {
        if !client.beat(REGISTRY, self.incarnation)? {
            return Ok(false);
        }
        if client.one_in(2) {
            self.swap(client)?;
        }
        Ok(true)
    }

    fn leave(&mut self, client: &ActorClient) -> Result<(), Failure> {
        client.retire(REGISTRY, self.incarnation)
    }
}
