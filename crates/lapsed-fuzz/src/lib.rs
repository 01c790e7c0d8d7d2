//! What lapsed reads from outside, given anything at all: it may be refused, but nothing panics, nothing
//! is a fault of lapsed's own, and what was understood is written and read again as the same.
//!
//! The functions are shared by the fuzzer (`make fuzz`, the folder `fuzz`), which is led by what the
//! code does with its input, and by a test that runs the corpus and a few thousand random changes of it.

mod config;
mod cursor;
mod functions;
mod http;
mod jwt;
pub mod mutate;
mod receipt;
mod record;
mod webhook;

/// One thing that is read.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// The name of the target, which is also its folder in the corpus.
    pub name: &'static str,
    /// Reads it; panics if something is wrong with lapsed.
    pub read: fn(&[u8]),
}

pub static TARGETS: [FuzzTarget; 8] = [
    FuzzTarget { name: "config", read: config::read },
    FuzzTarget { name: "http", read: http::read },
    FuzzTarget { name: "record", read: record::read },
    FuzzTarget { name: "receipt", read: receipt::read },
    FuzzTarget { name: "jwt", read: jwt::read },
    FuzzTarget { name: "functions", read: functions::read },
    FuzzTarget { name: "cursor", read: cursor::read },
    FuzzTarget { name: "webhook", read: webhook::read },
];

/// The one of that name.
pub fn target(name: &str) -> FuzzTarget {
    let found = TARGETS.iter().find(|target| target.name == name);
    *found.unwrap_or_else(|| panic!("there is no target {name}"))
}
