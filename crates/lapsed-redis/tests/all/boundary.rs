//! D8: at the very millisecond of a deadline it has passed, in every script alike; a millisecond before,
//! it has not. The server's clock stands still where the test sets it, so that both are hit exactly.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::Kind;
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::sessions::{SessionProfile, SessionsStore};
use lapsed_core::store::Store;
use lapsed_core::sweep::{
    Batch, BatchId, Cursor, Outcome, PageRequest, PassMode, Refusal, Suspect, Sweep,
};
use lapsed_redis::{Redis, RedisAddress};
use lapsed_testbed::{Engine, RedisServer, ServerOptions, SettableClock};

use crate::fixture::{TTL, id, layout, sessions_layout};
use crate::story::{eventually, name};

pub const BEGIN_MS: u64 = 1_900_000_000_000;
pub const TTL_MS: u64 = TTL.as_millis() as u64;

pub struct Timed {
    clock: SettableClock,
    /// This process's clock, which moves with the server's.
    own: ManualClock,
    pub redis: Redis,
    pub server: RedisServer,
}

impl Timed {
    pub fn new() -> Timed {
        let clock = SettableClock::standing_at(BEGIN_MS).unwrap();
        let server = ServerOptions::new(Engine::Valkey).clock(&clock).start().unwrap();
        let own = ManualClock::at(BEGIN_MS);
        let address = RedisAddress::new(&server.url());
        let redis = Redis::with_clock(&address, Arc::new(own.clone())).unwrap();
        Timed { clock, own, redis, server }
    }

    /// Moves the clock in steps, between which the system is asked: a longer silence counts as an
    /// absence of the server.
    pub async fn move_to(&self, ms: u64, system: &dyn Sweep) {
        let mut now_ms = self.redis.info().await.unwrap().now_ms;
        while now_ms < ms {
            now_ms = ms.min(now_ms + TTL_MS / 4);
            self.set(now_ms).await;
            system.census().await.unwrap();
        }
    }

    /// Sets the clock, and waits until the server has looked at it: it does so now and then.
    async fn set(&self, ms: u64) {
        self.own.advance(Duration::from_millis(ms - self.own.wall_ms()));
        self.clock.set_ms(ms).unwrap();
        eventually("the new time", async || {
            (self.redis.info().await.unwrap().now_ms == ms).then_some(())
        })
        .await;
    }
}

pub async fn suspects(sweep: &dyn Sweep) -> Vec<Suspect> {
    let request = PageRequest { after: Cursor::default(), limit: 10, undeclared_max: None };
    sweep.suspects(request).await.unwrap().suspects
}

pub async fn reclaim(sweep: &dyn Sweep, number: u64, act: PassMode, suspect: &Suspect) -> Outcome {
    let id = BatchId { sweeper: "by-hand".into(), number };
    let batch = Batch { id, suspects: vec![suspect.clone()], act, term: None };
    sweep.reclaim(batch).await.unwrap().outcomes.remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_d8_an_owner_is_overdue_at_its_very_deadline() {
    let timed = Timed::new();
    let registry = timed.redis.registry(id(Kind::Registry), layout(1)).unwrap();
    // Nobody is spared because the server has only just been started.
    timed.move_to(BEGIN_MS + 3 * TTL_MS, &registry).await;
    let beat = registry.start(&name("o"), TTL_MS).await.unwrap();
    let claim = Claim::exact(name("o"), beat.incarnation);
    registry.register(&claim, &[name("k")], TakePolicy::Always).await.unwrap();
    let due_ms = registry.owner(&claim).await.unwrap().unwrap().due_ms;
    assert_eq!(due_ms, beat.deadline_ms);
    let suspect = Suspect {
        key: name("k"),
        owner: name("o"),
        incarnation: beat.incarnation,
        deadline_ms: due_ms,
        reason: lapsed_core::receipt::Reason::OwnerDead,
    };

    timed.move_to(due_ms - 1, &registry).await;
    assert!(suspects(&registry).await.is_empty());
    assert_eq!(registry.census().await.unwrap().owners_overdue, 0);
    let alive = Outcome::Refused(Refusal::Alive);
    assert_eq!(reclaim(&registry, 1, PassMode::DryRun, &suspect).await, alive);
    assert_eq!(reclaim(&registry, 2, PassMode::Reclaim, &suspect).await, alive);

    timed.move_to(due_ms, &registry).await;
    assert_eq!(suspects(&registry).await, std::slice::from_ref(&suspect));
    assert_eq!(registry.census().await.unwrap().owners_overdue, 1);
    let dry = reclaim(&registry, 3, PassMode::DryRun, &suspect).await;
    assert_eq!(dry, Outcome::Reclaimed(None));
    let real = reclaim(&registry, 4, PassMode::Reclaim, &suspect).await;
    assert!(matches!(real, Outcome::Reclaimed(Some(_))), "{real:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_d8_a_session_is_an_orphan_at_the_very_end_of_its_grace() {
    let timed = Timed::new();
    let layout = sessions_layout(1);
    let grace_ms = layout.grace.as_millis() as u64;
    let sessions = timed.redis.sessions(id(Kind::Sessions), layout).unwrap();
    timed.move_to(BEGIN_MS + 3 * TTL_MS, &sessions).await;
    sessions.activate(&name("s"), &SessionProfile::default()).await.unwrap();
    let due_ms = sessions.get(&name("s")).await.unwrap().unwrap().due_ms.unwrap();
    assert_eq!(due_ms, BEGIN_MS + 3 * TTL_MS + grace_ms);

    let suspect = Suspect {
        key: name("s"),
        owner: name("s"),
        incarnation: lapsed_core::owner::Incarnation(0),
        deadline_ms: due_ms,
        reason: lapsed_core::receipt::Reason::NeverConnected,
    };

    timed.move_to(due_ms - 1, &sessions).await;
    assert!(sessions.orphans(10).await.unwrap().is_empty() && suspects(&sessions).await.is_empty());
    let early = reclaim(&sessions, 1, PassMode::Reclaim, &suspect).await;
    assert_eq!(early, Outcome::Refused(Refusal::Alive));

    timed.move_to(due_ms, &sessions).await;
    assert_eq!(sessions.orphans(10).await.unwrap(), [name("s")]);
    assert_eq!(suspects(&sessions).await, std::slice::from_ref(&suspect));
    let real = reclaim(&sessions, 2, PassMode::Reclaim, &suspect).await;
    assert!(matches!(real, Outcome::Reclaimed(Some(_))), "{real:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_d8_terms_and_turns_are_free_at_their_very_end() {
    let timed = Timed::new();
    let store: Arc<dyn Store> = Arc::new(timed.redis.clone());
    let registry = timed.redis.registry(id(Kind::Registry), layout(1)).unwrap();
    let system = registry.system().clone();
    let ttl_ms = Duration::from_secs(1).as_millis() as u64;
    let first = store.campaign(&system, "one", ttl_ms).await.unwrap().unwrap();
    assert!(store.notes().take_turn(&system, &name("t"), "one", ttl_ms).await.unwrap());
    let turn_ends_ms = timed.redis.info().await.unwrap().now_ms + ttl_ms;
    assert_eq!(first.until_ms, turn_ends_ms, "the clock stands still");

    timed.move_to(first.until_ms - 1, &registry).await;
    assert_eq!(store.term(&system).await.unwrap().map(|term| term.number), Some(first.number));
    assert!(store.campaign(&system, "two", ttl_ms).await.unwrap().is_none());
    assert!(!store.notes().take_turn(&system, &name("t"), "two", ttl_ms).await.unwrap());
    timed.move_to(first.until_ms, &registry).await;
    assert_eq!(store.term(&system).await.unwrap(), None);
    let second = store.campaign(&system, "two", ttl_ms).await.unwrap().unwrap();
    assert!(second.number > first.number);
    assert!(store.notes().take_turn(&system, &name("t"), "two", ttl_ms).await.unwrap());
}
