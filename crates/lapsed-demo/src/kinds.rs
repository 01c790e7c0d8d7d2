//! What `lapsed demo --serve` does with each kind of system: its section of the configuration, the processes
//! that use it, and what is said when something is reclaimed. A new kind is a module and a line in [`KINDS`],
//! and has its turn in [`ROUND`].

mod availability;
mod inflight;
mod leases;
mod registry;
mod sessions;

use lapsed_core::receipt::Receipt;

use crate::api::Api;
use crate::show::player::DemoActor;
use crate::show::script::ScriptStep::{self, Freeze, Kill, Leave, Special};
use lapsed_server::failure::Failure;

/// One kind of system in the show.
pub struct DemoKind {
    /// `KIND/NAME`.
    pub system: &'static str,
    /// Its section of the configuration; `@TTL@` is how long silence lasts before it means death.
    pub section: &'static str,
    /// What its processes play, as `lapsed demo-player` is told.
    pub role: &'static str,
    /// What their names begin with.
    pub actor_name: &'static str,
    /// What they are called together.
    pub actors: &'static str,
    /// How many there are.
    pub seats: usize,
    /// Makes one that has not begun.
    pub actor: fn() -> Box<dyn DemoActor>,
    /// Whether each owner has a sentence of its own.
    pub per_owner: bool,
    /// What is said of a group of receipts.
    pub sentence: fn(&Group<'_>) -> String,
    /// What is done before anybody enters.
    pub prepare: fn(&Api) -> Result<(), Failure>,
    /// What is done about once a second, with a number that grows.
    pub now_and_then: fn(&Api, u64) -> Result<(), Failure>,
    /// What else can happen, with a number that grows; each says what it did.
    pub specials: &'static [fn(&Api, u64) -> Result<String, Failure>],
}

/// Receipts that one sentence tells.
pub struct Group<'a> {
    pub group: &'a [&'a Receipt],
    pub first: &'a Receipt,
    /// What became of the owner.
    pub gone: &'static str,
    /// How late it was noticed, as the end of a sentence.
    pub late: String,
    /// What was done, where the reason does not say it.
    pub effect: Option<String>,
}

impl Group<'_> {
    fn number(&self) -> u64 {
        self.group.len() as u64
    }
}

/// Every kind of the show.
pub static KINDS: &[&DemoKind] =
    &[&registry::SHOWN, &sessions::SHOWN, &inflight::SHOWN, &leases::SHOWN, &availability::SHOWN];

/// What happens, in turn. The first four show every system whose owners must die for it.
pub const ROUND: &[ScriptStep] = &[
    Kill("gateway"),
    Kill("provider"),
    Kill("runner"),
    Kill("worker"),
    Special("worker", 0),
    Freeze("gateway"),
    Leave("chat"),
    Freeze("provider"),
    Special("worker", 1),
    Kill("chat"),
    Freeze("worker"),
    Leave("gateway"),
    Freeze("runner"),
];

/// The kind whose processes play `role`.
pub fn playing(role: &str) -> Option<&'static DemoKind> {
    KINDS.iter().find(|kind| kind.role == role).copied()
}
