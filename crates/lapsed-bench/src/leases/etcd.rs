//! etcd, by its own protocol: gRPC, over a few connections that its clients share.
//!
//! The few messages that are needed are written down here, with the field numbers of its `rpc.proto`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use lapsed_testbed::{Coordinator, CoordinatorEngine};
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::drain_time::{DrainTime, RemainingCounts};

/// Connections that the callers share: one alone would have them wait for each other.
const CHANNELS: usize = 8;
/// The lease of a cycle: it is revoked long before.
const LONG_S: i64 = 3_600;
/// How many clients fill it at a time.
const FILLING: usize = 256;
/// What is left between the end of filling and the instant at which all expire.
const SPARE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long all of them may take to go.
const PATIENCE: Duration = Duration::from_secs(600);

const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";

#[derive(Clone, PartialEq, Message)]
struct Grant {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Granted {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Revoke {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Range {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
    #[prost(bool, tag = "9")]
    count_only: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Counted {
    #[prost(int64, tag = "4")]
    count: i64,
}

/// An answer whose words do not matter.
#[derive(Clone, PartialEq, Message)]
struct Done {}

pub struct Etcd {
    server: Coordinator,
    channels: Vec<Channel>,
}

impl Etcd {
    pub async fn start(dir: &std::path::Path) -> Result<Etcd> {
        let server = Coordinator::start(CoordinatorEngine::Etcd, dir)?;
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", server.port()))?;
        let endpoint = endpoint.tcp_nodelay(true).timeout(Duration::from_secs(60));
        let channels = try_join_all((0..CHANNELS).map(|_| endpoint.connect())).await?;
        Ok(Etcd { server, channels })
    }

    pub fn version(&self) -> Result<String> {
        Ok(self.server.version()?)
    }

    /// Runs `cycles` cycles by `clients` concurrent clients: cycles per second.
    pub async fn cycles(self: &Arc<Self>, cycles: usize, clients: usize) -> Result<f64> {
        let each = cycles / clients;
        let began = Instant::now();
        let running = (0..clients).map(|client| {
            let etcd = self.clone();
            tokio::spawn(async move {
                for _ in 0..each {
                    etcd.cycle(client).await?;
                }
                Ok::<_, anyhow::Error>(())
            })
        });
        for client in running.collect::<Vec<_>>() {
            client.await??;
        }
        Ok((each * clients) as f64 / began.elapsed().as_secs_f64())
    }

    /// Grants a lease, puts a key with it, and revokes the lease.
    async fn cycle(&self, client: usize) -> Result<()> {
        let lease = self.hold(client, LONG_S).await?;
        let _: Done = self.call(client, REVOKE, Revoke { id: lease }).await?;
        Ok(())
    }

    async fn hold(&self, number: usize, ttl: i64) -> Result<i64> {
        let Granted { id } = self.call(number, GRANT, Grant { ttl }).await?;
        let key = format!("lease/{number:08}").into_bytes();
        let _: Done =
            self.call(number, PUT, Put { key, value: b"holder".to_vec(), lease: id }).await?;
        Ok(id)
    }

    /// So many keys, each with a lease of its own, that all expire at one instant: how long it takes
    /// from the first that goes to the last. What is granted later is granted for less time.
    pub async fn expire(self: &Arc<Self>, leases: usize) -> Result<DrainTime> {
        let fill = self.filling_takes(leases).await?;
        let instant = Instant::now() + fill + SPARE;
        let running = (0..FILLING).map(|filler| {
            let etcd = self.clone();
            tokio::spawn(async move {
                for number in (filler..leases).step_by(FILLING) {
                    let left = instant.saturating_duration_since(Instant::now());
                    ensure!(left > Duration::from_secs(3), "filling took longer than foreseen");
                    etcd.hold(number, left.as_secs_f64().round() as i64).await?;
                }
                Ok(())
            })
        });
        for filler in running.collect::<Vec<_>>() {
            filler.await??;
        }
        let held = self.count().await?;
        ensure!(held == leases, "of {leases} keys there are {held}");
        self.until_gone(leases).await
    }

    /// Twice the estimated time to grant that many leases, from a sample.
    async fn filling_takes(self: &Arc<Self>, leases: usize) -> Result<Duration> {
        let rate = self.cycles(FILLING * 8, FILLING).await?;
        Ok(Duration::from_secs_f64(leases as f64 / rate * 2.0))
    }

    async fn until_gone(&self, leases: usize) -> Result<DrainTime> {
        let mut watched = RemainingCounts::new(leases);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = self.count().await?;
            watched.saw(left);
            if left == 0 {
                return watched.result().context("they went at once");
            }
            ensure!(Instant::now() < deadline, "{left} of {leases} are still there");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn count(&self) -> Result<usize> {
        let range =
            Range { key: b"lease/".to_vec(), range_end: b"lease0".to_vec(), count_only: true };
        let Counted { count } = self.call(0, RANGE, range).await?;
        Ok(count as usize)
    }

    async fn call<Q, A>(&self, client: usize, path: &'static str, question: Q) -> Result<A>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = Grpc::new(self.channels[client % CHANNELS].clone());
        grpc.ready().await?;
        let codec = ProstCodec::<Q, A>::default();
        let question = tonic::Request::new(question);
        let answer = grpc.unary(question, PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }
}
