//! The two servers, filled; and lapsed on them, as a daemon has it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use lapsed_availability::{Availability, AvailabilityParts};
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_postgres::{Layout, Postgres, PostgresAddress, Triggers};
use lapsed_redis::{MirrorLayout, Redis};
use lapsed_testbed::{PostgresOptions, PostgresServer};
use tokio_postgres::{Client, NoTls};

use crate::redis::BenchRedis;

/// The silence threshold and the session limit, the same on both sides. The threshold is the
/// longest allowed, so that no provider becomes silent during a measurement.
pub const STALE_SECONDS: u64 = 3_600;
pub const SESSIONS_MAX: i64 = 3;

pub struct AvailabilityServers {
    pub cache: BenchRedis,
    pub truth: PostgresServer,
}

/// What is in a database.
#[derive(Debug, Clone, Copy)]
pub struct Filling {
    pub providers: usize,
    pub sessions: usize,
    /// Whether the server is to log every statement.
    pub is_counted: bool,
}

/// A database in which all providers are online.
pub struct Database {
    pub name: String,
    pub url: String,
    pub providers: Arc<Vec<Name>>,
}

/// Lapsed on both stores, with connections of its own.
pub struct BenchDaemon {
    pub it: Arc<Availability>,
    pub redis: Redis,
}

impl AvailabilityServers {
    pub async fn new() -> Result<AvailabilityServers> {
        let cache = BenchRedis::new().await?;
        let options = PostgresOptions::default()
            .extra("shared_buffers", "256MB")
            .extra("max_wal_size", "1GB")
            .extra("log_line_prefix", "%m [%p] db=%d ");
        let truth = options.start().map_err(|error| anyhow!("{error}"))?;
        Ok(AvailabilityServers { cache, truth })
    }

    /// A database of its own with the tables of the original, as `lapsed schema apply` makes them, the index
    /// that the JOIN wants, and everybody online.
    pub async fn database(&self, filling: Filling) -> Result<Database> {
        let name = self.truth.database().map_err(|error| anyhow!("{error}"))?;
        let url = self.truth.url(&name);
        let postgres = Postgres::new(&PostgresAddress::new(&url))?;
        postgres.apply_schema(&Layout::default(), Triggers::Without).await?;
        self.sql(&name, &fill(filling))?;
        self.sql(&name, "VACUUM ANALYZE")?;
        let ids = self.sql(&name, "SELECT id FROM mitras ORDER BY id")?;
        let ids: lapsed_core::Result<Vec<Name>> = ids.lines().map(Name::new).collect();
        if filling.is_counted {
            self.sql(&name, &format!("ALTER DATABASE {name} SET log_statement = 'all'"))?;
        }
        Ok(Database { name, url, providers: Arc::new(ids?) })
    }

    pub fn sql(&self, database: &str, sql: &str) -> Result<String> {
        self.truth.sql(database, sql).map_err(|error| anyhow!("{error}"))
    }

    pub async fn daemon(&self, database: &Database, snapshot_ttl: Duration) -> Result<BenchDaemon> {
        let id = SystemId::new(Kind::Availability, &database.name)?;
        let redis = Redis::new(&lapsed_redis::RedisAddress::new(&self.cache.server.url()))?;
        let postgres = Postgres::new(&PostgresAddress::new(&database.url))?;
        let stale = Duration::from_secs(STALE_SECONDS);
        let layout = MirrorLayout::under(&database.prefix());
        let it = Availability::new(
            AvailabilityParts::new(
                id.clone(),
                Arc::new(postgres.availability(id.clone(), Layout::default())?),
                redis.mirror(id.clone(), layout, stale)?,
            )
            .brake(Arc::new(Brake::new(BrakePolicy::default(), stale)))
            .timeout(Duration::from_secs(30))
            .mirror_timeout(Duration::from_secs(5))
            .snapshot_ttl(snapshot_ttl),
        );
        it.ensure_seeded().await?;
        Ok(BenchDaemon { it, redis })
    }

    /// What the server has been asked in this database so far, by its own log.
    pub fn statements(&self, database: &Database) -> Vec<String> {
        let mark = format!(" db={} LOG:  ", database.name);
        let log = self.truth.log();
        let said = log.lines().filter_map(|line| Some(line.split_once(&mark)?.1));
        let statement = |line: &str| match line.split_once(": ") {
            Some(("statement", text)) => Some(text.to_owned()),
            Some((how, text)) if how.starts_with("execute ") => Some(text.to_owned()),
            _ => None,
        };
        said.filter_map(statement).collect()
    }
}

impl Database {
    /// What stands before every key of its mirror.
    pub fn prefix(&self) -> String {
        format!("{}:", self.name)
    }

    /// A plain connection, for the other side.
    pub async fn connect(&self) -> Result<Client> {
        let (client, connection) =
            tokio_postgres::connect(&self.url, NoTls).await.context("connecting to PostgreSQL")?;
        tokio::spawn(connection);
        Ok(client)
    }
}

/// Nearly all sessions are over, as they are in a table that has been in use: each provider has none, one or
/// two that occupy it.
fn fill(filling: Filling) -> String {
    let Filling { providers, sessions, .. } = filling;
    format!(
        "INSERT INTO app_config (key, value) VALUES ('stale_after_seconds', '{STALE_SECONDS}'), \
         ('max_customers_per_mitra', '{SESSIONS_MAX}');
         INSERT INTO mitras (display_name) SELECT 'mitra ' || i FROM generate_series(1, {providers}) i;
         INSERT INTO mitra_online_status (mitra_id, is_online, last_online_at, last_heartbeat_at) \
         SELECT id, true, now(), now() FROM mitras;
         INSERT INTO chat_sessions (mitra_id, status) SELECT m.id, CASE WHEN n <= m.at % 3 THEN 'active' \
         ELSE (ARRAY['ended', 'expired', 'cancelled'])[1 + n % 3] END \
         FROM (SELECT id, row_number() OVER () AS at FROM mitras) m \
         CROSS JOIN generate_series(1, {sessions} / {providers} + 1) n ORDER BY random() LIMIT {sessions};
         CREATE INDEX chat_sessions_of_mitra ON chat_sessions (mitra_id, status);"
    )
}
