//! A TCP proxy in front of PostgreSQL that loses answers, is slow, or is cut.
//!
//! It reads along what the server says, message by message (without TLS: `sslmode=disable`), so that
//! exactly the answer meant is lost: the statement was carried out, and nobody is told.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::port::Port;
use crate::postgres::POSTGRES_USER;
use crate::{TestbedError, TestbedResult};

/// How many ports are tried when another process takes one first.
const PORTS_MAX: usize = 10;

/// A proxy on a port of its own. Dropping it cuts it for good.
pub struct PostgresProxy {
    port: Port,
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: u16,
    /// The command tags whose answers are to be lost, one each.
    losing: Mutex<Vec<String>>,
    lost: AtomicUsize,
    delay_us: AtomicU64,
    open: Mutex<Option<Vec<TcpStream>>>,
}

impl PostgresProxy {
    /// A proxy to the server on `upstream_port`.
    pub fn start(upstream_port: u16) -> TestbedResult<Self> {
        let shared = Arc::new(Shared {
            upstream: upstream_port,
            losing: Mutex::default(),
            lost: AtomicUsize::new(0),
            delay_us: AtomicU64::new(0),
            open: Mutex::new(Some(Vec::new())),
        });
        let mut last = TestbedError::new("no port tried");
        for _ in 0..PORTS_MAX {
            let port = Port::free()?;
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())) {
                Ok(listener) => {
                    accept(listener.try_clone()?, shared.clone());
                    return Ok(Self { port, listener, shared });
                }
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    pub fn url(&self, database: &str) -> String {
        let port = self.port.number();
        format!("postgres://{POSTGRES_USER}@127.0.0.1:{port}/{database}?sslmode=disable")
    }

    /// Loses the next answer that tells the end of such a command (`COMMIT`, `INSERT`, …): it is carried
    /// out, its answer is thrown away, and the connection is closed.
    pub fn lose(&self, command: &str) {
        locked(&self.shared.losing).push(command.to_owned());
    }

    /// How many answers were lost so far.
    pub fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// Delays every answer by this much from now on.
    pub fn delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.shared.delay_us.store(micros, Ordering::SeqCst);
    }

    /// Closes all connections that are open; new ones are let in.
    pub fn cut(&self) {
        if let Some(open) = locked(&self.shared.open).as_mut() {
            open.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
    }
}

impl Drop for PostgresProxy {
    fn drop(&mut self) {
        self.cut();
        *locked(&self.shared.open) = None;
        // Wakes the thread out of its `accept`.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

fn accept(listener: TcpListener, shared: Arc<Shared>) {
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let shared = shared.clone();
            thread::spawn(move || serve(client, &shared));
        }
    });
}

/// Both directions, until one of them ends.
fn serve(client: TcpStream, shared: &Arc<Shared>) -> Option<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.upstream)).ok()?;
    client.set_nodelay(true).ok()?;
    server.set_nodelay(true).ok()?;
    {
        let mut open = locked(&shared.open);
        let open = open.as_mut()?;
        open.push(client.try_clone().ok()?);
        open.push(server.try_clone().ok()?);
    }
    let (mut asking, mut asked) = (client.try_clone().ok()?, server.try_clone().ok()?);
    thread::spawn(move || {
        let _ = std::io::copy(&mut asking, &mut asked);
        let _ = asked.shutdown(Shutdown::Both);
    });
    answer(&server, &client, shared);
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
    Some(())
}

/// What the server says, a message at a time: a letter, a length, a body.
fn answer(mut server: &TcpStream, mut client: &TcpStream, shared: &Shared) -> Option<()> {
    loop {
        let mut message = vec![0; 5];
        server.read_exact(&mut message).ok()?;
        let length = u32::from_be_bytes([message[1], message[2], message[3], message[4]]);
        let body = usize::try_from(length).ok()?.checked_sub(4)?;
        message.resize(5 + body, 0);
        server.read_exact(&mut message[5..]).ok()?;
        thread::sleep(Duration::from_micros(shared.delay_us.load(Ordering::SeqCst)));
        if message[0] == b'C' && shared.loses(&message[5..]) {
            return None;
        }
        client.write_all(&message).ok()?;
    }
}

impl Shared {
    fn loses(&self, tag: &[u8]) -> bool {
        let mut losing = locked(&self.losing);
        let meant = losing.iter().position(|command| tag.starts_with(command.as_bytes()));
        let Some(meant) = meant else { return false };
        losing.remove(meant);
        self.lost.fetch_add(1, Ordering::SeqCst);
        true
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
