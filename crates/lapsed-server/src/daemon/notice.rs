//! Reports the daemon's state to a service manager by systemd's protocol: one datagram per message
//! to the socket that `NOTIFY_SOCKET` names. Without that variable nothing is sent.
//!
//! The watchdog message comes from a task on the runtime that also serves and sweeps. It therefore
//! stops when that runtime hangs, and continues while a store is away, which a restart would not
//! repair. A message that cannot be sent is logged and has no other effect.
//!
//! The protocol is implemented here because `sd-notify` 0.5 takes `@NAME`, an abstract socket, for
//! a path.

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
    /// Reads the socket and the watchdog interval from the environment.
    pub fn from_env() -> Notice {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| {
            let opened = address(name.as_bytes()).and_then(|to| Ok((UnixDatagram::unbound()?, to)));
            opened.inspect_err(|error| tracing::warn!("NOTIFY_SOCKET cannot be used: {error}")).ok()
        });
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let span = number("WATCHDOG_USEC").filter(|span| *span > 0 && is_ours);
        // Twice as often as required, so that one late message does no harm.
        let every = span.map(|span| Duration::from_micros(span) / 2);
        Notice { socket: socket.map(Arc::new), every }
    }

    /// Reports that the daemon accepts connections.
    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// Reports that the daemon is shutting down.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Sends watchdog messages, if the service manager asked for them, until the returned set is
    /// dropped.
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
            tracing::warn!("{message} could not be sent to the service manager: {error}");
        }
    }
}

/// The address of the socket: a path, or after `@` the name of an abstract socket.
fn address(name: &[u8]) -> std::io::Result<SocketAddr> {
    match name.strip_prefix(b"@") {
        Some(rest) => SocketAddr::from_abstract_name(rest),
        None => SocketAddr::from_pathname(std::path::Path::new(std::ffi::OsStr::from_bytes(name))),
    }
}
