//! A configuration file. Where it says to listen is left out: names would be looked up.

use lapsed_server::config::Overrides;
use lapsed_server::node::Config;

/// Reads it; an error says where.
pub fn read(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let overrides = Overrides { listen: Some("127.0.0.1:0".to_owned()), data: None, token: None };
    let env = |name: &str| (name == "SET").then(|| "value".to_owned());
    match Config::parse(text, &overrides, &env) {
        Ok(config) => config.systems.iter().for_each(|plan| drop(plan.describe())),
        Err(error) => assert!(!error.0.is_empty(), "an error without a word"),
    }
}
