//! A TCP proxy that knows nothing of what it carries. It cuts a connection after any number of bytes, in the
//! middle of whatever is being said, and leads to another server after a failover.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::port::Port;
use crate::{TestbedError, TestbedResult};

/// How many ports are tried when another process takes one first.
const PORTS_MAX: usize = 10;

/// A proxy on a port of its own. Dropping it closes all connections.
pub struct ByteProxy {
    port: Port,
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: AtomicU16,
    /// How many more bytes are carried, both directions together, before a connection is cut.
    budget: Mutex<Option<u64>>,
    cuts: AtomicU64,
    next: AtomicU64,
    links: Mutex<HashMap<u64, (TcpStream, TcpStream)>>,
}

impl ByteProxy {
    /// A proxy to the server on `upstream_port`, which need not be there yet.
    pub fn start(upstream_port: u16) -> TestbedResult<Self> {
        let shared = Arc::new(Shared {
            upstream: AtomicU16::new(upstream_port),
            budget: Mutex::default(),
            cuts: AtomicU64::new(0),
            next: AtomicU64::new(0),
            links: Mutex::default(),
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

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Cuts a connection once: the one that carries the last of the next `bytes` bytes, right after that
    /// byte. A cut that is still to come is replaced.
    pub fn cut_after(&self, bytes: u64) {
        *locked(&self.shared.budget) = Some(bytes);
    }

    /// How many connections were cut so far.
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// From now on it leads to another server, as an address does after a failover: all connections
    /// are closed, new ones go there.
    pub fn redirect(&self, upstream_port: u16) {
        self.shared.upstream.store(upstream_port, Ordering::SeqCst);
        self.close_all();
    }

    /// Closes all connections that are open; new ones are let in.
    pub fn close_all(&self) {
        locked(&self.shared.links).drain().for_each(|(_, link)| shut(&link));
    }
}

impl Drop for ByteProxy {
    fn drop(&mut self) {
        // Wakes the thread out of its `accept`.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.close_all();
    }
}

fn accept(listener: TcpListener, shared: Arc<Shared>) {
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let shared = shared.clone();
            thread::spawn(move || serve(&client, &shared));
        }
    });
}

/// Both directions, until one of them ends.
fn serve(client: &TcpStream, shared: &Arc<Shared>) -> TestbedResult<()> {
    let upstream = shared.upstream.load(Ordering::SeqCst);
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let number = shared.next.fetch_add(1, Ordering::SeqCst);
    locked(&shared.links).insert(number, (client.try_clone()?, server.try_clone()?));
    // The proxy was redirected meanwhile: a client that was let in before is disconnected.
    if shared.upstream.load(Ordering::SeqCst) == upstream {
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = carry(client, &server, shared);
                shared.close(number);
            });
            let _ = carry(&server, client, shared);
            shared.close(number);
        });
    }
    shared.close(number);
    Ok(())
}

fn carry(mut from: &TcpStream, mut to: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut chunk)?;
        if length == 0 {
            return Ok(());
        }
        let allowed = shared.allowed(length);
        to.write_all(&chunk[..allowed.unwrap_or(length)])?;
        if allowed.is_some() {
            return Ok(());
        }
    }
}

impl Shared {
    /// Takes `length` bytes out of the budget. If that uses it up: how many are still carried.
    fn allowed(&self, length: usize) -> Option<usize> {
        let mut budget = locked(&self.budget);
        let left = budget.as_mut()?;
        let carried = usize::try_from(*left).unwrap_or(usize::MAX);
        if carried > length {
            *left -= length as u64;
            return None;
        }
        *budget = None;
        self.cuts.fetch_add(1, Ordering::SeqCst);
        Some(carried)
    }

    fn close(&self, number: u64) {
        if let Some(link) = locked(&self.links).remove(&number) {
            shut(&link);
        }
    }
}

fn shut((client, server): &(TcpStream, TcpStream)) {
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::thread;

    use super::ByteProxy;

    /// A server that says everything again.
    fn echo() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
            }
        });
        port
    }

    #[test]
    fn a_connection_is_cut_after_exactly_that_byte_and_only_once() {
        let proxy = ByteProxy::start(echo()).unwrap();
        let mut said = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        said.write_all(b"before").unwrap();
        let mut heard = [0; 6];
        said.read_exact(&mut heard).unwrap();
        // Ten go there, and three of the ten come back.
        proxy.cut_after(13);
        said.write_all(b"0123456789").unwrap();
        let mut rest = Vec::new();
        let _ = said.read_to_end(&mut rest);
        assert_eq!(rest, b"012");
        assert_eq!(proxy.cuts(), 1);
        let mut again = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        again.write_all(&[7; 50]).unwrap();
        let mut heard = [0; 50];
        again.read_exact(&mut heard).unwrap();
        assert_eq!(proxy.cuts(), 1);
    }

    #[test]
    fn a_redirected_proxy_closes_what_led_to_the_old_server() {
        let (first, second) = (echo(), echo());
        let proxy = ByteProxy::start(first).unwrap();
        let mut old = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        old.write_all(b"x").unwrap();
        old.read_exact(&mut [0]).unwrap();
        proxy.redirect(second);
        let mut rest = Vec::new();
        let _ = old.read_to_end(&mut rest);
        assert!(rest.is_empty());
        let mut new = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        new.write_all(b"y").unwrap();
        new.read_exact(&mut [0]).unwrap();
    }
}
