//! Who takes part: owners, sweepers, clients, and whoever makes things go wrong.

pub mod chaos;
pub mod client;
pub mod owner;
pub mod sweeper;
