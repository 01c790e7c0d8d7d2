//! Seed 001's chat service goes on as it is, and lapsed cleans up after it: its exact keys, written
//! by somebody who knows nothing of lapsed, on a real Redis and a real Valkey. The traps by number.

mod brake;
mod observe;
mod oddities;
mod operations;
mod races;
mod time_and_size;
