//! Entries that no pass can reclaim: `explain` and `status` say why, and promise nothing that the
//! next pass will not do.

use crate::support::{Home, until};
use lapsed_testbed::{Engine, RedisServer};

lapsed_testbed::steady_tests! {
    explain_reports_an_unreadable_entry,
    explain_reports_a_queue_of_the_wrong_type,
    status_fails_when_a_store_does_not_answer,
}

fn home(url: &str) -> Home {
    let home = Home { dir: tempfile::tempdir().unwrap() };
    let text = format!(
        "[store.main]\nurl = \"{url}\"\n\n\
         [[system]]\nkind = \"sessions\"\nname = \"chat\"\nmode = \"adopt\"\ngrace = \"1s\"\n\n\
         [[system]]\nkind = \"inflight\"\nname = \"requests\"\nmode = \"adopt\"\n\
         heartbeat_interval = \"500ms\"\norphan_threshold = \"1s\"\n"
    );
    std::fs::write(home.config(), text).unwrap();
    home
}

fn settled() -> RedisServer {
    let server = RedisServer::start(Engine::Redis).unwrap();
    until("the server to have been there for a while", || {
        (server.info("uptime_in_seconds").unwrap().parse::<u64>().unwrap() >= 3).then_some(())
    });
    server
}

/// The verdict, and all that is said.
fn explained(home: &Home, system: &str, key: &str) -> (String, String) {
    let answer = home.run(&["explain", system, key, "--json"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let json = answer.json();
    (json["verdict"].as_str().unwrap().to_owned(), json["because"].to_string())
}

fn explain_reports_an_unreadable_entry() {
    let server = settled();
    let home = home(&server.url());
    assert_eq!(home.run(&["adopt", "requests"]).code, 0);
    let set = |words: &[&str]| drop(server.command(words).unwrap());
    set(&["HSET", "session:odd", "last_disconnect", "yesterday"]);
    set(&["HSET", "session:idle", "last_disconnect", "0"]);
    set(&["HSET", "session:gone", "last_disconnect", "1000"]);
    set(&["ZADD", "disconnected_sessions", "1000", "odd", "1000", "gone"]);
    set(&["ZADD", "sidekiq:async_http:inflight_index", "1000", "r-1"]);
    set(&["HSET", "sidekiq:async_http:inflight_jobs", "r-1", "no job"]);
    for (system, key) in [("chat", "odd"), ("requests", "r-1")] {
        let (verdict, because) = explained(&home, system, key);
        assert_eq!(verdict, "unreadable", "{because}");
        assert!(because.contains("by hand"), "{because}");
        let swept = home.run(&["sweep", system, "--dry-run", "--json"]).json();
        assert_eq!(swept["skipped"]["unreadable"], 1, "{swept}");
    }
    let (verdict, because) = explained(&home, "chat", "idle");
    assert_eq!(verdict, "active");
    assert!(because.contains("has not marked it as disconnected"), "{because}");
    assert_eq!(explained(&home, "chat", "gone").0, "orphan");
    set(&["HSET", "session:missed", "last_disconnect", "1000"]);
    let (verdict, because) = explained(&home, "chat", "missed");
    assert_eq!(verdict, "unindexed", "{because}");
    assert!(because.contains("lapsed reconcile"), "{because}");
    assert_eq!(home.run(&["reconcile", "chat"]).code, 0);
    assert_eq!(explained(&home, "chat", "missed").0, "orphan");
}

fn explain_reports_a_queue_of_the_wrong_type() {
    let server = settled();
    let home = home(&server.url());
    assert_eq!(home.run(&["adopt", "requests"]).code, 0);
    let set = |words: &[&str]| drop(server.command(words).unwrap());
    set(&["SET", "queue:mails", "another type"]);
    set(&["ZADD", "sidekiq:async_http:inflight_index", "1000", "r-1"]);
    let job = r#"{"class":"Mail","args":[],"jid":"r-1","queue":"mails"}"#;
    set(&["HSET", "sidekiq:async_http:inflight_jobs", "r-1", job]);
    let (verdict, because) = explained(&home, "requests", "r-1");
    // So long ago that it would be a dead letter, whatever its queue.
    assert_eq!(verdict, "overdue", "{because}");
    let now_s: u64 = server.command(&["TIME"]).unwrap().lines().next().unwrap().parse().unwrap();
    let lately = (now_s - 100).to_string();
    set(&["ZADD", "sidekiq:async_http:inflight_index", &lately, "r-1"]);
    let (verdict, because) = explained(&home, "requests", "r-1");
    assert_eq!(verdict, "not_taken", "{because}");
    assert!(because.contains("`mails`"), "{because}");
}

fn status_fails_when_a_store_does_not_answer() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let home = home(&server.url());
    assert_eq!(home.run(&["status"]).code, 0);
    server.kill().unwrap();
    for words in [&["status"][..], &["status", "chat"], &["status", "--json"]] {
        let answer = home.run(words);
        assert_eq!(answer.code, 1, "{words:?}: {answer:?}");
        assert!(answer.out.contains("is unavailable"), "{words:?}: {answer:?}");
    }
}
