//! D8 for jobs, and for what an application or another job system writes: the listing of suspects and the decisive step agree on the
//! very millisecond. The server's clock stands still where the test sets it.

use std::collections::BTreeSet;
use std::time::Duration;

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::inflight::{InflightStore, NewJob};
use lapsed_core::owner::{Claim, Incarnation, OwnerStore};
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::{Outcome, PassMode, Refusal, Suspect, Sweep};
use lapsed_core::{Kind, Name};
use lapsed_redis::{AdoptedInflightLayout, RescueLayout};

use crate::boundary::{BEGIN_MS, TTL_MS, Timed, reclaim, suspects};
use crate::fixture::{id, inflight_layout, layout, sessions_layout};
use crate::story::{App, name};

/// When the store is no longer new to everybody.
const SETTLED_MS: u64 = BEGIN_MS + 3 * TTL_MS;

/// A millisecond before `due.deadline_ms` it is no suspect and the decisive step refuses it as `early`. At that millisecond it is one, and
/// the step takes it.
async fn at_the_very_millisecond(timed: &Timed, sweep: &dyn Sweep, due: Suspect, early: Refusal) {
    let look = async || {
        sweep.survey(PassMode::Reclaim).await.unwrap();
        suspects(sweep).await
    };
    timed.move_to(due.deadline_ms - 1, sweep).await;
    assert_eq!(look().await, [], "a millisecond before");
    let refused = reclaim(sweep, 1, PassMode::Reclaim, &due).await;
    assert_eq!(refused, Outcome::Refused(early));
    timed.move_to(due.deadline_ms, sweep).await;
    assert_eq!(look().await, std::slice::from_ref(&due));
    let real = reclaim(sweep, 2, PassMode::Reclaim, &due).await;
    assert!(matches!(real, Outcome::Reclaimed(Some(_))), "{real:?}");
}

fn suspect(key: &str, owner: &str, incarnation: Incarnation, deadline_ms: u64) -> Suspect {
    let (key, owner) = (name(key), name(owner));
    Suspect { key, owner, incarnation, deadline_ms, reason: Reason::OwnerDead }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_d8_a_job_is_an_orphan_at_its_workers_very_deadline() {
    let timed = Timed::new();
    let layout = inflight_layout(RecoveryPolicy::default());
    let jobs = timed.redis.inflight(id(Kind::Inflight), layout).unwrap();
    timed.move_to(SETTLED_MS, &jobs).await;
    let beat = jobs.start(&name("w"), TTL_MS).await.unwrap();
    jobs.enqueue(&[NewJob::new(name("j"), name("q"), "{}")]).await.unwrap();
    let claim = Claim::exact(name("w"), beat.incarnation);
    assert_eq!(jobs.take(&claim, &name("q"), 1).await.unwrap().jobs.len(), 1);
    let due = suspect("j", "w", beat.incarnation, beat.deadline_ms);
    at_the_very_millisecond(&timed, &jobs, due, Refusal::Alive).await;
}

/// An instance without a heartbeat is a newcomer for a whole TTL since it was first seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_d8_a_newcomer_to_an_adopted_registry_is_dead_a_whole_ttl_after_it_was_first_seen() {
    let timed = Timed::new();
    let layout = layout(1);
    let hash = layout.registry_key.clone();
    let registry = timed.redis.adopted_registry(id(Kind::Registry), layout).unwrap();
    timed.move_to(SETTLED_MS, &registry).await;
    App::on(&timed.server).call(&["HSET", &hash, "k", "i-1"]);
    registry.survey(PassMode::Reclaim).await.unwrap();
    let due = suspect("k", "i-1", Incarnation(0), SETTLED_MS + TTL_MS);
    at_the_very_millisecond(&timed, &registry, due, Refusal::Newcomer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_d8_an_adopted_session_is_an_orphan_at_the_very_end_of_its_grace() {
    let timed = Timed::new();
    let layout = sessions_layout(1);
    let (session, set) = (layout.session_key.of("s"), layout.disconnected_key.clone());
    let grace_ms = layout.grace.as_millis() as u64;
    let sessions = timed.redis.adopted_sessions(id(Kind::Sessions), layout).unwrap();
    timed.move_to(SETTLED_MS, &sessions).await;
    let (app, at) = (App::on(&timed.server), SETTLED_MS.to_string());
    app.call(&["HSET", &session, "last_disconnect", &at]);
    app.call(&["ZADD", &set, &at, "s"]);
    let due = Suspect {
        owner: name("s"),
        reason: Reason::Orphaned,
        ..suspect("s", "s", Incarnation(0), SETTLED_MS + grace_ms)
    };
    at_the_very_millisecond(&timed, &sessions, due, Refusal::Alive).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_d8_an_adopted_job_is_an_orphan_at_the_very_end_of_its_threshold() {
    let timed = Timed::new();
    let layout = AdoptedInflightLayout {
        orphan_threshold: Duration::from_millis(TTL_MS),
        heartbeat_interval: Duration::from_millis(TTL_MS / 5),
        ..AdoptedInflightLayout::async_http()
    };
    let (index, hash) = (layout.index_key.clone(), layout.jobs_key.clone());
    let jobs = timed.redis.adopted_inflight(id(Kind::Inflight), layout).unwrap();
    timed.move_to(SETTLED_MS, &jobs).await;
    let app = App::on(&timed.server);
    app.call(&["ZADD", &index, &SETTLED_MS.to_string(), "p/j"]);
    app.call(&["HSET", &hash, "p/j", r#"{"queue":"default","jid":"1","class":"Job","args":[]}"#]);
    let due = suspect("p/j", "p", Incarnation(0), SETTLED_MS + TTL_MS);
    at_the_very_millisecond(&timed, &jobs, due, Refusal::Alive).await;
}

/// Dramatiq writes a score for each worker, in milliseconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_d8_a_dramatiq_worker_is_dead_at_the_very_end_of_its_limit() {
    let timed = Timed::new();
    let worker = "306d24c2-4422-4f1e-a42b-6b7630a5d3ab";
    let limit = Duration::from_millis(TTL_MS);
    let layout = RescueLayout {
        limit: Some(limit),
        grace: Some(limit),
        queues: BTreeSet::<Name>::new(),
        ..RescueLayout::new("dramatiq", RecoveryPolicy::default())
    };
    let jobs = timed.redis.rescued_inflight(id(Kind::Inflight), layout).unwrap();
    timed.move_to(SETTLED_MS, &jobs).await;
    let app = App::on(&timed.server);
    app.call(&["ZADD", "dramatiq:__heartbeats__", &SETTLED_MS.to_string(), worker]);
    app.call(&["HSET", "dramatiq:mails.msgs", "j1", "{}"]);
    app.call(&["SADD", &format!("dramatiq:__acks__.{worker}.mails"), "j1"]);
    let due_ms = SETTLED_MS + TTL_MS;
    timed.move_to(due_ms - 1, &jobs).await;
    jobs.survey(PassMode::Reclaim).await.unwrap();
    assert_eq!(suspects(&jobs).await, [], "a millisecond before");
    timed.move_to(due_ms, &jobs).await;
    jobs.survey(PassMode::Reclaim).await.unwrap();
    let found = suspects(&jobs).await;
    assert_eq!(found.iter().map(|one| one.deadline_ms).collect::<Vec<_>>(), [due_ms]);
    // The score moves by one: the decisive step reads it again.
    let app_beats = |ms: u64| {
        app.call(&["ZADD", "dramatiq:__heartbeats__", &ms.to_string(), worker]);
    };
    app_beats(SETTLED_MS + 1);
    let early = reclaim(&jobs, 1, PassMode::Reclaim, &found[0]).await;
    assert_eq!(early, Outcome::Refused(Refusal::Alive));
    app_beats(SETTLED_MS);
    let real = reclaim(&jobs, 2, PassMode::Reclaim, &found[0]).await;
    assert!(matches!(real, Outcome::Reclaimed(Some(_))), "{real:?}");
}
