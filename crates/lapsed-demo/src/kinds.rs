//! What `lapsed demo --serve` does with each kind of system: its section of the configuration, the processes
//! that use it, and the sentences that describe its receipts. A new kind adds a module, a line in [`KINDS`]
//! and steps in [`ROUND`].

mod availability;
mod inflight;
mod leases;
mod registry;
mod sessions;

use lapsed_core::receipt::Receipt;

use crate::api::Api;
use crate::show::actor::DemoActor;
use crate::show::script::ScriptStep::{self, Freeze, Kill, Leave, Special};
use lapsed_server::failure::Failure;

/// Makes one event happen; the number only grows. Returns a line that describes the event.
pub type SpecialEvent = fn(&Api, u64) -> Result<String, Failure>;

/// What `lapsed demo --serve` does with one kind of system.
pub struct DemoKind {
    /// The system, as `KIND/NAME`.
    pub system: &'static str,
    /// Its section of the configuration; `@TTL@` stands for the TTL of its owners.
    pub section: &'static str,
    /// The role of its processes, an argument of `lapsed demo-player`.
    pub role: &'static str,
    /// What the names of its processes begin with.
    pub actor_name: &'static str,
    /// The plural noun for its processes, for example `chat servers`.
    pub actors: &'static str,
    /// How many processes of this kind run.
    pub actor_count: usize,
    /// Creates an actor that has not started.
    pub actor: fn() -> Box<dyn DemoActor>,
    /// Whether the receipts of each owner get a sentence of their own.
    pub per_owner: bool,
    /// The sentence that describes a group of receipts.
    pub sentence: fn(&Group<'_>) -> String,
    /// Runs before the first actor starts.
    pub prepare: fn(&Api) -> Result<(), Failure>,
    /// Runs about once a second, with an increasing number.
    pub now_and_then: fn(&Api, u64) -> Result<(), Failure>,
    /// Further events of the script, called with an increasing number; each returns a line that describes it.
    pub specials: &'static [SpecialEvent],
}

/// A group of receipts that one sentence describes.
pub struct Group<'a> {
    pub group: &'a [&'a Receipt],
    pub first: &'a Receipt,
    /// What happened to the owner, as a predicate: `has left` or `is declared dead`.
    pub gone: &'static str,
    /// The time between deadline and reclaim, as the end of a sentence.
    pub late: String,
    /// The effect of the reclaim, if the reason does not imply it.
    pub effect: Option<String>,
}

impl Group<'_> {
    fn number(&self) -> u64 {
        self.group.len() as u64
    }
}

/// Every kind of system in the show.
pub static KINDS: &[&DemoKind] =
    &[&registry::SHOWN, &sessions::SHOWN, &inflight::SHOWN, &leases::SHOWN, &availability::SHOWN];

/// The steps of the script, in order. The first four kill an owner of every kind that reclaims only after a death.
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

/// The kind whose processes have the role `role`.
pub fn kind_of_role(role: &str) -> Option<&'static DemoKind> {
    KINDS.iter().find(|kind| kind.role == role).copied()
}
