//! The reclaim protocol in a model checker. One entry, two incarnations of its owner, two sweepers and one store take
//! steps in every possible order; requests and answers are lost or late, and the store restarts. After every step
//! the promises P1, P3 and P5 are checked. The guard is the one of production, [`StrictOwnerGuard`].
//!
//! What is deliberately absent: pages, batches of more than one suspect, the brake and leader terms. The simulation
//! (`lapsed-sim`) covers them, at random and on the real stores.
//!
//! [`StrictOwnerGuard`]: lapsed_core::registry::rules::StrictOwnerGuard

mod bug;
mod protocol;
mod store;
mod world;

pub use bug::ProtocolBug;
pub use protocol::{ModelAction, ReclaimProtocol};
pub use world::ModelWorld;
