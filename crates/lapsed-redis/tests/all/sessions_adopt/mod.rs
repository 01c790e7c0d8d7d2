//! The chat service of seed 001 does not change, and lapsed cleans up after it: its exact keys, written
//! by a client that knows nothing of lapsed, on a real Redis and a real Valkey. The traps by number.

mod brake;
mod observe;
mod oddities;
mod operations;
mod races;
mod time_and_size;
