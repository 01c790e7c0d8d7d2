//! What the stories of mirrors have in common: a server of their own, a mirror on it, an application that
//! writes the same keys by itself.

#![allow(dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lapsed_availability::rules::{AvailabilitySettings, PendingOffline};
use lapsed_availability::{Mirror, MirrorBeat, MirrorEntry, MirrorUpdate, ProviderState, SeenBeat};
use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::{Batch, BatchId, Cursor, PassMode, Refusal, Suspect};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_redis::{MirrorLayout, Redis, RedisMirror};
use lapsed_testbed::{Engine, RedisServer, ServerOptions};

use crate::story::{App, connect, eventually, name};

/// How long a provider may be silent here: as long as a test can afford to wait for.
pub const STALE: Duration = Duration::from_millis(1_000);
pub const STALE_MS: u64 = STALE.as_millis() as u64;

/// A time that no test reaches.
pub const NEVER_MS: u64 = 3_600_000;

pub type Decided = Vec<Result<PendingOffline, Refusal>>;

pub struct World {
    pub app: App,
    pub mirror: Arc<RedisMirror>,
    pub redis: Redis,
    pub server: RedisServer,
}

pub fn id() -> SystemId {
    SystemId::new(Kind::Availability, "mitras").unwrap()
}

pub fn settings(max: u64) -> AvailabilitySettings {
    AvailabilitySettings { max_customers_per_mitra: max, ..AvailabilitySettings::default() }
}

impl World {
    pub fn on(engine: Engine) -> World {
        Self::with(ServerOptions::new(engine), MirrorLayout::default())
    }

    pub fn with(options: ServerOptions, layout: MirrorLayout) -> World {
        let server = options.start().unwrap();
        let (redis, app) = (connect(&server.url()), App::on(&server));
        let mirror = redis.mirror(id(), layout, STALE).unwrap();
        World { server, redis, mirror, app }
    }

    /// Another daemon on the same server.
    pub fn beside(&self) -> Arc<RedisMirror> {
        connect(&self.server.url()).mirror(id(), MirrorLayout::default(), STALE).unwrap()
    }

    /// The application has lost its connection.
    pub fn reconnect_app(&mut self) {
        self.app = App::on(&self.server);
    }

    pub async fn seed(&self, states: &[ProviderState]) {
        let attempt = self.mirror.begin_seed().await.unwrap();
        let told = told(states, self.mirror.now_ms().await.unwrap());
        assert!(self.mirror.apply(&told, Some(&attempt)).await.unwrap().is_some());
        assert!(self.mirror.end_seed(&attempt).await.unwrap());
    }

    /// Seeds the mirror with this many providers online.
    pub async fn seed_online(&self, count: usize) {
        let states: Vec<ProviderState> = (0..count).map(|n| online(&format!("m{n}"), 1)).collect();
        self.seed(&states).await;
    }

    /// Tells one state, with a beat of now.
    pub async fn tell(&self, state: ProviderState) -> u64 {
        let told = told(&[state], self.mirror.now_ms().await.unwrap());
        self.mirror.apply(&told, None).await.unwrap().unwrap()
    }

    pub async fn beat(&self, who: &str) -> Option<MirrorBeat> {
        self.mirror.beat(&[name(who)]).await.unwrap().map(|beats| beats[0])
    }

    pub async fn look(&self, who: &str) -> MirrorEntry {
        self.mirror.look(&[name(who)]).await.unwrap().seen.remove(0)
    }

    /// The time of the heartbeat of this provider, which must exist.
    pub async fn beat_ms(&self, who: &str) -> u64 {
        match self.look(who).await.beat {
            SeenBeat::At(at_ms) => at_ms,
            other => panic!("{other:?}"),
        }
    }

    pub async fn is_seeded(&self) -> bool {
        self.mirror.presence(STALE_MS).await.unwrap().seeded
    }

    /// Those available, by name; `None`: the mirror does not know.
    pub async fn available(&self) -> Option<Vec<String>> {
        let settings = settings(3);
        let page =
            self.mirror.available(&settings, &Cursor::default(), 500, false).await.unwrap()?;
        assert_eq!(page.count, page.available.len() as u64);
        Some(page.available.into_iter().map(|one| one.id.to_string()).collect())
    }

    /// Makes those of them that are silent pending offline, in epoch 1.
    pub async fn decide(&self, who: &[&str], stale_ms: u64) -> Decided {
        self.decide_in(who, 1, stale_ms).await
    }

    pub async fn decide_in(&self, who: &[&str], epoch: u64, stale_ms: u64) -> Decided {
        self.mirror.decide(&batch(who, epoch), stale_ms).await.unwrap()
    }

    /// Waits until no grace is running any more.
    pub async fn settled(&self) {
        eventually("the end of the store-away grace", async || {
            let presence = self.mirror.presence(STALE_MS).await.ok()?;
            (presence.back_ms == 0).then_some(())
        })
        .await;
    }

    /// Decides repeatedly until one of them is pending offline: on a machine that stands still the
    /// grace starts again.
    pub async fn silenced(&self, who: &str, epoch: u64) -> PendingOffline {
        eventually("somebody to be declared silent", async || {
            self.decide_in(&[who], epoch, STALE_MS).await.remove(0).ok()
        })
        .await
    }

    pub fn is_member(&self, set: &str, who: &str) -> bool {
        self.app.number(&["SISMEMBER", set, who]) == 1
    }

    pub fn exists(&self, key: &str) -> bool {
        self.app.number(&["EXISTS", key]) == 1
    }

    /// The server's clock as `2026-05-25T10:00:00.123Z`, moved by this many milliseconds.
    pub async fn iso(&self, by_ms: i64) -> String {
        let at_ms = self.mirror.now_ms().await.unwrap().saturating_add_signed(by_ms);
        // A provider's own heartbeat is written by the script: it is asked to.
        let other = self.redis.mirror(other_id(), MirrorLayout::under("clock:"), STALE).unwrap();
        let state = ProviderState { beat_age_ms: Some(0), ..online("clock", next_version()) };
        let told = [MirrorUpdate { state, beat_ms: Some(at_ms) }];
        self.app.call(&["DEL", "clock:mitra:heartbeat:clock"]);
        other.apply(&told, None).await.unwrap();
        self.app.text(&["GET", "clock:mitra:heartbeat:clock"])
    }
}

fn other_id() -> SystemId {
    SystemId::new(Kind::Availability, "clock").unwrap()
}

fn next_version() -> u64 {
    static VERSIONS: AtomicU64 = AtomicU64::new(1_000_000);
    VERSIONS.fetch_add(1, Ordering::Relaxed)
}

/// Somebody online and active without sessions; its epoch is 1.
pub fn online(who: &str, version: u64) -> ProviderState {
    ProviderState {
        id: name(who),
        version,
        epoch: 1,
        online: true,
        active: true,
        sessions: 0,
        beat_age_ms: Some(0),
    }
}

pub fn told(states: &[ProviderState], now_ms: u64) -> Vec<MirrorUpdate> {
    let told = |state: &ProviderState| MirrorUpdate {
        beat_ms: state.beat_age_ms.map(|age_ms| now_ms.saturating_sub(age_ms)),
        state: state.clone(),
    };
    states.iter().map(told).collect()
}

pub fn suspect(who: &str, epoch: u64) -> Suspect {
    Suspect {
        key: name(who),
        owner: name(who),
        incarnation: Incarnation(epoch),
        deadline_ms: 0,
        reason: Reason::HeartbeatStale,
    }
}

pub fn batch(who: &[&str], epoch: u64) -> Batch {
    let suspects = who.iter().map(|who| suspect(who, epoch)).collect();
    let number = next_version();
    let id = BatchId { sweeper: "sweeper".into(), number };
    Batch { id, suspects, act: PassMode::Reclaim, term: None }
}

pub fn names_of(ids: &[Name]) -> Vec<String> {
    let mut names: Vec<String> = ids.iter().map(Name::to_string).collect();
    names.sort();
    names.dedup();
    names
}
