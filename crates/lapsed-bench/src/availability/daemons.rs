//! Real daemons: `lapsed serve`, several on the same two stores, asked over HTTP.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::future::{try_join, try_join_all};
use lapsed_core::Name;
use lapsed_core::schedule::StopSignal;
use tokio::sync::Mutex;

use super::postgres_only::{PING, every};
use super::servers::{AvailabilityServers, Database};
use crate::http_load::{HttpConnection, request};

/// What the system is called in the addresses.
const SYSTEM: &str = "mitras";
/// How often customers ask each daemon. A higher rate would not create more snapshots.
const ASKED: Duration = Duration::from_millis(500);

/// One of them; gone when dropped.
struct Daemon {
    child: Child,
    address: SocketAddr,
}

pub struct Daemons {
    running: Vec<Daemon>,
}

impl Daemons {
    /// So many, ready to be asked. `sweep`: how they share the work, as the configuration has it.
    pub async fn start(
        binary: &Path,
        dir: &Path,
        (site, database): (&AvailabilityServers, &Database),
        sweep: &str,
        count: usize,
    ) -> Result<Daemons> {
        std::fs::create_dir_all(dir)?;
        let mut running = Vec::new();
        for nth in 0..count {
            let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
            let config = dir.join(format!("{}-{nth}.toml", database.name));
            std::fs::write(&config, configuration(address, site, database, sweep))?;
            let log = std::fs::File::create(config.with_extension("log"))?;
            let child = Command::new(binary)
                .arg("serve")
                .arg("-c")
                .arg(&config)
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .with_context(|| format!("starting {}", binary.display()))?;
            running.push(Daemon { child, address });
        }
        let daemons = Daemons { running };
        for daemon in &daemons.running {
            let beacon = beacon();
            daemon.connect().await?.ask(&beacon).await?;
        }
        Ok(daemons)
    }

    /// Lets every provider ping the daemons in turn and customers ask all of them, until `stop`.
    pub async fn live(&self, ids: Arc<Vec<Name>>, stop: StopSignal) -> Result<()> {
        let connecting = self.running.iter().map(Daemon::connect);
        let connections: Vec<Mutex<HttpConnection>> =
            try_join_all(connecting).await?.into_iter().map(Mutex::new).collect();
        let pings = every(PING / ids.len() as u32, &stop, |turn| {
            let request = heartbeat(&ids[turn % ids.len()]);
            let connection = &connections[turn % connections.len()];
            async move { connection.lock().await.ask(&request).await }
        });
        let beacon = beacon();
        let asking = connections.iter().map(|connection| {
            every(ASKED, &stop, |_| async { connection.lock().await.ask(&beacon).await })
        });
        try_join(pings, try_join_all(asking)).await.map(drop)
    }
}

impl Daemon {
    /// As soon as it listens, which it does once the mirror is seeded.
    async fn connect(&self) -> Result<HttpConnection> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match HttpConnection::open(self.address).await {
                Ok(connection) => return Ok(connection),
                Err(error) if Instant::now() > deadline => {
                    bail!("the daemon does not listen on {}: {error}", self.address)
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn heartbeat(id: &Name) -> Vec<u8> {
    let path = format!("/v1/availability/{SYSTEM}/providers/{id}/heartbeat");
    // An empty body has a length, too.
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
    head.into_bytes()
}

fn beacon() -> Vec<u8> {
    request("GET", &format!("/v1/availability/{SYSTEM}/beacon"), None)
}

/// Everything as it comes, but for who sweeps.
fn configuration(
    address: SocketAddr,
    site: &AvailabilityServers,
    database: &Database,
    sweep: &str,
) -> String {
    format!(
        r#"[server]
listen = "{address}"

[store.truth]
url = "{truth}"

[store.cache]
url = "{cache}"

[[system]]
kind = "availability"
name = "{SYSTEM}"
store = "truth"
mirror = "cache"
prefix = "{prefix}daemons:"
sweep = {{ mode = "{sweep}" }}
"#,
        truth = database.url,
        cache = site.cache.server.url(),
        prefix = database.prefix(),
    )
}
