//! What can happen to a server, on a real one of its own each: it is killed, frozen, emptied, full,
//! replaced by a replica that missed the last writes; its answers are lost, its permissions are taken
//! away, its slots move. Each test ends the same way: no live owner was reclaimed, nothing was counted
//! twice, and passes continue without a restart.

mod crowds;
mod refusals;
mod restarts;
mod silence;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Sweep, Sweeper};
use lapsed_redis::{NativeRegistry, Redis};
use lapsed_testbed::{RedisServer, ServerOptions};

use crate::story::{
    App, TTL, connect, eventually, holding, id, keys, layout, receipts, suspects, sweeper,
};

/// An owner with this TTL lives for longer than any test.
const LONG: Duration = Duration::from_secs(600);

struct World {
    server: RedisServer,
    redis: Redis,
    registry: NativeRegistry,
    sweep: Arc<dyn Sweep>,
}

impl World {
    fn new(options: ServerOptions) -> World {
        let server = options.start().unwrap();
        let url = server.url();
        World::by(server, &url)
    }

    /// Reached by another address than its own.
    fn by(server: RedisServer, url: &str) -> World {
        let redis = connect(url);
        let registry = redis.registry(id(), layout(TTL)).unwrap();
        World { server, redis, sweep: Arc::new(registry.clone()), registry }
    }

    fn app(&self) -> App {
        App::on(&self.server)
    }

    fn sweeper(&self, policy: Policy) -> Sweeper {
        sweeper(&self.sweep, &self.redis, policy)
    }

    async fn receipts(&self) -> Vec<Receipt> {
        receipts(&self.redis, &id()).await
    }

    /// `owners` that hold `each` keys and will not beat again; all their keys.
    async fn dying_owners(&self, prefix: &str, owners: usize, each: usize) -> Vec<String> {
        let mut all = Vec::new();
        for n in 0..owners {
            let owner = format!("{prefix}-{n:02}");
            let held = keys(&owner, each);
            holding(&self.registry, &owner, TTL, &held).await;
            all.extend(held);
        }
        all
    }

    /// Until that many keys of the dead are suspect.
    async fn suspect(&self, count: usize) {
        eventually("the end of the dying owners", async || {
            (suspects(&self.registry).await.len() >= count).then_some(())
        })
        .await;
    }
}

fn seqs(receipts: &[Receipt]) -> BTreeSet<u64> {
    receipts.iter().map(|receipt| receipt.id.seq).collect()
}
