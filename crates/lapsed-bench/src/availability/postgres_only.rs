//! The way before the mirror: everything is asked of PostgreSQL, by prepared statements.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lapsed_core::Name;
use lapsed_core::schedule::StopSignal;
use tokio_postgres::{Client, Statement};

use super::servers::{Database, SESSIONS_MAX, STALE_SECONDS};

/// A connection with its statements.
pub struct PostgresOnly {
    client: Client,
    available: Statement,
    count: Statement,
    provider: Statement,
    beat: Statement,
    offline: Statement,
}

/// How often things are done.
pub const PING: Duration = Duration::from_secs(30);
const OFFLINE: Duration = Duration::from_secs(30);
const BEACON: Duration = Duration::from_secs(10);

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../peers/availability/", $name, ".sql"))
    };
}

impl PostgresOnly {
    pub async fn connect(database: &Database) -> Result<PostgresOnly> {
        let client = database.connect().await?;
        Ok(PostgresOnly {
            available: client.prepare(sql!("available")).await?,
            count: client.prepare(sql!("count")).await?,
            provider: client.prepare(sql!("provider")).await?,
            beat: client.prepare(sql!("beat")).await?,
            offline: client.prepare(sql!("offline")).await?,
            client,
        })
    }

    /// Who can take work now.
    pub async fn available(&self) -> Result<Vec<(String, i64)>> {
        let stale = STALE_SECONDS as f64;
        let rows = self.client.query(&self.available, &[&SESSIONS_MAX, &stale]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn count(&self) -> Result<i64> {
        let stale = STALE_SECONDS as f64;
        Ok(self.client.query_one(&self.count, &[&SESSIONS_MAX, &stale]).await?.get(0))
    }

    async fn ping(&self, id: &str) -> Result<()> {
        let rows = self.client.query(&self.provider, &[&id]).await?;
        let row = rows.first().context("whoever pings is known")?;
        if row.get::<_, bool>(2) {
            self.client.execute(&self.beat, &[&id]).await?;
        }
        Ok(())
    }

    async fn set_offline(&self) -> Result<()> {
        self.client.query(&self.offline, &[&(STALE_SECONDS as f64)]).await?;
        Ok(())
    }
}

/// Runs these processes, each with one connection, until `stop`. Every provider pings at its time;
/// every process scans for silent providers and recomputes the beacon's count whenever its own has
/// expired.
pub async fn live(
    processes: Vec<PostgresOnly>,
    ids: Arc<Vec<Name>>,
    stop: StopSignal,
) -> Result<()> {
    let chores = processes.iter().map(|one| async {
        let offline = every(OFFLINE, &stop, |_| one.set_offline());
        let beacon = every(BEACON, &stop, |_| async { one.count().await.map(drop) });
        futures::future::try_join(offline, beacon).await.map(drop)
    });
    let pings = every(PING / ids.len() as u32, &stop, |turn| {
        let (id, process) = (&ids[turn % ids.len()], &processes[turn % processes.len()]);
        process.ping(id.as_str())
    });
    futures::future::try_join(futures::future::try_join_all(chores), pings).await.map(drop)
}

/// Calls a function at a steady pace until `stop`; its argument is the number of earlier calls.
pub async fn every<F>(
    pace: Duration,
    stop: &StopSignal,
    mut work: impl FnMut(usize) -> F,
) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let began = Instant::now();
    for turn in 0.. {
        let due = began + pace * (turn as u32 + 1);
        tokio::select! {
            () = stop.stopped() => break,
            () = tokio::time::sleep_until(due.into()) => work(turn).await?,
        }
    }
    Ok(())
}
