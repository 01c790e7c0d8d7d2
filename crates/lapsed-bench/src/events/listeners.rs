//! Listeners that do as little as possible: read, and remember the end of what was read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::bench::Bench;

const REQUEST: &[u8] = b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// What stands before the number of a receipt in the `id` of its event.
const BEFORE_ID: &[u8] = b"id: registry/default:";

/// As much as the socket gives at a time.
const BUFFER: usize = 256 << 10;

/// Connected, and each as far as it says.
pub struct Listeners {
    heard: Vec<Arc<AtomicU64>>,
    _tasks: JoinSet<()>,
}

impl Listeners {
    /// Connects, and waits until each was greeted.
    pub fn connect(bench: &Bench, address: SocketAddr, count: usize) -> Result<Listeners> {
        let _guard = bench.runtime.enter();
        let mut tasks = JoinSet::new();
        let mut heard = Vec::new();
        for _ in 0..count {
            let own = Arc::new(AtomicU64::new(u64::MAX));
            heard.push(own.clone());
            tasks.spawn(async move {
                // The error is seen by `until`, which then waits in vain.
                let _ = listen(address, &own).await;
            });
        }
        let listeners = Listeners { heard, _tasks: tasks };
        listeners.wait(Duration::from_secs(20), |seq| seq != u64::MAX)?;
        Ok(listeners)
    }

    /// Waits until all have heard of that receipt.
    pub fn until(&self, seq: u64, most: Duration) -> Result<()> {
        self.wait(most, |heard| heard >= seq)
    }

    fn wait(&self, most: Duration, done: impl Fn(u64) -> bool) -> Result<()> {
        let deadline = Instant::now() + most;
        let is_done = |own: &Arc<AtomicU64>| done(own.load(Ordering::Acquire));
        while !self.heard.iter().all(is_done) {
            if Instant::now() > deadline {
                let missing = self.heard.iter().filter(|own| !is_done(own)).count();
                bail!("{missing} listeners are not told in {most:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

async fn listen(address: SocketAddr, heard: &AtomicU64) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(REQUEST).await?;
    let mut buffer = vec![0; BUFFER];
    // An id may be cut in two: the end of what came before is kept in front.
    let mut kept = 0;
    loop {
        let read = stream.read(&mut buffer[kept..]).await?;
        if read == 0 {
            bail!("the server closed the stream");
        }
        let all = kept + read;
        if let Some(seq) = last_id(&buffer[..all]) {
            heard.store(seq, Ordering::Release);
        }
        let tail = all.min(64);
        buffer.copy_within(all - tail..all, 0);
        kept = tail;
    }
}

/// The number in the last whole id. Only the end is looked at: an event is shorter than this.
fn last_id(bytes: &[u8]) -> Option<u64> {
    let end = &bytes[bytes.len().saturating_sub(2 << 10)..];
    let starts = (0..end.len()).rev().filter(|start| end[*start..].starts_with(BEFORE_ID));
    starts.filter_map(|start| whole_number(&end[start + BEFORE_ID.len()..])).next()
}

/// A number with something after it.
fn whole_number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// Those that connect and never read.
pub struct NonReaders {
    _streams: Vec<std::net::TcpStream>,
}

impl NonReaders {
    pub fn connect(address: SocketAddr, count: usize) -> Result<NonReaders> {
        let connect = |_| {
            let mut stream = std::net::TcpStream::connect(address)?;
            std::io::Write::write_all(&mut stream, REQUEST)?;
            Ok(stream)
        };
        Ok(NonReaders { _streams: (0..count).map(connect).collect::<Result<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_id_counts() {
        assert_eq!(
            last_id(b"id: registry/default:41\ndata: x\n\nid: registry/default:4"),
            Some(41)
        );
        assert_eq!(last_id(b"id: registry/default:41\nid: registry/default:42\n"), Some(42));
        assert_eq!(last_id(b"data"), None);
    }
}
