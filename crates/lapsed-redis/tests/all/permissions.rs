//! The permissions that `docs/operations.md` lists: all that is used, nothing else, and enough.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use lapsed_availability::Mirror;
use lapsed_core::Kind;
use lapsed_core::receipt::Retention;
use lapsed_core::reconcile::Reconcile;
use lapsed_core::sweep::{
    Batch, BatchId, Cursor, Outcome, PageRequest, PassMode, Sweep, TidyLimits,
};
use lapsed_redis::{MirrorLayout, RegistryLayout, SessionsLayout, Template};
use lapsed_testbed::{Engine, RedisServer, steadily_async};

use crate::fixture::{native, native_inflight, native_sessions};

lapsed_testbed::steady_async_tests! {
    the_user_of_the_example_can_sweep_and_reconcile_adopted_keys,
    the_user_of_the_example_can_mirror_and_listen,
    a_command_that_is_not_permitted_is_named,
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The section of the document.
fn section() -> String {
    let text = std::fs::read_to_string(here("../../docs/operations.md")).unwrap();
    let (_, section) = text.split_once("\n**Permissions.**").unwrap();
    section.split("\n## ").next().unwrap().to_owned()
}

/// The commands of its table.
fn listed() -> BTreeSet<String> {
    let section = section();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = rows.filter_map(|row| row.split('|').nth(2));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

/// What its `ACL SETUSER` grants, as arguments.
fn granted() -> Vec<String> {
    let section = section();
    let block = section.split("```").nth(1).unwrap();
    block.split_whitespace().map(str::to_owned).collect()
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

/// The word in capitals that `text` begins with, after its quote.
fn command(text: &str) -> Option<String> {
    let word = text.trim_start().trim_start_matches('(').strip_prefix(['\'', '"'])?;
    let length = word.find(|c: char| !c.is_ascii_uppercase()).unwrap_or(0);
    (length > 1 && word[length..].starts_with(['\'', '"'])).then(|| word[..length].to_owned())
}

/// Every command that scripts and source name where a command stands.
fn used() -> BTreeSet<String> {
    let mut paths = Vec::new();
    files(&here("scripts"), &mut paths);
    files(&here("src"), &mut paths);
    let mut used = BTreeSet::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for before in ["redis.call(", "redis.pcall(", "each(", "every(", "cmd(", "command(", "one("]
        {
            used.extend(text.split(before).skip(1).filter_map(command));
        }
        // Listening is not a command to the client.
        used.extend(text.contains(".subscribe(").then(|| "SUBSCRIBE".to_owned()));
        // The one place where a command is chosen.
        used.extend(text.match_indices("(\"X").filter_map(|(at, _)| command(&text[at..])));
    }
    // An option of a command, not a command.
    used.remove("XX");
    // For a hint only: whoever may not ask does without, and reading a configuration can show passwords.
    used.remove("CONFIG");
    used
}

#[test]
fn the_table_lists_what_is_used() {
    assert_eq!(listed(), used());
}

#[test]
fn the_user_of_the_example_may_do_what_the_table_lists() {
    let allowed =
        granted().into_iter().filter_map(|word| word.strip_prefix('+').map(str::to_owned));
    let allowed: BTreeSet<String> =
        allowed.map(|word| word.split('|').next().unwrap().to_uppercase()).collect();
    let mut expected = listed();
    expected.extend(["SELECT", "PING", "ASKING"].map(str::to_owned));
    assert_eq!(allowed, expected);
}

/// A server with that user; `keys` instead of the example's, where there are any.
fn server(engine: Engine, keys: &[&str]) -> (RedisServer, String) {
    let server = RedisServer::start(engine).unwrap();
    let mut words = granted();
    if !keys.is_empty() {
        words.retain(|word| !word.starts_with('~'));
        words.extend(keys.iter().map(|key| (*key).to_owned()));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(server.command(&words).unwrap(), "OK");
    let url = server.url().replacen("://", "://lapsed:PASSWORD@", 1);
    (server, url)
}

/// The names of the suites' keys.
const NAMES: &[&str] =
    &["~lapsed:*", "~connections-*", "~chat-*", "~jobs-*", "~{availability-*", "&{availability-*"];
static REDIS: LazyLock<(RedisServer, String)> = LazyLock::new(|| server(Engine::Redis, NAMES));

lapsed_core::registry_conformance!(registry, native(&REDIS.1, 1), steadily_async);
lapsed_core::sessions_conformance!(sessions, native_sessions(&REDIS.1, 1), steadily_async);
lapsed_core::inflight_conformance!(inflight, native_inflight(&REDIS.1), steadily_async);
lapsed_availability::availability_conformance!(
    availability,
    crate::availability::on_server(&REDIS.0, &REDIS.1),
    steadily_async
);

fn template(text: &str, place: &str) -> Template {
    Template::new(text, place).unwrap()
}

/// The key names that the example's user may touch: the defaults.
fn registry_layout() -> RegistryLayout {
    RegistryLayout {
        registry_key: "connections:registry".to_owned(),
        heartbeat_key: template("instance:heartbeat:{owner}", "owner"),
        heartbeat_ttl: crate::fixture::TTL,
        shards: 1,
    }
}

fn sessions_layout() -> SessionsLayout {
    SessionsLayout {
        session_key: template("session:{session}", "session"),
        ref_count_key: template("ref_count:{session}", "session"),
        broadcaster_key: template("broadcaster:{broadcaster}", "broadcaster"),
        disconnected_key: "disconnected_sessions".to_owned(),
        grace: crate::fixture::TTL,
        heartbeat_ttl: crate::fixture::TTL,
        shards: 1,
    }
}

/// Rounds until something was reclaimed; says how many. On a machine that stands still the grace of
/// the store starts again, so that one call is not enough.
async fn rounds(sweep: &dyn Sweep) -> usize {
    let mut number = 0;
    crate::story::eventually("something to be reclaimed", async || {
        number += 1;
        Some(round(sweep, number).await).filter(|reclaimed| *reclaimed > 0)
    })
    .await
}

/// Looks, reclaims what is dead and keeps house; says how many were reclaimed.
async fn round(sweep: &dyn Sweep, number: u64) -> usize {
    sweep.survey(PassMode::Reclaim).await.unwrap();
    sweep.census().await.unwrap();
    let request = PageRequest { after: Cursor::default(), limit: 10, undeclared_max: None };
    let suspects = sweep.suspects(request).await.unwrap().suspects;
    let id = BatchId { sweeper: "s".into(), number };
    let batch = Batch { id: id.clone(), suspects, act: PassMode::Reclaim, term: None };
    let answer = sweep.reclaim(batch).await.unwrap();
    sweep.settle(&id).await.unwrap();
    let limits =
        TidyLimits { rows: 100, undeclared_max: None, retention: Retention::default(), term: None };
    sweep.tidy(limits).await.unwrap();
    answer.outcomes.into_iter().filter_map(Outcome::receipt).count()
}

/// Goes over the index, to its end.
async fn heal(index: &dyn Reconcile) {
    index.extent().await.unwrap();
    let mut after = Some(Cursor::default());
    while let Some(cursor) = after {
        after = index.reconcile(cursor, 100, PassMode::Reclaim).await.unwrap().next;
    }
}

/// The example as it stands, on the keys of an application.
async fn the_user_of_the_example_can_sweep_and_reconcile_adopted_keys() {
    for engine in [Engine::Redis, Engine::Valkey] {
        let (server, url) = server(engine, &[]);
        let redis = crate::fixture::connect(&url);
        let registry =
            redis.adopted_registry(crate::fixture::id(Kind::Registry), registry_layout());
        let sessions =
            redis.adopted_sessions(crate::fixture::id(Kind::Sessions), sessions_layout());
        let (registry, sessions) = (registry.unwrap(), sessions.unwrap());
        for line in [
            "HSET connections:registry 1 gone 2 here",
            "SET instance:heartbeat:here 1",
            "HSET session:a value 5 broadcaster_user_id 7 last_disconnect 1700000000",
            "SET ref_count:a 0",
            "SET broadcaster:7 a",
        ] {
            server.command(&line.split(' ').collect::<Vec<_>>()).unwrap();
        }
        heal(&sessions).await;
        sessions.census().await.unwrap();
        registry.survey(PassMode::Reclaim).await.unwrap();
        crate::fixture::pass(redis.clone(), 2 * crate::fixture::TTL).await;
        assert_eq!(rounds(&registry).await, 1, "{engine:?}");
        assert_eq!(rounds(&sessions).await, 1, "{engine:?}");
        assert_eq!(server.command(&["EXISTS", "session:a", "broadcaster:7"]).unwrap(), "0");
        assert_eq!(server.command(&["HGET", "connections:registry", "2"]).unwrap(), "here");
        let native = redis.registry(crate::fixture::id(Kind::Registry), registry_layout()).unwrap();
        heal(&native).await;
    }
}

/// The first error that a pass gets.
async fn complaint(sweep: &dyn Sweep, number: u64) -> Option<String> {
    let all = async {
        sweep.survey(PassMode::Reclaim).await?;
        sweep.census().await?;
        let request = PageRequest { after: Cursor::default(), limit: 10, undeclared_max: None };
        let suspects = sweep.suspects(request).await?.suspects;
        let id = BatchId { sweeper: "s".into(), number };
        sweep.reclaim(Batch { id, suspects, act: PassMode::Reclaim, term: None }).await?;
        let retention = Retention::default();
        sweep.tidy(TidyLimits { rows: 100, undeclared_max: None, retention, term: None }).await
    };
    all.await.err().map(|error: lapsed_core::Error| error.to_string())
}

/// Whoever grants them one by one reads which comes next.
/// With the default key names and channels, and with notifications of expired heartbeats.
async fn the_user_of_the_example_can_mirror_and_listen() {
    use lapsed_redis::MirrorEvent;
    for engine in Engine::ALL {
        let (server, url) = server(engine, &[]);
        server.command(&["CONFIG", "SET", "notify-keyspace-events", "Ex"]).unwrap();
        let layout = MirrorLayout { instant: true, ..MirrorLayout::default() };
        let redis = crate::fixture::connect(&url);
        let id = crate::fixture::id(Kind::Availability);
        let mirror = redis.mirror(id, layout, crate::fixture::TTL).unwrap();
        let mut events = mirror.listen();
        let limit = crate::story::LIMIT;
        let mut next = async || tokio::time::timeout(limit, events.recv()).await.unwrap().unwrap();
        assert_eq!(next().await, MirrorEvent::MaybeMissed);
        mirror.announce("require_ping").await.unwrap();
        assert_eq!(next().await, MirrorEvent::Invalidated("require_ping".to_owned()));
        let attempt = mirror.begin_seed().await.unwrap();
        let now_ms = mirror.now_ms().await.unwrap();
        let told = crate::mirror_world::told(&[crate::mirror_world::online("m0", 1)], now_ms);
        mirror.apply(&told, Some(&attempt)).await.unwrap();
        assert!(mirror.end_seed(&attempt).await.unwrap());
        let who = [crate::story::name("m0")];
        assert!(mirror.beat(&who).await.unwrap().is_some());
        assert_eq!(next().await, MirrorEvent::Silent(who[0].clone()));
    }
}

async fn a_command_that_is_not_permitted_is_named() {
    for engine in Engine::ALL {
        let (server, url) = server(engine, &[]);
        let redis = crate::fixture::connect(&url);
        let id = |kind| crate::fixture::id(kind);
        let registry = redis.adopted_registry(id(Kind::Registry), registry_layout()).unwrap();
        let sessions = redis.adopted_sessions(id(Kind::Sessions), sessions_layout()).unwrap();
        let mut heard = BTreeSet::new();
        for (number, command) in listed().iter().enumerate() {
            server.command(&["ACL", "SETUSER", "lapsed", &format!("-{command}")]).unwrap();
            for sweep in [&registry as &dyn Sweep, &sessions] {
                let Some(said) = complaint(sweep, number as u64).await else { continue };
                assert!(said.contains("permission"), "-{command}: {said}");
                assert!(said.to_uppercase().contains(command), "-{command} on {engine:?}: {said}");
                heard.insert(command.clone());
            }
            server.command(&["ACL", "SETUSER", "lapsed", &format!("+{command}")]).unwrap();
        }
        assert!(heard.len() > 10, "{heard:?}");
    }
}
