//! A TCP proxy between a client and a server that loses answers, is slow, or is cut.
//!
//! It reads along: it knows where a request and where an answer ends, so that exactly the answer
//! meant is lost, also among pipelined ones. It counts one answer a request: a connection that
//! subscribes, monitors or switches answers off is beyond it once an answer is to be lost on it.

mod link;
mod losses;

use std::collections::HashMap;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use losses::Losses;

use crate::port::Port;
use crate::{TestbedError, TestbedResult};

/// How many ports are tried when another process takes one first.
const PORTS_MAX: usize = 10;

/// A proxy on a port of its own. Dropping it cuts it for good.
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    gate: Mutex<Option<Gate>>,
}

/// What the connections' threads and the test have in common.
struct Shared {
    upstream: AtomicU16,
    losses: Losses,
    delay_us: AtomicU64,
    links: Mutex<Links>,
}

/// The open connections, client side and server side.
#[derive(Default)]
struct Links {
    cut: bool,
    next: u64,
    open: HashMap<u64, (TcpStream, TcpStream)>,
}

/// The listening socket and the thread that accepts on it.
struct Gate {
    listener: TcpListener,
    thread: JoinHandle<()>,
}

impl Proxy {
    /// A proxy to the server on `upstream_port`, which need not be there yet.
    pub fn start(upstream_port: u16) -> TestbedResult<Self> {
        let shared = Arc::new(Shared {
            upstream: AtomicU16::new(upstream_port),
            losses: Losses::default(),
            delay_us: AtomicU64::new(0),
            links: Mutex::default(),
        });
        let mut last = TestbedError::new("no port tried");
        for _ in 0..PORTS_MAX {
            let port = Port::free()?;
            match Gate::open(port.number(), &shared) {
                Ok(gate) => return Ok(Self { port, shared, gate: Mutex::new(Some(gate)) }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port())
    }

    /// From now on it leads to another server, as an address does after a failover: all connections
    /// are closed, new ones go there.
    pub fn redirect(&self, upstream_port: u16) {
        self.shared.upstream.store(upstream_port, Ordering::SeqCst);
        self.shared.close_all();
    }

    /// Loses the answers to the next `n` requests, whichever they are (a client's handshake counts):
    /// each request is carried out, its answer is thrown away and its connection closed. Requests
    /// after it on that connection do not reach the server.
    pub fn drop_answers(&self, n: usize) {
        self.shared.losses.any(n);
    }

    /// Loses the answer to the next request that contains `part`, in any case; once a call.
    pub fn drop_answers_matching(&self, part: &str) {
        self.shared.losses.matching(part);
    }

    /// How many answers were lost so far.
    pub fn dropped(&self) -> usize {
        self.shared.losses.lost()
    }

    /// Delays every answer by this much from now on.
    pub fn delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.shared.delay_us.store(micros, Ordering::Relaxed);
    }

    /// Closes all connections and refuses new ones, until `mend`.
    pub fn cut(&self) {
        let gate = locked(&self.gate).take();
        self.shared.links().cut = true;
        if let Some(gate) = gate {
            gate.close();
        }
        self.shared.close_all();
    }

    /// Lets connections in again, on the same port. Nothing to do if it is not cut.
    pub fn mend(&self) -> TestbedResult<()> {
        let mut gate = locked(&self.gate);
        if gate.is_none() {
            self.shared.links().cut = false;
            *gate = Some(Gate::open(self.port(), &self.shared)?);
        }
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Gate {
    fn open(port: u16, shared: &Arc<Shared>) -> TestbedResult<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let (accepting, shared) = (listener.try_clone()?, Arc::clone(shared));
        let thread = thread::spawn(move || {
            while let Ok((client, _)) = accepting.accept() {
                let shared = Arc::clone(&shared);
                // Connecting on may take its time: not here, where others wait.
                thread::spawn(move || link::serve(client, &shared));
            }
        });
        Ok(Self { listener, thread })
    }

    /// Returns when the port is closed.
    fn close(self) {
        // Wakes the thread out of its `accept`.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let _ = self.thread.join();
    }
}

impl Shared {
    /// Notes a connection, unless the proxy was cut meanwhile; its number.
    fn note(&self, client: &TcpStream, server: &TcpStream) -> TestbedResult<u64> {
        let mut links = self.links();
        if links.cut {
            return Err(TestbedError::new("cut"));
        }
        let number = links.next;
        links.next += 1;
        links.open.insert(number, (client.try_clone()?, server.try_clone()?));
        Ok(number)
    }

    /// Closes a connection on both sides.
    fn close(&self, number: u64) {
        if let Some(link) = self.links().open.remove(&number) {
            shut(&link);
        }
    }

    fn close_all(&self) {
        self.links().open.drain().for_each(|(_, link)| shut(&link));
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us.load(Ordering::Relaxed))
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        locked(&self.links)
    }
}

fn shut((client, server): &(TcpStream, TcpStream)) {
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
