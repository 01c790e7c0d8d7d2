//! The schema: printed, applied, applied again, and hung on what is there.

use lapsed_postgres::{IdType, Layout, Postgres, Triggers, print_schema};
use lapsed_testbed::PostgresServer;

use crate::fixture::{Bench, address, layout};

#[tokio::test]
async fn it_is_applied_once_and_found_there_the_next_time() {
    let server = PostgresServer::shared().unwrap();
    let database = server.database().unwrap();
    let postgres = Postgres::new(&address(&server.url(&database))).unwrap();
    let first = postgres.apply_schema(&layout(), Triggers::Without).await.unwrap();
    assert_eq!((first.made.len(), first.kept.len(), first.triggers), (13, 0, 0));
    assert!(first.advice.is_empty());
    let again = postgres.apply_schema(&layout(), Triggers::With).await.unwrap();
    assert_eq!((again.made.len(), again.kept.len(), again.triggers), (0, 13, 16));
    assert!(again.advice.is_empty(), "{:?}", again.advice);
    let triggers = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal";
    assert_eq!(server.sql(&database, triggers).unwrap(), "16");
    postgres.apply_schema(&layout(), Triggers::With).await.unwrap();
    assert_eq!(server.sql(&database, triggers).unwrap(), "16");
}

/// What is printed does the same, as often as one likes, in any psql.
#[tokio::test]
async fn the_printed_schema_can_be_run_repeatedly() {
    let server = PostgresServer::shared().unwrap();
    for id_type in [IdType::Uuid, IdType::Text, IdType::Bigint] {
        let database = server.database().unwrap();
        let mut layout = Layout { id_type, ..Layout::default() };
        layout.sessions.table = "app.\"odd\" sessions".to_owned();
        server.sql(&database, "CREATE SCHEMA app").unwrap();
        let sql = print_schema("ops.lapsed_", &layout, Triggers::With);
        for _ in 0..2 {
            // One statement at a time, as psql reads a file.
            for statement in sql.split(";\n\n") {
                server.sql(&database, statement.trim_end_matches(";\n")).unwrap();
            }
        }
        let postgres = Postgres::new(&lapsed_postgres::PostgresAddress {
            prefix: "ops.lapsed_".to_owned(),
            ..address(&server.url(&database))
        });
        let applied = postgres.unwrap().apply_schema(&layout, Triggers::With).await.unwrap();
        assert!(applied.made.is_empty() && applied.advice.is_empty(), "{applied:?}");
    }
}

/// An index on a table that is in use is the application's business: it is named, not made.
#[tokio::test]
async fn a_missing_index_of_the_application_is_advised_and_not_created() {
    let server = PostgresServer::shared().unwrap();
    let database = server.database().unwrap();
    let theirs = "CREATE TABLE chat_sessions (id text PRIMARY KEY, mitra_id text, status text)";
    server.sql(&database, theirs).unwrap();
    let postgres = Postgres::new(&address(&server.url(&database))).unwrap();
    let applied = postgres.apply_schema(&layout(), Triggers::Without).await.unwrap();
    let [advice] = &applied.advice[..] else { panic!("{applied:?}") };
    assert!(
        advice.starts_with("CREATE INDEX CONCURRENTLY") && advice.contains("mitra_id"),
        "{advice}"
    );
    let columns = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'chat_sessions'::regclass \
                   AND attnum > 0";
    assert_eq!(server.sql(&database, columns).unwrap(), "3", "nothing was added to it");
    server.sql(&database, advice).unwrap();
    let again = postgres.apply_schema(&layout(), Triggers::Without).await.unwrap();
    assert!(again.advice.is_empty());
}

/// The count of a provider's sessions is looked up, however many sessions there are of others.
#[tokio::test]
async fn counting_sessions_uses_the_index() {
    let b = Bench::new().await;
    b.sql(
        "INSERT INTO chat_sessions (id, mitra_id, status) SELECT n::text, (n % 50)::text, \
           CASE WHEN n % 20 = 0 THEN 'active' ELSE 'ended' END FROM generate_series(1, 20000) n; \
           ANALYZE chat_sessions",
    );
    let plan = b.sql(
        "EXPLAIN SELECT count(*) FROM chat_sessions c WHERE c.mitra_id = '7' \
                      AND c.status IN ('active', 'pending_payment')",
    );
    assert!(plan.contains("lapsed_sessions_of_provider"), "{plan}");
}
