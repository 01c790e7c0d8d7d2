//! One PostgreSQL server: its life, its data.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use lapsed_testbed::{PostgresOptions, PostgresServer, until};

fn children(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    tasks.unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Whoever adopted it may be slow to collect it: a zombie runs no longer.
fn runs(pid: impl std::fmt::Display) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[test]
fn a_killed_server_comes_back_with_what_was_committed() {
    let server = PostgresServer::start().unwrap();
    let (port, pid) = (server.port(), server.pid().unwrap());
    let database = server.database().unwrap();
    server.sql(&database, "CREATE TABLE t(x int); INSERT INTO t VALUES (7)").unwrap();
    let all = children(pid);
    assert!(!all.is_empty());
    server.kill().unwrap();
    assert_eq!(server.pid(), None);
    assert!(!all.iter().any(runs));
    assert!(server.sql(&database, "SELECT 1").is_err());

    server.restart().unwrap();
    assert_eq!(server.port(), port);
    assert_eq!(server.sql(&database, "SELECT x FROM t").unwrap(), "7");
    server.stop().unwrap();
    assert_eq!(server.pid(), None);
    server.restart().unwrap();
    assert_eq!(server.sql(&database, "SELECT x FROM t").unwrap(), "7");
}

#[test]
fn a_frozen_server_answers_when_it_is_thawed() {
    let server = PostgresServer::start().unwrap();
    server.freeze().unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.sql("postgres", "SELECT 40 + 2"));
        // Long enough for an answer to have come.
        std::thread::sleep(Duration::from_millis(300));
        assert!(!asked.is_finished());
        server.thaw().unwrap();
        assert_eq!(asked.join().unwrap().unwrap(), "42");
    });
}

#[test]
fn a_frozen_server_is_killed_all_the_same_and_leaves_nothing() {
    let server = PostgresServer::start().unwrap();
    let (pid, dir) = (server.pid().unwrap(), server.dir().to_owned());
    let all = children(pid);
    server.freeze().unwrap();
    drop(server);
    assert!(!runs(pid));
    assert!(!all.iter().any(runs));
    assert!(!dir.exists());
}

#[test]
fn databases_are_separate_and_sql_errors_are_returned() {
    let server = PostgresServer::shared().unwrap();
    let (one, other) = (server.database().unwrap(), server.database().unwrap());
    server.sql(&one, "CREATE TABLE t(x int)").unwrap();
    let refused = server.sql(&other, "SELECT * FROM t").unwrap_err().to_string();
    assert!(refused.contains("does not exist"), "{refused}");
}

#[test]
fn settings_and_hba_lines_are_applied() {
    let options = PostgresOptions::default().extra("max_connections", "11");
    let server = options.hba("host all all 127.0.0.1/32 trust").start().unwrap();
    assert_eq!(server.sql("postgres", "SHOW max_connections").unwrap(), "11");
    let options = PostgresOptions::default().hba("host all all 127.0.0.1/32 reject");
    let closed = options.start().unwrap();
    until("its refusal", Duration::from_secs(20), || {
        let refused = closed.sql("postgres", "SELECT 1").unwrap_err().to_string();
        Ok(refused.contains("rejects").then_some(()))
    })
    .unwrap();
}
