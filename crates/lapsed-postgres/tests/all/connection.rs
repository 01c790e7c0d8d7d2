//! Connections: limits, a server that comes and goes, TLS, and what is said of what went wrong.

use std::time::Duration;

use lapsed_availability::Truth;
use lapsed_core::store::Store;
use lapsed_core::{Error, Kind, SystemId};
use lapsed_postgres::{Layout, Postgres, PostgresAddress, Triggers};
use lapsed_testbed::{PostgresOptions, PostgresServer};

use crate::fixture::certificates::Certificates;
use crate::fixture::{Bench, address, eventually, name, system};

fn is_unavailable<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(Error::Unavailable { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

/// X1: a server that stands still delays no caller beyond the time limit, and is used again when it continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_x1_a_frozen_server_is_given_up_and_taken_up_again() {
    let b = Bench::alone().await;
    b.there(&["a"]).await;
    let limits = PostgresAddress {
        connect_timeout: Duration::from_millis(500),
        call_timeout: Duration::from_millis(500),
        ..PostgresAddress::new(&b.url())
    };
    let hasty = b.daemon(&limits);
    eventually("a first answer", async || hasty.count_online().await.is_ok()).await;
    b.server.freeze().unwrap();
    let what = is_unavailable(hasty.count_online().await);
    assert!(what.contains("may have been carried out"), "{what}");
    // Those that come next do not even get a connection.
    let what = is_unavailable(hasty.count_online().await);
    assert!(what.contains("cannot connect"), "{what}");
    b.server.thaw().unwrap();
    eventually("an answer", async || matches!(hasty.count_online().await, Ok(1))).await;
}

/// The limit also holds on the server: a statement whose caller has given up is cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_gives_up_as_well() {
    let b = Bench::new().await;
    b.there(&["a"]).await;
    let limits = PostgresAddress { call_timeout: Duration::from_millis(400), ..address(&b.url()) };
    let hasty = b.daemon(&limits);
    eventually("a first answer", async || hasty.count_online().await.is_ok()).await;
    let holding =
        b.hold("SELECT FROM mitra_online_status WHERE mitra_id = 'a' FOR UPDATE", 4.0).await;
    is_unavailable(hasty.beat(&[name("a")]).await);
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND wait_event_type = 'Lock'";
    eventually("the end of waiting", async || b.sql(waiting) == "0").await;
    assert!(!holding.is_finished(), "nobody waits, though the lock is still held");
    holding.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_killed_or_restarted_is_found_again() {
    let b = Bench::alone().await;
    b.there(&["a"]).await;
    // Several connections are open, and all of them are lost.
    let all = futures::future::join_all((0..6).map(|_| b.truth.count_online())).await;
    assert!(all.into_iter().all(|count| count.is_ok()));
    b.server.kill().unwrap();
    is_unavailable(b.truth.count_online().await);
    b.server.restart().unwrap();
    eventually("an answer", async || matches!(b.truth.count_online().await, Ok(1))).await;
    let incarnation = b.postgres.info().await.unwrap().incarnation;
    b.server.stop().unwrap();
    is_unavailable(b.truth.set_online(&name("a"), false).await);
    b.server.restart().unwrap();
    eventually("an answer", async || b.truth.count_online().await.is_ok()).await;
    assert_ne!(b.postgres.info().await.unwrap().incarnation, incarnation);
}

/// A call whose caller went away leaves neither a transaction nor a lock behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_call_is_rolled_back() {
    let b = Bench::new().await;
    b.there(&["a"]).await;
    let holding =
        b.hold("SELECT FROM mitra_online_status WHERE mitra_id = 'a' FOR UPDATE", 2.0).await;
    let id = name("a");
    let set = b.truth.set_online(&id, false);
    assert!(tokio::time::timeout(Duration::from_millis(300), set).await.is_err());
    holding.join().unwrap();
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND state <> 'idle' AND pid <> pg_backend_pid() AND application_name = 'lapsed'";
    eventually("the end of the transaction", async || b.sql(open) == "0").await;
    assert!(b.state("a").await.online);
    assert!(b.offline("a").await.changed);
}

#[tokio::test]
async fn missing_columns_are_named_with_what_to_do() {
    let server = PostgresServer::shared().unwrap();
    let database = server.database().unwrap();
    let postgres = Postgres::new(&address(&server.url(&database))).unwrap();
    let truth = postgres.availability(system(), Layout::default()).unwrap();
    let error = truth.settings().await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("mitras.id") && said.contains("lapsed schema apply"), "{said}");
    let error = postgres.brake_setting(&system()).await.unwrap_err().to_string();
    assert!(error.contains("lapsed_settings") && error.contains("lapsed schema apply"), "{error}");
    postgres.apply_schema(&Layout::default(), Triggers::Without).await.unwrap();
    truth.settings().await.unwrap();
    let other = SystemId::new(Kind::Registry, "x").unwrap();
    assert!(matches!(postgres.availability(other, Layout::default()), Err(Error::Invalid(_))));
}

#[tokio::test]
async fn a_missing_permission_is_reported_with_what_to_grant() {
    let b = Bench::new().await;
    b.there(&["a"]).await;
    let user = format!("reader_{}", b.database);
    b.sql(&format!(
        "CREATE ROLE {user} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}"
    ));
    let url = b.url().replace("lapsed@", &format!("{user}@"));
    let reader = b.daemon(&address(&url));
    assert_eq!(reader.count_online().await.unwrap(), 1);
    let what = is_unavailable(reader.set_online(&name("a"), false).await);
    assert!(what.contains("lacks a permission") && what.contains("lapsed_availability"), "{what}");
    b.sql(&format!("DROP OWNED BY {user}; DROP ROLE {user}"));
}

#[tokio::test]
async fn an_unreachable_server_and_a_missing_database_are_reported() {
    let nobody =
        Postgres::new(&PostgresAddress::new("postgres://me:secret@127.0.0.1:1/app")).unwrap();
    let what = is_unavailable(nobody.info().await);
    assert!(what.contains("cannot connect") && !what.contains("secret"), "{what}");
    let server = PostgresServer::shared().unwrap();
    let none = Postgres::new(&address(&server.url("none_such"))).unwrap();
    let what = is_unavailable(none.info().await);
    assert!(what.contains("none_such") && what.contains("CREATE DATABASE"), "{what}");
}

/// `sslmode` means what it means to libpq.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_as_strict_as_it_was_asked_to_be() {
    let made = Certificates::make();
    let options =
        PostgresOptions::default().tls(&made.read("server.pem"), &made.read("server.key"));
    let server = options.start().unwrap();
    let at = |host: &str, mode: &str, root: &str| {
        let url = format!("postgres://lapsed@{host}:{}/postgres?sslmode={mode}", server.port());
        match root {
            "" => url,
            root => format!("{url}&sslrootcert={}", made.path(root).display()),
        }
    };
    let tries = [
        (at("127.0.0.1", "disable", ""), Ok(false)),
        (at("127.0.0.1", "prefer", ""), Ok(true)),
        (at("127.0.0.1", "require", ""), Ok(true)),
        (at("127.0.0.1", "require", "ca.pem"), Ok(true)),
        (at("127.0.0.1", "require", "other.pem"), Err(())),
        (at("127.0.0.1", "verify-ca", "ca.pem"), Ok(true)),
        (at("127.0.0.1", "verify-ca", "other.pem"), Err(())),
        (at("localhost", "verify-full", "ca.pem"), Ok(true)),
        (at("127.0.0.1", "verify-full", "ca.pem"), Err(())),
        (at("localhost", "verify-full", ""), Err(())),
    ];
    for (url, wanted) in tries {
        let postgres = Postgres::new(&address(&url)).unwrap();
        match wanted {
            Err(()) => {
                let what = is_unavailable(postgres.info().await);
                assert!(what.contains("ertificate"), "{url}: {what}");
            }
            Ok(wanted) => {
                postgres.info().await.unwrap_or_else(|error| panic!("{url}: {error}"));
                let sql = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                           WHERE application_name = 'lapsed'";
                let mine = server.sql("postgres", sql).unwrap();
                assert_eq!(mine.lines().any(|ssl| ssl == "t"), wanted, "{url}: {mine}");
            }
        }
        drop(postgres);
        let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lapsed'";
        eventually("the end", async || server.sql("postgres", left).unwrap() == "0").await;
    }
    let plain = PostgresServer::shared().unwrap();
    let must =
        Postgres::new(&address(&format!("{}?sslmode=require", plain.url("postgres")))).unwrap();
    is_unavailable(must.info().await);
    let wrong = address(&at("127.0.0.1", "verify-ca", "none.pem"));
    assert!(matches!(Postgres::new(&wrong), Err(Error::Invalid(_))));
}
