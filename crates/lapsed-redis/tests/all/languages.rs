//! The examples in other languages, run by their real interpreters with the usual clients, and the
//! document that shows them.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::inflight::{InflightStore, JobPlace};
use lapsed_core::owner::{Claim, Incarnation, OwnerStore};
use lapsed_core::registry::RegistryStore;
use lapsed_core::sessions::SessionsStore;
use lapsed_core::store::Store;
use lapsed_core::sweep::Sweep;
use lapsed_core::sweep::brake::BrakeSetting;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::{Kind, Name, SystemId};
use lapsed_redis::{
    InflightLayout, NativeInflight, QueueFormat, Redis, RedisAddress, RegistryLayout,
    SessionsLayout, Template,
};
use lapsed_testbed::{Engine, Program, RedisServer, paths};

use crate::caller::Caller;
use crate::ruby::LIMIT;
use crate::story::{connect, eventually, pass, sweeper};

lapsed_testbed::steady_async_tests! {
    the_registry_examples_work_in_every_language,
    the_sessions_examples_work_in_every_language,
    the_inflight_examples_work_in_every_language,
    a_worker_in_any_language_dies_and_comes_back,
    an_ended_owner_gets_the_lost_error_in_every_language,
    the_document_names_every_function,
}

const TTL: Duration = Duration::from_secs(90);

/// Where an interpreter is.
type Interpreter = fn() -> lapsed_testbed::TestbedResult<PathBuf>;

const LANGUAGES: [(&str, Interpreter); 3] =
    [("mjs", paths::node), ("py", paths::python), ("rb", paths::ruby)];

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/other-languages").join(name)
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Runs a program in a folder of its own, where Node finds its packages as in any project.
fn run(interpreter: &Path, program: &Path, server: &RedisServer) {
    let dir = tempfile::tempdir().unwrap();
    symlink(paths::node_modules().unwrap(), dir.path().join("node_modules")).unwrap();
    let copy = dir.path().join(program.file_name().unwrap());
    std::fs::copy(program, &copy).unwrap();
    let mut command = Command::new(interpreter);
    let output = command.arg(&copy).current_dir(dir.path()).env("REDIS_URL", server.url());
    let output = output.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", program.display());
}

async fn the_registry_examples_work_in_every_language() {
    for engine in Engine::ALL {
        for (ending, interpreter) in LANGUAGES {
            let server = RedisServer::start(engine).unwrap();
            let mut caller = Caller::on(&server).await;
            run(&interpreter().unwrap(), &example(&format!("registry.{ending}")), &server);
            let redis = Redis::new(&RedisAddress::new(&server.url())).unwrap();
            let layout = RegistryLayout {
                registry_key: "connections:registry".to_owned(),
                heartbeat_key: Template::new("instance:heartbeat:{owner}", "owner").unwrap(),
                heartbeat_ttl: TTL,
                shards: 1,
            };
            let id = SystemId::new(Kind::Registry, "devices").unwrap();
            let registry = redis.registry(id, layout).unwrap();
            let found = registry.find(&[name("356307042441013")]).await.unwrap().remove(0).unwrap();
            assert_eq!(found.holder.owner, name("i-1"), "{ending}");
            assert!(found.due_ms > found.now_ms + 60_000, "{ending}: it lives");
            let mut call = |words: &[&str]| caller.call(words).unwrap().to_string();
            let beaten = call(&["GET", "instance:heartbeat:i-1"]);
            assert_eq!(beaten, found.holder.incarnation.to_string(), "{ending}");
            assert_eq!(call(&["HGET", "connections:registry", "356307042441013"]), "i-1");
        }
    }
}

async fn the_sessions_examples_work_in_every_language() {
    for engine in Engine::ALL {
        for (ending, interpreter) in LANGUAGES {
            let server = RedisServer::start(engine).unwrap();
            let mut caller = Caller::on(&server).await;
            run(&interpreter().unwrap(), &example(&format!("sessions.{ending}")), &server);
            let redis = Redis::new(&RedisAddress::new(&server.url())).unwrap();
            let layout = SessionsLayout {
                session_key: Template::new("session:{session}", "session").unwrap(),
                ref_count_key: Template::new("ref_count:{session}", "session").unwrap(),
                broadcaster_key: Template::new("broadcaster:{broadcaster}", "broadcaster").unwrap(),
                disconnected_key: "disconnected_sessions".to_owned(),
                grace: TTL,
                heartbeat_ttl: TTL,
                shards: 1,
            };
            let id = SystemId::new(Kind::Sessions, "chat").unwrap();
            let sessions = redis.sessions(id, layout).unwrap();
            let session = sessions.get(&name("s-1")).await.unwrap().unwrap();
            assert_eq!(session.references, 1, "{ending}");
            assert_eq!(session.profile.broadcaster_user_id, Some(name("b-1")), "{ending}");
            let owner = sessions.owner(&Claim::newest(name("i-1"))).await.unwrap().unwrap();
            let claim = Claim::exact(name("i-1"), Incarnation(owner.incarnation.0));
            let referred = sessions.referred(&claim, None, 10).await.unwrap();
            assert_eq!(referred, [name("s-1")], "{ending}: the reference is its owner's");
            let pointer = caller.call(&["GET", "broadcaster:b-1"]).unwrap().to_string();
            assert_eq!(pointer, "s-1", "{ending}");
        }
    }
}

async fn the_inflight_examples_work_in_every_language() {
    for engine in Engine::ALL {
        for (ending, interpreter) in LANGUAGES {
            let server = RedisServer::start(engine).unwrap();
            let _caller = Caller::on(&server).await;
            run(&interpreter().unwrap(), &example(&format!("inflight.{ending}")), &server);
            let jobs = mail(&server);
            let counts = jobs.counts().await.unwrap();
            assert!(counts.balances(), "{ending}: {counts:?}");
            assert_eq!((counts.entered, counts.completed, counts.queued), (2, 1, 1), "{ending}");
            let left = jobs.job(&name("job-2")).await.unwrap().unwrap();
            assert_eq!((left.payload.as_str(), left.place), (r#"{"to":"bob"}"#, JobPlace::Queued));
            assert_eq!(jobs.queues(None, 10).await.unwrap(), [(name("welcome"), 1)]);
            let owner = jobs.owner(&Claim::newest(name("w-1"))).await.unwrap().unwrap();
            assert_eq!((owner.held, owner.ended), (0, None), "{ending}");
        }
    }
}

/// The system that the examples work on.
fn mail(server: &RedisServer) -> NativeInflight {
    let redis = Redis::new(&RedisAddress::new(&server.url())).unwrap();
    redis.inflight(SystemId::new(Kind::Inflight, "mail").unwrap(), mail_layout()).unwrap()
}

fn mail_layout() -> InflightLayout {
    InflightLayout {
        prefix: "lapsed:inflight".to_owned(),
        queues: QueueFormat::Own,
        queue_key: Template::new("queue:{queue}", "queue").unwrap(),
        heartbeat_ttl: Duration::from_secs(1),
        recovery: RecoveryPolicy::default(),
    }
}

/// Takes a job, prints which, completes it on request, and prints the result.
const WORKERS: [&str; 3] = [
    "import Redis from 'ioredis';\nimport { createInterface } from 'node:readline';\n\
     const redis = new Redis(process.env.REDIS_URL);\nconst on = [1, 'lapsed:inflight', 'mail'];\n\
     const [life] = await redis.fcall('lapsed_inflight_start', ...on, 'w', 1000);\n\
     const [[id, token]] = await redis.fcall('lapsed_inflight_take', ...on, 'w', life, 'welcome', 1);\n\
     console.log(id);\nfor await (const _ of createInterface({ input: process.stdin })) {\n\
       const told = await redis.fcall('lapsed_inflight_complete', ...on, id, token).catch((e) => e.message);\n\
       console.log(String(told).split(' ')[0]);\n  break;\n}\nawait redis.quit();\nprocess.exit(0);\n",
    "import os, redis\nr = redis.from_url(os.environ['REDIS_URL'], decode_responses=True)\n\
     on = [1, 'lapsed:inflight', 'mail']\n\
     life, _ = r.fcall('lapsed_inflight_start', *on, 'w', 1000)\n\
     [[id, token, _, _]] = r.fcall('lapsed_inflight_take', *on, 'w', life, 'welcome', 1)\n\
     print(id, flush=True)\ninput()\ntry:\n    told = r.fcall('lapsed_inflight_complete', *on, id, token)[0]\n\
     except redis.ResponseError as error:\n    told = str(error)\nprint(told.split(' ')[0], flush=True)\n",
    "require 'redis'\n$stdout.sync = true\nredis = Redis.new(url: ENV['REDIS_URL'])\n\
     on = [1, 'lapsed:inflight', 'mail']\n\
     life, _ = redis.call('FCALL', 'lapsed_inflight_start', *on, 'w', 1000)\n\
     (id, token), _ = redis.call('FCALL', 'lapsed_inflight_take', *on, 'w', life, 'welcome', 1)\n\
     puts id\ngets\nbegin\n  told = redis.call('FCALL', 'lapsed_inflight_complete', *on, id, token)[0]\n\
     rescue Redis::CommandError => error\n  told = error.message\nend\nputs told.split(' ')[0]\n",
];

/// One is killed with its job in its hands, one is merely too slow: both jobs go back, and the late word
/// changes nothing.
async fn a_worker_in_any_language_dies_and_comes_back() {
    for ((ending, interpreter), program) in LANGUAGES.into_iter().zip(WORKERS) {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let mut caller = Caller::on(&server).await;
        let jobs = mail(&server);
        let put = ["mail", "welcome", "a", "1", "b", "2", "c", "3"];
        caller.must("lapsed_inflight_enqueue", &["lapsed:inflight"], &put);
        let dir = tempfile::tempdir().unwrap();
        symlink(paths::node_modules().unwrap(), dir.path().join("node_modules")).unwrap();
        let file = dir.path().join(format!("worker.{ending}"));
        std::fs::write(&file, program).unwrap();
        let start = || {
            Program::start(&interpreter().unwrap(), |command| {
                command.arg(&file).current_dir(dir.path()).env("REDIS_URL", server.url());
            })
            .unwrap()
        };
        let (killed, slow) = (start(), start());
        let mut held = [&killed, &slow].map(|worker| worker.line(LIMIT).unwrap());
        killed.kill().unwrap();
        let sweep: Arc<dyn Sweep> = Arc::new(jobs.clone());
        let redis = connect(&server.url());
        redis.inflight(jobs.system().clone(), mail_layout()).unwrap();
        // All there are die at once: that is what a brake is for, and the operator lets go of it.
        let sweeper = sweeper(&sweep, &redis, Policy::default());
        eventually("both are back", async || {
            let overridden = BrakeSetting::Override { reason: "they were killed".into() };
            redis.set_brake(jobs.system(), overridden).await.unwrap();
            pass(&sweeper).await;
            (jobs.counts().await.unwrap().queued == 3).then_some(())
        })
        .await;
        let quick = start();
        let again = quick.line(LIMIT).unwrap();
        assert!(held.contains(&again), "{ending}: {again} is one of {held:?}");
        quick.say("complete").unwrap();
        let told = quick.line(LIMIT).unwrap();
        assert!(told == "done" || told == "LOST", "{ending}: {told}");
        slow.say("complete").unwrap();
        assert_eq!(slow.line(LIMIT).unwrap(), "LOST", "{ending}");
        held.sort();
        assert_eq!(held, ["a", "b"], "{ending}: each had its own");
        let counts = jobs.counts().await.unwrap();
        assert!(counts.balances() && counts.completed <= 1, "{ending}: {counts:?}");
    }
}

/// The code of an error is what each client shows first.
async fn an_ended_owner_gets_the_lost_error_in_every_language() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let mut caller = Caller::on(&server).await;
    let keys = ["connections:registry"];
    let life = caller.must("lapsed_registry_start", &keys, &["devices", "i-1", "90000"]);
    let life = crate::caller::first(&life);
    caller.must("lapsed_registry_retire", &keys, &["devices", "i-1", &life]);
    let dir = tempfile::tempdir().unwrap();
    let call =
        format!("'lapsed_registry_beat', 1, 'connections:registry', 'devices', 'i-1', '{life}'");
    let programs = [
        format!(
            "import Redis from 'ioredis';\nconst redis = new Redis(process.env.REDIS_URL);\n\
             const told = await redis.fcall({call}).catch((error) => error.message);\n\
             await redis.quit();\nif (!told.startsWith('LOST ')) throw new Error(told);\n"
        ),
        format!(
            "import os, redis\nr = redis.from_url(os.environ['REDIS_URL'])\ntry:\n    r.fcall({call})\n\
             except redis.ResponseError as error:\n    assert str(error).startswith('LOST '), error\n\
             else:\n    raise SystemExit('not told')\n"
        ),
        format!(
            "require 'redis'\nbegin\n  Redis.new(url: ENV['REDIS_URL']).call('FCALL', {call})\n\
             rescue Redis::CommandError => error\n  told = error.message\nend\n\
             abort told.to_s unless told.to_s.start_with?('LOST ')\n"
        ),
    ];
    for ((ending, interpreter), program) in LANGUAGES.into_iter().zip(programs) {
        let file = dir.path().join(format!("zombie.{ending}"));
        std::fs::write(&file, program).unwrap();
        run(&interpreter().unwrap(), &file, &server);
    }
}

#[test]
fn the_document_shows_the_examples_as_they_are() {
    let doc = document();
    for what in ["registry", "sessions", "inflight"] {
        for (ending, language) in [("mjs", "js"), ("py", "python"), ("rb", "ruby")] {
            let text = std::fs::read_to_string(example(&format!("{what}.{ending}"))).unwrap();
            let shown = format!("```{language}\n{text}```\n");
            assert!(
                doc.contains(&shown),
                "docs/functions.md does not show {what}.{ending} as it is"
            );
        }
    }
}

/// Every function is in the table, and nothing else is.
async fn the_document_names_every_function() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let listed = Caller::on(&server).await.call(&["FUNCTION", "LIST"]).unwrap().to_string();
    let mut there: Vec<&str> = listed.lines().filter(|l| l.starts_with("lapsed_")).collect();
    let doc = document();
    let rows = doc.lines().filter(|line| line.starts_with("| `lapsed_"));
    let mut told: Vec<&str> = rows.filter_map(|line| line.split('`').nth(1)).collect();
    there.sort_unstable();
    told.sort_unstable();
    assert_eq!(told, there);
}

fn document() -> String {
    let doc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/functions.md");
    std::fs::read_to_string(doc).unwrap()
}
