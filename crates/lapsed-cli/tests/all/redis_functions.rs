//! `lapsed functions` against real servers.

use crate::support::run;
use lapsed_redis::FUNCTIONS_VERSION as VERSION;
use lapsed_testbed::{Cluster, Engine, RedisServer};

/// Which version a server has.
fn version_on(server: &RedisServer) -> u32 {
    server.command(&["FCALL", "lapsed_version", "0"]).unwrap().parse().unwrap()
}

#[test]
fn the_printed_library_loads_on_a_server() {
    let printed = run(&["functions", "print"]);
    assert_eq!(printed.code, 0, "{printed:?}");
    assert!(printed.out.starts_with("#!lua name=lapsed\n"), "{}", printed.out);
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        assert_eq!(server.command(&["FUNCTION", "LOAD", &printed.out]).unwrap(), "lapsed");
        assert_eq!(version_on(&server), VERSION);
    }
}

#[test]
fn loading_by_url_is_idempotent() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let load =
        |more: &[&str]| run(&[&["functions", "load", "--url", &server.url()], more].concat());
    let first = load(&["--json"]);
    assert_eq!(first.code, 0, "{first:?}");
    let told = first.json();
    let now = told["now"].as_u64();
    assert_eq!((told["before"].as_u64(), now), (None, Some(VERSION.into())), "{told}");
    let second = load(&[]);
    let anew = format!("version {VERSION} of the functions reloaded");
    assert!(second.out.contains(&anew), "{second:?}");

    let newer = VERSION + 1;
    let line = |version: u32| format!("local VERSION = {version}\n");
    let text = run(&["functions", "print"]).out.replace(&line(VERSION), &line(newer));
    server.command(&["FUNCTION", "LOAD", "REPLACE", &text]).unwrap();
    let refused = load(&[]);
    assert_eq!((refused.code, refused.out.as_str()), (1, ""), "{refused:?}");
    assert!(refused.err.contains("newer") && refused.err.contains("--force"), "{refused:?}");
    assert_eq!(version_on(&server), newer);
    let forced = load(&["--force"]);
    assert!(forced.out.contains(&format!("in place of version {newer}")), "{forced:?}");
    assert_eq!(version_on(&server), VERSION);
}

#[test]
fn functions_are_loaded_into_every_configured_redis_store() {
    let (one, cluster) =
        (RedisServer::start(Engine::Valkey).unwrap(), Cluster::start(Engine::Redis, 3).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lapsed.toml");
    let text = format!(
        "[store.one]\nurl = \"{}\"\n[store.many]\nurl = \"{}\"\n[store.here]\nurl = \"embedded:{}\"\n\
         [[system]]\nkind = \"registry\"\nname = \"devices\"\nstore = \"one\"\n",
        one.url(),
        cluster.url(),
        dir.path().join("data").display()
    );
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let only = run(&["functions", "load", "-c", &file, "--store", "one", "--json"]);
    assert_eq!(only.lines().len(), 1, "{only:?}");
    let both = run(&["functions", "load", "-c", &file, "--json"]).lines();
    let told =
        |at: usize| (both[at]["store"].as_str().unwrap(), both[at]["nodes"].as_u64().unwrap());
    assert_eq!([told(0), told(1)], [("many", 3), ("one", 1)]);
    for node in cluster.nodes() {
        assert_eq!(version_on(node), VERSION);
    }
    let none = run(&["functions", "load", "-c", &file, "--store", "here"]);
    assert_eq!(none.code, 2, "{none:?}");
    assert!(none.err.contains("`here` is on Redis"), "{none:?}");
    for wrong in [&["functions", "load"][..], &["functions", "load", "--url", "embedded:x"]] {
        assert_eq!(run(wrong).code, 2, "{wrong:?}");
    }
}

#[test]
fn an_unreachable_server_is_named_without_its_password() {
    let answer = run(&["functions", "load", "--url", "redis://:hush@127.0.0.1:1/0"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.err.contains("127.0.0.1:1") && !answer.err.contains("hush"), "{answer:?}");
}
