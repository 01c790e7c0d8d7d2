//! Connections: accepting them, serving HTTP on them until the daemon stops, and ending those whose
//! client does not keep up. Only HTTP/1.1 is spoken, even if a dependency enables HTTP/2 as well.
//!
//! A connection is closed if the client does not send a complete request head in time, be it the
//! first one or a later one. On stop, requests that are being handled are finished first. All
//! connections end with the task that serves them.
//!
//! A write that makes no progress for the configured time ends the connection, too. Otherwise a client
//! that neither reads nor disconnects would keep its buffers, and its slot among the listeners of the
//! event feed. Only writes are limited here, and there is a timer only while one is blocked; the time
//! limit of a request is that of `api::gate`.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::response::Response;
use axum::serve::Listener;
use futures::future::{Either, select};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use lapsed_core::schedule::StopSignal;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Sleep;

/// How long a client may take to send a request head, which includes the idle time between two
/// requests. It is longer than most heartbeat intervals.
const HEAD_WITHIN: Duration = Duration::from_secs(75);

/// About how much sent but unread data the kernel buffers per connection, in bytes.
const SEND_BUFFER: usize = 256 << 10;

/// The task that serves connections; its result is how serving ended.
pub type Serving = JoinHandle<io::Result<()>>;

/// Accepts and serves connections until `stop`, then finishes the requests that are being handled.
/// `answering` makes what answers the requests of one connection: it is told the client's address, and
/// the flag that reports that the write timeout ended the connection.
pub fn serve<L, S>(
    mut listener: L,
    answering: impl Fn(SocketAddr, CutFlag) -> S + Send + 'static,
    stop: StopSignal,
) -> Serving
where
    L: Listener<Addr = SocketAddr>,
    L::Io: Cut,
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Send + 'static,
    S::Future: Send,
{
    tokio::spawn(async move {
        let mut open = JoinSet::new();
        loop {
            let accepted = {
                let (told, accept) = (pin!(stop.stopped()), pin!(listener.accept()));
                match select(told, accept).await {
                    Either::Left(_) => break,
                    Either::Right((accepted, _)) => accepted,
                }
            };
            let (io, peer) = accepted;
            let answers = answering(peer, io.cut());
            open.spawn(converse(io, answers, stop.clone()));
            // Connections that have ended are removed from the set when a new one arrives.
            while open.try_join_next().is_some() {}
        }
        drop(listener);
        while open.join_next().await.is_some() {}
        Ok(())
    })
}

/// Serves one connection from its first byte to its last.
async fn converse<I, S>(io: I, answers: S, stop: StopSignal)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response, Error = Infallible>,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let mut connection = pin!(http.serve_connection(TokioIo::new(io), answers));
    // Errors of the connection itself are not logged; failed requests are logged where they are
    // answered.
    if let Either::Right(_) = select(connection.as_mut(), pin!(stop.stopped())).await {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

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
pub struct CutFlag(Arc<AtomicBool>);

impl CutFlag {
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that reports whether it was ended by the write timeout.
pub trait Cut {
    /// The flag that is set when the write timeout ends the connection.
    fn cut(&self) -> CutFlag;
}

impl<T> Cut for WriteTimeoutStream<T> {
    fn cut(&self) -> CutFlag {
        self.cut.clone()
    }
}

pub struct WriteTimeoutStream<T> {
    io: T,
    limit: Duration,
    cut: CutFlag,
    /// The timer that runs while a write is blocked.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<T> WriteTimeoutStream<T> {
    /// Wraps `io` so that a write that is blocked for longer than `limit` fails, which ends the
    /// connection.
    pub fn new(io: T, limit: Duration) -> WriteTimeoutStream<T> {
        WriteTimeoutStream { io, limit, cut: CutFlag::default(), stuck: None }
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
