//! The processes of a run: owners, sweepers, clients, and the chaos process that injects faults.

pub mod chaos;
pub mod client;
pub mod owner;
pub mod sweeper;
