//! Tells a service manager how the daemon is, by systemd's protocol: one datagram a message to the
//! socket that `NOTIFY_SOCKET` names. Where nobody asked, nothing is sent.
//!
//! The sign of life comes from a task of the same runtime that serves and sweeps: it stops when that
//! is stuck, and goes on while a store is away, which a restart would not mend. A message that cannot be
//! delivered is logged and changes nothing else.
//!
//! Written here because `sd-notify` 0.5 takes `@NAME`, a socket that is in no folder, for a path.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

#[derive(Clone)]
pub struct Notice {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
    every: Option<Duration>,
}

impl Notice {
    /// As the environment says.
    pub fn from_env() -> Notice {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| {
            let opened = address(name.as_bytes()).and_then(|to| Ok((UnixDatagram::unbound()?, to)));
            opened.inspect_err(|error| tracing::warn!("NOTIFY_SOCKET is of no use: {error}")).ok()
        });
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let span = number("WATCHDOG_USEC").filter(|span| *span > 0 && is_ours);
        // Twice as often as asked for, so that one late message costs nothing.
        let every = span.map(|span| Duration::from_micros(span) / 2);
        Notice { socket: socket.map(Arc::new), every }
    }

    /// It can be reached.
    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// It finishes what is under way.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Gives signs of life, if somebody wants them, until the answer is dropped.
    pub fn keep_alive(&self) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        if let (Some(every), Some(_)) = (self.every, &self.socket) {
            let notice = self.clone();
            tasks.spawn(async move {
                loop {
                    notice.send("WATCHDOG=1");
                    tokio::time::sleep(every).await;
                }
            });
        }
        tasks
    }

    fn send(&self, message: &str) {
        let Some((socket, to)) = self.socket.as_deref() else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), to) {
            tracing::warn!("the service manager was not told {message}: {error}");
        }
    }
}

/// A path, or after `@` a name that is in no folder.
fn address(name: &[u8]) -> std::io::Result<SocketAddr> {
    match name.strip_prefix(b"@") {
        Some(rest) => SocketAddr::from_abstract_name(rest),
        None => SocketAddr::from_pathname(std::path::Path::new(std::ffi::OsStr::from_bytes(name))),
    }
}
