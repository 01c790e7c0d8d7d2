//! X1: a server that accepts connections and never answers, and one that stops answering after it has
//! answered. Every call of every trait ends by itself: nothing but the connection's time limits ends a
//! survey, for example.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use lapsed_availability::{Mirror, Snapshot};
use lapsed_core::Kind;
use lapsed_core::conformance::unanswered::{
    NamedCall, calls_end_without_an_answer, inflight_calls, owner_calls, registry_calls,
    sessions_calls, store_calls, sweep_calls,
};
use lapsed_core::inflight::InflightStore;
use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::receipt::Reason;
use lapsed_core::registry::RegistryStore;
use lapsed_core::sessions::SessionsStore;
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, BatchId, Cursor, PassMode};
use lapsed_redis::{MirrorLayout, Redis, RedisAddress, RedisMirror};
use lapsed_testbed::{Engine, RedisServer};

use crate::fixture::{fresh, id, inflight_layout, layout, sessions_layout};
use crate::mirror_world::{NEVER_MS, STALE, STALE_MS, online, settings, suspect, told};
use crate::story::name;

/// Time limit of a connection and of an answer here.
const LIMIT: Duration = Duration::from_millis(400);
/// When a call must have ended: some connect twice, some ask twice.
const END: Duration = Duration::from_secs(5);

/// Every system that Redis keeps, adopted or not.
struct Systems {
    redis: Redis,
    registries: Vec<Arc<dyn RegistryStore>>,
    sessions: Vec<Arc<dyn SessionsStore>>,
    inflight: Vec<Arc<dyn InflightStore>>,
    mirror: Arc<RedisMirror>,
}

impl Systems {
    fn at(url: &str) -> Systems {
        let address = RedisAddress {
            connect_timeout: LIMIT,
            response_timeout: LIMIT,
            ..RedisAddress::new(url)
        };
        let redis = Redis::new(&address).unwrap();
        let registry = redis.registry(id(Kind::Registry), layout(1)).unwrap();
        let adopted_registry = redis.adopted_registry(id(Kind::Registry), layout(1)).unwrap();
        let sessions = redis.sessions(id(Kind::Sessions), sessions_layout(1)).unwrap();
        let adopted_sessions =
            redis.adopted_sessions(id(Kind::Sessions), sessions_layout(1)).unwrap();
        let jobs =
            redis.inflight(id(Kind::Inflight), inflight_layout(RecoveryPolicy::default())).unwrap();
        let adopted_jobs =
            redis.adopted_inflight(id(Kind::Inflight), crate::inflight_app::layout()).unwrap();
        let mirror = MirrorLayout::under(&format!("{}:", fresh("mirror")));
        let mirror = redis.mirror(id(Kind::Availability), mirror, STALE).unwrap();
        Systems {
            redis,
            registries: vec![Arc::new(registry), Arc::new(adopted_registry)],
            sessions: vec![Arc::new(sessions), Arc::new(adopted_sessions)],
            inflight: vec![Arc::new(jobs), Arc::new(adopted_jobs)],
            mirror,
        }
    }

    async fn calls_end(&self) {
        let system = self.registries[0].system().clone();
        let mut calls = store_calls(&self.redis, &system);
        calls.extend(mirror_calls(&self.mirror));
        for registry in &self.registries {
            calls.extend(sweep_calls(&**registry, "k", Reason::OwnerDead));
            calls.extend(owner_calls(&**registry));
            calls.extend(registry_calls(&**registry));
        }
        for sessions in &self.sessions {
            calls.extend(sweep_calls(&**sessions, "s", Reason::Orphaned));
            calls.extend(owner_calls(&**sessions));
            calls.extend(sessions_calls(&**sessions));
        }
        for inflight in &self.inflight {
            calls.extend(sweep_calls(&**inflight, "j", Reason::OwnerDead));
            calls.extend(owner_calls(&**inflight));
            calls.extend(inflight_calls(&**inflight));
        }
        // Written through lapsed there is an index, so that nothing has to be surveyed, and no
        // heartbeat of an application; what an adopted owner holds is found by a pass alone.
        let unasked = ["survey", "survey for a dry run", "adopted_owner_state", "held_by"];
        calls_end_without_an_answer(END, calls, &unasked).await;
        // The two that survey do ask.
        let surveys = [&self.registries[1] as &dyn Surveyed, &self.inflight[1]];
        let calls = surveys.into_iter().flat_map(Surveyed::surveys).collect();
        calls_end_without_an_answer(END, calls, &[]).await;
    }
}

/// A system whose passes begin with a survey of what the application wrote.
trait Surveyed {
    fn surveys(&self) -> Vec<NamedCall<'_>>;
}

macro_rules! surveyed {
    ($($store:ty),*) => {$(
        impl Surveyed for Arc<$store> {
            fn surveys(&self) -> Vec<NamedCall<'_>> {
                let survey = |act| async move { self.survey(act).await.map(drop) }.boxed();
                vec![
                    ("survey", survey(PassMode::Reclaim)),
                    ("survey for a dry run", survey(PassMode::DryRun)),
                ]
            }
        }
    )*};
}

surveyed!(dyn RegistryStore, dyn InflightStore);

/// Every call of the mirror.
fn mirror_calls(mirror: &RedisMirror) -> Vec<NamedCall<'_>> {
    macro_rules! call {
        ($name:literal, $call:expr) => {
            ($name, async move { $call.await.map(drop) }.boxed())
        };
    }
    let batch = Batch {
        id: BatchId { sweeper: "s".into(), number: 1 },
        suspects: vec![suspect("m", 1)],
        act: PassMode::Reclaim,
        term: None,
    };
    let start = Cursor::default;
    let update = told(&[online("m", 1)], NEVER_MS);
    vec![
        call!("now_ms", mirror.now_ms()),
        call!("presence", mirror.presence(STALE_MS)),
        call!("waive", mirror.waive(1)),
        call!("begin_seed", mirror.begin_seed()),
        call!("end_seed", mirror.end_seed("a")),
        call!("apply", async move { mirror.apply(&update, None).await }),
        call!("forget", async move { mirror.forget(&[(name("m"), None)]).await }),
        call!("mirror's beat", async move { mirror.beat(&[name("m")]).await }),
        call!("look", async move { mirror.look(&[name("m")]).await }),
        call!("beats", async move { mirror.beats(&start(), 10, STALE_MS).await }),
        call!("pending_offline", mirror.pending_offline(10)),
        call!("traces", async move { mirror.traces(&start(), 10).await }),
        call!("decide", async move { mirror.decide(&batch, STALE_MS).await }),
        call!(
            "available",
            async move { mirror.available(&settings(1), &start(), 10, false).await }
        ),
        call!("count_online", mirror.count_online()),
        call!("snapshot", mirror.snapshot(STALE_MS)),
        call!("put_snapshot", async move {
            mirror.put_snapshot("t", &Snapshot::default(), STALE_MS).await
        }),
        call!("drop_snapshot", mirror.drop_snapshot()),
        call!("announce", mirror.announce("s")),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_x1_no_call_waits_for_a_server_that_never_answers() {
    // The kernel accepts the connections, and nobody reads from them.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    Systems::at(&format!("redis://127.0.0.1:{port}/0")).calls_end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_x1_no_call_waits_for_a_server_that_stops_answering() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let systems = Systems::at(&server.url());
    systems.redis.info().await.unwrap();
    systems.mirror.now_ms().await.unwrap();
    server.freeze().unwrap();
    systems.calls_end().await;
}
