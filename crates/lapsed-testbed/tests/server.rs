//! One server: its life, its data, its port.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use lapsed_testbed::{Engine, Persistence, PortChoice, RedisServer, ServerOptions, paths};

#[test]
fn a_killed_server_comes_back_with_what_its_log_kept() {
    for engine in Engine::ALL {
        let server = ServerOptions::new(engine).persistence(Persistence::Aof).start().unwrap();
        let (port, pid) = (server.port(), server.pid().unwrap());
        server.command(&["SET", "k", "kept"]).unwrap();
        server.kill().unwrap();
        assert_eq!(server.pid(), None);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        assert!(server.command(&["PING"]).is_err());

        server.restart().unwrap();
        assert_eq!(server.port(), port);
        assert_ne!(server.pid(), Some(pid));
        assert_eq!(server.command(&["GET", "k"]).unwrap(), "kept", "{engine:?}");
    }
}

#[test]
fn a_stop_saves_a_snapshot_and_nothing_is_kept_unless_asked() {
    for (persistence, after) in [(Persistence::Rdb, "v"), (Persistence::None, "(nil)")] {
        let server = ServerOptions::new(Engine::Redis).persistence(persistence).start().unwrap();
        server.command(&["SET", "k", "v"]).unwrap();
        server.stop().unwrap();
        server.restart().unwrap();
        assert_eq!(server.command(&["GET", "k"]).unwrap(), after);
    }
}

#[test]
fn a_frozen_server_answers_when_it_is_thawed() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let mut connection = server.connect(Duration::from_millis(200)).unwrap();
        server.freeze().unwrap();
        assert!(connection.call(&["PING"]).is_err());
        server.thaw().unwrap();
        assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
    }
}

#[test]
fn a_frozen_server_is_killed_all_the_same() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (pid, dir) = (server.pid().unwrap(), server.dir().to_owned());
    server.freeze().unwrap();
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(!dir.exists());
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = std::thread::spawn(|| RedisServer::start(Engine::Redis).unwrap()).join().unwrap();
    assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
    assert_eq!(server.info("process_id").unwrap(), server.pid().unwrap().to_string());
}

#[test]
fn a_server_that_ends_by_itself_can_be_restarted() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    assert!(server.command(&["SHUTDOWN", "NOSAVE"]).is_err());
    let gone = || Ok(server.pid().is_none().then_some(()));
    lapsed_testbed::until("its end", Duration::from_secs(20), gone).unwrap();
    server.restart().unwrap();
    assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
}

#[test]
fn a_failed_start_returns_the_server_log() {
    let wrong = ServerOptions::new(Engine::Redis).extra("no-such-setting", "1").start();
    assert!(wrong.err().unwrap().to_string().contains("no-such-setting"));

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = PortChoice::Fixed(taken.local_addr().unwrap().port());
    let refused = ServerOptions::new(Engine::Valkey).port(port).start().err().unwrap();
    assert!(refused.to_string().contains("Address already in use"), "{refused}");
}

#[test]
fn a_password_is_used_and_is_part_of_the_url() {
    let options = ServerOptions::new(Engine::Valkey).extra("requirepass", "sesame");
    let server = options.start().unwrap();
    assert_eq!(server.url(), format!("redis://:sesame@127.0.0.1:{}/0", server.port()));
    assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
    assert!(server.command(&["NONSENSE"]).unwrap_err().to_string().contains("unknown command"));
}

#[test]
fn many_servers_start_concurrently() {
    let start = |nth: usize| move || RedisServer::start(Engine::ALL[nth % 2]).unwrap();
    let threads: Vec<_> = (0..12).map(|nth| std::thread::spawn(start(nth))).collect();
    let servers: Vec<RedisServer> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    for (nth, server) in servers.iter().enumerate() {
        server.command(&["SET", "nth", &nth.to_string()]).unwrap();
    }
    for (nth, server) in servers.iter().enumerate() {
        assert_eq!(server.command(&["GET", "nth"]).unwrap(), nth.to_string());
    }
}

#[test]
fn clients_of_other_languages_reach_it() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let url = server.url();
    let python = "import sys, redis; redis.Redis.from_url(sys.argv[1]).incr('n')";
    let ruby = "require 'redis'; Redis.new(url: ARGV[0]).incr('n')";
    let node = "const R = require('ioredis'); const r = new R(process.argv[1]); \
                r.incr('n').then(() => r.quit())";
    for (program, flag, script) in [
        (paths::python().unwrap(), "-c", python),
        (paths::ruby().unwrap(), "-e", ruby),
        (paths::node().unwrap(), "-e", node),
    ] {
        let mut command = std::process::Command::new(&program);
        command.args([flag, script, &url]).env("NODE_PATH", paths::node_modules().unwrap());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{program:?}: {output:?}");
    }
    assert_eq!(server.command(&["GET", "n"]).unwrap(), "3");
    assert!(paths::promtool().unwrap().exists());
}
