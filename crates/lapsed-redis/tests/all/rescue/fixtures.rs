//! Keys as each system writes them, one file for each layout in its profile's folder, loaded into a real server: what `detect` and a
//! dry run say of them. Also of versions whose program cannot be run here.

use super::*;
use crate::story::dry;
use lapsed_redis::FoundSystem;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

lapsed_testbed::steady_async_tests! {
    detect_and_a_dry_run_say_what_is_in_each_fixture,
}

/// One file of keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixture {
    /// Where the keys come from.
    about: String,
    keys: BTreeMap<String, Key>,
    #[serde(default)]
    layout: Layout,
    expect: Expected,
    /// How many jobs a dry run would put back. Not given where a server that was just started spares everybody for a minute.
    dry_run: Option<u64>,
}

/// A consumer group: its name, the id that it has read up to, and who has which entry.
type PendingGroup = (String, String, Vec<(String, String)>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    #[serde(rename = "type")]
    kind: String,
    value: Value,
    ttl_ms: Option<u64>,
    /// Of a stream: each group with the last entry that it has handed out, and its pending entries with their consumers.
    #[serde(default)]
    groups: Vec<PendingGroup>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Layout {
    queues: Vec<String>,
    heartbeat_key: Option<String>,
}

/// What `detect` finds. What is not given is not compared.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    #[serde(default)]
    preset: String,
    version: Option<String>,
    in_flight: Option<u64>,
    orphans: Option<u64>,
    workers_alive: Option<u64>,
    workers_dead: Option<u64>,
    queues: Option<Vec<String>>,
    /// A part of one of the notes.
    note: Option<String>,
    /// A part of what is said about a layout that is not known.
    refused: Option<String>,
    #[serde(default)]
    has_age: bool,
    #[serde(default)]
    nothing: bool,
}

fn fixtures() -> Vec<(PathBuf, Fixture)> {
    let profiles = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rescue");
    let mut all = Vec::new();
    for profile in std::fs::read_dir(profiles).unwrap().map(|entry| entry.unwrap().path()) {
        if !profile.join("mod.rs").exists() {
            continue;
        }
        let files = std::fs::read_dir(profile.join("fixtures"));
        let files = files.unwrap_or_else(|_| panic!("{profile:?} has no fixtures"));
        for file in files.map(|entry| entry.unwrap().path()) {
            let text = std::fs::read_to_string(&file).unwrap();
            let fixture = serde_json::from_str(&text);
            all.push((file.clone(), fixture.unwrap_or_else(|why| panic!("{file:?}: {why}"))));
        }
    }
    assert!(all.len() >= 19, "only {} fixtures were found", all.len());
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// A text of a fixture: bytes in hexadecimal digits after `hex:`, and times that are relative to now: `@ms-500@`, `@iso-5@` (in seconds).
fn bytes(text: &str) -> Vec<u8> {
    if let Some(digits) = text.strip_prefix("hex:") {
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        return (0..digits.len()).step_by(2).map(byte).collect();
    }
    let relative = text.strip_prefix('@').and_then(|rest| rest.strip_suffix('@'));
    let now = jiff::Timestamp::now();
    match relative.and_then(|rest| rest.split_once('-')) {
        Some(("ms", ago)) => (now.as_millisecond() - ago.parse::<i64>().unwrap()).to_string(),
        Some(("iso", ago)) => {
            let at = jiff::Timestamp::from_second(now.as_second() - ago.parse::<i64>().unwrap());
            at.unwrap().to_string()
        }
        _ => text.to_owned(),
    }
    .into_bytes()
}

fn word(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => bytes(text),
        other => other.to_string().into_bytes(),
    }
}

fn pairs(value: &Value) -> Vec<Vec<u8>> {
    let pairs = value.as_object().unwrap().iter();
    pairs.flat_map(|(name, value)| [bytes(name), word(value)]).collect()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// The commands that write a key.
fn commands(name: &str, key: &Key) -> Vec<Vec<Vec<u8>>> {
    let command = |words: &[&str]| -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    };
    let with = |verb: &str, rest: Vec<Vec<u8>>| [command(&[verb, name]), rest].concat();
    let all = |value: &Value| items(value).iter().map(word).collect();
    let mut done = match key.kind.as_str() {
        "string" => vec![with("SET", vec![word(&key.value)])],
        "hash" => vec![with("HSET", pairs(&key.value))],
        "list" => vec![with("RPUSH", all(&key.value))],
        "set" => vec![with("SADD", all(&key.value))],
        "zset" => {
            let scored = items(&key.value).iter();
            let scored = scored.flat_map(|pair| [word(&pair[1]), word(&pair[0])]).collect();
            vec![with("ZADD", scored)]
        }
        "stream" => {
            let entry =
                |entry: &Value| with("XADD", [vec![word(&entry[0])], pairs(&entry[1])].concat());
            items(&key.value).iter().map(entry).collect()
        }
        other => panic!("{name}: {other}"),
    };
    for (group, last, pending) in &key.groups {
        done.push(command(&["XGROUP", "CREATE", name, group, last]));
        for (consumer, id) in pending {
            let words = ["XCLAIM", name, group, consumer, "0", id, "FORCE", "JUSTID"];
            done.push(command(&words));
        }
    }
    done.extend(key.ttl_ms.map(|ms| command(&["PEXPIRE", name, &ms.to_string()])));
    done
}

async fn load(server: &RedisServer, fixture: &Fixture) {
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for (name, key) in &fixture.keys {
        for words in commands(name, key) {
            let mut cmd = redis::Cmd::new();
            words.iter().for_each(|word| {
                cmd.arg(word);
            });
            let answer: redis::RedisResult<redis::Value> = cmd.query_async(&mut connection).await;
            answer.unwrap_or_else(|why| panic!("{}: {name}: {why}", fixture.about));
        }
    }
}

fn compare(file: &Path, found: &[FoundSystem], expected: &Expected) {
    if expected.nothing {
        assert!(found.is_empty(), "{file:?}: {found:?}");
        return;
    }
    let [found] = found else { panic!("{file:?}: {found:?}") };
    assert_eq!(found.preset, expected.preset, "{file:?}");
    if let Some(part) = &expected.refused {
        assert_eq!(found.version, "unknown", "{file:?}: {found:?}");
        assert!(found.notes[0].contains(part), "{file:?}: {found:?}");
        return;
    }
    let Expected { version, in_flight, orphans, workers_alive, workers_dead, queues, .. } =
        expected;
    for (what, expected, found) in [
        ("in flight", in_flight, found.in_flight),
        ("orphans", orphans, found.orphans),
        ("alive", workers_alive, found.workers_alive),
        ("dead", workers_dead, found.workers_dead),
    ] {
        assert!(expected.is_none_or(|number| number == found), "{file:?}: {what}: {found}");
    }
    assert!(version.as_ref().is_none_or(|v| *v == found.version), "{file:?}: {found:?}");
    assert!(queues.as_ref().is_none_or(|names| *names == found.queues), "{file:?}: {found:?}");
    let part = expected.note.as_deref().unwrap_or_default();
    assert!(part.is_empty() || found.notes.iter().any(|n| n.contains(part)), "{file:?}: {found:?}");
    assert!(!expected.has_age || found.oldest_ms > 3_600_000, "{file:?}: {found:?}");
}

async fn detect_and_a_dry_run_say_what_is_in_each_fixture() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    for (file, fixture) in fixtures() {
        app.call(&["FLUSHALL"]);
        load(&server, &fixture).await;
        let keys = app.number(&["DBSIZE"]);
        let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
        compare(&file, &found, &fixture.expect);
        assert_eq!(app.number(&["DBSIZE"]), keys, "{file:?}: detect changed something");
        let Some(expected) = fixture.dry_run else { continue };
        let names = fixture.layout.queues.iter().map(|name| Name::new(name).unwrap());
        let layout = RescueLayout {
            queues: names.collect(),
            heartbeat_key: fixture.layout.heartbeat_key.clone(),
            grace: Some(Duration::from_millis(300)),
            ..RescueLayout::new(&fixture.expect.preset, RecoveryPolicy::default())
        };
        let sweep: Arc<dyn Sweep> = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
        let sweeper = sweeper(&sweep, &redis, Policy::default());
        let report = eventually("a dry run", async || {
            Some(dry(&sweeper).await).filter(|report| report.stopped == Stopped::Done)
        })
        .await;
        assert_eq!(report.reclaimed, expected, "{file:?}: {report:?}");
    }
}
