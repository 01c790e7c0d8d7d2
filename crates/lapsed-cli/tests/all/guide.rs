//! The README, the guide and the systems' pages are followed to the letter: what they say to type works, and prints what
//! they show.

use crate::console_runner::Shell;
use crate::pages::root;
use crate::support::until;
use lapsed_testbed::{Engine, PostgresServer, RedisServer};

lapsed_testbed::steady_tests! {
    every_command_of_the_guide_prints_what_the_guide_shows,
    every_command_of_the_readme_prints_what_the_readme_shows,
    every_command_on_an_existing_redis_prints_what_the_page_shows,
    every_command_of_the_system_pages_prints_what_they_show,
}

/// A Redis where the pages have theirs.
fn redis(shell: &mut Shell) -> RedisServer {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let port = server.port();
    shell.exchange("127.0.0.1:6379", &format!("127.0.0.1:{port}"));
    shell.program("redis-cli", &format!("exec /usr/bin/redis-cli -p {port} \"$@\""));
    server
}

fn every_command_of_the_guide_prints_what_the_guide_shows() {
    let page = std::fs::read_to_string(root("docs/guide.md")).unwrap();
    let mut shell = Shell::new();
    let _server = redis(&mut shell);
    shell.follow(&page);
}

fn every_command_of_the_readme_prints_what_the_readme_shows() {
    let page = std::fs::read_to_string(root("README.md")).unwrap();
    Shell::new().follow(&page);
}

fn every_command_on_an_existing_redis_prints_what_the_page_shows() {
    let page = std::fs::read_to_string(root("docs/existing-redis.md")).unwrap();
    let mut shell = Shell::new();
    let server = redis(&mut shell);
    // This server has just been started, a reader's has not: everybody's silence is shorter here.
    for (long, short) in [
        ("heartbeat_ttl = \"90s\"", "heartbeat_ttl = \"2s\""),
        ("grace = \"30s\"", "grace = \"2s\""),
        ("heartbeat_interval = \"60s\"", "heartbeat_interval = \"1s\""),
        ("orphan_threshold = \"300s\"", "orphan_threshold = \"3s\""),
    ] {
        assert!(page.contains(long), "{long} is no longer in the page");
        shell.exchange(long, short);
    }
    until("the server to have been there for a while", || {
        (server.info("uptime_in_seconds").unwrap().parse::<u64>().unwrap() >= 4).then_some(())
    });
    shell.follow(&page);
}

/// Each page in a shell of its own, on a Redis and a database of its own. All servers are started first: by
/// the time that a page uses its server, no owner is spared because the server is new.
fn every_command_of_the_system_pages_prints_what_they_show() {
    let postgres = PostgresServer::shared().unwrap();
    let systems = ["leases", "registry", "sessions", "inflight", "availability"];
    let mut shells: Vec<_> = systems
        .iter()
        .map(|_| {
            let mut shell = Shell::new();
            let server = redis(&mut shell);
            (shell, server)
        })
        .collect();
    for (system, (shell, _server)) in systems.iter().zip(&mut shells) {
        let page = std::fs::read_to_string(root(&format!("docs/{system}.md"))).unwrap();
        for (long, short) in [
            ("heartbeat_ttl = \"90s\"", "heartbeat_ttl = \"2s\""),
            ("sleep 90", "sleep 2.1"),
            ("grace = \"30s\"", "grace = \"2s\""),
            ("heartbeat_interval = \"60s\"", "heartbeat_interval = \"1s\""),
            ("orphan_threshold   = \"300s\"", "orphan_threshold   = \"2s\""),
        ] {
            shell.exchange(long, short);
        }
        let database = postgres.database().unwrap();
        shell.exchange("postgres://lapsed@127.0.0.1/app", &postgres.url(&database));
        shell.follow(&page);
    }
}
