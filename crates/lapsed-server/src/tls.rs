//! TLS for the listener.
//!
//! The certificate is read again whenever its files change; existing connections keep the one that
//! they began with. Handshakes run beside the listener, each with a time limit and a limited number
//! at a time, so that a client that connects and sends nothing delays no other. Client certificates
//! are not requested: tokens decide who may do what.

mod files;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::TcpStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

pub use files::{TlsFiles, authorities};

use crate::connections::{Cut, CutFlag, WriteTimeoutListener, WriteTimeoutStream};

/// The time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How many handshakes may run at a time. Further connections are closed; the client has to try
/// again.
const HANDSHAKES_MAX: usize = 1_024;

/// How often the certificate's files are checked for changes.
const LOOK: Duration = Duration::from_secs(2);

/// The certificate that new connections use.
#[derive(Clone)]
pub struct Current(Arc<RwLock<Arc<ServerConfig>>>);

impl Current {
    fn get(&self) -> Arc<ServerConfig> {
        self.0.read().expect("no holder of this lock panics").clone()
    }

    fn set(&self, config: Arc<ServerConfig>) {
        *self.0.write().expect("no holder of this lock panics") = config;
    }
}

/// Reads the certificate, and starts a task that follows changes of its files.
pub fn open(files: &TlsFiles) -> Result<Current, String> {
    let (config, seen) = files.read()?;
    let current = Current(Arc::new(RwLock::new(config)));
    let hangup = signal(SignalKind::hangup()).map_err(|e| format!("no signals: {e}"))?;
    tokio::spawn(follow(Arc::new(files.clone()), current.clone(), seen, hangup));
    Ok(current)
}

/// Checks the files at an interval and at every SIGHUP; never returns.
async fn follow(files: Arc<TlsFiles>, current: Current, mut seen: Vec<u8>, mut hangup: Signal) {
    let mut missing = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = hangup.recv() => {}
        }
        let (reader, before) = (files.clone(), seen.clone());
        let read = tokio::task::spawn_blocking(move || reader.read_unless(&before)).await;
        let read = read.unwrap_or_else(|e| Err(format!("reading the certificate: {e}")));
        match read {
            Ok(None) => missing = false,
            Ok(Some(pair)) => {
                (seen, missing) = (pair.digest, false);
                take_over(pair.config, &current);
            }
            // The error is logged once, not at every check.
            Err(error) if !missing => {
                missing = true;
                tracing::warn!("{error}; the certificate stays as it is");
            }
            Err(_) => {}
        }
    }
}

fn take_over(read: Result<Arc<ServerConfig>, String>, current: &Current) {
    match read {
        Ok(config) => {
            current.set(config);
            tracing::info!("a new certificate is in force");
        }
        Err(error) => tracing::warn!("{error}; the certificate stays as it is"),
    }
}

impl Cut for TlsStream<WriteTimeoutStream<TcpStream>> {
    fn cut(&self) -> CutFlag {
        self.get_ref().0.cut()
    }
}

/// A listener whose connections have completed their TLS handshake.
pub struct TlsListener {
    ready: mpsc::Receiver<(TlsStream<WriteTimeoutStream<TcpStream>>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    /// Accepts connections from `lines`, in a task on the current runtime, until it is dropped.
    pub fn new(lines: WriteTimeoutListener, current: Current) -> io::Result<TlsListener> {
        let address = lines.local_addr()?;
        let (shaken, ready) = mpsc::channel(64);
        tokio::spawn(accept_connections(lines, current, shaken));
        Ok(TlsListener { ready, address })
    }
}

type Shaken = mpsc::Sender<(TlsStream<WriteTimeoutStream<TcpStream>>, SocketAddr)>;

async fn accept_connections(mut lines: WriteTimeoutListener, current: Current, shaken: Shaken) {
    let room = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let (stream, peer) = tokio::select! {
            accepted = lines.accept() => accepted,
            () = shaken.closed() => return,
        };
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let (acceptor, shaken) = (TlsAcceptor::from(current.get()), shaken.clone());
        tokio::spawn(async move {
            let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
            drop(permit);
            match handshake {
                Ok(Ok(stream)) => drop(shaken.send((stream, peer)).await),
                Ok(Err(error)) => tracing::debug!(%peer, "no TLS with this client: {error}"),
                Err(_) => tracing::debug!(%peer, "no TLS with this client within {HANDSHAKE:?}"),
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<WriteTimeoutStream<TcpStream>>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(accepted) => accepted,
            // The task that accepts ends only after this listener.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
