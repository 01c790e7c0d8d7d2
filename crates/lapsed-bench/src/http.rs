//! Beats over HTTP with connections kept alive, against the same server's empty route.
//!
//! The server is the real `lapsed serve` on an embedded store, with the owners known and nothing
//! else to do. Both sides are asked by the same generator over the same connections.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench::{Bench, beside, progress};
use crate::http_load::{HttpLoad, request};
use crate::rounds::{Side, take_turns};
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "http";
const CONNECTIONS: usize = 32;
const OWNERS: usize = 1_000;

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let Some(binary) = binary()? else {
        table.skip(NAME, "build lapsed first (`cargo build --release`), or set LAPSED_BIN");
        return Ok(());
    };
    let server = HttpBenchServer::start(&binary, &bench.path("http"), "", "")?;
    progress(format!("asking {} over {CONNECTIONS} connections", server.address));
    let beats = Arc::new(beats());
    let empty = Arc::new(vec![request("GET", "/healthz", None)]);
    let runtime = &bench.runtime;
    let load = server.connect(bench)?;
    let load = std::cell::RefCell::new(load);
    runtime.block_on(load.borrow_mut().run(&beats, OWNERS.next_multiple_of(CONNECTIONS)))?;
    let ask = |what: &Arc<Vec<Vec<u8>>>| {
        runtime.block_on(load.borrow_mut().run(what, bench.sizes.requests))
    };
    let mut sides: Vec<Side<'_>> = vec![Box::new(|| ask(&beats)), Box::new(|| ask(&empty))];
    let figures = take_turns(bench.sizes.rounds, &mut sides)?;
    drop(sides);
    table.compare(
        NAME,
        format!("beats over {CONNECTIONS} connections"),
        Figure::per_second(figures.of(0)),
        ("GET /healthz", Figure::per_second(figures.of(1))),
        figures.ratio(0, 1),
        Some(FigureTarget::AtLeast(0.6)),
    );
    Ok(())
}

/// One beat of each owner.
fn beats() -> Vec<Vec<u8>> {
    let body = |i: usize| format!(r#"{{"owner":"instance-{i:06}"}}"#);
    let beat = |i| request("POST", "/v1/registry/default/beat", Some(&body(i)));
    (0..OWNERS).map(beat).collect()
}

/// `$LAPSED_BIN`, or `lapsed` beside this executable.
pub fn binary() -> Result<Option<PathBuf>> {
    let path = match std::env::var_os("LAPSED_BIN") {
        Some(path) => PathBuf::from(path),
        None => beside("lapsed")?,
    };
    Ok(path.is_file().then_some(path))
}

/// A daemon of our own; gone when dropped.
pub struct HttpBenchServer {
    pub child: Child,
    pub address: SocketAddr,
}

impl HttpBenchServer {
    /// With one registry; and these lines more for the server, and for the registry.
    pub fn start(binary: &Path, dir: &Path, server: &str, system: &str) -> Result<HttpBenchServer> {
        std::fs::create_dir_all(dir)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let config = dir.join("lapsed.toml");
        std::fs::write(&config, configuration(address, &dir.join("data"), server, system))?;
        let child = Command::new(binary)
            .arg("serve")
            .arg("-c")
            .arg(&config)
            .env("RUST_LOG", "warn")
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        Ok(HttpBenchServer { child, address })
    }

    /// Connects as soon as it listens.
    pub fn connect(&self, bench: &Bench) -> Result<HttpLoad> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match bench.runtime.block_on(HttpLoad::connect(self.address, CONNECTIONS)) {
                Ok(load) => return Ok(load),
                Err(error) if Instant::now() > deadline => {
                    bail!("the server does not listen on {}: {error}", self.address)
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for HttpBenchServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(address: SocketAddr, data: &Path, server: &str, system: &str) -> String {
    format!(
        r#"[server]
listen = "{address}"
{server}

[store.main]
url = "embedded:{}"

[[system]]
kind = "registry"
name = "default"
store = "main"
{system}
"#,
        data.display()
    )
}
