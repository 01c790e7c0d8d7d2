//! Serves connections until the daemon stops. Only HTTP/1.1 is spoken, even if a dependency enables
//! HTTP/2 as well.
//!
//! A connection is closed if the client does not send a complete request head in time, be it the
//! first one or a later one. On stop, requests that are being handled are finished first. All
//! connections end with the task that serves them.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::serve::Listener;
use futures::future::{Either, select};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lapsed_core::schedule::StopSignal;
use tokio::task::{JoinHandle, JoinSet};
use tower_service::Service;

use super::front::RequestGate;
use crate::write_timeout::Cut;

/// How long a client may take to send a request head, which includes the idle time between two
/// requests. It is longer than most heartbeat intervals.
const HEAD_WITHIN: Duration = Duration::from_secs(75);

/// The task that serves connections; its result is how serving ended.
pub type Serving = JoinHandle<io::Result<()>>;

/// Accepts and serves connections until `stop`, then finishes the requests that are being handled.
pub fn serve<L>(mut listener: L, front: RequestGate, stop: StopSignal) -> Serving
where
    L: Listener<Addr = SocketAddr>,
    L::Io: Cut,
{
    tokio::spawn(async move {
        let mut open = JoinSet::new();
        loop {
            let accepted = {
                let (told, accept) = (pin!(stop.told()), pin!(listener.accept()));
                match select(told, accept).await {
                    Either::Left(_) => break,
                    Either::Right((accepted, _)) => accepted,
                }
            };
            let (io, peer) = accepted;
            let front = front.facing(peer, io.cut());
            open.spawn(converse(io, front, stop.clone()));
            // Connections that have ended are removed from the set when a new one arrives.
            while open.try_join_next().is_some() {}
        }
        drop(listener);
        while open.join_next().await.is_some() {}
        Ok(())
    })
}

/// Serves one connection from its first byte to its last.
async fn converse<I>(io: I, front: RequestGate, stop: StopSignal)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut front = front.clone();
        front.call(request.map(Body::new))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let mut connection = pin!(http.serve_connection(TokioIo::new(io), service));
    // Errors of the connection itself are not logged; failed requests are logged where they are
    // answered.
    if let Either::Right(_) = select(connection.as_mut(), pin!(stop.told())).await {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}
