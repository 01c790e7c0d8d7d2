//! Real servers for tests and benchmarks: Redis and Valkey, alone, replicated or as a cluster,
//! PostgreSQL, object stores, Prometheus, proxies that lose answers, and programs in other languages beside them.
//!
//! Everything listens on 127.0.0.1, keeps its data in a temporary folder of its own and is ended by
//! its pid: when its value is dropped, and also when the test process is killed. All calls block;
//! each has a time limit.
//!
//! ```no_run
//! use lapsed_testbed::{Engine, RedisServer};
//!
//! let server = RedisServer::start(Engine::Valkey)?;
//! server.command(&["SET", "k", "v"])?;
//! assert_eq!(server.command(&["GET", "k"])?, "v");
//! # Ok::<(), lapsed_testbed::TestbedError>(())
//! ```

mod byte_proxy;
mod cluster;
mod coordinator;
mod error;
mod http;
mod http_proxy;
mod objects;
pub mod paths;
mod port;
mod postgres;
mod process;
mod program;
mod prometheus;
mod proxy;
mod replica;
pub mod resp;
mod server;
mod settable_clock;
mod spawner;
mod steady;
mod wait;

pub use byte_proxy::ByteProxy;
pub use cluster::{Cluster, SLOTS, slot_of};
pub use coordinator::{Coordinator, CoordinatorEngine};
pub use error::{TestbedError, TestbedResult};
pub use http::{HttpAnswer, http_call};
pub use http_proxy::{Fault, HttpProxy, Rule};
pub use objects::{BUCKET, ObjectEngine, ObjectServer};
pub use port::Port;
pub use postgres::{Durability, POSTGRES_USER, PostgresOptions, PostgresProxy, PostgresServer};
pub use program::Program;
pub use prometheus::Prometheus;
pub use proxy::Proxy;
pub use replica::Replica;
pub use server::{Engine, Persistence, PortChoice, RedisServer, ServerOptions};
pub use settable_clock::SettableClock;
pub use steady::{steadily, steadily_async};
pub use wait::until;
