//! An application that knows nothing of lapsed writes its own tables; the triggers tell who was changed.

use std::time::Duration;

use lapsed_availability::Truth;
use lapsed_postgres::{ChangeEvent, ChangeListener, Triggers};
use lapsed_testbed::{PostgresProxy, PostgresServer};

use crate::fixture::{Bench, Server, address, name};

async fn bench() -> Bench {
    Bench::with(Server::Shared(PostgresServer::shared().unwrap()), Triggers::With).await
}

async fn next(listener: &mut ChangeListener) -> ChangeEvent {
    let heard = tokio::time::timeout(Duration::from_secs(60), listener.next()).await;
    heard.expect("nothing was told")
}

/// What is heard until the marker that is set last, without gaps.
async fn heard(b: &Bench, listener: &mut ChangeListener) -> Vec<String> {
    b.sql("SELECT pg_notify('lapsed_availability', 'the end')");
    let mut all = Vec::new();
    loop {
        match next(listener).await {
            ChangeEvent::Provider(id) if id.as_str() == "the end" => return all,
            ChangeEvent::Provider(id) => all.push(id.to_string()),
            ChangeEvent::Setting(key) => all.push(format!("setting {key}")),
            ChangeEvent::Gap => all.push("gap".to_owned()),
            other => all.push(format!("{other:?}")),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_relevant_change_is_notified_and_no_other() {
    let b = bench().await;
    b.there(&["a", "b"]).await;
    let mut listener = b.postgres.listen();
    assert_eq!(
        next(&mut listener).await,
        ChangeEvent::Gap,
        "before it listened it missed everything"
    );
    let tries: [(&str, &[&str]); 16] = [
        ("INSERT INTO mitras (id) VALUES ('c')", &["c"]),
        ("UPDATE mitras SET is_active = false WHERE id = 'a'", &["a"]),
        ("UPDATE mitras SET is_active = false, display_name = 'x' WHERE id = 'a'", &[]),
        ("UPDATE mitra_online_status SET last_heartbeat_at = now()", &[]),
        ("UPDATE mitra_online_status SET is_online = false WHERE mitra_id = 'b'", &["b"]),
        ("UPDATE mitra_online_status SET last_online_at = now() WHERE mitra_id = 'a'", &["a"]),
        ("INSERT INTO chat_sessions (id, mitra_id, status) VALUES ('s', 'a', 'active')", &["a"]),
        ("INSERT INTO chat_sessions (id, mitra_id, status) VALUES ('t', NULL, 'new')", &[]),
        ("UPDATE chat_sessions SET mitra_id = 'b' WHERE id = 's'", &["a", "b"]),
        ("UPDATE chat_sessions SET updated_at = now() WHERE id = 's'", &[]),
        ("UPDATE chat_sessions SET status = 'ended' WHERE id = 's'", &["b"]),
        ("DELETE FROM chat_sessions", &["b"]),
        ("DELETE FROM mitras WHERE id = 'c'", &["c"]),
        ("INSERT INTO app_config VALUES ('require_ping', 'false')", &["setting require_ping"]),
        ("BEGIN; UPDATE mitras SET is_active = true WHERE id = 'a'; ROLLBACK", &[]),
        ("TRUNCATE chat_sessions", &["gap"]),
    ];
    for (sql, told) in tries {
        b.sql(sql);
        assert_eq!(heard(&b, &mut listener).await, told, "{sql}");
    }
    // What lapsed does itself it tells the mirror itself.
    b.online("b").await;
    b.accept("u", "b", 3).await;
    b.truth.set_active(&name("b"), false).await.unwrap();
    assert_eq!(heard(&b, &mut listener).await, [""; 0]);
}

/// After every reconnection the listener reports that it may have missed something, and continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_g8_a_listener_that_was_cut_off_says_so() {
    let b = bench().await;
    b.there(&["a"]).await;
    let proxy = PostgresProxy::start(b.server.port()).unwrap();
    let through = lapsed_postgres::Postgres::new(&address(&proxy.url(&b.database))).unwrap();
    let mut listener = through.listen();
    assert_eq!(next(&mut listener).await, ChangeEvent::Gap);
    proxy.cut();
    b.sql("UPDATE mitras SET is_active = false WHERE id = 'a'");
    let mut all = vec![next(&mut listener).await];
    while all.last() != Some(&ChangeEvent::Gap) {
        all.push(next(&mut listener).await);
    }
    b.sql("UPDATE mitras SET is_active = true WHERE id = 'a'");
    assert_eq!(next(&mut listener).await, ChangeEvent::Provider(name("a")));
    assert_eq!(listener.more(10), []);
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                WHERE datname = current_database() AND query LIKE 'LISTEN%' AND pid <> pg_backend_pid()";
    assert_eq!(b.sql(kill), "1");
    assert_eq!(next(&mut listener).await, ChangeEvent::Gap);
}

/// More notifications than are taken in time become one gap, and use bounded memory.
#[tokio::test]
async fn a_slow_receiver_gets_a_gap() {
    let b = bench().await;
    let mut listener = b.postgres.listen_within(1);
    assert_eq!(next(&mut listener).await, ChangeEvent::Gap);
    // They arrive many at a time, and there is room for one.
    b.sql("INSERT INTO mitras (id) SELECT 'p' || n FROM generate_series(1, 15000) n");
    let mut heard = 0;
    while next(&mut listener).await != ChangeEvent::Gap {
        heard += 1;
        assert!(heard < 15_000, "no gap");
    }
}
