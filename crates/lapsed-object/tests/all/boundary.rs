//! D8: at the very millisecond of its deadline a lease is over, for every operation alike; a millisecond
//! before, it is held.
//!
//! The server is real, and its time is in the test's hands: the proxy sets the `Date` of every answer,
//! and this host's clock moves by hand. The store's time is then known to the millisecond.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::clock::ManualClock;
use lapsed_core::leases::conformance::{done, json, key, lost, name};
use lapsed_core::leases::rules::StagedState;
use lapsed_core::leases::{AcquireRequest, Acquired, Grant, LeaseKey, LeasesStore};
use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::Reason;
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, BatchId, Outcome, PassMode, Refusal, Suspect, Sweep};
use lapsed_object::{ObjectLeases, ObjectStore};
use lapsed_testbed::{HttpProxy, ObjectEngine, ObjectServer};

use crate::fixture::{config, layout, prefix, system};

/// A whole second, in seconds since 1970.
const BEGIN_S: u64 = 1_900_000_000;

struct Timed {
    proxy: HttpProxy,
    clock: ManualClock,
    moved_ms: u64,
    store: Arc<ObjectStore>,
    leases: Arc<ObjectLeases>,
}

impl Timed {
    fn new() -> Timed {
        let server = ObjectServer::shared(ObjectEngine::Seaweed);
        let proxy = HttpProxy::start(server.port()).unwrap();
        proxy.set_date(BEGIN_S);
        let clock = ManualClock::at(BEGIN_S * 1_000);
        let config = config(server, proxy.port(), &prefix());
        let store = ObjectStore::open(config, Arc::new(clock.clone())).unwrap();
        let leases = store.leases(system(), layout()).unwrap();
        Timed { proxy, clock, moved_ms: 0, store, leases }
    }

    async fn move_to(&mut self, ms: u64) {
        let by_ms = ms - self.store.info().await.unwrap().now_ms;
        self.clock.advance(Duration::from_millis(by_ms));
        self.moved_ms += by_ms;
        self.proxy.set_date(BEGIN_S + self.moved_ms / 1_000);
        assert_eq!(self.store.info().await.unwrap().now_ms, ms, "the time is known exactly");
    }

    async fn acquire(&self, key: &LeaseKey, owner: &str) -> Acquired {
        let (key, owner) = (key.clone(), name(owner));
        let wish = AcquireRequest { key, owner, ttl_ms: 1_949, request: None };
        self.leases.acquire(&wish).await.unwrap().answer
    }

    /// The guard's answer for a lease, wherever the index has it.
    async fn reclaim(&self, grant: &Grant, number: u64) -> Outcome {
        let suspect = Suspect {
            key: name(&format!("n/{}", grant.key)),
            owner: grant.owner.clone(),
            incarnation: Incarnation(grant.token.0),
            deadline_ms: grant.deadline_ms,
            reason: Reason::LeaseExpired,
        };
        let batch = Batch {
            id: BatchId { sweeper: "by-hand".into(), number },
            suspects: vec![suspect],
            act: PassMode::Reclaim,
            term: None,
        };
        self.leases.reclaim(batch).await.unwrap().outcomes.remove(0)
    }
}

#[tokio::test]
async fn trap_d8_at_its_very_deadline_a_lease_is_over_for_every_operation() {
    let mut timed = Timed::new();
    let mut grants = Vec::new();
    for n in 0..7 {
        match timed.acquire(&key(&format!("k{n}")), "holder").await {
            Acquired::Granted(grant) => grants.push(grant),
            Acquired::Held(grant) => panic!("held: {grant:?}"),
        }
    }
    let deadline_ms = grants[0].deadline_ms;
    assert!(grants.iter().all(|grant| grant.deadline_ms == deadline_ms));
    let leases = timed.leases.clone();
    let is_expired =
        async |grant: &Grant| leases.peek(&grant.ticket().key).await.unwrap().unwrap().expired;
    let staged = StagedState { txn: name("t"), state: json("s") };

    timed.move_to(deadline_ms - 1).await;
    for grant in &grants {
        assert!(!is_expired(grant).await);
        assert!(matches!(timed.acquire(&grant.ticket().key, "rival").await, Acquired::Held(_)));
        done(leases.set_state(&grant.ticket(), Some(&json("in time"))).await.unwrap().answer);
    }
    let refused = timed.reclaim(&grants[0], 1).await;
    assert_eq!(refused, Outcome::Refused(Refusal::Alive));
    assert!(leases.describe(&grants[1].ticket().key).await.unwrap().cleared.is_empty());

    timed.move_to(deadline_ms).await;
    for grant in &grants {
        assert!(is_expired(grant).await);
    }
    let listed = leases.list(&grants[0].ticket().key.namespace, None, 10).await.unwrap();
    assert!(listed.len() == 7 && listed.iter().all(|lease| lease.expired), "{listed:?}");
    assert!(matches!(timed.reclaim(&grants[0], 2).await, Outcome::Reclaimed(_)));
    assert_eq!(leases.describe(&grants[1].ticket().key).await.unwrap().cleared.len(), 1);
    assert!(matches!(timed.acquire(&grants[2].ticket().key, "rival").await, Acquired::Granted(_)));
    lost(leases.renew(&grants[3].ticket(), None).await.unwrap().answer);
    lost(leases.release(&grants[4].ticket()).await.unwrap().answer);
    lost(leases.set_state(&grants[5].ticket(), Some(&json("late"))).await.unwrap().answer);
    lost(leases.stage(&grants[6].ticket(), Some(&staged)).await.unwrap().answer);
}
