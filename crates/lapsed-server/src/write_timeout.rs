//! Connections with a time limit on writes.
//!
//! A write that makes no progress for the configured time ends the connection. Otherwise a client
//! that neither reads nor disconnects would keep its buffers, and its slot among the listeners of
//! the event feed. Only writes are limited, and there is a timer only while one is blocked. The
//! time limit of a request is `http::request_timeout`.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;

/// About how much sent but unread data the kernel buffers per connection, in bytes.
const SEND_BUFFER: usize = 256 << 10;

pub struct WriteTimeoutListener {
    listener: TcpListener,
    stuck: Duration,
}

impl WriteTimeoutListener {
    /// Accepts connections that end when nothing can be written for as long as `stuck`.
    pub fn new(listener: TcpListener, stuck: Duration) -> WriteTimeoutListener {
        WriteTimeoutListener { listener, stuck }
    }
}

impl Listener for WriteTimeoutListener {
    type Io = WriteTimeoutStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (tcp, address) = Listener::accept(&mut self.listener).await;
        let _ = tcp.set_nodelay(true);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&tcp, SEND_BUFFER);
        (WriteTimeoutStream::new(tcp, self.stuck), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Whether a connection was ended because the client did not read.
#[derive(Clone, Debug, Default)]
pub struct WasCut(Arc<AtomicBool>);

impl WasCut {
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that reports whether it was ended by the write timeout.
pub trait Cut {
    /// The flag that is set when the write timeout ends the connection.
    fn cut(&self) -> WasCut;
}

impl<T> Cut for WriteTimeoutStream<T> {
    fn cut(&self) -> WasCut {
        self.cut.clone()
    }
}

pub struct WriteTimeoutStream<T> {
    io: T,
    limit: Duration,
    cut: WasCut,
    /// The timer that runs while a write is blocked.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<T> WriteTimeoutStream<T> {
    /// Wraps `io` so that a write that is blocked for longer than `limit` fails, which ends the
    /// connection.
    pub fn new(io: T, limit: Duration) -> WriteTimeoutStream<T> {
        WriteTimeoutStream { io, limit, cut: WasCut::default(), stuck: None }
    }

    fn judge<R>(
        &mut self,
        cx: &mut Context<'_>,
        tried: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if tried.is_ready() {
            self.stuck = None;
            return tried;
        }
        let limit = self.limit;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if stuck.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.cut.0.store(true, Ordering::Relaxed);
        let why = "the other side does not read";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let tried = Pin::new(&mut self.io).poll_write(cx, buf);
        self.judge(cx, tried)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let tried = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.judge(cx, tried)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tried = Pin::new(&mut self.io).poll_flush(cx);
        self.judge(cx, tried)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tried = Pin::new(&mut self.io).poll_shutdown(cx);
        self.judge(cx, tried)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn only_a_side_that_reads_nothing_is_cut_off() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut line = WriteTimeoutStream::new(ours, Duration::from_secs(2));
        let reading = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                theirs.read_exact(&mut [0; 4]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(line.write_all(&[1; 16]), reading);
        written.expect("it reads, if slowly");
        assert!(!line.cut().get());
        let error = line.write_all(&[1; 16]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(line.cut().get());
    }
}
