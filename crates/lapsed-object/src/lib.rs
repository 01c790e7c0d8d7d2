//! lapsed on object stores: S3 and what speaks like it, Azure Blob, GCS.
//!
//! The store's only tool is the conditional write: make an object if there is none, replace it if it is
//! still what was read. Read in this order: `objects` (one request, and what to make of its answer),
//! `clock` (what time it is there), `document` (what is written), `leases` (the operations), `log`
//! (receipts: one for each reclaim, whichever process dies in between). [`ObjectStore::probe`] tries what the server really does.

mod clock;
mod config;
mod document;
mod failure;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod leases;
mod log;
mod names;
mod notes;
mod objects;
mod probe;
mod requests;
mod store;
mod system_context;

pub use clock::Offset;
pub use config::{ObjectConfig, REQUESTS_PER_HOUR, TIMEOUT};
pub use leases::{LeasesLayout, ObjectLeases};
pub use probe::{ProbeLine, ProbeReport};
pub use requests::{RequestCounts, RequestKind};
pub use store::ObjectStore;
